"""Replays a recording: makes its decisions again and compares the results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ampjax.drivers.run import DriverLoop
from ampjax.errors import ReplayError
from ampjax.sched.choosing.queue_views import Queue
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.trace.journal import (
    CHANGES_ONLY,
    DIRECTIONS,
    FAILED,
    INTERRUPTED,
    DataEnds,
    Decision,
    Done,
    End,
    Issue,
    Journal,
    Messages,
    PassEnds,
    Settle,
)
from ampjax.trace.recording import Recording


class RecordingEnds(Exception):
    """The recording ends in the middle of a pass, because its run was interrupted or killed there."""


class Follower:
    """Walks through a recording and compares each decision that is made with the one that was.

    Args:
      recording: The recording.
      messages: As `Journal` has it.
      hint: What may be wrong where a decision differs; a sentence that ends an error.
    """

    def __init__(
        self,
        recording: Recording,
        messages: Callable[[Dispatch], Messages],
        hint: str = "",
    ):
        self._recording = recording
        self._hint = hint
        self._decisions = recording.decisions()
        self.names: Sequence[str] = ()
        self.taken = 0
        self.ahead: Decision | None = next(self._decisions, None)
        self.journal = Journal(self.take, messages)

    @property
    def over(self) -> bool:
        """Whether no pass follows."""
        return self.ahead is None or isinstance(self.ahead, End)

    def require_end(self) -> None:
        """Checks that the recorded run ended here, too.

        Raises:
          ReplayError: If it went on.
          RecordingEnds: If it was interrupted here, or the recording is cut off.
        """
        if not self.over:
            raise self.departure("the end of the run")
        if not isinstance(self.ahead, End) or self.ahead.reason == INTERRUPTED:
            raise RecordingEnds

    def skip(self, n: int) -> None:
        """Passes over decisions that were followed before a snapshot was taken.

        Raises:
          ReplayError: If there are fewer.
        """
        for _ in range(n):
            if self.ahead is None:
                raise self.departure(f"a replay that has followed {n} decisions")
            self.taken = self.taken + 1
            self.ahead = next(self._decisions, None)

    def take(self, decision: Decision) -> None:
        """Compares a decision with the recorded one, and goes on to the next.

        Raises:
          ReplayError: If they differ.
        """
        if type(decision) is not type(self.ahead) or decision != self.ahead:
            raise self.departure(self.tell(decision))
        self.taken += 1
        self.ahead = next(self._decisions, None)

    def departure(self, got: str) -> ReplayError:
        """The error that the recorded decision could not be taken."""
        expected = "no more decisions" if self.ahead is None else self.tell(self.ahead)
        return ReplayError(
            f"recording `{self._recording.path}`, decision {self.taken + 1}",
            expected,
            got,
            "Replay with the graph, data, optimizer, callbacks and versions of the recorded run."
            + self._hint,
        )

    def tell(self, decision: Decision) -> str:
        """A decision in words, with the stages' names."""
        if isinstance(decision, Issue) and 0 <= decision.stage < len(self.names):
            return str(decision).replace(
                f"stage {decision.stage}", f"`{self.names[decision.stage]}`", 1
            )
        return str(decision)


class ReplayDriver:
    """Drives a run as a recording says. The policy is not asked: its choices are in the recording.

    Args:
      loop: The run, with the follower's journal.
      follower: Where in the recording it is.
      run_ahead: About how many dispatches may be issued before the devices have done them.
    """

    def __init__(self, loop: DriverLoop, follower: Follower, run_ahead: int = 64):
        self._loop = loop
        self._follower = follower
        self._run_ahead = run_ahead
        self._under_way: dict[int, Dispatch] = {}
        self._issued = 0
        follower.names = [stage.name for stage in loop.scheduler.plan.stages]

    async def run(self) -> None:
        """Runs until the pass ends, or the recording does.

        Raises:
          ReplayError: At the first decision that can't be taken or differs.
          RecordingEnds: If the recording ends before the pass.
          Exception: What the recorded run raised.
        """
        scheduler = self._loop.scheduler
        policy = scheduler.queues.policy
        scheduler.queues.decide_by(self._choose)
        try:
            while not isinstance(self._follower.ahead, PassEnds):
                self._step(self._follower.ahead)
                if self._issued == self._run_ahead:
                    await self._keep_pace()
            if not self._loop.is_finished():
                raise self._follower.departure(
                    f"{sum(scheduler.admission.in_flight.values())} instance(s) still in flight"
                )
        finally:
            scheduler.queues.decide_by(policy)

    def _step(self, decision: Decision | None) -> None:
        """Takes the steps that lead to a recorded decision, and checks that the decision has been taken."""
        before = self._follower.taken
        if isinstance(decision, Issue):
            if decision.worker < self._n_workers:
                dispatch = self._loop.issue(decision.worker)
            else:
                dispatch = None
            if dispatch is not None:
                self._issued += 1
                self._under_way[self._follower.journal.number(dispatch)] = dispatch
        elif isinstance(decision, Done) and decision.dispatch in self._under_way:
            self._loop.done(self._under_way.pop(decision.dispatch))
        elif isinstance(decision, Settle):
            self._loop.settle()
        elif isinstance(decision, DataEnds):
            self._loop.is_finished()
        elif decision is None or isinstance(decision, End):
            if isinstance(decision, End) and decision.reason == FAILED:
                self._loop.is_finished()  # which raises what the recorded run did, if nothing could move
            raise RecordingEnds
        if self._follower.taken == before:
            raise self._follower.departure("nothing to be done")

    @property
    def _n_workers(self) -> int:
        return self._loop.scheduler.plan.workers

    def _choose(
        self,
        queues: Sequence[Queue],
        now: int,
    ) -> Queue | None:
        """The policy: the queue that was chosen."""
        wanted = self._follower.ahead
        if not isinstance(wanted, Issue) or wanted.stage == CHANGES_ONLY:
            return queues[0]
        for queue in queues:
            if (queue.stage.number, queue.direction) == (
                wanted.stage,
                DIRECTIONS[wanted.direction],
            ):
                return queue
        ready = ", ".join(f"{queue.direction} of `{queue.stage.name}`" for queue in queues)
        raise self._follower.departure(
            f"{ready} as all that is ready on worker {queues[0].stage.worker}"
        )

    async def _keep_pace(self) -> None:
        """Waits until the devices have done everything issued before."""
        executor = self._loop.executor
        self._issued = 0
        if executor is None:
            await asyncio.sleep(0)
        else:
            await asyncio.get_running_loop().run_in_executor(None, executor.fences.wait)
