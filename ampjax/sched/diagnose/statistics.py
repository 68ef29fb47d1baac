"""Statistics of a run, by stage and by node, from the loops' counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import DIRECTIONS
from ampjax.sched.layout import columns as c
from ampjax.sched.tables.scheduler_tables import SchedulerTables


@dataclass(slots=True, kw_only=True)
class StageStats:
    """Counts for one stage."""

    dispatches: int = 0
    forward: int = 0
    backward: int = 0
    infer: int = 0
    rows: int = 0
    largest_dispatch: int = 0
    most_messages: int = 0
    longest_queue: int = 0

    @property
    def mean_dispatch(self) -> float:
        """Rows per dispatch."""
        return self.rows / self.dispatches if self.dispatches else 0.0


@dataclass(slots=True, eq=False)
class NodeStats:
    """Updates and staleness of one parameterised node.

    Attributes:
      histogram: `[128]`: how many gradient rows that were accumulated had each staleness; the last entry counts all larger ones, too.
      held_updates: Updates that `max_staleness` has held back.
      held_for: Dispatches between the moments when these updates were due and when they were made, summed.
      dropped: Gradient rows that were staler than `drop_staler_than`, and so were not accumulated.
    """

    updates: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    histogram: np.ndarray = field(
        default_factory=lambda: np.zeros(c.N_BINS, np.int64),
        repr=False,
    )
    held_updates: int = 0
    held_for: int = 0
    dropped: int = 0

    @property
    def gradients(self) -> int:
        """Gradient rows that were accumulated."""
        return int(self.histogram.sum())

    @property
    def staleness_mean(self) -> float:
        """Mean staleness over the gradient rows that were accumulated."""
        return self.staleness_sum / self.gradients if self.gradients else 0.0


@dataclass(slots=True)
class Statistics:
    """Everything counted since the last reset.

    Attributes:
      closed_for: Dispatches during which no training instance was admitted, since an update was held back (`max_staleness`).
      run: The run that was counted: `epoch 2`, `train`, `validate`, `evaluate` or `predict`; empty before the first one.
    """

    stages: dict[str, StageStats] = field(default_factory=dict)
    nodes: dict[str, NodeStats] = field(default_factory=dict)
    instances: int = 0
    most_in_flight: int = 0
    closed_for: int = 0
    run: str = ""

    @property
    def messages(self) -> int:
        """Forward, backward and inference messages that were dispatched."""
        return sum(s.forward + s.backward + s.infer for s in self.stages.values())

    @property
    def dispatches(self) -> int:
        """Dispatches."""
        return sum(s.dispatches for s in self.stages.values())

    @property
    def updates(self) -> int:
        """Updates of all nodes."""
        return sum(n.updates for n in self.nodes.values())

    @property
    def staleness_mean(self) -> float:
        """Mean staleness over all gradient rows of all nodes."""
        gradients = sum(n.gradients for n in self.nodes.values())
        if gradients:
            return sum(n.staleness_sum for n in self.nodes.values()) / gradients
        return 0.0

    @property
    def staleness_max(self) -> int:
        """Largest staleness of gradient rows that were accumulated."""
        return max(
            (n.staleness_max for n in self.nodes.values()),
            default=0,
        )

    @property
    def dropped(self) -> int:
        """Gradient rows of all nodes that were dropped (`drop_staler_than`)."""
        return sum(n.dropped for n in self.nodes.values())

    def __repr__(self) -> str:
        """The sums, then a line for each stage that ran and for each parameterised node."""
        name = f"{self.run}: " if self.run else ""
        lines = [
            f"{name}{self.instances} instances, {self.messages} messages, {self.dispatches} dispatches, {self.updates} updates"
        ]
        for name, s in self.stages.items():
            if not s.dispatches:
                continue
            lines.append(
                f"  {name}: {s.forward} forward, {s.backward} backward, {s.infer} inference; {s.mean_dispatch:.1f} rows a dispatch, at most {s.largest_dispatch}"
            )
        for name, n in self.nodes.items():
            held = (
                f"; {n.held_updates} held back, {n.held_for} dispatches in all"
                if n.held_updates
                else ""
            )
            dropped = (
                f"; {n.dropped} of {n.gradients + n.dropped} gradient rows dropped"
                if n.dropped
                else ""
            )
            lines.append(
                f"  {name}: {n.updates} updates, staleness mean {n.staleness_mean:.2f}, max {n.staleness_max}{held}{dropped}"
            )
        if self.closed_for:
            lines.append(
                f"  no instance admitted during {self.closed_for} dispatches, while updates were held back"
            )
        return "\n".join(lines)


_OF_QUEUES = [
    c.DISPATCHES,
    c.TAKEN,
    c.TAKEN_ROWS,
    c.MOST_TAKEN,
    c.MOST_TAKEN_ROWS,
]
_OF_CLOCK = [c.N_FINISHED, c.MOST_IN_FLIGHT, c.CLOSED_FOR]
_GOES_ON = [c.NOW, c.ENTERED, c.ADMITTED]
"""What the clock counts in all runs together; it gives dispatches their numbers."""


class RunCounts:
    """Reads the loops' counters, and resets the counters.

    Args:
      plan: The plan.
      tables: The tables.
    """

    def __init__(self, plan: Plan, tables: SchedulerTables):
        self._plan = plan
        self._tables = tables

    def read(self) -> Statistics:
        """Gives everything that was counted since the last `reset`.

        Returns:
          The counts, as a copy.
        """
        t = self._tables.t
        stages = self._plan.stages
        of_stages = {stage.name: StageStats() for stage in stages if stage.kind.is_dispatched}
        for q in t.queues[:, c.DISPATCHES].nonzero()[0].tolist():
            _add(
                of_stages[stages[q // c.N_DIRECTIONS].name],
                DIRECTIONS[q % c.N_DIRECTIONS],
                t.queues[q].tolist(),
            )
        return Statistics(
            of_stages,
            {
                node: _node(t.nodes[number])
                for number, node in enumerate(self._plan.graph.parameterised)
            },
            *t.clock[_OF_CLOCK].tolist(),
        )

    def reset(self) -> None:
        """Starts to count anew."""
        t = self._tables.t
        t.queues[:, _OF_QUEUES] = 0
        t.nodes[:, c.UPDATES : c.AWAITED] = 0
        t.clock[_OF_CLOCK] = 0

    def add_round(self, n_instances: int, train: bool) -> None:
        """Counts instances that were run together, without messages: in training each node has made an update.

        Args:
          n_instances: How many.
          train: Whether they were trained on.
        """
        t = self._tables.t
        t.clock[c.N_FINISHED] += n_instances
        t.clock[c.MOST_IN_FLIGHT] = max(int(t.clock[c.MOST_IN_FLIGHT]), n_instances)
        if train:
            t.nodes[:, c.UPDATES] += 1

    @property
    def n_rounds(self) -> int:
        """The largest number of updates that a node has made."""
        return int(self._tables.t.nodes[:, c.UPDATES].max(initial=0))

    def state(self) -> dict[str, Any]:
        """Gives the counters that another scheduler needs to go on counting, in a form that JSON can hold. Nothing may be in flight.

        Returns:
          A dictionary for `resume`.
        """
        t = self._tables.t
        nodes = t.nodes[:, c.UPDATES : c.AWAITED]
        # Most staleness never occurs, so of the histograms only what does.
        entries = []
        for place in np.argwhere(nodes).tolist():
            entries.append([*place, int(nodes[tuple(place)])])
        clock = t.clock[[*_OF_CLOCK, *_GOES_ON]].tolist()
        return {
            "queues": t.queues[:, [*_OF_QUEUES, c.LONGEST]].tolist(),
            "nodes": entries,
            "clock": clock,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on counting from another's `state`.

        Args:
          state: What `state` gave.
        """
        self.reset()
        t = self._tables.t
        t.queues[:, [*_OF_QUEUES, c.LONGEST]] = state["queues"]
        t.clock[[*_OF_CLOCK, *_GOES_ON]] = state["clock"]
        for node, column, count in state["nodes"]:
            t.nodes[node, c.UPDATES + column] = count


def _add(
    stage: StageStats,
    direction: str,
    queue: Sequence[int],
) -> None:
    """Adds a queue's counts to its stage's; stages that copy one wire share a name."""
    setattr(stage, direction, getattr(stage, direction) + queue[c.TAKEN])
    stage.dispatches += queue[c.DISPATCHES]
    stage.rows += queue[c.TAKEN_ROWS]
    stage.largest_dispatch = max(stage.largest_dispatch, queue[c.MOST_TAKEN_ROWS])
    stage.most_messages = max(stage.most_messages, queue[c.MOST_TAKEN])
    stage.longest_queue = max(stage.longest_queue, queue[c.LONGEST])


def _node(counts: np.ndarray) -> NodeStats:
    updates, stale_sum, stale_max, held, held_for = counts[c.UPDATES : c.HISTOGRAM].tolist()
    histogram = counts[c.HISTOGRAM : c.DROPPED_ROWS].copy()
    dropped = int(counts[c.DROPPED_ROWS])
    return NodeStats(updates, stale_sum, stale_max, histogram, held, held_for, dropped)
