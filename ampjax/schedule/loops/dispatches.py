"""Dispatches: the first messages of a queue, their slots, and the gradients that they bring."""

from __future__ import annotations

import numpy as np

from ampjax.schedule import columns as c
from ampjax.schedule.loops.choice import choose
from ampjax.schedule.loops.compiled import entry, inner
from ampjax.schedule.loops.queues import fitting, leave, line_of, oldest_first


@inner
def lacking(t, stage, out):
    """The arena that has too few free slots for `out` rows of each of a stage's outputs, and how many it needs; -1 if there are enough."""
    for o in range(stage[c.N_OUTPUTS]):
        arena, need = stage[c.ARENA + o], np.int64(0)
        for other in range(stage[c.N_OUTPUTS]):
            need += out if stage[c.ARENA + other] == arena else 0
        if need > t.n_free[arena]:
            return arena, need
    return np.int64(-1), np.int64(0)


@entry
def decide(t, worker, q, policy, due):
    """The next dispatch of a worker.

    Args:
      t: The tables.
      worker: The worker.
      q: The queue that a user's policy has chosen; -1 lets a policy of ours choose.
      policy: Its number.
      due: See `build`.

    Returns:
      What `build` gives; in place of a queue -1 if nothing waits for the worker, -2 if the policy wants it to wait.
    """
    if q < 0:
        q = choose(t, worker, policy)
    if q < 0:
        none = np.empty(0, np.int32)
        return q, np.int64(-1), np.int64(0), none, none, none, np.empty(0, np.int64), np.int64(0), 0
    return build(t, q, due)


