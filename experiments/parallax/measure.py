"""How programs are timed: in turn, a few steps at a time, so that whatever else the machine does hits all of them alike.

And what becomes of the figures: medians, short numbers, JSON Lines.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

from ampjax.utils.setting_checks import at_least
from experiments.records import append

Batch = Any


class Program(Protocol):
    """A way to train a model."""

    def step(self, batch: Batch) -> Any:
        """One step; it may still be under way when this returns."""
        ...

    def wait(self) -> None:
        """Returns when all steps have ended."""
        ...


@dataclass(frozen=True)
class Timing:
    """How long a step of one program takes.

    Args:
      seconds: Of a step, the mean of each turn.
      units: Words or images of a step, the mean over batches.
    """

    seconds: Sequence[float]
    units: float = 1.0

    @property
    def median(self) -> float:
        """Seconds of a step."""
        return statistics.median(self.seconds)

    @property
    def per_s(self) -> float:
        """Words or images a second."""
        return self.units / self.median

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median: how noisy the times are."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / 2 / self.median


@dataclass
class Turns:
    """Programs that take turns.

    Args:
      programs: By name.
      batches: What they train on, each for itself in this order, again and again.
      clock: Gives seconds.
    """

    programs: Mapping[str, Program]
    batches: Sequence[Batch]
    clock: Callable[[], float] = time.perf_counter
    _ways: dict[str, Iterator[Batch]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ways = {name: cycle(self.batches) for name in self.programs}

    def warm_up(self) -> None:
        """Every program sees every batch once, so that all that has to be compiled is."""
        for name in self.programs:
            self.take(name, len(self.batches))

    def take(self, name: str, steps: int) -> float:
        """Some steps of one program; gives the mean seconds of a step."""
        batches = [next(self._ways[name]) for _ in range(steps)]
        return seconds_of(self.programs[name], batches, self.clock) / steps

    def run(
        self,
        rounds: int,
        steps: int,
        units: float = 1.0,
    ) -> dict[str, Timing]:
        """Times all programs after a warm-up.

        Args:
          rounds: Turns of each program; who begins changes from round to round.
          steps: Steps of a turn.
          units: Words or images of a step.

        Raises:
          SettingsError: If a number is below 1.
        """
        at_least("rounds", rounds, 1)
        at_least("steps", steps, 1)
        self.warm_up()
        names = list(self.programs)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                seconds[name].append(self.take(name, steps))
        return {name: Timing(own, units) for name, own in seconds.items()}


def seconds_of(
    program: Program,
    batches: Sequence[Batch],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """How long a program takes for some steps, until the last one has ended.

    Args:
      program: The program.
      batches: A step for each.
      clock: Gives seconds.
    """
    begin = clock()
    for batch in batches:
        program.step(batch)
    program.wait()
    return clock() - begin


def write_json(
    path: Path | None,
    experiment: str,
    records: Sequence[Mapping[str, Any]],
) -> None:
    """Appends an object for each record to a file.

    Args:
      path: The file; None writes nothing. Its folder is made.
      experiment: The experiment's name, which each object gets.
      records: What was measured.
    """
    append(path, ({"experiment": experiment, **record} for record in records))


def short(number: float | None) -> str:
    """A throughput in few characters; an empty string for None.

    >>> short(98_900.0), short(312.4), short(2.5), short(None)
    ('98.9k', '312', '2.5', '')
    """
    if number is None:
        return ""
    for unit in ("", "k"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}M"
