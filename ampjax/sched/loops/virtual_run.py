"""Virtual time: workers start their next dispatches when their last ones have ended, each of which takes as long as a table says.

What each event asks for is decided here, until somebody outside must see to something; no dispatch needs a call of its own.
"""

from __future__ import annotations

import numpy as np

from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import DispatchRates, Tables
from ampjax.sched.loops.build_dispatch import try_build
from ampjax.sched.loops.choose import choose
from ampjax.sched.loops.compiled import entry, inlined
from ampjax.sched.loops.queues import handle_of
from ampjax.sched.loops.travel import travel


@entry
def advance(
    most,
    chosen,
    policy,
    queues,
    terms,
    updates,
    machine,
    moments,
    workers,
    spare,
    decided,
    pack,
    due,
    *tables,
):
    """Lets time go on until so many dispatches have been decided, or the caller must see to something, as after `decide`.

    Args:
      most: Dispatches.
      chosen: The queue that the next worker takes; `WAITS` lets it wait, -1 lets the policy choose.
      policy: Its number.
      queues: What dispatches cost: `DispatchRates.queues`.
      terms: `DispatchRates.terms`.
      updates: `DispatchRates.updates`.
      machine: `DispatchRates.machine`.
      moments: The time, and who is asked; see `columns`.
      workers: What workers do.
      spare: See `decide`.
      decided: `[most + 1, columns]` int64, to be written: as for `decide`, workers among it. The reason `NOTHING` says that no worker has anything to do,
        `WAITS` that the policy wants the next one to wait, though no other has anything to do.
      pack: See `decide`.
      due: See `decide`.
      *tables: The tables.

    Returns:
      How many dispatches there are.
    """
    t = Tables(*tables)
    rates = DispatchRates(queues, terms, updates, machine)
    n = 0
    at = 0
    n_due = 0
    goes_on = True
    while goes_on and n < most:
        # Everybody who was to be asked has been: time goes on, or those who ask next are found.
        if moments[c.NEXT_ASKED] == moments[c.N_ASKED]:
            if moments[c.LOOKS]:
                look_who_asks(t, moments, workers)
                continue
            # Nothing is under way, so nothing will become ready either.
            if moments[c.N_BUSY] == 0:
                decided[n, c.QUEUE] = c.NOTHING
                return n
            # The dispatch that ends first. Its messages are written behind the last pack, as
            # scratch, so there must be room for them.
            first = workers[c.HEAP, 0]
            if at + workers[c.RUNS_MESSAGES, first] > len(pack):
                break
            end_first(t, moments, workers)
            # Time has moved; now what it has made travels on, and may wake workers.
            messages = pack[at : at + workers[c.RUNS_MESSAGES, first]]
            unroll(t, workers[c.RUNS_FIRST, first], messages)
            if (
                # The caller must see to instances that have ended, or that may enter again.
                travel(t, messages, workers[c.RUNS_QUEUE, first] % c.N_DIRECTIONS)
                or t.clock[c.N_ENDED]
            ):
                break
            continue
        # Somebody is to be asked. The caller's choice holds for the first of them only.
        worker = workers[c.TO_ASK, moments[c.NEXT_ASKED]]
        if chosen != -1 and n == 0:
            q = np.int64(chosen)
        else:
            q = choose(t, worker, policy, spare)
        # The policy waits for an event, but nothing is under way that could bring one.
        if q == c.WAITS and moments[c.N_BUSY] == 0 and (chosen != c.WAITS or n > 0):
            decided[n, c.QUEUE] = c.WAITS
            decided[n, c.DECIDED_FOR] = worker
            return n
        # From here on the policy chooses.
        chosen = -1
        if q < 0:
            note_blocked(t, moments, workers, worker)
            continue
        decided[n, c.QUEUE] = q
        # A transfer that overlaps takes a column of its own, so its worker stays idle and is asked
        # again.
        column = worker
        if rates.queues[q, c.OVERLAPS]:
            column = free_column(workers, np.int64(len(t.active)))
            if column < 0:
                decided[n, c.QUEUE] = c.LINKS_FULL
                return n
        # A reason why there is no dispatch is in the line already.
        if not try_build(
            t,
            q,
            spare,
            decided[n],
            pack[at:],
            due[n_due:],
        ):
            return n
        # The dispatch is decided: what it costs says when it ends.
        decided[n, c.PACK] = at
        decided[n, c.DUE] = n_due
        decided[n, c.DECIDED_FOR] = worker
        new = due[n_due : n_due + decided[n, c.N_DUE]]
        costs = cost_ns(
            t,
            decided[n],
            pack[at:],
            new,
            rates,
        )
        begin_dispatch(moments, workers, column, decided[n], pack[at], costs)
        # A worker that is busy now has been asked; one that has only started a transfer has not.
        if column == worker:
            moments[c.NEXT_ASKED] += 1
        # Where replicas meet at an update, the caller averages them before anything else runs.
        for k in range(len(new)):
            goes_on = goes_on and t.nodes[new[k, 0], c.MEETS] == 0
        at += decided[n, c.N_PACK]
        n_due += len(new)
        n += 1
    # As many as were asked for, or the caller must see to something.
    decided[n, c.QUEUE] = 0
    return n


