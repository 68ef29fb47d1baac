"""How long a step takes with so many partitions: what tables 2 and 5 time, and the brute-force search that the paper compares with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import ampjax.parallel as px
from ampjax.parallel.runner import Runner
from experiments.parallax.measure import Timing
from experiments.parallax.programs import WAYS
from experiments.parallax.workloads import Workload

STEP = 2
DROP = 1.1
"""The paper's brute force goes on in steps of two partitions until throughput has dropped by a tenth."""


@dataclass(frozen=True)
class Split:
    """A model whose tables can be split into any number of partitions between steps.

    Args:
      runner: What trains it.
      batches: What on, without end.
      units: Words of a batch.
      clock: Gives seconds.
    """

    runner: Runner
    batches: Iterator[Any]
    units: float
    clock: Callable[[], float] = time.perf_counter

    @classmethod
    def of(
        cls,
        work: Workload,
        resources: px.Resources,
        way: str,
        **settings: Any,
    ) -> Split:
        """A workload, compiled.

        Args:
          work: What is trained.
          resources: The machines.
          way: In `programs.WAYS`.
          settings: More settings of `ParallaxConfig`.
        """
        config = px.ParallaxConfig(
            check_equivalence="off",
            **{**WAYS[way], **settings},
        )
        runner = px.get_runner(
            work.loss,
            work.params,
            work.tx,
            resources,
            config,
        )
        for batch in work.batches:
            runner.run(batch)
        return cls(runner, cycle(work.batches), work.units)

    def steps(self, n: int) -> float:
        """Trains some steps; gives the mean seconds of one."""
        begin = self.clock()
        for _ in range(n):
            self.runner.run(next(self.batches))
        self.runner.wait()
        return (self.clock() - begin) / n

    def time(
        self,
        counts: Sequence[int],
        rounds: int,
        steps: int,
    ) -> dict[int, Timing]:
        """Times numbers of partitions in turn; after each new split one step is not counted.

        Args:
          counts: The numbers.
          rounds: Turns of each.
          steps: Steps of a turn.
        """
        seconds: dict[int, list[float]] = {count: [] for count in counts}
        for _ in range(rounds):
            for count in counts:
                self.runner.resplit(count)
                self.steps(1)
                seconds[count].append(self.steps(steps))
        result = {}
        for count, own in seconds.items():
            result[count] = Timing(own, self.units)
        return result

    def brute_force(
        self,
        first: int,
        last: int,
        rounds: int,
        steps: int,
    ) -> dict[int, Timing]:
        """Times numbers of partitions in steps of two until a step takes a tenth longer than the fastest.

        Args:
          first: The smallest number.
          last: The largest.
          rounds: Turns of each number.
          steps: Steps of a turn.
        """
        found: dict[int, Timing] = {}
        for count in range(first, last + 1, STEP):
            found |= self.time([count], rounds, steps)
            if found[count].median > DROP * min(timing.median for timing in found.values()):
                break
        return found
