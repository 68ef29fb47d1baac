"""The controller's source: admits instances and pumps their messages, as far as the throttle and the memory limit allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ampjax.engine.executor import Executor
from ampjax.ir.instances import InstanceList, Instances
from ampjax.sched.demand import Guard
from ampjax.sched.scheduler import Scheduler

Loop = Callable[[Any], Iterator[Mapping[str, Any]]]
"""A user-written controller loop: from an example to the dictionaries of messages that are pumped for it, one after the other."""


class Source:
    """The default controller: pumps all messages of an instance when it is admitted.

    Args:
      scheduler: Where instances go.
      executor: Where payloads go; None if only control runs.
      data: The instances.
      ids: Which of them, in order.
      train: False for inference.
      guard: Holds instances back near the memory limit.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor | None,
        data: Instances,
        ids: np.ndarray,
        train: bool,
        guard: Guard | None = None,
    ):
        self._scheduler, self._executor, self._data, self._ids = scheduler, executor, data, np.asarray(ids)
        self.train, self._guard, self._next = train, guard, 0

    @property
    def exhausted(self) -> bool:
        """Whether everything has been pumped."""
        return self._next == len(self._ids)

    def admit(self) -> int:
        """Admits as many instances as there is room for now; says how many.

        Raises:
          LimitError: If an instance can't fit within the memory limit.
        """
        n = min(self._scheduler.room(self.train), len(self._ids) - self._next)
        if n <= 0:
            return 0
        if self._guard is not None and self._guard.tight:
            return self._admit_singly(n)
        ids = self._ids[self._next : self._next + n]
        self._next += n
        self._pump(ids, self._data.gather(ids))
        return n

    def ended(self, instance: int) -> None:
        """Notes that an instance has ended."""
        if self._guard is not None:
            self._guard.release(instance, self.train)

    def _admit_singly(self, n: int) -> int:
        assert self._guard is not None
        for admitted in range(n):
            ids = self._ids[self._next : self._next + 1]
            batch = self._data.gather(ids)
            if not self._guard.admit(int(ids[0]), self.train, batch):
                return admitted
            self._next += 1
            self._pump(ids, batch)
        return n

    def _pump(self, ids: np.ndarray, batch: Mapping[str, Any]) -> None:
        slots = self._scheduler.open(ids, self.train)
        feeds = self._scheduler.pump(slots, batch)
        if self._executor is not None:
            self._executor.feed(feeds, self._scheduler)
        self._scheduler.close(slots)


class LoopSource(Source):
    """A user-written controller: each instance's loop is a generator that yields messages to pump, step by step.

    Args:
      scheduler: Where instances go.
      executor: Where payloads go.
      examples: What the loops get, one each.
      ids: Which of them, in order.
      train: False for inference.
      loop: The loop.
      ragged: Names of the ragged pumps.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor | None,
        examples: Sequence[Any],
        ids: np.ndarray,
        train: bool,
        loop: Loop,
        ragged: Sequence[str],
    ):
        super().__init__(scheduler, executor, InstanceList([]), ids, train)
        self._examples, self._loop, self._ragged = examples, loop, tuple(ragged)
        self._running: dict[int, Iterator[Mapping[str, Any]]] = {}

    @property
    def exhausted(self) -> bool:
        """Whether every loop has ended."""
        return super().exhausted and not self._running

    def admit(self) -> int:
        """Starts loops as far as there is room, and lets each running one pump its next messages; says how many did."""
        n = max(0, min(self._scheduler.room(self.train), len(self._ids) - self._next))
        ids = self._ids[self._next : self._next + n]
        self._next += n
        if n:
            for slot, i in zip(self._scheduler.open(ids, self.train).tolist(), ids.tolist(), strict=True):
                self._running[slot] = iter(self._loop(self._examples[i]))
        steps = 0
        for slot, loop in list(self._running.items()):
            steps += 1
            pumped = next(loop, None)
            if pumped is None:
                del self._running[slot]
                self._scheduler.close(np.array([slot]))
                continue
            feeds = self._scheduler.pump(np.array([slot]), InstanceList([pumped], self._ragged).gather(np.array([0])))
            if self._executor is not None:
                self._executor.feed(feeds, self._scheduler)
        return steps
