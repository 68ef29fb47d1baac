"""Instances whose programs grow while in flight: a user-written controller pumps later, or a payload decides.

Some of them are unfolded together, in one unfolding that waits for what comes. Nothing of their programs is shared or kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ampjax.ir.instances import Messages
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.layout import columns as c
from ampjax.sched.programs.cohort import Cohort
from ampjax.sched.programs.growth_writer import GrowthWriter
from ampjax.sched.tables.program_store import ProgramStore
from ampjax.sched.tables.scheduler_tables import SchedulerTables
from ampjax.unfold.growth import KnownLines
from ampjax.unfold.unfolder import Unfolder
from ampjax.unfold.unfolding import Unfolding

COHORT_SIZE = 64
"""Instances that share an unfolding; its tables are forgotten when all of them have ended."""


class GrowingPrograms:
    """The instances in flight whose programs grow.

    Args:
      tables: The tables.
      store: The places of programs in the tables.
      unfolder: Unfolds them.
      writer: Writes what is new into the tables.

    Attributes:
      of: The cohort of each instance, and its place there, by handle.
    """

    def __init__(
        self, tables: SchedulerTables, store: ProgramStore, unfolder: Unfolder, writer: GrowthWriter
    ):
        self._tables = tables
        self._store = store
        self._unfolder = unfolder
        self._writer = writer
        self._newest: dict[str, Cohort] = {}
        self.of: dict[int, tuple[Cohort, int]] = {}

    @property
    def unfoldings(self) -> list[Unfolding]:
        """The unfoldings of the instances in flight."""
        return [cohort.unfolding for cohort in self._cohorts]

    def open(
        self,
        handles: np.ndarray,
        ids: np.ndarray,
        purpose: str,
    ) -> None:
        """Begins the programs of more instances.

        Args:
          handles: `[n]`: their handles.
          ids: `[n]`: their numbers.
          purpose: What they are run for, one of `passes.PURPOSES`.
        """
        cohort = self._newest.get(purpose)
        if cohort is None or len(cohort.handles) + len(handles) > max(COHORT_SIZE, len(handles)):
            unfolding = self._unfolder.start([], purpose)
            cohort = self._newest[purpose] = Cohort(
                unfolding, KnownLines(self._unfolder.ranks), purpose
            )
        places = cohort.unfolding.extend(ids)
        cohort.handles = np.append(cohort.handles, handles)
        cohort.in_flight.update(places)
        self.of.update(
            (handle, (cohort, place))
            for handle, place in zip(handles.tolist(), places, strict=True)
        )
        t, new_places = self._store.take_places(
            self._tables.t,
            ids,
            cohort.parts,
        )
        self._tables.t = t
        t.instances[handles, c.PROGRAM] = new_places
        t.instances[handles, c.FIRST_PICK] = 0

    def pump(
        self,
        handles: np.ndarray,
        batch: Mapping[str, Messages],
    ) -> np.ndarray:
        """Adds the consequences of more messages to the programs.

        Args:
          handles: `[n]`: the instances' handles.
          batch: Their messages; `Messages.instance` counts positions in `handles`.

        Returns:
          `[m]` int32: the pumped messages as lines of `Tables.live`, instance by instance.

        Raises:
          MessageError: As `Unfolding.pump` does.
        """
        cohort, _ = self.of[int(handles[0])]
        places = np.array(
            [self.of[handle][1] for handle in handles.tolist()],
            np.int64,
        )
        cohort.unfolding.pump(
            {pump: replace(m, instance=places[m.instance]) for pump, m in batch.items()}
        )
        growth = self._writer.write(cohort)
        self._writer.count_edges(cohort)
        t = self._tables.t
        pumped = growth.stage < 0
        messages = (
            t.instances[cohort.handles[growth.place[pumped]], c.FIRST_LIVE] + growth.number[pumped]
        )
        return messages.astype(np.int32)

    def choose(self, dispatch: Dispatch, choices: np.ndarray | None) -> None:
        """Adds the consequences of choices to the programs.

        Args:
          dispatch: A dispatch of a node that routes by payload.
          choices: `[n]` or `[n, names]`: what the payloads of its messages say; None takes what the node assumes.

        Raises:
          MessageError: As `Unfolding.choose` does.
        """
        t = self._tables.t
        handles = t.live[dispatch.messages, c.HANDLE]
        numbers = dispatch.messages - t.instances[handles, c.FIRST_LIVE]
        cohorts = [self.of[handle][0] for handle in handles.tolist()]
        for cohort in dict.fromkeys(cohorts):
            mine = np.array([k for k, other in enumerate(cohorts) if other is cohort])
            invocations = np.array(
                [
                    cohort.known.invocation(
                        self.of[int(handles[k])][1],
                        int(numbers[k]),
                    )
                    for k in mine.tolist()
                ]
            )
            cohort.unfolding.choose(
                dispatch.stage,
                invocations,
                None if choices is None else np.asarray(choices)[mine],
            )
            self._writer.write(cohort)

    def end(self, handle: int) -> None:
        """Notes that an instance has ended."""
        cohort, place = self.of.pop(handle)
        cohort.in_flight.remove(place)
        is_full = len(cohort.handles) >= COHORT_SIZE
        if not cohort.in_flight and (is_full or self._newest.get(cohort.purpose) is not cohort):
            self._give_up(cohort)

    def forget_all(self) -> None:
        """Notes that nothing is in flight."""
        for cohort in dict.fromkeys((*self._newest.values(), *self._cohorts)):
            self._store.give(cohort.parts)
        self.of.clear()
        self._newest.clear()

    def waits_on(self, worker: int) -> bool:
        """Tells whether a message in a join or group of a worker waits for messages still to come."""
        stages = self._unfolder.plan.stages
        return any(
            table.waiting and stages[number].worker == worker
            for unfolding in self.unfoldings
            for number, table in (
                *unfolding.workspace.joins.items(),
                *unfolding.workspace.groups.items(),
            )
        )

    @property
    def _cohorts(self) -> list[Cohort]:
        """The cohorts of the instances in flight, each once."""
        return list(dict.fromkeys(cohort for cohort, _ in self.of.values()))

    def _give_up(self, cohort: Cohort) -> None:
        self._store.give(cohort.parts)
        self._unfolder.give_up(cohort.unfolding)
        if self._newest.get(cohort.purpose) is cohort:
            del self._newest[cohort.purpose]