@inner
def build(t, q, due):
    """The next dispatch of a queue.

    Args:
      t: The tables.
      q: The queue.
      due: `[nodes, 3]` int64, to be written: node, gradient rows and summed staleness of updates.

    Returns:
      The queue; an arena that has too few slots, or -1, and how many it needs: then nothing has been taken, and the rest is empty; messages `[n]`; their
      program lines `[n]`; slots of all ports and then of all outputs (flat); the rows of each of these; input rows; updates that are due.
    """
    queue, direction = t.queues[q], q % 3
    stage = t.stages[q // 3]
    if queue[c.WAITING] > queue[c.MAX_ROWS]:
        oldest_first(t, q)
    n, rows, out = fitting(t, q)
    goes_forth = direction != c.BACKWARD and stage[c.KIND] != c.ENDS
    if goes_forth:
        arena, need = lacking(t, stage, out)
        if arena >= 0:
            none = np.empty(0, np.int32)
            return q, arena, need, none, none, none, np.empty(0, np.int64), np.int64(0), 0
    messages, lines = np.empty(n, np.int32), np.empty(n, np.int32)
    unlink(t, q, rows, messages, lines)
    if goes_forth:
        give_slots(t, messages, lines)
    if direction == c.BACKWARD:
        t.queues[q - 1, c.UNDER_WAY] -= n
    elif goes_forth and direction == c.FORWARD:
        queue[c.UNDER_WAY] += n
        see(t, stage, messages)
    slots, sizes = pack(t, stage, messages, lines)
    n_due = 0
    if direction == c.BACKWARD or (direction == c.FORWARD and not goes_forth):
        n_due = gradients(t, stage, messages, lines, direction == c.BACKWARD, due)
    t.clock[c.NOW] += 1
    return q, np.int64(-1), np.int64(0), messages, lines, slots, sizes, rows, n_due


@inner
def unlink(t, q, rows, messages, lines):
    """Takes the first messages of a queue, which hold so many rows, and writes them and their program lines down."""
    queue, v = t.queues[q], t.queues[q, c.HEAD]
    for k in range(len(messages)):
        messages[k], lines[k] = v, line_of(t, v)
        v = np.int64(t.live[v, c.NEXT])
    queue[c.HEAD] = v
    queue[c.ITEMS] -= len(messages)
    queue[c.WAITING] -= rows
    queue[c.N_SORTED] = max(0, queue[c.N_SORTED] - len(messages))
    if queue[c.ITEMS] == 0:
        leave(t, q)


@inner
def give_slots(t, messages, lines):
    """Gives the outputs of messages slots."""
    for k in range(len(messages)):
        i = t.live[messages[k], c.SLOT]
        line = t.lines[lines[k]]
        stage = t.stages[line[c.STAGE]]
        at = t.instances[i, c.ROWS_AT] + line[c.ROW]
        for o in range(stage[c.N_OUTPUTS]):
            arena = stage[c.ARENA + o]
            for _ in range(line[c.SIZE]):
                t.n_free[arena] -= 1
                t.slots[at] = t.free[arena, t.n_free[arena]]
                at += 1


@inner
def see(t, stage, messages):
    """Notes the versions of a stage's parameters."""
    for p in range(stage[c.N_PARAMS]):
        version = t.nodes[t.params[stage[c.PARAMS] + p, c.NODE], c.VERSION]
        for v in messages:
            t.live[v, c.SEEN + p] = version


@inner
def pack(t, stage, messages, lines):
    """The slots of all ports' rows, port by port, then of all outputs' rows; and how many rows each of these has."""
    n_ports, n_outputs = stage[c.N_PORTS], stage[c.N_OUTPUTS]
    sizes = np.zeros(n_ports + n_outputs, np.int64)
    for k in range(len(messages)):
        line = t.lines[lines[k]]
        for p in range(n_ports):
            sizes[p] += t.inputs[line[c.IN] + p, c.LENGTH]
        for o in range(n_outputs):
            sizes[n_ports + o] += line[c.SIZE]
    total, at = 0, 0
    for n in sizes:
        total += n
    slots = np.empty(total, np.int32)
    for p in range(n_ports):
        for k in range(len(messages)):
            i = t.live[messages[k], c.SLOT]
            entry = t.inputs[t.lines[lines[k], c.IN] + p]
            base = t.instances[i, c.ROWS_AT]
            first = entry[c.FIRST]
            if first >= 0:
                for r in range(entry[c.LENGTH]):
                    slots[at + r] = t.slots[base + first + r]
            else:
                picks = t.instances[i, c.PICK] - first - 1
                for r in range(entry[c.LENGTH]):
                    slots[at + r] = t.slots[base + t.picks[picks + r]]
            at += entry[c.LENGTH]
    for o in range(n_outputs):
        for k in range(len(messages)):
            line = t.lines[lines[k]]
            row = t.instances[t.live[messages[k], c.SLOT], c.ROWS_AT] + line[c.ROW] + o * line[c.SIZE]
            for r in range(line[c.SIZE]):
                slots[at + r] = t.slots[row + r]
            at += line[c.SIZE]
    return slots, sizes


@inner
def gradients(t, stage, messages, lines, seen, due):
    """Counts gradient rows of a stage's nodes; returns how many updates are due, and writes them to `due`.

    Args:
      t: The tables.
      stage: The stage's line.
      messages: `[n]`: its messages.
      lines: `[n]`: their program lines.
      seen: Whether the messages have seen versions on their way forth; a loss sees those of now.
      due: See `build`.
    """
    n_due = 0
    for p in range(stage[c.N_PARAMS]):
        node, way = t.params[stage[c.PARAMS] + p, c.NODE], t.params[stage[c.PARAMS] + p, c.WAY]
        state = t.nodes[node]
        for k in range(len(messages)):
            v = messages[k]
            rows = np.int64(t.lines[lines[k], c.ROWS])
            if way >= 0:
                rows = np.int64(t.edges[t.instances[t.live[v, c.SLOT], c.PLACE], way])
            state[c.COUNT] += rows
            if seen:
                state[c.STALENESS] += rows * (state[c.VERSION] - t.live[v, c.SEEN + p])
        if state[c.INTERVAL] >= 0 and state[c.COUNT] >= state[c.INTERVAL]:
            due[n_due, 0], due[n_due, 1], due[n_due, 2] = node, state[c.COUNT], state[c.STALENESS]
            state[c.COUNT] = state[c.STALENESS] = 0
            state[c.VERSION] += 1
            n_due += 1
    return n_due
