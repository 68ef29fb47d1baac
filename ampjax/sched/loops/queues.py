"""Ready queues as linked lists in `live`: first in, first out; where more wait than one dispatch holds, the oldest instances first."""

from __future__ import annotations

import numpy as np

from ampjax.sched.layout import columns as c
from ampjax.sched.loops.compiled import inlined, inner


@inlined
def line_of(t, v):
    """Gives a message's line of `lines`, as a number that the compiler knows not to be negative, so that indexing need not count from the table's end.

    Returns:
      The line, int64.
    """
    return np.int64(np.uint32(t.live[v, c.INVOCATION]))


@inlined
def handle_of(t, v):
    """Gives the handle of a message's instance.

    Returns:
      The handle, int64.
    """
    return np.int64(np.uint32(t.live[v, c.HANDLE]))


@inlined
def age_of(t, v):
    """Tells when a message's instance was admitted.

    Returns:
      How many instances were admitted before it, int64.
    """
    return t.instances[handle_of(t, v), c.AGE]


@inlined
def push(t, q, first, last, n, rows):
    """Puts a list of messages, which begin to wait now, at the end of a queue.

    Args:
      t: The tables.
      q: The queue.
      first: The first message of the list; the others follow through `NEXT`.
      last: The last one.
      n: How many there are.
      rows: How many input rows they have.
    """
    t.live[last, c.NEXT] = -1
    # The list becomes the queue, which is its worker's from now on, or goes behind its last
    # message.
    if t.queues[q, c.ITEMS] == 0:
        t.queues[q, c.HEAD] = first
        activate(t, q)
    else:
        t.live[t.queues[q, c.TAIL], c.NEXT] = first
    t.queues[q, c.TAIL] = last
    t.queues[q, c.ITEMS] += n
    t.queues[q, c.ITEM_ROWS] += rows
    # For statistics; then the worker is woken, since something has come.
    t.queues[q, c.LONGEST] = max(
        t.queues[q, c.LONGEST],
        t.queues[q, c.ITEMS],
    )
    t.clock[c.WOKEN + t.stages[q // c.N_DIRECTIONS, c.WORKER]] = 1


@inlined
def activate(t, q):
    """Adds a queue, which is no longer empty, to its worker's."""
    worker = t.stages[q // c.N_DIRECTIONS, c.WORKER]
    # A number that no other queue has: it decides between equal ranks.
    t.clock[c.ENTERED] += 1
    t.queues[q, c.SINCE] = t.clock[c.ENTERED]
    # Queue and list know of each other, so the queue can leave without a search.
    t.queues[q, c.ACTIVE_AT] = t.active[worker, c.N_ACTIVE]
    t.active[worker, c.QUEUES + t.active[worker, c.N_ACTIVE]] = q
    t.active[worker, c.N_ACTIVE] += 1


@inlined
def deactivate(t, q):
    """Takes a queue, which is empty, from its worker's."""
    worker = t.stages[q // c.N_DIRECTIONS, c.WORKER]
    at = t.queues[q, c.ACTIVE_AT]
    t.active[worker, c.N_ACTIVE] -= 1
    # The last queue takes its place: their order does not count.
    last = np.int64(t.active[worker, c.QUEUES + t.active[worker, c.N_ACTIVE]])
    t.active[worker, c.QUEUES + at] = last
    t.queues[last, c.ACTIVE_AT] = at
    # Last, since the queue may itself have been the last one.
    t.queues[q, c.ACTIVE_AT] = -1


@inner
def merge(t, a, b):
    """Merges two lists of messages in order of age; of equal age the first list's messages go first.

    Args:
      t: The tables.
      a: The first message of a list, or -1.
      b: The first message of another list, or -1.

    Returns:
      The first and the last message of the merged list.
    """
    first = last = -1
    while a >= 0 and b >= 0:
        # Of equal age the first list's goes first, so sorting is stable.
        if age_of(t, b) < age_of(t, a):
            v = b
            b = t.live[b, c.NEXT]
        else:
            v = a
            a = t.live[a, c.NEXT]
        if last < 0:
            first = v
        else:
            t.live[last, c.NEXT] = v
        last = v
    # What is left of one list is in order already.
    rest = a if a >= 0 else b
    if last < 0:
        first = rest
    else:
        t.live[last, c.NEXT] = rest
    # The caller needs the last message, too.
    while rest >= 0:
        last = rest
        rest = t.live[rest, c.NEXT]
    return first, last


@inner
def in_order(t, head):
    """Sorts a list of messages by age, stably: runs that are in order are merged, two by two.

    Returns:
      The first message of the sorted list.
    """
    # Each run is longer than those behind it together, so there are few.
    runs = t.ranges[c.RUNS]
    lengths = t.ranges[c.RUN_LENGTHS]
    n = 0
    while head >= 0:
        # A run: as far as messages are in order already.
        runs[n] = head
        lengths[n] = 1
        last = head
        follower = t.live[head, c.NEXT]
        while follower >= 0 and age_of(t, last) <= age_of(t, follower):
            last = follower
            follower = t.live[follower, c.NEXT]
            lengths[n] += 1
        # It is cut off from what follows.
        t.live[last, c.NEXT] = -1
        head = follower
        n += 1
        # Runs of like lengths are merged at once, so each message is merged few times.
        while n > 1 and lengths[n - 2] <= 2 * lengths[n - 1]:
            runs[n - 2], _ = merge(
                t,
                runs[n - 2],
                runs[n - 1],
            )
            lengths[n - 2] += lengths[n - 1]
            n -= 1
    # Then the rest, from the shortest on.
    while n > 1:
        runs[n - 2], _ = merge(
            t,
            runs[n - 2],
            runs[n - 1],
        )
        n -= 1
    return runs[0]


@inner
def oldest_first(t, q):
    """Puts the messages of the oldest instances first.

    Args:
      t: The tables.
      q: The queue, which is not empty.
    """
    if t.queues[q, c.N_SORTED] == t.queues[q, c.ITEMS]:
        return
    # What has come since the last sorting stands behind what is sorted.
    if t.queues[q, c.N_SORTED] == 0:
        # The head has waited longest now; afterwards it may stand anywhere.
        t.queues[q, c.SORTED_BORN] = t.live[t.queues[q, c.HEAD], c.BORN]
        head = np.int64(-1)
        late = np.int64(t.queues[q, c.HEAD])
    else:
        head = np.int64(t.queues[q, c.HEAD])
        late = np.int64(t.live[t.queues[q, c.SORTED], c.NEXT])
        # The sorted part is cut off, to be merged below.
        t.live[t.queues[q, c.SORTED], c.NEXT] = -1
    # Only the newcomers are sorted.
    late = in_order(t, late)
    if head >= 0 and age_of(t, t.queues[q, c.SORTED]) <= age_of(
        t, late
    ):  # all that has come is younger
        # The common case costs no merge: newcomers go behind.
        t.live[t.queues[q, c.SORTED], c.NEXT] = late
        last = late
        while t.live[last, c.NEXT] >= 0:
            last = np.int64(t.live[last, c.NEXT])
    # Else both lists are merged; those that came first go first among equals.
    else:
        head, last = merge(t, head, late)
        t.queues[q, c.HEAD] = head
    t.queues[q, c.TAIL] = t.queues[q, c.SORTED] = last
    t.queues[q, c.N_SORTED] = t.queues[q, c.ITEMS]


@inner
def space_for(t, stage, spare):
    """Counts the rows that every output of a stage can get now, arenas' growth included.

    Args:
      t: The tables.
      stage: The stage.
      spare: See `decide`.

    Returns:
      How many rows; `UNLIMITED` where arenas have no limits.
    """
    space = np.int64(c.UNLIMITED)
    if len(spare) == 0:
        return space
    for o in range(t.stages[stage, c.N_OUTPUTS]):
        arena = t.stages[stage, c.ARENA + o]
        count = 0
        for other in range(t.stages[stage, c.N_OUTPUTS]):
            # Outputs that share an arena share its space.
            count += t.stages[stage, c.ARENA + other] == arena
        space = min(
            space,
            (t.free[arena, c.N_FREE] + spare[arena]) // count,
        )
    return space


@inner
def has_room(t, q, spare):
    """Tells whether there is room for the results of the first message of a queue.

    Args:
      t: The tables.
      q: The queue, which is not empty.
      spare: See `decide`.
    """
    stage = q // c.N_DIRECTIONS
    if len(spare) == 0 or q % c.N_DIRECTIONS == c.BACKWARD or t.stages[stage, c.N_OUTPUTS] == 0:
        return True
    # Room for a full dispatch is room for its first message, and needs no sorting.
    space = space_for(t, stage, spare)
    if space >= t.queues[q, c.MAX_ROWS] and not t.stages[stage, c.RAGGED]:
        return True
    # Else it depends on the first message; the order decides which that is.
    if t.queues[q, c.ITEM_ROWS] > t.queues[q, c.MAX_ROWS]:
        oldest_first(t, q)
    return t.lines[t.live[t.queues[q, c.HEAD], c.INVOCATION], c.OUT_ROWS] <= space


@inlined
def are_alike(t, stage, v, w):
    """Tells whether two messages on their way back may share a dispatch of a stage that stashes weights or drops gradients."""
    alike = True
    first = t.stages[stage, c.PARAMS]
    for p in range(t.stages[stage, c.N_PARAMS]):
        node = t.params[first + p, c.NODE]
        one = t.live[v, c.SEEN + p]
        other = t.live[w, c.SEEN + p]
        # Stashed weights: one version for all. Else versions may differ, as long as the node drops
        # both or neither.
        if t.stages[stage, c.STASHES]:
            alike = alike and one == other
        else:
            version = t.nodes[node, c.VERSION]
            alike = alike and is_dropped(t, node, version - one) == is_dropped(
                t, node, version - other
            )
    return alike


@inlined
def is_dropped(t, node, age):
    """Tells whether a node drops gradients.

    Args:
      t: The tables.
      node: The node's line of `nodes`.
      age: Updates of the node since the messages have seen its parameters.
    """
    return 0 <= t.nodes[node, c.STALEST] < age


@inner
def differ(t, q):
    """Tells whether some messages of a queue may not share a dispatch with its first one. Where none differ, the queue stays as before.

    Args:
      t: The tables.
      q: The queue, which is not empty.
    """
    head = np.int64(t.queues[q, c.HEAD])
    v = np.int64(t.live[head, c.NEXT])
    while v >= 0:
        if not are_alike(t, q // c.N_DIRECTIONS, v, head):
            return True
        v = np.int64(t.live[v, c.NEXT])
    return False


@inner
def put_alike_first(t, q):
    """Puts the first message, and the messages that may share a dispatch with the first one, before the others, as far as one dispatch holds.

    These have seen the same parameter versions; where weights are not stashed, it is enough that their gradients are dropped at the same nodes.

    The others count from now on as if they had come together, when the first of all began to wait.

    Returns:
      How many are alike.

    Args:
      t: The tables.
      q: The queue, which is not empty.
    """
    head = np.int64(t.queues[q, c.HEAD])
    # How long the first of all has waited: those that are left take it over.
    if t.queues[q, c.N_SORTED]:
        born = t.queues[q, c.SORTED_BORN]
    else:
        born = np.int64(t.live[head, c.BORN])
    stage = q // c.N_DIRECTIONS
    n = 1
    rows = np.int64(t.lines[line_of(t, head), c.IN_ROWS])
    last = head
    first_other = last_other = np.int64(-1)
    # Two lists in one walk: those like the first, and the others, both in their order.
    fits = True
    v = np.int64(t.live[head, c.NEXT])
    while v >= 0:
        # The link is read before it changes.
        follower = np.int64(t.live[v, c.NEXT])
        alike = fits and are_alike(t, stage, v, head)
        more_rows = np.int64(t.lines[line_of(t, v), c.IN_ROWS])
        if alike and rows + more_rows <= t.queues[q, c.MAX_ROWS]:
            t.live[last, c.NEXT] = v
            last = v
            n += 1
            rows += more_rows
        else:
            # After the first alike message that does not fit, none is taken: a later one must not
            # overtake it.
            fits = fits and not alike
            t.live[v, c.BORN] = born
            if first_other < 0:
                first_other = v
            else:
                t.live[last_other, c.NEXT] = v
            last_other = v
        v = follower
    # The others go behind; the queue's order is by likeness now, so nothing counts as sorted.
    t.live[last, c.NEXT] = first_other
    if last_other >= 0:
        t.live[last_other, c.NEXT] = -1
    t.queues[q, c.TAIL] = last if last_other < 0 else last_other
    t.queues[q, c.N_SORTED] = 0
    return n
