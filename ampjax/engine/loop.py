"""What all drivers share: ask the scheduler, run the dispatch, admit instances, notice the end or a standstill.

Control never waits for a payload (but where it reads one), so a driver may let it decide on several dispatches before the first is issued: that
way the scheduler's lines and XLA's each stay in the processor's caches for a while, in place of pushing one another out for every dispatch.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import numpy as np

from ampjax.engine.executor import Executor, check_payload
from ampjax.engine.journal import Journal
from ampjax.engine.source import Source
from ampjax.engine.streaks import Streak, streak_of
from ampjax.ir.state import State
from ampjax.sched.dispatch import Dispatch
from ampjax.sched.pump import Feed
from ampjax.sched.scheduler import Scheduler

PATIENCE = 20_000
"""Messages for each instance in flight, without any of them ending, from which on a loop is suspected never to end."""

AHEAD = 16, 2_048
"""Dispatches, and messages in them, that are decided on before they are carried out; more would leave the caches again."""

Progress = Callable[[int, bool], None]
"""`progress(n, train)`: `n` more instances have ended."""


class Watch(Protocol):
    """Issues dispatches in the executor's place, and takes times for a trace."""

    def decided(self, dispatch: Dispatch) -> bool:
        """The scheduler has chosen it; says whether what was decided before should be carried out first, so that devices have time to be done with it."""
        ...

    def alone(self, dispatch: Dispatch) -> bool:
        """Whether a dispatch should be issued by itself."""
        ...

    def issue(self, streak: Streak, scheduler: Scheduler) -> None:
        """Issues dispatches, as `Executor.issue` does. Not called where only control runs."""

    def carried_out(self) -> None:
        """What had been decided has been issued, all of it or all but the latest."""


