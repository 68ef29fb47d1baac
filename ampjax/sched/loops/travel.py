"""Travel: what follows when a dispatch is done: who is ready, who is answered, who ends."""

from __future__ import annotations

import numpy as np

from ampjax.sched import columns as c
from ampjax.sched.columns import Tables
from ampjax.sched.loops.compiled import entry, inlined, inner
from ampjax.sched.loops.queues import line_of, push
from ampjax.sched.loops.ranges import give_live, give_rows

GONE = -1
"""What a message needs that has travelled on: of one that consumes it and becomes known later it is no missing input."""


@entry
def done(messages, direction, *tables):
    """A dispatch's messages travel on, or are answered."""
    travel(Tables(*tables), messages, direction)


@inner
def travel(t, messages, direction):
    """A dispatch's messages travel on, or are answered."""
    if len(messages) == 0:
        return
    if direction == c.BACKWARD:
        answer(t, messages)
        end_all(t, messages)
        return
    ends = t.stages[t.lines[line_of(t, messages[0]), c.STAGE], c.KIND] == c.ENDS
    if not ends:
        emit(t, messages)
    if ends or direction == c.INFER:
        answer(t, messages)


@inner
def emit(t, messages):
    """Messages travel on, port by port: whoever has all of its inputs is ready, and groups that are complete travel on themselves; who is owed nothing is answered."""
    if len(messages) == 0:
        return 0
    for v in messages:
        t.live[v, c.NEED] = GONE
    to, ranks = consumers(t, messages)
    complete = np.empty(len(to), np.int32)
    start = 0
    while start < len(to):
        stop, n_complete = start, 0
        while stop < len(to) and ranks[stop] == ranks[start]:
            v = to[stop]
            stop += 1
            t.live[v, c.NEED] -= 1
            if t.live[v, c.NEED] > 0:
                continue
            line = line_of(t, v)
            stage = t.lines[line, c.STAGE]
            if t.stages[stage, c.KIND] == c.GROUPS:
                complete[n_complete] = v
                n_complete += 1
            else:
                train = t.instances[t.live[v, c.SLOT], c.TRAIN]
                push(t, 3 * stage + (c.FORWARD if train else c.INFER), v, t.lines[line, c.ROWS])
        if n_complete:
            emit(t, complete[:n_complete])
        start = stop
    settle(t, without_consumers(t, messages))
    return 0


@inner
def without_consumers(t, messages):
    """Those of some messages that nobody consumes. Others may have been answered by now: a group that nobody consumes answers at once."""
    n = 0
    found = np.empty(len(messages), np.int32)
    for v in messages:
        if t.lines[line_of(t, v), c.OWED] == 0:
            found[n] = v
            n += 1
    return found[:n]


@inner
def consumers(t, messages):
    """Who consumes messages, in the order in which their ports are reached, and the ranks of these ports."""
    n = 0
    for v in messages:
        n += t.lines[line_of(t, v), c.N_OUT]
    to, ranks = np.empty(n, np.int32), np.empty(n, np.int32)
    at, highest, ordered = 0, 0, True
    for v in messages:
        line, base = line_of(t, v), t.instances[t.live[v, c.SLOT], c.LIVE]
        begin = t.lines[line, c.OUT]
        for e in range(begin, begin + t.lines[line, c.N_OUT]):
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
    ordered = np.empty(len(values), np.int32)
    for k in range(len(values)):
        ordered[starts[ranks[k]]] = values[k]
        starts[ranks[k]] += 1
    return ordered


@inner
def answer(t, messages):
    """A stage has answered its inputs: whose rows these were is owed one gradient less."""
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
    while len(messages) > 0:
        stage, n_own, n_others = t.lines[line_of(t, messages[0]), c.STAGE], 0, 0
        own, others = np.empty(len(messages), np.int32), np.empty(len(messages), np.int32)
        for v in messages:
            if t.lines[line_of(t, v), c.STAGE] == stage:
                own[n_own] = v
                n_own += 1
            else:
                others[n_others] = v
                n_others += 1
        if t.stages[stage, c.KIND] == c.GROUPS:
            settle(t, members_of(t, own[:n_own]))
        else:
            go_back(t, stage, own[:n_own])
        messages = others[:n_others]
    return 0


@inner
def go_back(t, stage, messages):
    """Messages of one stage or pump go back, or end."""
    if t.stages[stage, c.KIND] != c.COMPUTES or not t.instances[t.live[messages[0], c.SLOT], c.TRAIN]:
        end_all(t, messages)
        return
    for v in messages:
        push(t, 3 * stage + c.BACKWARD, v, t.lines[line_of(t, v), c.ROWS])


@inner
def members_of(t, groups):
    """Groups end: who is in them is owed one gradient less. Returns those that are owed none now."""
    n = 0
    for v in groups:
        n += t.lines[line_of(t, v), c.N_IN]
    settled = np.empty(n, np.int32)
    n = 0
    for v in groups:
        line, base = line_of(t, v), t.instances[t.live[v, c.SLOT], c.LIVE]
        begin = t.lines[line, c.IN]
        for e in range(begin, begin + t.lines[line, c.N_IN]):
            owner = base + t.inputs[e, c.FROM]
            t.live[owner, c.LEFT] -= 1
            if t.live[owner, c.LEFT] == 0:
                settled[n] = owner
                n += 1
    end_all(t, groups)
    return settled[:n]


@inner
def end_all(t, messages):
    """Messages' lives end: their slots are free; so are the places of instances of which these were the last."""
    for v in messages:
        i, line = t.live[v, c.SLOT], line_of(t, v)
        stage = t.lines[line, c.STAGE]
        at = t.instances[i, c.ROWS_AT] + t.lines[line, c.ROW]
        for o in range(t.stages[stage, c.N_OUTPUTS]):
            arena = t.stages[stage, c.ARENA + o]
            for _ in range(t.lines[line, c.SIZE]):
                t.free[arena, t.n_free[arena]] = t.slots[at]
                t.n_free[arena] += 1
                at += 1
        t.instances[i, c.ALIVE] -= 1
        if t.instances[i, c.ALIVE] == 0:
            end_instance(t, i)


@inlined
def end_instance(t, i):
    """An instance has ended: what it held can be given to another."""
    if t.instances[i, c.LENGTH_OF] >= 0:  # one for which nothing was ever pumped holds none
        give_live(t, t.instances[i, c.LIVE], t.instances[i, c.LENGTH_OF])
        give_rows(t, t.instances[i, c.ROWS_AT], t.instances[i, c.N_ROWS])
    t.clock[c.N_TRAIN if t.instances[i, c.TRAIN] else c.N_INFER] -= 1
    t.ended[t.clock[c.N_ENDED]] = i
    t.clock[c.N_ENDED] += 1
