"""The scheduler's inner loops: plain functions over arrays of integers, compiled by Numba.

Who imports this module imports Numba, so a scheduler does when it is made, not before. With `NUMBA_DISABLE_JIT=1` the same functions run uncompiled.

Messages are lines of `live`; `t` is always the `Tables`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ampjax.schedule import columns as c

compiled = njit(cache=True)


@compiled
def line_of(t, v):
    """The line of a message's program."""
    i = t.live[v, c.SLOT]
    return t.instances[i, c.LINE] + v - t.instances[i, c.LIVE]


# -- queues: lists through `live`


@compiled
def push(t, q, v, rows):
    """Puts a message at the end of a queue."""
    queue = t.queues[q]
    t.live[v, c.NEXT], t.live[v, c.BORN] = -1, t.clock[c.NOW]
    if queue[c.ITEMS] == 0:
        queue[c.HEAD] = v
    else:
        t.live[queue[c.TAIL], c.NEXT] = v
    queue[c.TAIL] = v
    queue[c.ITEMS] += 1
    queue[c.WAITING] += rows
    queue[c.LONGEST] = max(queue[c.LONGEST], queue[c.ITEMS])
    if queue[c.AT] < 0:
        worker = t.stages[q // 3, c.WORKER]
        t.clock[c.ENTERED] += 1
        queue[c.SINCE] = t.clock[c.ENTERED]
        queue[c.AT] = t.n_active[worker]
        t.active[worker, t.n_active[worker]] = q
        t.n_active[worker] += 1


@compiled
def leave(t, q):
    """A queue is empty: its worker has one less."""
    worker, at = t.stages[q // 3, c.WORKER], t.queues[q, c.AT]
    t.n_active[worker] -= 1
    last = t.active[worker, t.n_active[worker]]
    t.active[worker, at] = last
    t.queues[last, c.AT] = at
    t.queues[q, c.AT] = -1


@compiled
def age_of(t, v):
    """When a message's instance was admitted."""
    return t.instances[t.live[v, c.SLOT], c.AGE]


@compiled
def merge(t, a, b):
    """Two lists in order of age as one; of equal age those of `a` go first. Gives its first and its last message."""
    live = t.live
    first = last = -1
    while a >= 0 and b >= 0:
        if age_of(t, b) < age_of(t, a):
            v, b = b, live[b, c.NEXT]
        else:
            v, a = a, live[a, c.NEXT]
        if last < 0:
            first = v
        else:
            live[last, c.NEXT] = v
        last = v
    rest = a if a >= 0 else b
    if last < 0:
        first = rest
    else:
        live[last, c.NEXT] = rest
    while rest >= 0:
        last, rest = rest, live[rest, c.NEXT]
    return first, last


@compiled
def in_order(t, head):
    """A list sorted by age, equal ones as they stand: runs that are in order are merged, two by two."""
    live = t.live
    runs = np.empty(64, np.int64)  # run k is as long as all those behind it together, so there are few
    lengths = np.empty(64, np.int64)
    n = 0
    while head >= 0:
        runs[n], lengths[n] = head, 1
        last, follower = head, live[head, c.NEXT]
        while follower >= 0 and age_of(t, last) <= age_of(t, follower):
            last, follower = follower, live[follower, c.NEXT]
            lengths[n] += 1
        live[last, c.NEXT] = -1
        head = follower
        n += 1
        while n > 1 and lengths[n - 2] <= 2 * lengths[n - 1]:
            runs[n - 2], _ = merge(t, runs[n - 2], runs[n - 1])
            lengths[n - 2] += lengths[n - 1]
            n -= 1
    while n > 1:
        runs[n - 2], _ = merge(t, runs[n - 2], runs[n - 1])
        n -= 1
    return runs[0]


@compiled
def oldest_first(t, q):
    """Puts the messages of the oldest instances first."""
    queue, live = t.queues[q], t.live
    if queue[c.N_SORTED] == queue[c.ITEMS]:
        return
    if queue[c.N_SORTED] == 0:
        queue[c.SORTED_BORN] = live[queue[c.HEAD], c.BORN]
        head, late = -1, queue[c.HEAD]
    else:
        head, late = queue[c.HEAD], live[queue[c.SORTED], c.NEXT]
        live[queue[c.SORTED], c.NEXT] = -1
    late = in_order(t, late)
    if head >= 0 and age_of(t, queue[c.SORTED]) <= age_of(t, late):  # all that has come is younger
        live[queue[c.SORTED], c.NEXT] = late
        last = late
        while live[last, c.NEXT] >= 0:
            last = live[last, c.NEXT]
    else:
        head, last = merge(t, head, late)
        queue[c.HEAD] = head
    queue[c.TAIL] = queue[c.SORTED] = last
    queue[c.N_SORTED] = queue[c.ITEMS]


@compiled
def born(t, q):
    """When a queue began to wait."""
    queue = t.queues[q]
    return queue[c.SORTED_BORN] if queue[c.N_SORTED] else t.live[queue[c.HEAD], c.BORN]


@compiled
def fitting(t, q):
    """How many of a queue's first messages make one dispatch, at least one; their input rows and the rows of each of their outputs."""
    queue = t.queues[q]
    n, rows, out, v = 0, 0, 0, queue[c.HEAD]
    while v >= 0:
        line = t.lines[line_of(t, v)]
        more_rows, more_out = rows + line[c.ROWS], out + line[c.SIZE]
        over = more_rows > queue[c.MAX_ROWS] or n + 1 > queue[c.MAX_ITEMS] or more_out > queue[c.MAX_OUT]
        if over and n > 0:
            break
        n, rows, out, v = n + 1, more_rows, more_out, t.live[v, c.NEXT]
    return n, rows, out


# -- choosing


@compiled
def rank(t, q, policy):
    """What the policies of these numbers compare: the lowest goes first (`policy.POLICIES`)."""
    queue = t.queues[q]
    stage, direction = q // 3, q % 3
    back = direction == c.BACKWARD or (direction == c.FORWARD and t.stages[stage, c.KIND] == c.ENDS)
    ready = min(queue[c.WAITING], queue[c.MAX_ROWS])
    since = born(t, q)
    if policy == 1:
        return -ready, 1 - back, since, queue[c.SINCE]
    if policy == 2:
        return since - ready * (6 if back else 4), 1 - back, since, queue[c.SINCE]
    if policy == 3:
        return np.int64(back), -stage if back else stage, since, queue[c.SINCE]
    return 1 - t.stages[stage, c.IS_TRANSFER], 1 - back, since, queue[c.SINCE]


@compiled
def choose(t, worker, policy):
    """The queue that a worker takes next; -1 if nothing waits for it, -2 if the policy wants it to wait."""
    best = -1 if t.n_active[worker] == 0 else -2
    lowest = (np.int64(0), np.int64(0), np.int64(0), np.int64(0))
    for k in range(t.n_active[worker]):
        q = np.int64(t.active[worker, k])
        if policy == 4 and q % 3 == c.FORWARD and t.stages[q // 3, c.KIND] != c.ENDS:
            if t.queues[q, c.UNDER_WAY] >= t.stages[q // 3, c.AHEAD]:
                continue
        own = rank(t, q, policy)
        if best < 0 or own < lowest:
            best, lowest = q, own
    return best


# -- dispatches


@compiled
def lacking(t, stage, out):
    """The arena that has too few free slots for `out` rows of each of a stage's outputs, and how many it needs; -1 if there are enough."""
    for o in range(stage[c.N_OUTPUTS]):
        arena, need = stage[c.ARENA + o], np.int64(0)
        for other in range(stage[c.N_OUTPUTS]):
            need += out if stage[c.ARENA + other] == arena else 0
        if need > t.n_free[arena]:
            return arena, need
    return np.int64(-1), np.int64(0)


@compiled
def decide(t, worker, policy, due):
    """The next dispatch of a worker by one of the policies that have a number: what `build` gives, or no queue, -1 or -2 as `choose` does."""
    q = choose(t, worker, policy)
    if q < 0:
        none = np.empty(0, np.int32)
        return q, np.int64(-1), np.int64(0), none, none, none, np.empty(0, np.int64), np.int64(0), 0
    return build(t, q, due)


@compiled
def build(t, q, due):
    """The next dispatch of a queue.

    Args:
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


@compiled
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


@compiled
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


@compiled
def see(t, stage, messages):
    """Notes the versions of a stage's parameters."""
    for p in range(stage[c.N_PARAMS]):
        version = t.nodes[t.params[stage[c.PARAMS] + p, c.NODE], c.VERSION]
        for v in messages:
            t.live[v, c.SEEN + p] = version


@compiled
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
    slots = np.empty(sizes.sum(), np.int32)
    at = 0
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


@compiled
def gradients(t, stage, messages, lines, seen, due):
    """Counts gradient rows of a stage's nodes; returns how many updates are due, and writes them to `due`.

    Args:
      seen: Whether the messages have seen versions on their way forth; a loss sees those of now.
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


# -- what follows


@compiled
def emit(t, messages):
    """Messages travel on: whoever has all of its inputs is ready; who is owed nothing is answered."""
    while len(messages):
        waves = reach(t, messages)
        for k in range(len(messages)):
            if t.live[messages[k], c.LEFT] == 0:
                settle_all(t, messages[k])
        messages = waves


@compiled
def reach(t, messages):
    """Takes messages to all who consume them, port by port; returns the groups that are complete."""
    n = 0
    for v in messages:
        n += t.lines[line_of(t, v), c.N_OUT]
    to, ranks = np.empty(n, np.int32), np.empty(n, np.int32)
    at, highest, sorted_ = 0, 0, True
    for v in messages:
        line = t.lines[line_of(t, v)]
        base = t.instances[t.live[v, c.SLOT], c.LIVE]
        for e in range(line[c.OUT], line[c.OUT] + line[c.N_OUT]):
            to[at], ranks[at] = base + t.outputs[e, c.TO], t.outputs[e, c.RANK]
            sorted_ = sorted_ and ranks[at] >= highest
            highest = max(highest, ranks[at])
            at += 1
    if not sorted_:
        to = by_rank(to, ranks, highest)
    complete = np.empty(n, np.int32)
    n_complete = 0
    for v in to:
        t.live[v, c.NEED] -= 1
        if t.live[v, c.NEED] == 0:
            line = t.lines[line_of(t, v)]
            if t.stages[line[c.STAGE], c.KIND] == c.GROUPS:
                complete[n_complete] = v
                n_complete += 1
            else:
                train = t.instances[t.live[v, c.SLOT], c.TRAIN]
                push(t, 3 * line[c.STAGE] + (c.FORWARD if train else c.INFER), v, line[c.ROWS])
    return complete[:n_complete]


@compiled
def by_rank(to, ranks, highest):
    """Messages in the order of ranks; of equal rank as they stand."""
    starts = np.zeros(highest + 2, np.int64)
    for r in ranks:
        starts[r + 1] += 1
    for r in range(highest + 1):
        starts[r + 1] += starts[r]
    ordered = np.empty_like(to)
    for k in range(len(to)):
        ordered[starts[ranks[k]]] = to[k]
        starts[ranks[k]] += 1
    return ordered


@compiled
def answer(t, messages):
    """A stage has answered its inputs: whose rows these were is owed one gradient less."""
    if len(messages) == 0:
        return
    n_ports = t.lines[line_of(t, messages[0]), c.N_IN]
    groups = np.empty(8, np.int32)
    for p in range(n_ports):
        n = 0
        for v in messages:
            line = t.lines[line_of(t, v)]
            owner = t.instances[t.live[v, c.SLOT], c.LIVE] + t.inputs[line[c.IN] + p, c.FROM]
            t.live[owner, c.LEFT] -= 1
            if t.live[owner, c.LEFT] == 0 and settle(t, owner):
                groups, n = added(groups, n, owner)
        if n:
            end_groups(t, groups, n)


@compiled
def added(array, n, value):
    """`array[n] = value`, in a longer array if need be."""
    if n == len(array):
        longer = np.empty(2 * n, array.dtype)
        longer[:n] = array
        array = longer
    array[n] = value
    return array, n + 1


@compiled
def settle(t, v):
    """All who consume a message have answered: it goes back, or ends. Says whether it is a group, which its caller must end."""
    line = t.lines[line_of(t, v)]
    kind = t.stages[line[c.STAGE], c.KIND]
    if kind == c.GROUPS:
        return True
    if kind == c.COMPUTES and t.instances[t.live[v, c.SLOT], c.TRAIN]:
        push(t, 3 * line[c.STAGE] + c.BACKWARD, v, line[c.ROWS])
    else:
        end(t, v)
    return False


@compiled
def settle_all(t, v):
    """The same, with the group's members."""
    if settle(t, v):
        groups = np.empty(8, np.int32)
        groups[0] = v
        end_groups(t, groups, 1)


@compiled
def end_groups(t, groups, n):
    """Groups are answered, and so is who is in them: members, openers, and groups whose rows these are."""
    k = 0
    while k < n:
        v = groups[k]
        line = t.lines[line_of(t, v)]
        base = t.instances[t.live[v, c.SLOT], c.LIVE]
        start, stop = line[c.IN], line[c.IN] + line[c.N_IN]
        for e in range(start, stop):
            owner = base + t.inputs[e, c.FROM]
            t.live[owner, c.LEFT] -= 1
            if t.live[owner, c.LEFT] == 0 and settle(t, owner):
                groups, n = added(groups, n, owner)
        end(t, v)
        k += 1


@compiled
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


@compiled
def end_instance(t, i):
    """An instance has ended: what it held can be given to another."""
    one = t.instances[i]
    give_range(t.ranges[0], t.live[:, c.NEXT], one[c.LIVE], one[c.LENGTH_OF])
    give_range(t.ranges[1], t.slots, one[c.ROWS_AT], one[c.N_ROWS])
    t.clock[c.N_TRAIN if one[c.TRAIN] else c.N_INFER] -= 1
    t.ended[t.clock[c.N_ENDED]] = i
    t.clock[c.N_ENDED] += 1


@compiled
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


# -- instances


@compiled
def take_range(heads, links, length, clock, top):
    """A free range of at least `length` lines: where it begins. `links` holds, where each free range begins, where the next one does."""
    power = 0
    while 1 << power < length:
        power += 1
    if heads[power] >= 0:
        begin = heads[power]
        heads[power] = links[begin]
        return np.int64(begin)
    begin = clock[top]
    clock[top] += 1 << power
    return begin


@compiled
def give_range(heads, links, begin, length):
    """Gives a range back."""
    power = 0
    while 1 << power < length:
        power += 1
    links[begin] = heads[power]
    heads[power] = begin


@compiled
def admit(t, places, first, pick_first, n_rows, ids, train):
    """Lets instances in: their counters are set, and what is pumped for them has slots. Returns their slots `[n]`.

    Args:
      places: Their places among all programs.
      first, pick_first, n_rows, ids: Of all programs.
      train: Whether they train.
    """
    admitted = np.empty(len(places), np.int64)
    for k in range(len(places)):
        place = places[k]
        t.n_vacant[0] -= 1
        i = np.int64(t.vacant[t.n_vacant[0]])
        admitted[k] = i
        one, length = t.instances[i], first[place + 1] - first[place]
        one[c.LINE], one[c.PICK], one[c.PLACE], one[c.ID] = first[place], pick_first[place], place, ids[place]
        one[c.TRAIN], one[c.LENGTH_OF], one[c.N_ROWS], one[c.AGE] = train, length, n_rows[place], t.clock[c.ADMITTED]
        one[c.LIVE] = take_range(t.ranges[0], t.live[:, c.NEXT], length, t.clock, c.LIVE_TOP)
        one[c.ROWS_AT] = take_range(t.ranges[1], t.slots, n_rows[place], t.clock, c.ROWS_TOP)
        t.clock[c.ADMITTED] += 1
        t.clock[c.N_TRAIN if train else c.N_INFER] += 1
        alive = 0
        for n in range(length):
            line, v = t.lines[one[c.LINE] + n], one[c.LIVE] + n
            t.live[v, c.NEED], t.live[v, c.LEFT], t.live[v, c.SLOT] = line[c.N_IN], line[c.OWED], i
            alive += t.stages[line[c.STAGE], c.KIND] != c.ENDS
        one[c.ALIVE] = alive
        if alive == 0:
            end_instance(t, i)
    return admitted


@compiled
def pump(t, admitted, order):
    """What is pumped for instances that have just been let in travels on, pump by pump.

    Args:
      admitted: Their slots.
      order: `[pumps]`: the pumps, as numbers of stages, in the order in which they pump.
    """
    messages, n = np.empty(8, np.int32), 0
    ranks = np.zeros(len(order) + 1, np.int32)
    for k in range(len(order)):
        ranks[order[k]] = k
    for i in admitted:
        one = t.instances[i]
        for k in range(one[c.LENGTH_OF]):
            if t.stages[t.lines[one[c.LINE] + k, c.STAGE], c.KIND] == c.PUMPS:
                messages, n = added(messages, n, one[c.LIVE] + k)
    messages = messages[:n].copy()
    lines, own = np.empty(n, np.int32), np.empty(n, np.int32)
    for k in range(n):
        lines[k] = line_of(t, messages[k])
        own[k] = ranks[t.lines[lines[k], c.STAGE]]
    give_slots(t, messages, lines)
    messages = by_rank(messages, own, len(order))
    start = 0
    for k in range(1, n + 1):
        if k == n or t.lines[line_of(t, messages[k]), c.STAGE] != t.lines[line_of(t, messages[start]), c.STAGE]:
            emit(t, messages[start:k])
            start = k