@inlined
def look_who_asks(t, moments, workers):
    """Finds the idle workers that are asked next: workers with new messages, and workers that were blocked when last asked.

    Args:
      t: The tables.
      moments: See `advance`; it is written to.
      workers: See `advance`; it is written to.
    """
    # Blocked workers are asked after each event: it may have freed slots.
    for k in range(moments[c.N_BLOCKED]):
        t.clock[c.WOKEN + workers[c.TO_ASK, k]] = 1
    n = 0
    # In the order of workers, so that equal times give equal schedules.
    for worker in range(len(t.active)):
        if t.clock[c.WOKEN + worker]:
            t.clock[c.WOKEN + worker] = 0
            if workers[c.END_NS, worker] == c.IDLE:
                workers[c.TO_ASK, n] = worker
                n += 1
    # The list is complete; asking begins at its front.
    moments[c.N_ASKED] = n
    moments[c.NEXT_ASKED] = 0
    moments[c.N_BLOCKED] = 0
    moments[c.LOOKS] = 0


@inlined
def note_blocked(t, moments, workers, worker):
    """Notes that a worker starts nothing now, and asks a worker with waiting messages again at the next event.

    Args:
      t: The tables.
      moments: See `advance`; it is written to.
      workers: See `advance`; it is written to.
      worker: The worker.
    """
    if t.active[worker, c.N_ACTIVE]:
        # Blocked workers stand at the front of the same list; those places have been read.
        workers[c.TO_ASK, moments[c.N_BLOCKED]] = worker
        moments[c.N_BLOCKED] += 1
    moments[c.NEXT_ASKED] += 1


