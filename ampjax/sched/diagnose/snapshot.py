"""A scheduler's parts at one moment, and messages in the user's words: their stage and their state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ampjax.ir.state import INSTANCE, State
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables
from ampjax.sched.tables.program_store import ProgramStore
from ampjax.unfold.unfolding import Unfolding

UNKNOWN_VALUE = np.iinfo(np.int64).min
"""The value of state fields that nobody knows any more."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Snapshot:
    """The data that diagnoses read.

    Args:
      plan: The plan.
      settings: The scheduler's settings.
      tables: Its tables.
      store: The programs.
      capacities: `[arenas]`: slots of each arena, those that are taken included.
      log: The last dispatches, oldest first.
      under_way: Dispatches that are not done.
      unfoldings: Those of instances for which more is pumped or chosen while they are in flight.
      overdue: Nodes whose update was due and has been taken back, and their versions then.
    """

    plan: Plan
    settings: SchedulerSettings
    tables: Tables
    store: ProgramStore
    capacities: np.ndarray
    log: Iterable[Dispatch]
    under_way: Collection[Dispatch]
    unfoldings: Collection[Unfolding] = ()
    overdue: Mapping[str, int] = field(default_factory=dict)

    def states(
        self,
        ids: np.ndarray,
        lines: np.ndarray,
    ) -> np.ndarray:
        """Gives the states of invocations.

        Args:
          ids: `[n]`: the numbers of their instances.
          lines: `[n]`: their lines of `Tables.lines`.

        Returns:
          `[n, width]` int64; the column of handles is 0.
        """
        states = np.zeros(
            (len(lines), self.plan.layout.width),
            np.int64,
        )
        states[:, INSTANCE] = ids
        states[:, 2:] = self.store.states(lines)
        return states

    def states_of(self, d: Dispatch) -> np.ndarray:
        """Gives the states of a dispatch's messages.

        Returns:
          `[n, width]` int64; where a message's program has been dropped since, only the instance is known, and other columns are `UNKNOWN_VALUE`.
        """
        states = self.states(d.ids, d.lines)
        places = self.store.find(d.lines)[0]
        states[(places < 0) | (self.store.programs[places, c.P_SINCE] >= d.number), 2:] = (
            UNKNOWN_VALUE
        )
        return states

    def first_of(self, d: Dispatch, states: np.ndarray) -> State:
        """Gives the first of some states of a dispatch's messages.

        Args:
          d: The dispatch.
          states: `[n, width]`: states as `states_of` gives them.

        Returns:
          The state, with the fields that are known.
        """
        return State(
            states[:1],
            self.plan.layout,
            () if UNKNOWN_VALUE in states[0] else self.fields(d.stage),
        )

    def fields(self, number: int) -> tuple[str, ...]:
        """Gives the state fields of a stage's invocations, or of a pump's messages.

        Args:
          number: The stage's number, or `-1 - p` for pump `p`.

        Returns:
          Names of fields.
        """
        if number < 0:
            return list(self.plan.graph.pumps.values())[-1 - number].op.type.fields
        stage = self.plan.stages[number]
        if not stage.kind.is_dispatched:
            return stage.outputs[0].fields
        return stage.ports[0].type.fields

    def name(self, number: int) -> str:
        """Names a stage or a pump in words.

        Args:
          number: The stage's number, or `-1 - p` for pump `p`.

        Returns:
          The name.
        """
        if number < 0:
            return f"Pump `{list(self.plan.graph.pumps)[-1 - number]}`"
        stage = self.plan.stages[number]
        return f"group `{stage.name}`" if not stage.kind.is_dispatched else f"`{stage.name}`"
