"""Warnings after an epoch with which training can't work: lost parameters, a loss that grows, nodes that hardly update, late gradients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence

from ampjax.sched.diagnose.statistics import NodeStats
from ampjax.train.divergence import warn_of
from ampjax.train.history import Epoch
from ampjax.train.runs.session import Session
from ampjax.train.settings import STALENESS_LIMITS
from ampjax.train.training_data import AnyInstances

FEWEST_UPDATES = 2
"""A node that updates less often in an epoch hardly learns in it."""

USUAL_UPDATES = 50
"""The interval that a warning proposes gives about so many updates in an epoch."""

MOST_STALENESS = 10
"""Gradients that are later in the mean make training slow, or diverge."""

MOST_GROWTH = 100
"""A loss so many times that of a fit's first epoch is one that diverges: one that has converged is noise, which may grow tenfold."""

LEAST_LOSS = 1e-6
"""Smaller losses are rounding errors."""


class ToldOnce:
    """Warns of each kind of trouble once in a fit."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._first: float | None = None

    def of_epoch(
        self,
        session: Session,
        epoch: Epoch,
        lost: Sequence[str],
        data: AnyInstances,
        stops: bool,
    ) -> None:
        """Warns of an epoch's faults, each only once.

        Args:
          session: What runs.
          epoch: The epoch.
          lost: The nodes of whose parameters some are not finite.
          data: What was trained on.
          stops: Whether training ends if there are any.
        """
        where = f"epoch {epoch.epoch}"
        kind = "lost" if lost else "loss"
        loss = epoch.train.get("loss", 0.0)
        if kind not in self._told and warn_of(loss, where, lost, data, stops):
            self._told.add(kind)
        if self._first is None:
            self._first = loss
        self._warn("growth", where, _growth(self._first, loss))
        if session.settings.mode == "async":
            self._warn("updates", where, _few_updates(session))
            self._warn("staleness", where, _late_gradients(session))

    def _warn(self, kind: str, where: str, found: str) -> None:
        if found and kind not in self._told:
            self._told.add(kind)
            warnings.warn(f"{where}: {found}", RuntimeWarning, stacklevel=2)


def _growth(first: float, loss: float) -> str:
    """Writes the warning about a growing loss; empty for any other loss, and for one below 0."""
    has_grown = max(MOST_GROWTH * first, LEAST_LOSS) < loss < math.inf
    if first <= 0 or not has_grown:
        return ""
    return (
        f"expected a loss of about that of the first epoch, {first:.4g}, or less, got {loss:.4g}: training diverges. Lower the learning rate, or clip gradients: "
        "`optax.chain(optax.clip_by_global_norm(1.0), tx)`."
    )


def _few_updates(session: Session) -> str:
    """Writes the warning about nodes that have hardly updated; empty if there are none."""
    intervals = session.scheduler.settings.intervals
    few = []
    for name, counts in _trained_counts(session):
        # Few rows that come in one dispatch are one update whatever the interval is.
        if (
            counts.updates < FEWEST_UPDATES
            and 2 <= counts.gradients < FEWEST_UPDATES * intervals[name]
        ):
            few.append((name, counts, intervals[name]))
    if not few:
        return ""
    name, counts, interval = max(
        few,
        key=lambda one: one[1].gradients,
    )
    proposed = max(1, counts.gradients // USUAL_UPDATES)
    return (
        f"expected at least {FEWEST_UPDATES} updates of each node, got {counts.updates} of `{name}`{_others(len(few))}: it has got {counts.gradients:,} gradient rows, and its interval is "
        f"{interval:,}. Lower `min_update_interval`: with {proposed:,} it makes about {counts.gradients // proposed}. Each node can have its own: `amp.graphs.ppt(..., min_update_interval=...)`, "
        "and `amp.node` in a model."
    )


def _late_gradients(session: Session) -> str:
    """Writes the warning about nodes with late gradients; empty if there are none, or users have limited them."""
    settings = session.settings
    if any(getattr(settings, name) is not None for name in STALENESS_LIMITS):
        return ""
    late = [
        (name, counts)
        for name, counts in _trained_counts(session)
        if counts.staleness_mean > MOST_STALENESS
    ]
    if not late:
        return ""
    name, node = max(late, key=lambda one: one[1].staleness_mean)
    share = MOST_STALENESS / node.staleness_mean
    interval = session.scheduler.settings.intervals[name]
    keys = f"`max_active_keys` ({settings.max_active_keys}) to about {max(1, int(settings.max_active_keys * share))}"
    return (
        f"expected gradients at most {MOST_STALENESS} updates late in the mean, got {node.staleness_mean:.1f} at `{name}`{_others(len(late))}. Lower {keys}, or raise `min_update_interval` "
        f"({interval:,}) to about {math.ceil(interval / share):,}, or set a limit such as `max_staleness={MOST_STALENESS}`."
    )


def _trained_counts(session: Session) -> Iterator[tuple[str, NodeStats]]:
    """Yields the trained nodes, and the counts of each."""
    nodes = session.plan.graph.parameterised
    frozen = session.settings.frozen
    for name, node in session.passes.statistics.training.nodes.items():
        if name not in nodes or nodes[name].role not in frozen:
            yield name, node


def _others(n: int) -> str:
    """Writes the number of nodes beside the named one."""
    return "" if n < 2 else f", and of {n - 1} more"