class Loop:
    """One run over some sources.

    Args:
      scheduler: The state machine.
      executor: Runs the dispatches; None if only control runs.
      sources: What is pumped; training and inference sources may run at the same time.
      progress: Told of instances that have ended.
      on_dispatch: Told of every dispatch before it is issued.
      journal: Told of every decision.

    Attributes:
      watch: Issues dispatches, if it is there, and takes their times.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor | None,
        sources: Sequence[Source],
        progress: Progress | None = None,
        on_dispatch: Callable[[Dispatch], None] | None = None,
        journal: Journal | None = None,
    ):
        self.scheduler, self.executor, self.sources = scheduler, executor, list(sources)
        self._progress, self._on_dispatch, self._journal = progress, on_dispatch, journal
        self.watch: Watch | None = None
        self._fruitless = 0  # messages since an instance ended; below 0 once it has been told
        self._decided: deque[Dispatch | Sequence[Feed]] = deque()
        self._n_dispatches = self._n_messages = 0  # in it
        self._is_broken = False

    def issue(self, worker: int) -> Dispatch | None:
        """Takes the worker's next action and carries it out."""
        dispatch = self.decide(worker)
        self.carry_out()
        return dispatch

    def decide(self, worker: int) -> Dispatch | None:
        """Takes the worker's next action; with others it waits to be carried out. It may be `done` before, unless it reads payloads."""
        dispatch = self.scheduler.next(worker)
        if dispatch is None:
            return None
        self._fruitless += dispatch.n_messages
        if self._fruitless > PATIENCE:
            self._suspect()
        if self._journal is not None:
            self._journal.issued(dispatch)
        self._decided.append(dispatch)
        if self.watch is not None and self.watch.decided(dispatch):
            self.carry_out(all_but=1)
        self._n_dispatches += 1
        self._n_messages += dispatch.n_messages
        if self.executor is None or self._n_dispatches >= AHEAD[0] or self._n_messages >= AHEAD[1]:
            self.carry_out()
        return dispatch

    def carry_out(self, all_but: int = 0) -> None:
        """Issues what has been decided, in that order, all or `all_but` the last few; and puts payloads that have been pumped since where they belong.

        Once something has failed, or was interrupted, nothing more is issued: what follows may need what was not computed (see `undone`).
        """
        waiting = self._decided
        while len(waiting) > all_but and not self._is_broken:
            what, self._is_broken, n = waiting[0], True, 1
            if isinstance(what, Dispatch):
                streak = self._streak(what, len(waiting) - all_but)
                self._issue(streak)
                n = len(streak)
            elif self.executor is not None:
                self.executor.feed(what, self.scheduler)
            for _ in range(n):
                waiting.popleft()
            self._is_broken = False
        if self.watch is not None and self._n_dispatches:
            self.watch.carried_out()
        self._n_dispatches = self._n_messages = 0

    @property
    def undone(self) -> list[Dispatch]:
        """What has been decided and not carried out, in order: after an error or an interrupt, from the dispatch on in which it came.

        Of one whose kernels had been issued, parameter changes alone are left; those that were issued with it have been carried out.
        """
        undone = [what for what in self._decided if isinstance(what, Dispatch)]
        left = None if self.executor is None else self.executor.half_done
        if left is not None:
            undone[: 1 + [dispatch.number for dispatch in undone].index(left.number)] = [left]
        return undone

    def done(self, dispatch: Dispatch) -> None:
        """Lets its messages travel on, with what was read from their payloads, and admits what there is room for."""
        if dispatch.reads and self.executor is not None:
            dispatch.choices = self.executor.choices(dispatch)
        if self._journal is not None:
            self._journal.done(dispatch, dispatch.choices if dispatch.reads else None)
        self.scheduler.done(dispatch)
        self.settle()

    def settle(self) -> bool:
        """Reports instances that have ended and admits new ones; says whether any was admitted."""
        ended = self.scheduler.finished
        if ended:
            self._fruitless = 0
            self._tell(ended)
        admitted = 0
        for source in self.sources:
            if not source.exhausted:
                admitted += source.admit(self._feed)
        if self._journal is not None and (ended or admitted):
            self._journal.settled(len(ended), admitted)
        return admitted > 0

    def _streak(self, first: Dispatch, most: int) -> Streak:
        """The next dispatch and those that can be issued together with it, of at most `most` that have been decided."""
        if self.executor is None or (self.watch is not None and self.watch.alone(first)):
            return [first]
        return streak_of(islice(self._decided, most), self.executor.joins)

    def _issue(self, streak: Streak) -> None:
        """Issues dispatches: their kernels, then their parameter changes."""
        if self._on_dispatch is not None:
            for dispatch in streak:
                self._on_dispatch(dispatch)
        if self.executor is not None:
            try:
                (self.watch or self.executor).issue(streak, self.scheduler)
            except Exception as error:
                error.add_note(describe(streak[0], self.scheduler))
                raise

    def _feed(self, feeds: Sequence[Feed]) -> None:
        """Puts pumped payloads where they belong: not before dispatches that were decided on earlier have read what lies there."""
        if self.executor is None:
            return
        for feed in feeds:
            check_payload(feed)
        if self._decided:
            # Copies: a data set may use its buffers again.
            self._decided.append([replace(feed, payload=np.array(feed.payload)) for feed in feeds])
        else:
            self.executor.feed(feeds, self.scheduler)

    def _tell(self, ended: Sequence[tuple[int, bool]]) -> None:
        """Tells sources, and whoever follows the progress, of instances that have ended."""
        for source in self.sources:
            source.ended([instance for instance, train in ended if train == source.train])
        if self._progress is not None:
            for train, n in Counter(train for _, train in ended).items():
                self._progress(n, train)

    def _suspect(self) -> None:
        """Warns if so many messages have been dispatched that an instance is likely to go round in a loop for ever."""
        in_flight = sum(self.scheduler.in_flight.values())
        if self._fruitless <= PATIENCE * in_flight:
            return
        told = [
            f"no instance has ended during {self._fruitless:,} messages, with {in_flight} in flight: does a loop never end? Interrupt the run if so.",
            *self.scheduler.report(),
        ]
        self._fruitless = -(1 << 62)
        warnings.warn("\n  ".join(told), RuntimeWarning, stacklevel=2)

    def nothing_for(self, worker: int) -> str:
        """Why there is nothing to do for a worker that has asked in vain: one of `records.REASONS`."""
        held_up = self.scheduler.held_up(worker)
        if held_up is not None:
            return held_up
        outside = [source for source in self.sources if not source.exhausted]
        if any(self.scheduler.room(source.train) == 0 for source in outside):
            return "throttled"
        return "memory" if any(source.guarded for source in outside) else "starved"

    def finished(self) -> bool:
        """Whether everything is done; call it when no worker has an action.

        Raises:
          DeadlockError: If instances are in flight and nothing can move.
          LimitError: If that is for want of memory.
        """
        if self.settle() or self.scheduler.can_move:
            return False
        if not all(source.exhausted for source in self.sources):
            raise self.scheduler.diagnose()
        if self.scheduler.end_of_data() and self._journal is not None:
            self._journal.data_ends()
        if self.scheduler.can_move:
            return False
        if not self.scheduler.idle:
            raise self.scheduler.diagnose()
        return True


def describe(dispatch: Dispatch, scheduler: Scheduler) -> str:
    """Where an error happened: node, direction, states, and the story of the first message."""
    if dispatch.stage is None or not len(dispatch.states):
        return f"ampjax: in {dispatch!r}"
    state = State(dispatch.states[:1], scheduler.plan.layout, dispatch.stage.ports[0].type.fields)
    story: list[Any] = scheduler.story(int(dispatch.states[0, 0]), until=dispatch.number)[-6:]
    return "\n".join(
        [f"ampjax: in {dispatch!r}; first message {state!r}; its story:", *(f"  {line}" for line in story)]
    )
