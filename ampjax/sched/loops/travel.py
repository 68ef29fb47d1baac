"""Travel: the consequences of a dispatch that is done: messages that are ready, messages that are answered, instances that end.

Messages that travel on together are a list through `TOGETHER`; those that are answered, and are in no queue yet, one through `NEXT`. A list ends with -1.
"""

from __future__ import annotations

import numpy as np

from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables
from ampjax.sched.loops.compiled import entry, inlined, inner
from ampjax.sched.loops.queues import handle_of, line_of, push
from ampjax.sched.loops.ranges import give_live, give_rows

NO_RANK = 1 << 30
"""More than any rank."""


@entry
def done(messages, direction, *tables):
    """Lets a dispatch's messages travel on, or be answered.

    Args:
      messages: `[n]`: the messages, of one stage.
      direction: The dispatch's direction, by number.
      *tables: The tables.
    """
    if len(messages) > 0:
        travel(Tables(*tables), messages, direction)


@inlined
def travel(t, messages, direction):
    """Lets a dispatch's messages travel on, or be answered.

    Args:
      t: The tables.
      messages: `[n]`: the messages, at least one, of one stage.
      direction: The dispatch's direction, by number.

    Returns:
      Whether instances may enter again, which were held back with an update before it.
    """
    # Whether updates that are held back kept training instances out before this dispatch.
    was_closed = t.clock[c.CLOSED]
    t.clock[c.CLOSED] = t.clock[c.N_HOLDING] + t.clock[c.N_PUT_OFF] > 0
    t.clock[c.CLOSED_FOR] += t.clock[c.CLOSED]
    back = direction == c.BACKWARD
    ends = not back and t.stages[t.lines[line_of(t, messages[0]), c.STAGE], c.KIND] == c.ENDS
    # Forward: consumers get their inputs.
    if not (back or ends):
        emit(t, link_together(t, messages))
    # Inputs are answered by gradients, by a loss, or in inference at once, when their rows have
    # been read.
    if back or ends or direction == c.INFER:
        answer(t, messages)
    # Messages that have sent gradients back have ended: their slots are free.
    if back:
        first = last = np.int64(-1)
        for v in messages:
            first, last = append_message(t, first, last, np.int64(v))
        end_all(t, close_list(t, first, last))
    return t.clock[c.CLOSED] < was_closed


@inlined
def link_together(t, messages):
    """Links messages to a list through `NEXT_TOGETHER`.

    Args:
      t: The tables.
      messages: `[n]`: the messages.

    Returns:
      The first one.
    """
    head = np.int64(-1)
    # From the last one on, so that the list has their order.
    for k in range(len(messages) - 1, -1, -1):
        t.live[messages[k], c.NEXT_TOGETHER] = head
        head = np.int64(messages[k])
    return head


@inner
def emit(t, head):
    """Lets a list of messages travel on, port by port: consumers with all inputs are ready, complete groups travel on, messages that are owed nothing are answered.

    Args:
      t: The tables.
      head: The first message of the list; the others follow through `NEXT_TOGETHER`.

    Returns:
      Always 0.
    """
    rank = np.int64(NO_RANK)
    consumed = True
    v = head
    while v >= 0:
        # First pass: the lowest rank that there is, and whether all have consumers.
        t.live[v, c.N_MISSING] = c.TRAVELLED
        line = line_of(t, v)
        consumed = consumed and t.lines[line, c.OWED] > 0
        if t.lines[line, c.N_OUT] > 0:
            # Consumptions are sorted by rank, so the first one's is the lowest.
            rank = min(
                rank,
                np.int64(t.outputs[t.lines[line, c.FIRST_OUTPUT], c.RANK]),
            )
        v = np.int64(t.live[v, c.NEXT_TOGETHER])
    # Then port by port, for all messages: so all of one port stand in its queue before those of the
    # next.
    while rank < NO_RANK:
        rank, complete = reach_consumers(t, head, rank)
        if complete >= 0:
            # A group's members go on to the group's consumers at once, before ports of higher rank.
            emit(t, complete)
    # Last, since those that nobody reads end here, and their lines with them.
    if not consumed:
        settle(t, find_unconsumed(t, head))
    return 0


