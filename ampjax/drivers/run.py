"""The loop that all drivers share: asks the scheduler, hands dispatches on, admits instances, and notices the end or a standstill."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from ampjax.drivers.controller import InstanceSource
from ampjax.drivers.issue_queue import AHEAD, IssueQueue
from ampjax.engine.executor_protocol import AnyExecutor
from ampjax.engine.make_launches import Launches
from ampjax.plan.row_seeds import RowSeeds
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.diagnose.deadlock import report, standstill
from ampjax.sched.programs.feeds import Feed, check_payload
from ampjax.sched.scheduler import Scheduler
from ampjax.sched.virtual_time import VirtualClock
from ampjax.trace.instruments import Instrument, Instruments

PATIENCE = 20_000
"""So many messages for each instance in flight, while none of them ends, make a run suspect a loop that never ends, where their number is not known."""

CONTROL_AHEAD = 256
"""The most dispatches of one call in virtual time, if only control runs."""

DECIDED_FOR_HOSTS = 64
"""The same if hosts carry them out: this process computes nothing that would push the scheduler's code out of its caches."""


class DriverLoop:
    """One run over some sources.

    It has more than 15 methods, since all drivers share it: each is a step that one of them takes between two awaits.

    Args:
      scheduler: The state machine.
      executor: Runs the dispatches; None if only control runs.
      sources: What is pumped; training and inference sources may run at the same time.
      instruments: The instruments that are told what happens.

    Attributes:
      queue: What has been decided and not been issued.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: AnyExecutor | None,
        sources: Sequence[InstanceSource],
        instruments: Iterable[Instrument] = (),
    ):
        self.scheduler = scheduler
        self.executor = executor
        self.sources = list(sources)
        seeds = [source.data_pass.seeds for source in sources if source.train]
        self.launch_of = Launches(scheduler, seeds[0] if seeds else RowSeeds())
        self.instruments = Instruments(instruments)
        self.queue = IssueQueue(scheduler, executor, self.launch_of, self.instruments)
        self._asks = executor is not None and any(
            stage.route_by is not None for stage in scheduler.plan.stages
        )
        ahead = CONTROL_AHEAD if executor is None else AHEAD[0]
        self._most_ahead = ahead if executor is None or executor.n_hosts == 1 else DECIDED_FOR_HOSTS
        self._since_last_end = 0  # messages since an instance has ended; below 0 once it has warned

    def issue(self, worker: int) -> Dispatch | None:
        """Takes a worker's next dispatch and issues that dispatch.

        Returns:
          The dispatch, or None if there is nothing to do; `done` must follow.
        """
        dispatch = self.decide(worker)
        self.queue.carry_out()
        return dispatch

    def decide(self, worker: int) -> Dispatch | None:
        """Takes a worker's next dispatch, which waits with others to be issued.

        Returns:
          The dispatch, or None if there is nothing to do. `done` must follow: before it has been issued, too, unless it reads payloads.
        """
        dispatch = self.scheduler.next(worker)
        if dispatch is None:
            return None
        if self._hands_on:
            self.queue.add([dispatch])
        self._since_last_end += dispatch.n_messages
        return dispatch

    def ahead(self, worker: int, most: int) -> list[Dispatch]:
        """Takes a worker's next dispatches, which wait with others to be issued, and admits instances as far as there is room.

        Args:
          worker: Its number.
          most: How many, at most.

        Returns:
          The dispatches. Each is done as soon as it is decided, but for one that reads payloads: that is the last, and `done` must follow
          for it.
        """
        dispatches = self.scheduler.ahead(worker, most if self._decides_ahead else 1)
        if dispatches:
            last = dispatches[-1]
            asks = self.scheduler.contents.reads(last)
            # The queue gets dispatches before anything else is admitted: their contents are looked
            # up now.
            if self._hands_on:
                self.queue.add(dispatches, len(dispatches) - asks)
            self._since_last_end += sum([dispatch.n_messages for dispatch in dispatches])
            # These are done already; one that asks is done here only if nothing is read.
            if not asks:
                self.settle()
            elif not self.reads(last):  # where only control runs nobody has to wait
                self.done(last)
        return dispatches

    @property
    def tells_of_ends(self) -> bool:
        """Whether an instrument listens to `done`: then each dispatch must be issued, and done, before another is decided."""
        return bool(self.instruments.done)

    @property
    def foresees(self) -> bool:
        """Whether many dispatches can be decided in one call, with no question or report between two. The controller may change parameters."""
        return self.scheduler.foresees and self._decides_ahead and not self.tells_of_ends

    @property
    def advances(self) -> bool:
        """Whether virtual time can run over many dispatches in one call, as the controller changes no parameters either."""
        return self.scheduler.decides_alone and self.foresees

    def take_changes(self) -> None:
        """Takes the controller's parameter changes that wait for workers; the changes count as done at once."""
        for worker in range(self.scheduler.plan.workers):
            while (
                worker in self.scheduler.rounds.changes
                and (dispatch := self.decide(worker)) is not None
            ):
                self.done(dispatch)

    def advance(self, time: VirtualClock) -> bool:
        """Lets virtual time go on over some dispatches, hands the dispatches on, and admits instances as far as there is room.

        Args:
          time: The clock, with what each worker does; moved on.

        Returns:
          Whether there was anything to do.
        """
        decisions = self.scheduler.advance(time, self._most_ahead)
        if decisions is None:
            return False
        if self._hands_on:
            self.queue.add(decisions)
        self._since_last_end += decisions.n_messages
        self.settle()
        return True

    def reads(self, dispatch: Dispatch) -> bool:
        """Whether a dispatch's messages wait until payloads have been read back."""
        return self._asks and self.scheduler.contents.reads(dispatch)

    def done(self, dispatch: Dispatch) -> None:
        """Lets a dispatch's messages travel on, with the choices read from their payloads, and admits instances as far as there is room.

        Args:
          dispatch: The dispatch; issued, if it reads payloads.
        """
        choices = None
        if self.executor is not None and self.reads(dispatch):
            choices = self.executor.choices(dispatch.number, dispatch.n_rows)
        for hook in self.instruments.done:
            hook(dispatch, choices)
        self.scheduler.done(dispatch, choices)
        self.settle()

    def settle(self) -> bool:
        """Reports instances that have ended and admits new ones.

        Returns:
          Whether any was admitted.
        """
        # Ended instances first: their handles and their room are free for new ones.
        ended = self.scheduler.admission.take_ended()
        if ended:
            self._since_last_end = 0
            for source in self.sources:
                source.note_ended([instance for instance, train in ended if train == source.train])
        elif self._since_last_end > PATIENCE and self.scheduler.admission.may_never_end:
            self._suspect()
        # Sources in their order; each admits as many as the throttle allows.
        admitted = 0
        for source in self.sources:
            if not source.exhausted:
                admitted += source.admit(self._feed)
        if ended or admitted:
            for hook in self.instruments.settled:
                hook(ended, admitted)
        return admitted > 0

    def idle(self, worker: int) -> None:
        """Tells instruments that a worker has asked for a dispatch and got none."""
        for hook in self.instruments.idle:
            hook(worker)

    def _feed(self, feeds: Sequence[Feed]) -> None:
        if self.executor is not None:
            for feed in feeds:
                check_payload(feed)
            self.queue.feed(feeds)

    @property
    def _decides_ahead(self) -> bool:
        """Whether several dispatches may be decided without asking anybody in between: a user-written controller pumps after each."""
        return not any(source.grows for source in self.sources)

    @property
    def _hands_on(self) -> bool:
        """Whether anybody wants to have dispatches."""
        hooks = self.instruments
        return bool(
            self.executor is not None or hooks.decided or hooks.before_kernels or hooks.done
        )

    def _suspect(self) -> None:
        """Warns if so many messages have been dispatched that an instance is likely to go round in a loop for ever."""
        in_flight = sum(self.scheduler.admission.in_flight.values())
        if self._since_last_end <= PATIENCE * in_flight:
            return
        lines = [
            f"no instance has ended during {self._since_last_end:,} messages, with {in_flight} in flight: does a loop never end? Interrupt the run if so.",
            *report(self.scheduler.snapshot()),
        ]
        self._since_last_end = -(1 << 62)
        warnings.warn("\n  ".join(lines), RuntimeWarning, stacklevel=2)

    def nothing_for(self, worker: int) -> str:
        """Names the reason why a worker has nothing to do.

        Returns:
          One of `trace_records.REASONS`.
        """
        held_up = self.scheduler.queues.why_blocked(worker)
        if held_up is not None:
            return held_up
        outside = [source for source in self.sources if not source.exhausted]
        if any(self.scheduler.admission.room(source.train) == 0 for source in outside):
            return "throttled"
        return "memory" if any(source.guarded for source in outside) else "starved"

    def is_finished(self) -> bool:
        """Whether everything is done; to be asked when no worker has anything to do.

        Raises:
          DeadlockError: If instances are in flight and nothing can move.
          LimitError: If that is for want of memory.
        """
        # Instances that have ended make room, so there may be more to do.
        if self.settle() or self.scheduler.can_move():
            return False
        if not all(source.exhausted for source in self.sources):
            raise standstill(self.scheduler.snapshot())
        # The data are over: the last round is updated although it is not full.
        if self.scheduler.rounds.end_of_data():
            for hook in self.instruments.data_ended:
                hook()
        if self.scheduler.can_move():
            return False
        # Nothing can move, and something is in flight.
        if not self.scheduler.idle:
            raise standstill(self.scheduler.snapshot())
        return True
