"""What has been decided: what of it waits to be issued, what has been, and what must be undone after a mistake.

Control never waits for a payload (but where it reads one), so a driver may let the scheduler decide on several dispatches before the first is issued: that
way the scheduler's lines and XLA's each stay in the processor's caches for a while, in place of pushing one another out for every dispatch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from ampjax.engine.executor import Executor
from ampjax.engine.instruments import Instruments
from ampjax.engine.launch import Launch
from ampjax.engine.streaks import n_coalesced
from ampjax.sched.dispatch import Dispatch
from ampjax.sched.pump import Feed
from ampjax.sched.scheduler import Scheduler

AHEAD = 16, 2_048
"""Dispatches, and messages in them, that are decided on before they are carried out; more would leave the caches again."""


@dataclass(slots=True, eq=False)
class Decided:
    """A dispatch that waits to be issued.

    Args:
      dispatch: The dispatch.
      alone: Whether it is issued by itself.
      launch: The same for an executor, once it is asked for.
    """

    dispatch: Dispatch
    alone: bool = False
    launch: Launch | None = None


class IssueQueue:
    """Dispatches and pumped payloads between the scheduler, which has decided on them, and the executor.

    Args:
      scheduler: What has decided.
      executor: Carries dispatches out; None if only control runs.
      launch_of: Makes the launch of a dispatch.
      instruments: Who is told.

    Attributes:
      outputs: What has arrived at sinks: the dispatches, and their rows (padded).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor | None,
        launch_of: Callable[[Dispatch], Launch],
        instruments: Instruments,
    ):
        self._scheduler, self._executor, self._launch_of = scheduler, executor, launch_of
        self._instruments = instruments
        self.outputs: list[tuple[Dispatch, Any]] = []
        self._waiting: deque[Decided | list[Feed]] = deque()
        self._n_dispatches = self._n_messages = 0  # decided since something was carried out
        self._is_broken = False
        self._ran: Dispatch | None = None  # its kernels have been issued, not all of its parameter changes
        self._n_changed = 0  # of these

    def add(self, dispatch: Dispatch) -> None:
        """A dispatch has been decided on. It is issued with others, or at once if they are many; one that somebody wants by itself after what came before."""
        decided = Decided(dispatch)
        self._waiting.append(decided)  # before anyone is told, so that it is undone if that fails
        for hook in self._instruments.decided:
            decided.alone = hook(dispatch) or decided.alone
        if self._executor is None:
            for hook in self._instruments.before_kernels:
                hook([dispatch])
            self._waiting.pop()
            return
        if decided.alone:
            self.carry_out(all_but=1)
        self._n_dispatches += 1
        self._n_messages += dispatch.n_messages
        if self._n_dispatches >= AHEAD[0] or self._n_messages >= AHEAD[1]:
            self.carry_out()

    def feed(self, feeds: Sequence[Feed]) -> None:
        """Puts pumped payloads where they belong: not before dispatches that were decided on earlier have read what lies there."""
        if self._executor is None:
            return
        if self._waiting:
            # Copies: a data set may use its buffers again.
            self._waiting.append([replace(feed, payload=np.array(feed.payload)) for feed in feeds])
        else:
            self._executor.feed(feeds)

    def carry_out(self, all_but: int = 0) -> None:
        """Issues what has been decided, in that order, all or `all_but` the last few; and puts payloads that have been pumped since where they belong.

        Once something has failed, or was interrupted, nothing more is issued: what follows may need what was not computed (see `undone`).
        """
        waiting, executor = self._waiting, self._executor
        while len(waiting) > all_but and not self._is_broken and executor is not None:
            first, self._is_broken, n = waiting[0], True, 1
            if isinstance(first, Decided):
                n = self._n_together(executor, first, len(waiting) - all_but)
                self._issue(executor, [first] if n == 1 else list(islice(waiting, n)))  # type: ignore[arg-type] - all are decided
            else:
                executor.feed(first)
            for _ in range(n):
                waiting.popleft()
            self._is_broken = False
        if self._n_dispatches:
            for hook in self._instruments.carried_out:
                hook()
        self._n_dispatches = self._n_messages = 0

    @property
    def undone(self) -> list[Dispatch]:
        """What has been decided and not carried out, in order: after an error or an interrupt, from the dispatch on in which it came.

        Of one whose kernels had been issued, parameter changes alone are left; those that were issued with it have been carried out.
        """
        undone = [entry.dispatch for entry in self._waiting if isinstance(entry, Decided)]
        ran = self._ran
        if ran is not None:
            undone[: 1 + undone.index(ran)] = [ran.after(self._n_changed)]
        return undone

    def abandon(self) -> None:
        """Gives up all that is in flight and what came of it, so that the next run starts clean.

        What had been decided before an interrupt is issued, and updates that were due are made; but if something has failed, neither they nor what was
        to be issued since: what nodes had accumulated before stays.
        """
        try:
            with suppress(Exception):
                self.carry_out()
        finally:
            undone = self.undone
            self._waiting.clear()
            self._ran, self._is_broken = None, False
            self.outputs.clear()
            abandon(self._scheduler, self._executor, undone)

    def _n_together(self, executor: Executor, first: Decided, most: int) -> int:
        """How many of at most `most` that have been decided, from the first on, are issued together."""
        if first.alone or most == 1:
            return 1
        behind = (
            self._launch(entry) if isinstance(entry, Decided) and not entry.alone else None
            for entry in islice(self._waiting, 1, most)
        )
        return n_coalesced(self._launch(first), behind, executor.can_coalesce)

    def _launch(self, decided: Decided) -> Launch:
        if decided.launch is None:
            decided.launch = self._launch_of(decided.dispatch)
        return decided.launch

    def _issue(self, executor: Executor, together: Sequence[Decided]) -> None:
        """Issues dispatches: their kernels, then the parameter changes of the last one."""
        dispatches = [decided.dispatch for decided in together]
        for hook in self._instruments.before_kernels:
            hook(dispatches)
        try:
            self.run(executor, dispatches, [self._launch(decided) for decided in together])
        except Exception as error:
            error.add_note(f"ampjax: {self._scheduler.describe(dispatches[0])}")
            raise

    def run(self, executor: Executor, dispatches: Sequence[Dispatch], launches: Sequence[Launch]) -> None:
        """Lets an executor carry dispatches out in one call, and notes how far it gets."""
        last = dispatches[-1]
        self._n_changed = executor.run(launches)
        self._ran = last
        for hook in self._instruments.after_kernels:
            hook(dispatches)
        while self._n_changed < len(last.changes):
            executor.change(last.changes[self._n_changed])
            self._n_changed += 1
        for hook in self._instruments.after_changes:
            hook(dispatches)
        if launches[0].stage in executor.sinks:
            self.outputs += [(dispatch, executor.readings.pop(dispatch.number)) for dispatch in dispatches]
        self._ran = None


def abandon(scheduler: Scheduler, executor: Executor | None, undone: Sequence[Dispatch] = ()) -> None:
    """Forgets what is in flight, `undone` what was decided and not carried out; makes the updates that were due, unless there is any."""
    due = scheduler.abandon(undone)
    if executor is not None:
        for dispatch in due:
            for change in dispatch.changes:
                executor.change(change)
        executor.abandon()
