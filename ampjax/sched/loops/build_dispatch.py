"""Dispatches: the first messages of a queue, and their slots."""

from __future__ import annotations

import numpy as np

from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables
from ampjax.sched.loops.choose import choose
from ampjax.sched.loops.compiled import entry, inlined
from ampjax.sched.loops.queues import (
    deactivate,
    differ,
    handle_of,
    line_of,
    oldest_first,
    put_alike_first,
    space_for,
)
from ampjax.sched.loops.travel import travel
from ampjax.sched.loops.versions import count_gradients, note_versions


@entry
def decide(
    worker,
    chosen,
    policy,
    ahead,
    spare,
    decided,
    pack,
    due,
    *tables,
):
    """Decides on a worker's next dispatch, or on several that are done as soon as decided.

    It stops where the caller must see to something: an instance has ended or may enter again, a payload must be read, replicas meet, nothing is ready, an arena or a buffer has no
    room.

    Args:
      worker: The worker.
      chosen: The queue of the first of them, which a user's policy has chosen; -1 lets a policy of ours choose.
      policy: Its number.
      ahead: At most so many that are done at once, but for one that reads payloads; 0 for one that is not.
      spare: `[arenas]`: slots that each may still get; empty where nothing is limited.
      decided: `[max(1, ahead) + 1, columns]` int64, to be written: a line for each dispatch, then one in whose column `Q` is why there are no more:
        0 or a reason, with an arena in `N_MESSAGES`, and what must be had in `N_ROWS_IN`.
      pack: int32, to be written: what each dispatch brings, as `packs` says.
      due: `[d, 4]` int64, to be written: node, gradient rows and summed staleness of updates, and the version that each makes.
      *tables: The tables.

    Returns:
      How many dispatches there are.
    """
    t = Tables(*tables)
    n = 0
    at = 0
    n_due = 0
    goes_on = True
    while goes_on and n < max(1, ahead) and (n == 0 or t.clock[c.N_ENDED] == 0):
        # A user's choice holds for the first dispatch only; this call decides on those that follow.
        if chosen >= 0 and n == 0:
            q = chosen
        else:
            q = choose(t, worker, policy, spare)
        decided[n, c.QUEUE] = q
        # Nothing to do, or no room: the reason is in the line already.
        if q < 0 or not try_build(
            t,
            q,
            spare,
            decided[n],
            pack[at:],
            due[n_due:],
        ):
            return n
        decided[n, c.PACK] = at
        decided[n, c.DUE] = n_due
        # A payload decides what follows, so the caller reads it before anything else is decided.
        if t.stages[q // c.N_DIRECTIONS, c.ASKS] and q % c.N_DIRECTIONS != c.BACKWARD:
            goes_on = False
        # What is done as soon as it is decided travels on at once, and the next dispatch may take
        # it.
        elif ahead:
            goes_on = not travel(
                t,
                pack[at : at + decided[n, c.N_MESSAGES]],
                q % c.N_DIRECTIONS,
            )
        # Where replicas meet at an update, the caller averages them first.
        for k in range(n_due, n_due + decided[n, c.N_DUE]):
            goes_on = goes_on and t.nodes[due[k, 0], c.MEETS] == 0
        # The next dispatch writes behind this one.
        at += decided[n, c.N_PACK]
        n_due += decided[n, c.N_DUE]
        n += 1
    # No reason: as many as were asked for, or the caller must see to something.
    decided[n, c.QUEUE] = 0
    return n


@inlined
def try_build(t, q, spare, decision, pack, due):
    """Takes the next dispatch from a queue and writes its line and its pack, if there is room.

    Args:
      t: The tables.
      q: The queue.
      spare: See `decide`.
      decision: A line for it.
      pack: See `decide`.
      due: See `decide`.

    Returns:
      Whether there was room. If not, nothing has been taken.
    """
    stage = q // c.N_DIRECTIONS
    direction = q % c.N_DIRECTIONS
    # Not all fit, so which ones go matters: the oldest instances.
    if t.queues[q, c.ITEM_ROWS] > t.queues[q, c.MAX_ROWS]:
        oldest_first(t, q)
    # Only forward dispatches of stages with outputs need slots.
    goes_forth = direction != c.BACKWARD and t.stages[stage, c.KIND] != c.ENDS
    most = t.queues[q, c.MAX_ITEMS]
    space = space_for(t, stage, spare) if goes_forth else np.int64(c.UNLIMITED)
    # Messages of one dispatch share weights, and what is dropped, so those like the first go before
    # the others.
    if direction == c.BACKWARD and (
        t.stages[stage, c.STASHES]
        or (
            t.stages[stage, c.DROPS]
            and differ(
                t,
                q,
            )
        )
    ):
        most = put_alike_first(t, q)
    # How many fit. Nothing is taken from the queue before all of it is known to have room.
    n, rows, out, inputs, follower = fit_messages(
        t,
        q,
        most,
        space,
        pack,
    )
    if goes_forth and lacks_slots(t, stage, out, decision):
        return False
    n_ports = t.stages[stage, c.N_PORTS]
    n_outputs = t.stages[stage, c.N_OUTPUTS]
    # The pack's length: padded if each message has one row for each port, else as it comes.
    size = np.int64(0)
    need = c.N_HEAD * n + n_ports + n_outputs + inputs + out * n_outputs
    if inputs == n_ports * n and (out == n or n_outputs == 0):
        size = padded_size(t, stage, n)
    if size:
        need = (c.N_HEAD + n_ports + n_outputs + 1) * size
    # Packs begin at multiples of 64 bytes. A padded one grows by whole lines, so that its shape
    # stays one of few.
    while need % c.ALIGNED:
        need += max(1, size)
    # The last of what may be missing; from here on everything fits.
    if need > len(pack) or len(due) < t.stages[stage, c.N_PARAMS]:
        decision[c.QUEUE] = c.BUFFER_FULL
        decision[c.N_ROWS_IN] = need
        return False
    # Now the messages leave their queue.
    unlink(t, q, n, rows, follower)
    # The head of the pack: messages, their program lines, their instances' numbers.
    width = max(n, size)
    messages = pack[:n]
    lines = pack[width : width + n]
    for k in range(n):
        lines[k] = line_of(t, messages[k])
        pack[2 * width + k] = t.instances[handle_of(t, messages[k]), c.ID]
    # Slots are given before they are written down below.
    if goes_forth:
        give_slots(t, stage, messages)
    # What is between its forward and its backward dispatch counts for 1F1B. The queue before a
    # backward one is the stage's forward one.
    if direction == c.BACKWARD:
        t.queues[q - 1, c.UNDER_WAY] -= n
    elif goes_forth and direction == c.FORWARD:
        t.queues[q, c.UNDER_WAY] += n
    # Versions are noted before gradients are counted: a loss sees the version that its own gradient
    # belongs to.
    if direction == c.FORWARD:
        note_versions(t, stage, messages)
    write_slots(
        t,
        stage,
        messages,
        lines,
        pack[c.N_HEAD * width :],
        size,
    )
    # Backward dispatches and losses bring gradients, and maybe updates.
    decision[c.N_DUE] = 0
    if direction == c.BACKWARD or (direction == c.FORWARD and not goes_forth):
        decision[c.N_DUE] = count_gradients(t, stage, messages, lines, due)
    count_dispatch(t, q, n, rows)
    # The number last: what was noted above counts as decided before it.
    t.clock[c.NOW] += 1
    decision[c.NUMBER] = t.clock[c.NOW]
    decision[c.N_MESSAGES] = n
    decision[c.N_ROWS_IN] = rows
    decision[c.N_PACK] = need
    decision[c.PADDED_SIZE] = size
    return True


@inlined
def padded_size(t, stage, n):
    """Finds the size to which a dispatch is padded.

    Returns:
      The size; 0 if padding waits until the dispatch is issued.
    """
    for k in range(c.SIZES, c.ARENA):
        # Sizes rise, so the first that holds all rows is the least. Zero ends the list.
        if t.stages[stage, k] >= n or t.stages[stage, k] == 0:
            return t.stages[stage, k]
    return np.int64(0)


@inlined
def fit_messages(t, q, most, space, pack):
    """Counts the first messages of a queue that make one dispatch, at least one.

    Args:
      t: The tables.
      q: The queue.
      most: Messages at most.
      space: Rows of each output at most.
      pack: The messages are written to its beginning, as far as there is room.

    Returns:
      The messages; their input rows; the rows of each of their outputs; the rows of all ports together; and who stands behind them.
    """
    n = 0
    rows = np.int64(0)
    out = np.int64(0)
    inputs = np.int64(0)
    v = t.queues[q, c.HEAD]
    most_rows = t.queues[q, c.MAX_IN]
    most_out = min(t.queues[q, c.MAX_OUT], space)
    while v >= 0:
        line = line_of(t, v)
        more_rows = rows + t.lines[line, c.IN_ROWS]
        more_out = out + t.lines[line, c.OUT_ROWS]
        # The first goes in any case: a message that is too large by itself must get through.
        if n > 0 and (more_rows > most_rows or n == most or more_out > most_out):
            break
        # If the pack is too short, counting goes on: the caller learns how long it must be.
        if n < len(pack):
            pack[n] = v
        for e in range(
            t.lines[line, c.FIRST_INPUT], t.lines[line, c.FIRST_INPUT] + t.lines[line, c.N_IN]
        ):
            inputs += t.inputs[e, c.LENGTH]
        n += 1
        rows = more_rows
        out = more_out
        v = np.int64(t.live[v, c.NEXT])
    return n, rows, out, inputs, v


@inlined
def count_dispatch(t, q, n, rows):
    """Counts a dispatch of a queue for statistics."""
    t.queues[q, c.DISPATCHES] += 1
    t.queues[q, c.TAKEN] += n
    t.queues[q, c.TAKEN_ROWS] += rows
    t.queues[q, c.MOST_TAKEN] = max(
        t.queues[q, c.MOST_TAKEN],
        n,
    )
    t.queues[q, c.MOST_TAKEN_ROWS] = max(
        t.queues[q, c.MOST_TAKEN_ROWS],
        rows,
    )


@inlined
def lacks_slots(t, stage, out, decision):
    """Tells whether an arena has too few free slots for a stage's outputs.

    Args:
      t: The tables.
      stage: The stage.
      out: Rows of each output.
      decision: The dispatch's line: if slots are missing, the arena and how many are needed are written to it.
    """
    for o in range(t.stages[stage, c.N_OUTPUTS]):
        arena = t.stages[stage, c.ARENA + o]
        need = np.int64(0)
        # Outputs that share an arena need their slots together.
        for other in range(t.stages[stage, c.N_OUTPUTS]):
            need += out if t.stages[stage, c.ARENA + other] == arena else 0
        # The dispatch's line says which arena must grow, and to how many.
        if need > t.free[arena, c.N_FREE]:
            decision[c.QUEUE] = c.ARENA_FULL
            decision[c.N_MESSAGES] = arena
            decision[c.N_ROWS_IN] = need
            return True
    return False


@inlined
def unlink(t, q, n, rows, follower):
    """Takes the first messages of a queue.

    Args:
      t: The tables.
      q: The queue.
      n: How many messages.
      rows: How many input rows they have.
      follower: The message behind them, or -1.
    """
    t.queues[q, c.HEAD] = follower
    t.queues[q, c.ITEMS] -= n
    t.queues[q, c.ITEM_ROWS] -= rows
    # The sorted ones stand first, so they are taken first.
    t.queues[q, c.N_SORTED] = max(
        0,
        t.queues[q, c.N_SORTED] - n,
    )
    # Its worker has one queue less to choose from.
    if t.queues[q, c.ITEMS] == 0:
        deactivate(t, q)


@inlined
def give_slots(t, stage, messages):
    """Gives the outputs of messages slots.

    Args:
      t: The tables.
      stage: Their stage.
      messages: `[n]`: the messages.
    """
    for o in range(t.stages[stage, c.N_OUTPUTS]):
        arena = t.stages[stage, c.ARENA + o]
        n = np.int64(t.free[arena, c.N_FREE])
        # From the end of the free list: the slots that were freed last are used first.
        for v in messages:
            line = line_of(t, v)
            size = np.int64(t.lines[line, c.OUT_ROWS])
            at = t.instances[handle_of(t, v), c.FIRST_SLOT] + t.lines[line, c.ROW] + o * size
            for r in range(size):
                n -= 1
                t.slots[at + r] = t.free[arena, c.FREE + n]
        # Written once for each output; outputs that share an arena go on from there.
        t.free[arena, c.N_FREE] = n


@inlined
def write_slots(t, stage, messages, lines, pack, size):
    """Writes the slots of a dispatch's rows, port by port and output by output: padded, or else the lengths of ports and outputs and then the slots.

    Args:
      t: The tables.
      stage: The stage.
      messages: `[n]`: the messages.
      lines: `[n]`: their program lines.
      pack: int32, to be written.
      size: The padded size; 0 if the dispatch is not padded.
    """
    n_ports = t.stages[stage, c.N_PORTS]
    n_outputs = t.stages[stage, c.N_OUTPUTS]
    # Without padding, lengths of ports and outputs come first.
    at = np.int64(0) if size else n_ports + n_outputs
    for p in range(n_ports):
        start = at
        for k in range(len(messages)):
            i = handle_of(t, messages[k])
            e = t.lines[np.uint32(lines[k]), c.FIRST_INPUT] + p
            base = t.instances[i, c.FIRST_SLOT]
            # An input is a run of its instance's rows, or a list of picks.
            first = t.inputs[e, c.FIRST_ROW]
            if first >= 0:
                for r in range(t.inputs[e, c.LENGTH]):
                    pack[at + r] = t.slots[base + first + r]
            else:
                picks = t.instances[i, c.FIRST_PICK] - first - 1
                for r in range(t.inputs[e, c.LENGTH]):
                    pack[at + r] = t.slots[base + t.picks[picks + r]]
            at += t.inputs[e, c.LENGTH]
        # What has just been written, or else padding up to the size.
        if size == 0:
            pack[p] = at - start
        # Padding reads the port's first row once more: finite numbers, whose results go to the
        # trash slot.
        while at < start + size:
            pack[at] = pack[start]
            at += 1
    # Outputs have slots by now, row by row behind each other.
    for o in range(n_outputs):
        start = at
        for k in range(len(messages)):
            rows = t.lines[lines[k], c.OUT_ROWS]
            row = (
                t.instances[handle_of(t, messages[k]), c.FIRST_SLOT]
                + t.lines[lines[k], c.ROW]
                + o * rows
            )
            for r in range(rows):
                pack[at + r] = t.slots[row + r]
            at += rows
        if size == 0:
            pack[n_ports + o] = at - start
        # Padding is written to the trash slot.
        while at < start + size:
            pack[at] = c.TRASH
            at += 1
    # A padded kernel is told how many of its lines are real.
    if size:
        pack[at] = len(messages)
