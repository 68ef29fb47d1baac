"""Statistics, from what the loops count: dispatches by queue, updates and staleness by node, instances."""

from __future__ import annotations

from collections.abc import Sequence

from ampjax.sched.plan import Plan
from ampjax.sched.stats import NodeStats, StageStats, Statistics
from ampjax.schedule import columns as c
from ampjax.schedule.columns import Tables
from ampjax.schedule.dispatch import DIRECTIONS


def statistics(plan: Plan, nodes: Sequence[str], t: Tables) -> Statistics:
    """Everything counted since the last `reset`.

    Args:
      plan: The plan.
      nodes: The parameterised nodes, by number.
      t: The tables.
    """
    found = {stage.name: StageStats() for stage in plan.stages if stage.kind != "group"}
    for q in t.queues[:, c.DISPATCHES].nonzero()[0].tolist():
        _add(found[plan.stages[q // 3].name], DIRECTIONS[q % 3], t.queues[q].tolist())
    return Statistics(
        found,
        {node: _node(t.nodes[number]) for number, node in enumerate(nodes)},
        int(t.clock[c.N_FINISHED]),
        int(t.clock[c.MOST_IN_FLIGHT]),
    )


def reset(t: Tables) -> None:
    """Starts counting anew."""
    t.queues[:, [c.DISPATCHES, c.TAKEN, c.TAKEN_ROWS, c.MOST_TAKEN, c.MOST_ROWS]] = 0
    t.nodes[:, c.UPDATES :] = 0
    t.clock[[c.N_FINISHED, c.MOST_IN_FLIGHT]] = 0


def _add(stage: StageStats, direction: str, queue: Sequence[int]) -> None:
    """Adds a queue's counts to its stage's; stages that copy one wire share a name."""
    setattr(stage, direction, getattr(stage, direction) + queue[c.TAKEN])
    stage.dispatches += queue[c.DISPATCHES]
    stage.rows += queue[c.TAKEN_ROWS]
    stage.largest_dispatch = max(stage.largest_dispatch, queue[c.MOST_ROWS])
    stage.most_messages = max(stage.most_messages, queue[c.MOST_TAKEN])
    stage.longest_queue = max(stage.longest_queue, queue[c.LONGEST])


def _node(counts) -> NodeStats:
    updates, total, largest = counts[[c.UPDATES, c.STALE_SUM, c.STALE_MAX]].tolist()
    return NodeStats.counted(updates, counts[c.HISTOGRAM :].copy(), total, largest)
