"""Travel: what follows when a dispatch is done: who is ready, who is answered, who ends.

Messages that travel on together are a list through `TOGETHER`; those that are answered, and are in no queue yet, one through `NEXT`. A list ends with -1.
"""

from __future__ import annotations

import numpy as np

from ampjax.schedule import columns as c
from ampjax.schedule.columns import Tables
from ampjax.schedule.loops.compiled import entry, inlined, inner
from ampjax.schedule.loops.queues import push
from ampjax.schedule.loops.ranges import give_live, give_rows

GONE = -1
"""What a message needs that has travelled on: of one that consumes it and becomes known later it is no missing input."""

NO_RANK = 1 << 30
"""More than any rank."""


@entry
def done(messages, direction, *tables):
    """A dispatch's messages travel on, or are answered."""
    if len(messages) > 0:
        travel(Tables(*tables), messages, direction)


@inlined
def travel(t, messages, direction):
    """A dispatch's messages travel on, or are answered."""
    if direction == c.BACKWARD:
        answer(t, messages)
        for v in messages:
            end(t, np.int64(v))
        return
    ends = t.stages[t.lines[t.live[messages[0], c.INVOCATION], c.STAGE], c.KIND] == c.ENDS
    if not ends:
        emit(t, linked(t, messages))
    if ends or direction == c.INFER:
        answer(t, messages)


@inlined
def linked(t, messages):
    """Messages as a list: its first."""
    head = np.int64(-1)
    for k in range(len(messages) - 1, -1, -1):
        t.live[messages[k], c.TOGETHER] = head
        head = np.int64(messages[k])
    return head


@inner
def emit(t, head):
    """A list of messages travels on, port by port: whoever has all of its inputs is ready, and groups that are complete travel on themselves; who is owed nothing is answered."""
    rank, v = np.int64(NO_RANK), head
    while v >= 0:
        t.live[v, c.NEED] = GONE
        line = t.live[v, c.INVOCATION]
        if t.lines[line, c.N_OUT] > 0:
            rank = min(rank, np.int64(t.outputs[t.lines[line, c.OUT], c.RANK]))
        v = np.int64(t.live[v, c.TOGETHER])
    while rank < NO_RANK:
        rank, complete = reach(t, head, rank)
        if complete >= 0:
            emit(t, complete)
    settle(t, unconsumed(t, head))
    return 0


@inlined
def reach(t, head, rank):
    """Those who consume a list of messages at ports of this rank have one input more; returns the next rank, and a list of groups that are complete."""
    following, first, last, v = np.int64(NO_RANK), np.int64(-1), np.int64(-1), head
    while v >= 0:
        line, i = t.live[v, c.INVOCATION], t.live[v, c.SLOT]
        begin = t.lines[line, c.OUT]
        for e in range(begin, begin + t.lines[line, c.N_OUT]):  # by rank
            own = np.int64(t.outputs[e, c.RANK])
            if own > rank:
                following = min(following, own)
                break
            if own < rank:
                continue
            to = t.instances[i, c.LIVE] + t.outputs[e, c.TO]
            t.live[to, c.NEED] -= 1
            if t.live[to, c.NEED] > 0:
                continue
            at = t.live[to, c.INVOCATION]
            stage = np.int64(t.lines[at, c.STAGE])
            if t.stages[stage, c.KIND] != c.GROUPS:
                push(t, 3 * stage + (c.FORWARD if t.instances[i, c.TRAIN] else c.INFER), to, t.lines[at, c.ROWS])
                continue
            t.live[to, c.TOGETHER] = -1
            if last < 0:
                first = to
            else:
                t.live[last, c.TOGETHER] = to
            last = to
        v = np.int64(t.live[v, c.TOGETHER])
    return following, first


