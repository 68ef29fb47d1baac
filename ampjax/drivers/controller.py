"""The controller's source: admits instances and pumps their messages, as far as the throttle and the memory limit allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ampjax.ir.instances import InstanceList, Instances, Messages
from ampjax.plan.passes import Pass
from ampjax.sched.memory_limits import MemoryGuard
from ampjax.sched.programs.feeds import Feed
from ampjax.sched.scheduler import Scheduler
from ampjax.unfold.demand import ArenaRows

Put = Callable[[Sequence[Feed]], None]
"""Puts payloads where they belong."""

ControllerLoop = Callable[[Any], Iterator[Mapping[str, Any]]]
"""A user-written controller loop: from an example to the dictionaries of messages that are pumped for it, one after the other.

Some examples' loops are also run on their own, to see how much room they need, so a loop gives the same messages each time.
"""

LOOK_AHEAD = 256
"""Instances that are looked at together: to count what they need, near the memory limit, or to unfold them, where their programs are not
known."""

_END: Any = object()


def batches_of(
    data: Instances | LoopInstances, ids: np.ndarray
) -> Sequence[Mapping[str, Messages]]:
    """All messages of some instances, in the batches that are pumped one after the other.

    Args:
      data: The instances.
      ids: `[n]`: which.

    Returns:
      For each batch the messages of each pump.
    """
    if isinstance(data, LoopInstances):
        return data.steps(ids)
    return [data.gather(ids)]


class InstanceSource:
    """The default controller: pumps all messages of an instance on admission.

    Args:
      scheduler: Where instances go.
      data_pass: What is pumped, and what for.
      guard: Holds instances back near the memory limit.

    Attributes:
      data_pass: The pass.
      train: Whether it is training.
      grows: Whether more is pumped for instances in flight.
    """

    grows = False

    def __init__(
        self,
        scheduler: Scheduler,
        data_pass: Pass,
        guard: MemoryGuard | None = None,
    ):
        self._scheduler = scheduler
        self.data_pass = data_pass
        self._data = data_pass.data
        self._ids = np.asarray(data_pass.ids)
        self.train = data_pass.train
        self._guard = guard
        self._next = 0
        self._foreseen = 0  # instances whose programs are known
        self._unfolded = scheduler.admission.programs.n_unfolded  # when this was last looked at
        self._news = False  # whether it was more than before
        self._needs: dict[int, ArenaRows] = {}  # of instances to come, by their place in the order

    @property
    def exhausted(self) -> bool:
        """Whether everything has been pumped."""
        return self._next == len(self._ids)

    @property
    def guarded(self) -> bool:
        """Whether instances are held back near the memory limit."""
        return self._guard is not None and self._guard.tight and self._next < len(self._ids)

    def admit(self, put: Put) -> int:
        """Admits as many instances as there is room for now.

        Returns:
          How many.

        Raises:
          LimitError: If an instance can't fit within the memory limit.
        """
        # What the throttle allows, then what memory allows.
        n = min(
            self._scheduler.admission.room(self.train),
            len(self._ids) - self._next,
        )
        if n <= 0:
            return 0
        if self._guard is not None and self._guard.tight:
            n = self._count_fitting(n)
        ids = self._ids[self._next : self._next + n]
        # Counted before anything starts: an error in the middle must not start an instance twice.
        self._next += n
        if n:
            self._start(ids, put)
        return n

    @property
    def n_admitted(self) -> int:
        """The number of instances admitted so far."""
        return self._next

    def end_early(self, multiple: int = 1) -> None:
        """Ends the pass before all instances are admitted, so that soon nothing is in flight.

        Args:
          multiple: Of how many instances it is to be a multiple, from the first on.
        """
        self._ids = self._ids[: -(-self._next // multiple) * multiple]

    def note_ended(self, instances: Sequence[int]) -> None:
        """Notes that some instances have ended."""
        if self._guard is not None and self._guard.tight:  # else no room was reserved
            for instance in instances:
                self._guard.release(instance, self.train)

    def _count_fitting(self, n: int) -> int:
        """Counts how many of the next `n` instances are sure to fit beside the ones in flight, and reserves their room."""
        assert self._guard is not None
        for i in range(n):
            if self._next + i not in self._needs:
                self._look_ahead(self._next + i)
            instance = int(self._ids[self._next + i])
            if not self._guard.admit(
                instance,
                self.train,
                self._needs[self._next + i],
            ):
                return i
            del self._needs[self._next + i]
        return n

    def _look_ahead(self, start: int) -> None:
        """Finds the needs of the next instances, all in one go."""
        assert self._guard is not None
        ids = self._ids[start : start + LOOK_AHEAD]
        different, place = np.unique(ids, return_inverse=True)
        needs = self._scheduler.admission.programs.demands(
            different, batches_of(self._data, different), self._guard.purpose
        )
        self._needs.update({start + i: needs[p] for i, p in enumerate(place.tolist())})

    def _open(
        self,
        ids: np.ndarray,
        grows: bool = False,
    ) -> np.ndarray:
        return self._scheduler.open(
            ids,
            self.data_pass.purpose,
            self.data_pass.may_update,
            grows,
        )

    def _start(self, ids: np.ndarray, put: Put) -> None:
        """Lets instances in."""
        # Programs first, many at once; then handles, messages, and the end of pumping.
        self._foresee(len(ids))
        handles = self._open(ids)
        put(self._scheduler.pump(handles, self._data.gather(ids)))
        self._scheduler.close(handles)

    def _foresee(self, n: int) -> None:
        """Unfolds the last `n` instances together with the following ones, if programs were missing twice in succession.

        To unfold many costs little more than to unfold one.
        """
        if self._next <= self._foreseen:
            return
        unfolded = self._scheduler.admission.programs.n_unfolded
        # Once may be chance; twice in a row, instances of the data are new and worth unfolding
        # ahead.
        missed = self._news
        self._news = unfolded > self._unfolded
        self._unfolded = unfolded
        if self._news and missed and self._scheduler.admission.foresees:
            start = self._next - n
            ids = self._ids[start : start + LOOK_AHEAD]
            self._scheduler.admission.foresee(
                ids,
                self._data.gather(ids),
                self.data_pass.purpose,
            )
            self._foreseen = start + len(ids)


class LoopInstances:
    """Examples for a user-written controller loop, seen as a data set.

    Args:
      loop: The loop.
      examples: What the loops get, one each.
      ragged: Names of the ragged pumps.
    """

    def __init__(
        self,
        loop: ControllerLoop,
        examples: Sequence[Any],
        ragged: Sequence[str] = (),
    ):
        self._loop = loop
        self._examples = examples
        self._ragged = tuple(ragged)

    def __len__(self) -> int:
        return len(self._examples)

    @property
    def sizes(self) -> Any:
        """The size of each example, if the loops name sizes."""
        return getattr(self._examples, "sizes", None)

    def start(self, i: int) -> Iterator[Mapping[str, Any]]:
        """The loop of an example."""
        return iter(self._loop(self._examples[i]))

    def columns(
        self,
        pumped: Mapping[int, Mapping[str, Any]],
        places: Mapping[int, int],
    ) -> Mapping[str, Messages]:
        """The messages that the loops of some examples have yielded, as columns.

        Args:
          pumped: For each example a message for each of some pumps.
          places: The place of each example, which is the `Messages.instance` of its messages.

        Returns:
          The messages of each pump.
        """
        batch = InstanceList(pumped, self._ragged).gather(np.array(list(pumped)))  # type: ignore[arg-type]
        order = np.array([places[i] for i in pumped])
        result = {}
        for pump, messages in batch.items():
            result[pump] = replace(messages, instance=order[messages.instance])
        return result

    def steps(
        self,
        ids: np.ndarray,
    ) -> list[Mapping[str, Messages]]:
        """All messages of some examples: a batch of each loop's first yield, one of each loop's second, and so on.

        Args:
          ids: `[n]`: which.

        Returns:
          For each batch the messages of each pump.
        """
        loops = {i: self.start(i) for i in ids.tolist()}
        places = {i: place for place, i in enumerate(loops)}
        batches = []
        while loops:
            # One step of each loop; loops that have ended take no part in the next batch.
            yielded = {i: next(loop, _END) for i, loop in loops.items()}
            loops = {i: loop for i, loop in loops.items() if yielded[i] is not _END}
            if loops:
                batches.append(self.columns({i: yielded[i] for i in loops}, places))
        return batches


class LoopSource(InstanceSource):
    """A user-written controller: each instance's loop is a generator that yields messages to pump, step by step.

    Args:
      scheduler: Where instances go.
      data_pass: What is pumped, and what for; its data are `LoopInstances`.
      guard: Holds instances back near the memory limit.
    """

    grows = True

    def __init__(
        self,
        scheduler: Scheduler,
        data_pass: Pass,
        guard: MemoryGuard | None = None,
    ):
        super().__init__(scheduler, data_pass, guard)
        self._loops: LoopInstances = data_pass.data
        self._running: dict[
            int, tuple[int, Iterator[Mapping[str, Any]]]
        ] = {}  # by handle: the example and its loop

    @property
    def exhausted(self) -> bool:
        """Whether every loop has ended."""
        return super().exhausted and not self._running

    def admit(self, put: Put) -> int:
        """Starts loops as far as there is room, and lets each running one pump its next messages.

        Returns:
          How many loops have pumped, or ended.
        """
        # New loops pump their first messages in the same round.
        super().admit(put)
        steps = 0
        for handle, (example, loop) in list(self._running.items()):
            steps += 1
            pumped = next(loop, _END)
            if pumped is _END:
                del self._running[handle]
                self._scheduler.close(np.array([handle]))
                continue
            put(
                self._scheduler.pump(
                    np.array([handle]),
                    self._loops.columns({example: pumped}, {example: 0}),
                )
            )
        return steps

    def _start(self, ids: np.ndarray, put: Put) -> None:
        del put  # the loops pump
        for handle, i in zip(
            self._open(
                ids,
                grows=True,
            ).tolist(),
            ids.tolist(),
            strict=True,
        ):
            self._running[handle] = (i, self._loops.start(i))


def source_of(
    scheduler: Scheduler,
    data_pass: Pass,
    guard: MemoryGuard | None = None,
) -> InstanceSource:
    """The controller of a pass: a user-written one where its data are loops."""
    return (LoopSource if isinstance(data_pass.data, LoopInstances) else InstanceSource)(
        scheduler, data_pass, guard
    )