@inlined
def reach_consumers(t, head, rank):
    """Gives the consumers of a list of messages, at ports of one rank, their input.

    Args:
      t: The tables.
      head: The first message of the list; the others follow through `NEXT_TOGETHER`.
      rank: The rank.

    Returns:
      The next rank that there is, or `NO_RANK`; the first of a list of groups that are complete now, or -1.
    """
    following = np.int64(NO_RANK)
    groups = np.int64(-1)
    last_group = np.int64(-1)
    v = head
    # who is ready
    q = np.int64(-1)
    first = np.int64(-1)
    last = np.int64(-1)
    n = np.int64(0)
    rows = np.int64(0)
    while v >= 0:
        line = line_of(t, v)
        i = handle_of(t, v)
        base = t.instances[i, c.FIRST_LIVE]
        direction = np.int64(c.FORWARD if t.instances[i, c.TRAIN] else c.INFER)
        begin = np.int64(t.lines[line, c.FIRST_OUTPUT])
        # Consumptions are sorted by rank: past it, the next rank is known.
        for e in range(begin, begin + t.lines[line, c.N_OUT]):  # by rank
            rank_of_port = np.int64(t.outputs[e, c.RANK])
            if rank_of_port > rank:
                following = min(following, rank_of_port)
                break
            if rank_of_port < rank:
                continue
            # The consumer misses one input less. It goes on only when it misses none.
            to = base + t.outputs[e, c.CONSUMER]
            t.live[to, c.N_MISSING] -= 1
            if t.live[to, c.N_MISSING] > 0:
                continue
            at = line_of(t, to)
            stage = np.int64(t.lines[at, c.STAGE])
            # A complete group has no queue: it is returned, to travel on.
            if t.stages[stage, c.KIND] == c.GROUPS:
                t.live[to, c.NEXT_TOGETHER] = -1
                if groups < 0:
                    groups = to
                else:
                    t.live[last_group, c.NEXT_TOGETHER] = to
                last_group = to
                continue
            # Those that are ready for one queue are pushed together; another queue's message ends
            # the list.
            if c.N_DIRECTIONS * stage + direction != q:
                if n > 0:
                    push(t, q, first, last, n, rows)
                q = c.N_DIRECTIONS * stage + direction
                first = to
                n = np.int64(0)
                rows = np.int64(0)
            else:
                t.live[last, c.NEXT] = to
            # It is ready from this dispatch on.
            t.live[to, c.BORN] = t.clock[c.NOW]
            last = to
            n += 1
            rows += t.lines[at, c.IN_ROWS]
        v = np.int64(t.live[v, c.NEXT_TOGETHER])
    # The last list.
    if n > 0:
        push(t, q, first, last, n, rows)
    return following, groups


@inlined
def find_unconsumed(t, head):
    """Finds the messages of a list without consumers. Others may have been answered by now: a group without consumers answers at once.

    Args:
      t: The tables.
      head: The first message of the list; the others follow through `NEXT_TOGETHER`.

    Returns:
      The first of a list of them through `NEXT`, or -1.
    """
    first = np.int64(-1)
    last = np.int64(-1)
    v = head
    while v >= 0:
        # By the program, not by `N_OWED`, which is zero for answered ones, too.
        if t.lines[line_of(t, v), c.OWED] == 0:
            first, last = append_message(t, first, last, v)
        v = np.int64(t.live[v, c.NEXT_TOGETHER])
    return close_list(t, first, last)


@inlined
def append_message(t, first, last, v):
    """Adds a message to a list of answered ones, through `NEXT`. The list must be `close_list`.

    Args:
      t: The tables.
      first: The first message of the list, or -1.
      last: The last one, or -1.
      v: The message.

    Returns:
      The first and the last message now.
    """
    if last < 0:
        return v, v
    t.live[last, c.NEXT] = v
    return first, v


@inlined
def close_list(t, first, last):
    """Ends a list of answered messages.

    Args:
      t: The tables.
      first: The first message of the list, or -1.
      last: The last one, or -1.

    Returns:
      The first one.
    """
    if last >= 0:
        t.live[last, c.NEXT] = -1
    return first


@inner
def answer(t, messages):
    """Notes that a stage has answered the inputs of messages: each input's producer is owed one gradient less.

    Args:
      t: The tables.
      messages: `[n]`: the messages, at least one, of one stage.
    """
    # Port by port, as gradients are written.
    for p in range(t.lines[line_of(t, messages[0]), c.N_IN]):
        first = last = np.int64(-1)
        for v in messages:
            e = t.lines[line_of(t, v), c.FIRST_INPUT] + p
            # Whose row was read, within the same instance.
            owner = t.instances[handle_of(t, v), c.FIRST_LIVE] + t.inputs[e, c.PRODUCER]
            t.live[owner, c.N_OWED] -= 1
            if t.live[owner, c.N_OWED] == 0:
                first, last = append_message(t, first, last, owner)
        # Those that are owed none now go back together, before the next port.
        if first >= 0:
            settle(t, close_list(t, first, last))


