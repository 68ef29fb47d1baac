"""Versions: which ones messages see, how stale their gradients are, and when nodes update.

A node with a staleness budget `k` knows how many messages that saw each of its latest `k + 1` versions still owe it a gradient. At version `v` it does not update before
those that saw version `v - k` have answered: theirs would be too stale after it. It goes on accumulating meanwhile, and no dispatch waits.

A node that drops stale gradients does not count those that are staler than its limit. All messages of a dispatch are alike in this: what is dropped at a node is
dropped for the whole dispatch.
"""

from __future__ import annotations

import numpy as np

from ampjax.sched.layout import columns as c
from ampjax.sched.loops.compiled import inlined
from ampjax.sched.loops.queues import handle_of, is_dropped


@inlined
def note_versions(t, stage, messages):
    """Notes which parameter versions messages see.

    Args:
      t: The tables.
      stage: Their stage.
      messages: `[n]`: the messages.
    """
    for p in range(t.stages[stage, c.N_PARAMS]):
        node = t.params[t.stages[stage, c.PARAMS] + p, c.NODE]
        # Messages remember the version that they see, for the staleness of their gradients.
        version = t.nodes[node, c.VERSION]
        n_kept = t.nodes[node, c.BUDGET] + 1
        for v in messages:
            t.live[v, c.SEEN + p] = version
        # With a budget, the node counts who still owes gradients for this version.
        if n_kept:
            t.nodes[node, c.AWAITED + version % n_kept] += len(messages)


@inlined
def count_gradients(t, stage, messages, lines, due):
    """Counts gradient rows of a stage's nodes, and makes the updates that are due.

    Args:
      t: The tables.
      stage: The stage.
      messages: `[n]`: its messages.
      lines: `[n]`: their program lines.
      due: See `decide`.

    Returns:
      How many updates are due.
    """
    n_due = 0
    n_params = t.stages[stage, c.N_PARAMS]
    for p in range(n_params):
        param = t.stages[stage, c.PARAMS] + p
        node = t.params[param, c.NODE]
        edge_type = t.params[param, c.EDGE_TYPE]
        version = t.nodes[node, c.VERSION]
        # Rows are counted in runs of equal staleness, which messages that stand together mostly
        # share.
        age = np.int64(0)
        alike = np.int64(0)
        n_kept = t.nodes[node, c.BUDGET] + 1
        for k in range(len(messages)):
            v = messages[k]
            # What a row is depends on where the node stands in the stage.
            rows = np.int64(
                t.lines[lines[k], c.OUT_ROWS if edge_type == c.OF_OUTPUT else c.IN_ROWS]
            )
            if edge_type >= 0:
                rows = np.int64(t.edges[t.instances[handle_of(t, v), c.PROGRAM], edge_type])
            # A run ends: its rows are counted before the next one begins.
            if version - t.live[v, c.SEEN + p] != age:
                count_rows(t, node, age, alike)
                age = version - t.live[v, c.SEEN + p]
                alike = np.int64(0)
            # This message owes the node nothing more. It is taken off before updates are decided,
            # since it may be what the update has waited for.
            if n_kept:
                t.nodes[node, c.AWAITED + t.live[v, c.SEEN + p] % n_kept] -= 1
            alike += rows
        # The last run.
        count_rows(t, node, age, alike)
        if p + 1 < n_params and t.params[param + 1, c.NODE] == node:
            continue  # the next one has the same parameters: their gradients come together
        # Is an update due? Nodes that the controller updates have a negative interval.
        count = t.nodes[node, c.COUNT]
        stale = t.nodes[node, c.STALENESS]
        if t.nodes[node, c.INTERVAL] < 0 or count < t.nodes[node, c.INTERVAL]:
            continue
        # Gradients of the oldest version in the budget would be too stale after the update, so it
        # waits for them.
        if n_kept and t.nodes[node, c.AWAITED + (version + 1) % n_kept]:
            hold(t, node)
            continue
        # The update is written down; the executor makes it after this dispatch.
        release(t, node)
        due[n_due, 0] = node
        due[n_due, 1] = count
        due[n_due, 2] = stale
        due[n_due, 3] = version + 1
        n_due += 1
        # The next update counts from zero, and messages see the new version from now on.
        t.nodes[node, c.COUNT] = t.nodes[node, c.STALENESS] = 0
        t.nodes[node, c.VERSION] += 1
        t.nodes[node, c.UPDATES] += 1
    return n_due


@inlined
def count_rows(t, node, age, rows):
    """Counts gradient rows of a node that are equally stale, as part of its next update or as dropped.

    Args:
      t: The tables.
      node: The node's line of `nodes`.
      age: Updates of the node since the messages have seen its parameters.
      rows: How many rows.
    """
    if is_dropped(t, node, age):
        t.nodes[node, c.DROPPED_ROWS] += rows
        return
    # Sums for the next update, then those for statistics.
    t.nodes[node, c.COUNT] += rows
    t.nodes[node, c.STALENESS] += rows * age
    t.nodes[node, c.STALE_SUM] += rows * age
    t.nodes[node, c.STALE_MAX] = max(
        t.nodes[node, c.STALE_MAX],
        age,
    )
    t.nodes[node, c.HISTOGRAM + min(age, c.N_BINS - 1)] += rows


@inlined
def hold(t, node):
    """Holds back an update that is due. The dispatch that is being decided has the next number.

    Args:
      t: The tables.
      node: The node's line of `nodes`.
    """
    # Only the first dispatch after which it was due counts; later ones find it held already.
    if t.nodes[node, c.HELD_SINCE] == 0:
        t.nodes[node, c.HELD_SINCE] = t.clock[c.NOW] + 1
        t.nodes[node, c.HELD_UPDATES] += 1
        t.clock[c.N_HOLDING] += 1


@inlined
def release(t, node):
    """Notes that a node updates, which may have been held back.

    Args:
      t: The tables.
      node: The node's line of `nodes`.
    """
    # How long it was held goes into statistics, and one node less keeps training instances out.
    if t.nodes[node, c.HELD_SINCE]:
        t.nodes[node, c.HELD_FOR] += t.clock[c.NOW] + 1 - t.nodes[node, c.HELD_SINCE]
        t.nodes[node, c.HELD_SINCE] = 0
        t.clock[c.N_HOLDING] -= 1
