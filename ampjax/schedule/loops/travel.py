"""Travel: what follows when a dispatch is done: who is ready, who is answered, who ends."""

from __future__ import annotations

import numpy as np

from ampjax.schedule import columns as c
from ampjax.schedule.loops.compiled import entry, inner
from ampjax.schedule.loops.queues import line_of, push
from ampjax.schedule.loops.ranges import give_range


@entry
def done(t, messages, direction):
    """A dispatch's messages travel on, or are answered."""
    if direction == c.BACKWARD:
        answer(t, messages)
        for v in messages:
            end(t, v)
        return
    ends = len(messages) > 0 and t.stages[t.lines[line_of(t, messages[0]), c.STAGE], c.KIND] == c.ENDS
    if not ends:
        emit(t, messages)
    if ends or direction == c.INFER:
        answer(t, messages)


@inner
def emit(t, messages):
    """Messages travel on, port by port: whoever has all of its inputs is ready, and groups that are complete travel on themselves; who is owed nothing is answered."""
    if len(messages) == 0:
        return 0
    to, ranks = consumers(t, messages)
    complete = np.empty(len(to), np.int32)
    start = 0
    while start < len(to):
        stop, n_complete = start, 0
        while stop < len(to) and ranks[stop] == ranks[start]:
            if arrive(t, to[stop]):
                complete[n_complete] = to[stop]
                n_complete += 1
            stop += 1
        emit(t, complete[:n_complete])
        start = stop
    n_settled = 0
    settled = np.empty(len(messages), np.int32)
    for v in messages:
        if t.live[v, c.LEFT] == 0:
            settled[n_settled] = v
            n_settled += 1
    settle(t, settled[:n_settled])
    return 0


@inner
def consumers(t, messages):
    """Who consumes messages, in the order in which their ports are reached, and the ranks of these ports."""
    n = 0
    for v in messages:
        n += t.lines[line_of(t, v), c.N_OUT]
    to, ranks = np.empty(n, np.int32), np.empty(n, np.int32)
    at, highest, ordered = 0, 0, True
    for v in messages:
        line = t.lines[line_of(t, v)]
        base = t.instances[t.live[v, c.SLOT], c.LIVE]
        for e in range(line[c.OUT], line[c.OUT] + line[c.N_OUT]):
            to[at], ranks[at] = base + t.outputs[e, c.TO], t.outputs[e, c.RANK]
            ordered = ordered and ranks[at] >= highest
            highest = max(highest, ranks[at])
            at += 1
    if ordered:
        return to, ranks
    return by_rank(to, ranks, highest), by_rank(ranks, ranks, highest)


@inner
def by_rank(values, ranks, highest):
    """Values in the order of their ranks, of which `highest` is the highest; of equal rank as they stand."""
    starts = np.zeros(highest + 2, np.int64)
    for r in ranks:
        starts[r + 1] += 1
    for r in range(highest + 1):
        starts[r + 1] += starts[r]
    ordered = np.empty_like(values)
    for k in range(len(values)):
        ordered[starts[ranks[k]]] = values[k]
        starts[ranks[k]] += 1
    return ordered


@inner
def arrive(t, v):
    """One input more is there: if it was the last, the message is ready. Says whether it is a complete group."""
    t.live[v, c.NEED] -= 1
    if t.live[v, c.NEED] > 0:
        return False
    line = t.lines[line_of(t, v)]
    if t.stages[line[c.STAGE], c.KIND] == c.GROUPS:
        return True
    train = t.instances[t.live[v, c.SLOT], c.TRAIN]
    push(t, 3 * line[c.STAGE] + (c.FORWARD if train else c.INFER), v, line[c.ROWS])
    return False


@inner
def answer(t, messages):
    """A stage has answered its inputs: whose rows these were is owed one gradient less."""
    if len(messages) == 0:
        return
    settled = np.empty(len(messages), np.int32)
    for p in range(t.lines[line_of(t, messages[0]), c.N_IN]):
        n = 0
        for v in messages:
            owner = t.instances[t.live[v, c.SLOT], c.LIVE] + t.inputs[t.lines[line_of(t, v), c.IN] + p, c.FROM]
            t.live[owner, c.LEFT] -= 1
            if t.live[owner, c.LEFT] == 0:
                settled[n] = owner
                n += 1
        settle(t, settled[:n])


@inner
def settle(t, messages):
    """All who consume these messages have answered: they go back, or end; producer by producer, in the order in which these stand."""
    n_left = len(messages)
    while n_left > 0:
        stage = t.lines[line_of(t, messages[0]), c.STAGE]
        n_own, n_others = 0, 0
        own, others = np.empty(n_left, np.int32), np.empty(n_left, np.int32)
        for k in range(n_left):
            if t.lines[line_of(t, messages[k]), c.STAGE] == stage:
                own[n_own] = messages[k]
                n_own += 1
            else:
                others[n_others] = messages[k]
                n_others += 1
        if t.stages[stage, c.KIND] == c.GROUPS:
            settle(t, members_of(t, own[:n_own]))
        else:
            go_back(t, stage, own[:n_own])
        messages, n_left = others, n_others
    return 0


@inner
def go_back(t, stage, messages):
    """Messages of one stage or pump go back, or end."""
    for v in messages:
        if t.stages[stage, c.KIND] == c.COMPUTES and t.instances[t.live[v, c.SLOT], c.TRAIN]:
            push(t, 3 * stage + c.BACKWARD, v, t.lines[line_of(t, v), c.ROWS])
        else:
            end(t, v)


@inner
def members_of(t, groups):
    """Groups end: who is in them is owed one gradient less. Returns those that are owed none now."""
    n = 0
    for v in groups:
        n += t.lines[line_of(t, v), c.N_IN]
    settled = np.empty(n, np.int32)
    n = 0
    for v in groups:
        line, base = t.lines[line_of(t, v)], t.instances[t.live[v, c.SLOT], c.LIVE]
        for e in range(line[c.IN], line[c.IN] + line[c.N_IN]):
            owner = base + t.inputs[e, c.FROM]
            t.live[owner, c.LEFT] -= 1
            if t.live[owner, c.LEFT] == 0:
                settled[n] = owner
                n += 1
    for v in groups:
        end(t, v)
    return settled[:n]


@inner
def end(t, v):
    """A message's life ends: its slots are free; so is its instance's place, if it was the last."""
    i = t.live[v, c.SLOT]
    line = t.lines[line_of(t, v)]
    stage = t.stages[line[c.STAGE]]
    at = t.instances[i, c.ROWS_AT] + line[c.ROW]
    for o in range(stage[c.N_OUTPUTS]):
        arena = stage[c.ARENA + o]
        for _ in range(line[c.SIZE]):
            t.free[arena, t.n_free[arena]] = t.slots[at]
            t.n_free[arena] += 1
            at += 1
    t.instances[i, c.ALIVE] -= 1
    if t.instances[i, c.ALIVE] == 0:
        end_instance(t, i)


@inner
def end_instance(t, i):
    """An instance has ended: what it held can be given to another."""
    one = t.instances[i]
    give_range(t.ranges[0], t.live[:, c.NEXT], one[c.LIVE], one[c.LENGTH_OF])
    give_range(t.ranges[1], t.slots, one[c.ROWS_AT], one[c.N_ROWS])
    t.clock[c.N_TRAIN if one[c.TRAIN] else c.N_INFER] -= 1
    t.ended[t.clock[c.N_ENDED]] = i
    t.clock[c.N_ENDED] += 1
