"""The queue between decisions and execution: dispatches that have been decided, dispatches that have been issued, and dispatches that must be undone.

This is the one place that does.

Control never waits for a payload (but where it reads one), so a driver may let the scheduler decide on several dispatches before the first
is issued: that way the scheduler's code and XLA's each stay in the processor's caches for a while, in place of pushing one another out for
every dispatch.

After an error or an interrupt three things are undone, all of them here: dispatches that were decided and not issued (`IssueQueue.undone`);
what is in flight (`Scheduler.abandon`); and what was kept on devices for it (`Executor.abandon`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ampjax.engine.executor_protocol import AnyExecutor
from ampjax.engine.kernels.coalescing import n_coalesced
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.make_launches import Launches
from ampjax.errors import HostError
from ampjax.sched.decisions.decided_lines import Decisions
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.diagnose.story import describe
from ampjax.sched.programs.feeds import Feed
from ampjax.sched.scheduler import Scheduler
from ampjax.trace.instruments import Instruments

AHEAD = 16, 2_048
"""Dispatches, and messages in them, that are decided before they are issued; more would not fit the caches."""

REMEMBERED = 1_024
"""Issued dispatches that are remembered, to tell after an error what of them hosts have not carried out, before it is looked which of them they have."""


class Arrival(NamedTuple):
    """The rows that have arrived at a sink in one dispatch.

    Args:
      stage: The sink's stage, by number.
      states: `[n, width]`: the messages.
      sizes: For ragged ones, the rows of each `[n]`.
      n_rows: Their rows together.
      rows: These, padded.
    """

    stage: int
    states: np.ndarray
    sizes: np.ndarray | None
    n_rows: int
    rows: Any


@dataclass(slots=True, eq=False)
class Decided:
    """A dispatch that waits to be issued.

    Args:
      dispatch: The dispatch.
      alone: Whether it is issued by itself.
      launch: The same as an executor takes it.
      states: `[n, width]`: for a sink, its messages.
    """

    dispatch: Dispatch
    alone: bool = False
    launch: Launch | None = None
    states: np.ndarray | None = None


class _Issued(NamedTuple):
    """Dispatches that were issued together.

    Args:
      last: The number of the last one.
      dispatches: All of them.
    """

    last: int
    dispatches: Sequence[Dispatch] | Decisions


class IssueQueue:
    """Dispatches and pumped payloads between the scheduler, which has decided, and the executor.

    Args:
      scheduler: What has decided.
      executor: Carries dispatches out; None if only control runs.
      launch_of: Makes the launch of a dispatch.
      instruments: The instruments that are told of dispatches.

    Attributes:
      outputs: What has arrived at sinks.
      n_remembered: Issued dispatches that are remembered, since hosts may turn out not to have carried them out.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: AnyExecutor | None,
        launch_of: Launches,
        instruments: Instruments,
    ):
        self._scheduler = scheduler
        self._executor = executor
        self._launch_of = launch_of
        self._instruments = instruments
        self.outputs: list[Arrival] = []
        self._waiting: deque[Decided | list[Feed]] = deque()
        self._n_dispatches = self._n_messages = 0  # decided since something was carried out
        self._is_broken = False
        self._issued = deque[_Issued]()  # what hosts may not have carried out
        self.n_remembered = 0
        self._ran: Dispatch | None = (
            None  # its kernels have been issued, not all of its parameter changes
        )
        self._n_changed = 0  # how many of these have

    def add(
        self,
        dispatches: Sequence[Dispatch] | Decisions,
        n_done: int = 0,
    ) -> None:
        """Adds dispatches that have been decided.

        They wait to be issued with others, unless they are many. Those that hosts can take as they are go into the hosts' batches at once. Before one
        that an instrument wants by itself, all that waits is issued.

        Args:
          dispatches: In the order of decision.
          n_done: How many of them, from the first on, were done as soon as they were decided.
        """
        # Lines go to hosts without an object for each dispatch, where nobody asks for objects.
        if isinstance(dispatches, Decisions):
            if self._has_handed_on(dispatches):
                return
            dispatches = list(dispatches)
        added = [Decided(dispatch) for dispatch in dispatches]
        self._waiting += added  # before anyone is told, so that they are undone if that fails
        if self._executor is not None:
            for decided in added:
                self._launch(
                    decided
                )  # now: once more has been admitted, its contents can no longer be looked up
            if not (self._instruments.decided or self._instruments.done):
                self._note(dispatches)
                return
        # Somebody listens: dispatches are told one by one, and one that is wanted alone is issued
        # behind all that waits.
        for place, decided in enumerate(added):
            dispatch = decided.dispatch
            for hook in self._instruments.decided:
                decided.alone = hook(dispatch) or decided.alone
            if self._executor is None:
                for hook in self._instruments.before_kernels:
                    hook([dispatch])
                self._waiting.popleft()
            elif decided.alone:
                self.carry_out(all_but=len(added) - place)
            for hook in self._instruments.done if place < n_done else ():
                hook(dispatch, None)
        if self._executor is not None:
            self._note(dispatches)

    def _has_handed_on(self, decisions: Decisions) -> bool:
        """Hands decisions on as lines, if the executor takes lines and nobody needs objects; returns whether this was done."""
        executor = None if self._executor is None else self._executor.for_lines
        must_wait = self._waiting or self._is_broken or self._instruments.follow_dispatches
        if (
            executor is None
            or must_wait
            or not (decisions.says_all and executor.takes_lines(decisions.decided))
        ):
            return False
        if len(decisions):
            # Noted before anything is written: if writing fails, hosts may have some of these.
            self._note_issued(decisions.last, decisions)
            # Broken until all is written, so that an interrupt in between leaves the queue as it
            # is.
            self._is_broken = True
            try:
                executor.run_lines(decisions.decided, self._launch_of.capacities_of)
            except BaseException:  # a second Ctrl-C, while they were written
                self._waiting += [Decided(d) for d in decisions if d.number > executor.latest_line]
                raise
            self._is_broken = False
            self._forget_finished()
        return True

    def _note(self, dispatches: Sequence[Dispatch]) -> None:
        """Counts dispatches that wait to be issued, and issues all of a large number."""
        self._n_dispatches += len(dispatches)
        self._n_messages += sum([dispatch.n_messages for dispatch in dispatches])
        if self._n_dispatches >= AHEAD[0] or self._n_messages >= AHEAD[1]:
            self.carry_out()

    def feed(self, feeds: Sequence[Feed]) -> None:
        """Puts pumped payloads into host arenas, after earlier dispatches have read the old payloads.

        Args:
          feeds: The payloads; copied if they must wait.
        """
        if self._executor is None:
            return
        if self._waiting:
            # Copies: a data set may use its buffers again.
            self._waiting.append([replace(feed, payload=np.array(feed.payload)) for feed in feeds])
        else:
            self._executor.feed(feeds)

    def carry_out(self, all_but: int = 0) -> None:
        """Issues the decided dispatches in order, and puts payloads that were pumped in between into host arenas.

        Once something has failed, or was interrupted, nothing more is issued: what follows may need what was not computed (see `undone`).

        Raises:
          Exception: What a body or XLA raised, with the message and its state in a note.
        """
        waiting = self._waiting
        executor = self._executor
        while len(waiting) > all_but and not self._is_broken and executor is not None:
            # Broken while something is issued: after an error nothing more may run, and the entry
            # stays in front.
            first = waiting[0]
            self._is_broken = True
            n = 1
            if isinstance(first, Decided):
                n = self._n_together(executor, first, len(waiting) - all_but)
                self._issue(executor, [first] if n == 1 else list(islice(waiting, n)))  # type: ignore[arg-type] - all are decided
            else:
                executor.feed(first)
            # Only what has been issued leaves the queue.
            for _ in range(n):
                waiting.popleft()
            self._is_broken = False
        self._forget_finished()
        if self._n_dispatches:
            for hook in self._instruments.carried_out:
                hook()
        self._n_dispatches = self._n_messages = 0

    def _forget_finished(self) -> None:
        """Forgets, now and then, the launches that hosts have carried out."""
        if self.n_remembered >= REMEMBERED and self._executor is not None:
            oldest = self._executor.oldest_unfinished()
            while self._issued and (oldest is None or self._issued[0].last < oldest):
                self.n_remembered -= len(self._issued.popleft().dispatches)

    @property
    def undone(self) -> list[Dispatch]:
        """The dispatches that have been decided and not issued, in order; after an error, the one that failed is the first.

        If that one's kernels had been issued, it is here with those of its parameter changes that had not, and what coalesced with it is
        not here.
        """
        undone = [entry.dispatch for entry in self._waiting if isinstance(entry, Decided)]
        ran = self._ran
        if ran is not None:
            undone[: 1 + undone.index(ran)] = [ran.after(self._n_changed)]
        return undone

    def abandon(self) -> None:
        """Gives up all that is in flight, so that the next run starts clean.

        After an interrupt, what had been decided is issued, and updates that were due are made. After an error neither is: nodes keep what
        they had accumulated before.
        """
        try:
            with suppress(Exception):
                # After an interrupt what was decided is still issued; after an error nothing is.
                self.carry_out()
        finally:
            # Looked up before the queues are cleared.
            undone = self._with_lost(self.undone)
            self._waiting.clear()
            self._issued.clear()
            self.n_remembered = 0
            self._ran = None
            self._is_broken = False
            self.outputs.clear()
            # The scheduler takes updates of undone dispatches back, and then the due ones are made.
            changes = abandon(self._scheduler, self._executor, undone)
            for hook in self._instruments.abandoned if changes else ():
                hook(changes)

    def _with_lost(self, undone: Sequence[Dispatch]) -> list[Dispatch]:
        """The dispatches that were not issued, behind issued ones that hosts have not carried out."""
        lost = {} if self._executor is None else self._executor.take_lost()
        candidates = (
            d for issued in self._issued if lost for d in issued.dispatches if d.number in lost
        )
        issued = []
        # Kernels of some have run, and only some of their changes are missing.
        for d in candidates:
            issued.append(d if lost[d.number] is None else d.after(lost[d.number] or 0))
        return [
            *issued,
            *(dispatch for dispatch in undone if dispatch.number not in lost),
        ]

    def _n_together(self, executor: AnyExecutor, first: Decided, most: int) -> int:
        """Counts how many of the first `most` dispatches are issued in one call."""
        if first.alone or most == 1 or executor.can_coalesce is None:
            return 1
        behind = (
            self._launch(entry) if isinstance(entry, Decided) and not entry.alone else None
            for entry in islice(self._waiting, 1, most)
        )
        return n_coalesced(self._launch(first), behind, executor.can_coalesce)

    def _launch(self, decided: Decided) -> Launch:
        """Makes a dispatch's launch, once; for a sink's dispatch notes its messages, too."""
        if decided.launch is None:
            decided.launch = self._launch_of(decided.dispatch)
            if self._executor is not None and decided.dispatch.stage in self._executor.sinks:
                decided.states = self._scheduler.contents.states(decided.dispatch)
        return decided.launch

    def _issue(self, executor: AnyExecutor, together: Sequence[Decided]) -> None:
        """Issues dispatches: their kernels, then the parameter changes of the last one."""
        dispatches = [decided.dispatch for decided in together]
        for hook in self._instruments.before_kernels:
            hook(dispatches)
        try:
            self.run(
                executor,
                dispatches,
                [self._launch(decided) for decided in together],
            )
            self._arrive(executor, together)
        except HostError:  # which names what failed: that was issued before
            raise
        except Exception as error:
            error.add_note(f"ampjax: {describe(self._scheduler.snapshot(), dispatches[0])}")
            raise

    def run(
        self, executor: AnyExecutor, dispatches: Sequence[Dispatch], launches: Sequence[Launch]
    ) -> None:
        """Lets an executor carry out dispatches that coalesce, and keeps its progress."""
        last = dispatches[-1]
        if executor.is_remote:
            self._note_issued(last.number, dispatches)
        # From here until the last change is issued, an error leaves a dispatch half done: `undone`
        # tells how far it is.
        self._n_changed = executor.run(launches)
        self._ran = last
        for hook in self._instruments.after_kernels:
            hook(dispatches)
        while self._n_changed < len(last.changes):
            executor.change(last.changes[self._n_changed])
            self._n_changed += 1
        for hook in self._instruments.after_changes:
            hook(dispatches)
        self._ran = None

    def _note_issued(
        self,
        last: int,
        dispatches: Sequence[Dispatch] | Decisions,
    ) -> None:
        """Remembers dispatches that hosts may turn out not to have carried out."""
        self._issued.append(_Issued(last, dispatches))
        self.n_remembered += len(dispatches)

    def _arrive(self, executor: AnyExecutor, together: Sequence[Decided]) -> None:
        """Keeps the rows that have arrived at sinks."""
        for decided in together:
            d = decided.dispatch
            launch = decided.launch
            if decided.states is not None and launch is not None:
                rows = executor.readings.pop(d.number)
                self.outputs.append(
                    Arrival(
                        d.stage,
                        decided.states,
                        launch.sizes,
                        d.n_rows,
                        rows,
                    )
                )


def abandon(
    scheduler: Scheduler, executor: AnyExecutor | None, undone: Sequence[Dispatch] = ()
) -> list[Dispatch]:
    """Gives up everything in flight, and makes the updates that were due, unless something was not issued.

    Args:
      scheduler: It forgets its messages.
      executor: It forgets what it has kept for them; None if only control runs.
      undone: The dispatches that were decided and not issued, in order: the scheduler takes their updates back.

    Returns:
      The updates that were made.
    """
    # Parameter changes that were due come out of the scheduler in any case.
    due = scheduler.abandon()
    # Where something was never issued, nodes lack its gradients, so no due update may be made.
    if undone:
        scheduler.updates.take_back([*undone, *due])
        due.clear()
    if executor is not None:
        for dispatch in due:
            for change in dispatch.changes:
                executor.change(change)
        executor.abandon()
    return due
