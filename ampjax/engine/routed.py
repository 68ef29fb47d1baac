"""What the scheduler that routes messages decides, as launches. It goes when that scheduler goes."""

from __future__ import annotations

from ampjax.engine.launch import CHANGES_ONLY, Launch
from ampjax.sched.dispatch import Dispatch
from ampjax.sched.plan import Plan
from ampjax.sched.queues import INFER
from ampjax.sched.row_seeds import RowSeeds


class Routed:
    """Makes launches of dispatches.

    Args:
      plan: The plan.
      seeds: Where random bodies' numbers come from.
    """

    def __init__(self, plan: Plan, seeds: RowSeeds):
        self._seeds = seeds
        self._random = {stage.number for stage in plan.stages if stage.random}

    def __call__(self, d: Dispatch) -> Launch:
        """A dispatch as a launch."""
        stage = d.stage
        if stage is None:
            return Launch(d.number, d.worker, CHANGES_ONLY, d.direction, changes=d.changes)
        draws = stage.number in self._random and d.direction != INFER
        return Launch(
            d.number,
            d.worker,
            stage.number,
            d.direction,
            d.n_rows,
            d.in_rows,
            d.out_rows,
            d.capacities,
            d.changes,
            d.brings_updates,
            d.sizes,
            d.edges,
            d.scatter,
            self._seeds.of(d.states, d.sizes, d.edges) if draws else (),
            d.versions,
            bool(d.drop),
        )