@inlined
def cost_ns(t, decision, pack, due, rates):
    """Computes the cost of a dispatch as `FlopsCost` does, operation by operation, so that both round alike.

    Args:
      t: The tables.
      decision: The dispatch.
      pack: The same.
      due: `[d, 4]`: its updates.
      rates: What dispatches cost.

    Returns:
      Nanoseconds, int64.
    """
    q = decision[c.QUEUE]
    n = decision[c.N_MESSAGES]
    operations = 0.0
    first = np.int64(rates.queues[q, c.FIRST_TERM])
    # In the order of `FlopsCost`: sums of floats depend on it.
    for k in range(first, first + np.int64(rates.queues[q, c.N_TERMS])):
        edge_type = np.int64(rates.terms[k, c.OF_WHAT])
        rows = decision[c.N_ROWS_IN]
        if edge_type == c.OF_OUTPUT:
            if decision[c.PADDED_SIZE]:
                rows = n
            else:
                rows = np.int64(pack[c.N_HEAD * n + t.stages[q // c.N_DIRECTIONS, c.N_PORTS]])
        elif edge_type >= 0:
            # Edges of a chain are counted by program, so they are summed over the messages.
            rows = np.int64(0)
            for v in pack[:n]:
                rows += t.edges[t.instances[handle_of(t, v), c.PROGRAM], edge_type]
        operations += rates.terms[k, c.PER_ROW] * rows
    # Updates that are due run on the same worker, after the dispatch.
    for k in range(len(due)):
        operations += rates.updates[due[k, 0]]
    # Operations are rounded before what is fixed is added, and bytes by themselves.
    costs = whole_ns(operations / rates.machine[c.PER_S]) + np.int64(rates.queues[q, c.FIXED_NS])
    if rates.queues[q, c.ROW_BYTES] > 0:
        costs += whole_ns(
            decision[c.N_ROWS_IN] * rates.queues[q, c.ROW_BYTES] / rates.machine[c.BYTES_PER_S]
        )
    return costs


@inlined
def whole_ns(seconds):
    """Rounds up to whole nanoseconds.

    Args:
      seconds: A time in seconds, float64.

    Returns:
      Nanoseconds, int64.
    """
    return np.int64(np.ceil(seconds * 1e9 - 1e-6))


@inlined
def free_column(workers, n_workers):
    """Finds a column for a transfer whose worker goes on.

    Args:
      workers: See `advance`.
      n_workers: How many workers there are.

    Returns:
      The column, or -1 if all are taken.
    """
    for column in range(n_workers, workers.shape[1]):
        if workers[c.END_NS, column] == c.IDLE:
            return np.int64(column)
    return np.int64(-1)


@inlined
def begin_dispatch(moments, workers, worker, decision, first, costs):
    """Starts a dispatch: puts its column into the heap.

    Args:
      moments: See `advance`; it is written to.
      workers: See `advance`; it is written to.
      worker: The worker that was asked, or the column of a transfer while which it goes on.
      decision: The dispatch's line.
      first: Its first message.
      costs: What it takes, in nanoseconds.
    """
    # Its line first: the heap compares by it.
    workers[c.END_NS, worker] = moments[c.NOW_NS] + max(np.int64(0), costs)
    workers[c.RUNS_NUMBER, worker] = decision[c.NUMBER]
    workers[c.RUNS_QUEUE, worker] = decision[c.QUEUE]
    workers[c.RUNS_FIRST, worker] = first
    workers[c.RUNS_MESSAGES, worker] = decision[c.N_MESSAGES]
    k = moments[c.N_BUSY]
    # Up from the heap's end, past parents that end later.
    while k > 0 and ends_before(
        workers,
        worker,
        workers[c.HEAP, (k - 1) // 2],
    ):
        workers[c.HEAP, k] = workers[c.HEAP, (k - 1) // 2]
        k = (k - 1) // 2
    workers[c.HEAP, k] = worker
    moments[c.N_BUSY] += 1


@inlined
def end_first(t, moments, workers):
    """Ends the dispatch that ends first: takes its column from the heap, moves the time to its end, and has its worker asked next.

    Args:
      t: The tables.
      moments: See `advance`; it is written to.
      workers: See `advance`; it is written to.
    """
    worker = workers[c.HEAP, 0]
    # Time goes to the end of the first dispatch. Its column's line stays as it was: `travel` reads
    # it after this.
    moments[c.NOW_NS] = workers[c.END_NS, worker]
    moments[c.N_BUSY] -= 1
    # The heap's last entry takes the root's place and sinks.
    n = moments[c.N_BUSY]
    k = 0
    child = 1
    last = workers[c.HEAP, n]
    while child < n:
        # Past the child that ends earlier, as long as that ends before it.
        if child + 1 < n and ends_before(
            workers, workers[c.HEAP, child + 1], workers[c.HEAP, child]
        ):
            child += 1
        if not ends_before(workers, workers[c.HEAP, child], last):
            break
        workers[c.HEAP, k] = workers[c.HEAP, child]
        k = child
        child = 2 * child + 1
    workers[c.HEAP, k] = last
    # Only now, since the heap has compared by it.
    workers[c.END_NS, worker] = c.IDLE
    moments[c.LOOKS] = 1
    # Columns beyond the workers are transfers', and ask for nothing.
    if worker < len(t.active):
        t.clock[c.WOKEN + worker] = 1


@inlined
def ends_before(workers, a, b):
    """Tells whether one worker's dispatch ends before another's; of two that end together the one that was decided first.

    Args:
      workers: See `advance`.
      a: A worker that is busy.
      b: Another one.
    """
    ends = workers[c.END_NS, a]
    others = workers[c.END_NS, b]
    return ends < others or (
        ends == others and workers[c.RUNS_NUMBER, a] < workers[c.RUNS_NUMBER, b]
    )


@inlined
def unroll(t, v, messages):
    """Writes down the messages of a dispatch.

    Args:
      t: The tables.
      v: The first of them; the others follow through `NEXT`.
      messages: `[n]` int32, to be written.
    """
    for k in range(len(messages)):
        messages[k] = v
        v = t.live[v, c.NEXT]