@inlined
def unconsumed(t, head):
    """Those of a list of messages that nobody consumes. Others may have been answered by now: a group that nobody consumes answers at once."""
    first, last, v = np.int64(-1), np.int64(-1), head
    while v >= 0:
        if t.lines[t.live[v, c.INVOCATION], c.OWED] == 0:
            first, last = appended(t, first, last, v)
        v = np.int64(t.live[v, c.TOGETHER])
    return first


@inlined
def appended(t, first, last, v):
    """A list of answered messages with one more: its first and its last."""
    t.live[v, c.NEXT] = -1
    if last < 0:
        return v, v
    t.live[last, c.NEXT] = v
    return first, v


@inner
def answer(t, messages):
    """A stage has answered its inputs: whose rows these were is owed one gradient less."""
    for p in range(t.lines[t.live[messages[0], c.INVOCATION], c.N_IN]):
        first = last = np.int64(-1)
        for v in messages:
            owner = (
                t.instances[t.live[v, c.SLOT], c.LIVE] + t.inputs[t.lines[t.live[v, c.INVOCATION], c.IN] + p, c.FROM]
            )
            t.live[owner, c.LEFT] -= 1
            if t.live[owner, c.LEFT] == 0:
                first, last = appended(t, first, last, owner)
        if first >= 0:
            settle(t, first)


@inner
def settle(t, head):
    """All who consume a list of messages have answered: they go back, or end; producer by producer, in the order in which these stand."""
    while head >= 0:
        stage = np.int64(t.lines[t.live[head, c.INVOCATION], c.STAGE])
        own = last = others = last_other = np.int64(-1)
        while head >= 0:
            follower = np.int64(t.live[head, c.NEXT])
            if t.lines[t.live[head, c.INVOCATION], c.STAGE] == stage:
                own, last = appended(t, own, last, head)
            else:
                others, last_other = appended(t, others, last_other, head)
            head = follower
        if t.stages[stage, c.KIND] == c.GROUPS:
            settle(t, members_of(t, own))
        else:
            go_back(t, stage, own)
        head = others
    return 0


@inlined
def go_back(t, stage, head):
    """A list of messages of one stage or pump goes back, or ends."""
    back = t.stages[stage, c.KIND] == c.COMPUTES and t.instances[t.live[head, c.SLOT], c.TRAIN] != 0
    while head >= 0:
        follower = np.int64(t.live[head, c.NEXT])
        if back:
            push(t, 3 * stage + c.BACKWARD, head, t.lines[t.live[head, c.INVOCATION], c.ROWS])
        else:
            end(t, head)
        head = follower


@inlined
def members_of(t, head):
    """A list of groups ends: who is in them is owed one gradient less. Returns those that are owed none now."""
    first, last, v = np.int64(-1), np.int64(-1), head
    while v >= 0:
        line, base = t.live[v, c.INVOCATION], t.instances[t.live[v, c.SLOT], c.LIVE]
        begin = t.lines[line, c.IN]
        for e in range(begin, begin + t.lines[line, c.N_IN]):
            owner = base + t.inputs[e, c.FROM]
            t.live[owner, c.LEFT] -= 1
            if t.live[owner, c.LEFT] == 0:
                first, last = appended(t, first, last, owner)
        v = np.int64(t.live[v, c.NEXT])
    while head >= 0:
        follower = np.int64(t.live[head, c.NEXT])
        end(t, head)
        head = follower
    return first


@inlined
def end(t, v):
    """A message's life ends: its slots are free; so is its instance's place, if it was the last there."""
    i, line = np.int64(t.live[v, c.SLOT]), t.live[v, c.INVOCATION]
    stage, size = t.lines[line, c.STAGE], t.lines[line, c.SIZE]
    at = t.instances[i, c.ROWS_AT] + t.lines[line, c.ROW]
    for o in range(t.stages[stage, c.N_OUTPUTS]):
        arena = t.stages[stage, c.ARENA + o]
        for r in range(size):
            t.free[arena, t.n_free[arena] + r] = t.slots[at + r]
        t.n_free[arena] += size
        at += size
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
