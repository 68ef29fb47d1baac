"""Turns a scheduler's dispatches into launches."""

from __future__ import annotations

import numpy as np

from ampjax.engine.kernels.launch import CHANGES_ONLY, Launch
from ampjax.plan.row_seeds import RowSeeds
from ampjax.plan.stages import Stage
from ampjax.sched.decisions.dispatch import INFER, Dispatch
from ampjax.sched.decisions.parameter_changes import Update
from ampjax.sched.scheduler import Scheduler


class Launches:
    """Makes launches of dispatches: each before more is admitted, as then the dispatch's contents can no longer be looked up.

    Args:
      scheduler: What decides.
      seeds: Where random bodies' numbers come from.
    """

    def __init__(self, scheduler: Scheduler, seeds: RowSeeds):
        self._scheduler = scheduler
        self._seeds = seeds
        self._capacities: dict[int, tuple[int, ...]] = {}  # of stages' outputs
        self._n_slots = -1  # of all arenas, when they were looked up
        stages = []
        for stage in scheduler.plan.stages:
            stages.append((stage, len(stage.ports), len(stage.outputs), stage.needs_contents))
        self._stages = stages

    def __call__(self, d: Dispatch) -> Launch:
        """Makes a dispatch's launch.

        Args:
          d: The dispatch, decided since anything was last admitted.
        """
        if d.stage < 0:
            return Launch(
                d.number,
                d.worker,
                CHANGES_ONLY,
                d.direction,
                changes=d.changes,
            )
        stage, n_ports, n_outputs, has_contents = self._stages[d.stage]
        launch = Launch(
            d.number,
            d.worker,
            d.stage,
            d.direction,
            d.n_messages,
            d.n_rows,
            n_ports,
            n_outputs,
            d.pack,
            d.size,
            d.place,
            self.capacities_of(d.stage),
            d.changes,
            bool(d.changes) and brings_updates(stage, d),
        )
        if has_contents or d.versions or d.staleness or d.dropped:
            return self._with_contents(launch, stage, d)
        return launch

    def capacities_of(self, stage: int) -> tuple[int, ...]:
        """Gives the number of rows that the arena of each output of a stage has now."""
        tables = self._scheduler.tables
        # An arena has grown somewhere, so all are looked up again.
        if tables.n_slots != self._n_slots:
            self._n_slots = tables.n_slots
            self._capacities.clear()
        capacities = self._capacities.get(stage)
        if capacities is None:
            capacities = self._capacities[stage] = tuple(
                [tables.capacity(key) for key in self._stages[stage][0].arenas]
            )
        return capacities

    def _with_contents(self, launch: Launch, stage: Stage, d: Dispatch) -> Launch:
        """Adds the fields that only some stages need."""
        contents = self._scheduler.contents
        sizes = contents.sizes(d)
        edges = contents.edges(d)
        seeds = ()
        if stage.random and d.direction != INFER:
            seeds = self._seeds.of(contents.states(d), sizes, edges)
        launch = launch._replace(
            sizes=sizes,
            edges=edges,
            scatter=contents.scatter(d),
            seeds=seeds,
            versions=d.versions,
            drop=bool(d.drop),
            staleness=d.staleness,
            dropped=d.dropped,
        )
        # Only for errors, which name the instance of each row.
        if not stage.kind.reads_table:
            return launch
        return launch._replace(instances=np.repeat(d.ids, 1 if sizes is None else sizes))


def brings_updates(stage: Stage, d: Dispatch) -> bool:
    """Whether a dispatch's parameter changes are one update of each of its stage's nodes, from no gradients but the dispatch's own.

    Args:
      stage: Its stage.
      d: The dispatch; it has parameter changes.
    """
    updates = {}
    for change in d.changes:
        if isinstance(change, Update):
            updates[change.node] = change.count
    return not d.dropped and len(updates) == len(d.changes) and updates == d.gradient_rows(stage)