@inner
def settle(t, head):
    """Sends messages back, or ends messages, all of whose consumers have answered: producer by producer, in the order of the list.

    Args:
      t: The tables.
      head: The first message of the list, or -1; the others follow through `NEXT`.

    Returns:
      Always 0.
    """
    # Each round takes the messages of the first one's stage, in their order, and leaves the others
    # for the next.
    while head >= 0:
        stage = np.int64(t.lines[line_of(t, head), c.STAGE])
        others = last_other = np.int64(-1)
        first = head
        last = np.int64(-1)
        n = np.int64(0)
        rows = np.int64(0)
        while head >= 0:
            # The link is read before it changes: the message goes into one of two lists.
            follower = np.int64(t.live[head, c.NEXT])
            line = line_of(t, head)
            if t.lines[line, c.STAGE] != stage:
                others, last_other = append_message(t, others, last_other, head)
            else:
                if last >= 0:
                    t.live[last, c.NEXT] = head
                t.live[head, c.BORN] = t.clock[c.NOW]
                last = head
                n += 1
                rows += t.lines[line, c.IN_ROWS]
            head = follower
        others = close_list(t, others, last_other)
        # A group has no gradient of its own: its members' are looked at in its stead.
        if t.stages[stage, c.KIND] == c.GROUPS:
            settle(t, members_of(t, close_list(t, first, last)))
        # A stage that trains computes its gradient next.
        elif (
            t.stages[stage, c.KIND] == c.COMPUTES and t.instances[handle_of(t, first), c.TRAIN] != 0
        ):
            push(
                t,
                c.N_DIRECTIONS * stage + c.BACKWARD,
                first,
                last,
                n,
                rows,
            )
        # Inference, or a pump: nothing more happens to them.
        else:
            end_all(t, close_list(t, first, last))
        head = others
    return 0


@inlined
def members_of(t, head):
    """Ends a list of groups: each of their members is owed one gradient less.

    Args:
      t: The tables.
      head: The first group of the list; the others follow through `NEXT`.

    Returns:
      The first of a list of the members that are owed none now, or -1.
    """
    first = np.int64(-1)
    last = np.int64(-1)
    v = head
    while v >= 0:
        line = line_of(t, v)
        base = t.instances[handle_of(t, v), c.FIRST_LIVE]
        begin = np.int64(t.lines[line, c.FIRST_INPUT])
        for e in range(begin, begin + t.lines[line, c.N_IN]):
            # Each member misses one gradient less, the group's.
            owner = base + t.inputs[e, c.PRODUCER]
            t.live[owner, c.N_OWED] -= 1
            if t.live[owner, c.N_OWED] == 0:
                first, last = append_message(t, first, last, owner)
        v = np.int64(t.live[v, c.NEXT])
    # The groups end after their members have been found through their lines.
    end_all(t, head)
    return close_list(t, first, last)


@inlined
def end_all(t, head):
    """Ends messages of one stage or pump: frees their slots, and ends instances that have no other message.

    Args:
      t: The tables.
      head: The first message of the list; the others follow through `NEXT`.
    """
    # Slots go back first: the instance's rows, which name them, may go with its last message.
    stage = np.int64(t.lines[line_of(t, head), c.STAGE])
    for o in range(t.stages[stage, c.N_OUTPUTS]):
        arena = t.stages[stage, c.ARENA + o]
        n = np.int64(t.free[arena, c.N_FREE])
        v = head
        while v >= 0:
            line = line_of(t, v)
            size = np.int64(t.lines[line, c.OUT_ROWS])
            at = t.instances[handle_of(t, v), c.FIRST_SLOT] + t.lines[line, c.ROW] + o * size
            for r in range(size):
                # In the order of messages, so the next to be given are the last of these.
                t.free[arena, c.FREE + n] = t.slots[at + r]
                n += 1
            v = np.int64(t.live[v, c.NEXT])
        t.free[arena, c.N_FREE] = n
    # Then the messages, each by its link, which is read before the line may be given back.
    while head >= 0:
        follower = np.int64(t.live[head, c.NEXT])
        i = handle_of(t, head)
        t.instances[i, c.N_ALIVE] -= 1
        # The instance's last message.
        if t.instances[i, c.N_ALIVE] == 0:
            end_instance(t, i)
        head = follower


@inlined
def end_instance(t, i):
    """Ends an instance: frees its ranges for another."""
    if t.instances[i, c.N_INVOCATIONS] >= 0:  # one for which nothing was ever pumped holds none
        give_live(
            t,
            t.instances[i, c.FIRST_LIVE],
            t.instances[i, c.N_INVOCATIONS],
        )
        give_rows(
            t,
            t.instances[i, c.FIRST_SLOT],
            t.instances[i, c.N_OUT_ROWS],
        )
    # Its handle stays taken until it is reported.
    t.clock[c.N_TRAIN if t.instances[i, c.TRAIN] else c.N_INFER] -= 1
    t.idle[c.ENDED, t.clock[c.N_ENDED]] = i
    t.clock[c.N_ENDED] += 1
