"""Ways that train in turns, for a number of seconds each, and their times step by step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import numpy as np

from experiments.engram.letter_model import Batch
from experiments.engram.table_ways import Way


@dataclass
class Curve:
    """The losses of one way.

    Args:
      seconds: Trained so far, evaluations left out.
      steps: Taken so far.
      losses: At the same moments, of the validation batch.
    """

    seconds: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def train_in_turns(
    ways: Mapping[str, Way],
    seconds: float,
    moments: int,
    make_letters: Callable[[int], np.ndarray],
    valid: np.ndarray,
) -> dict[str, Curve]:
    """Trains each way for a number of seconds, by turns, so that other work on the machine slows all ways.

    The first step of each, in which programs are compiled, is not timed; step i of each has the same letters.

    Args:
      ways: By name.
      seconds: Of each.
      moments: Turns; after each there is an evaluation.
      make_letters: By number of the step its letters, `[rows, context + 1]`.
      valid: Letters of the validation batch, likewise.
    """
    curves = {name: Curve([0.0], [1]) for name in ways}
    batches: dict[str, Batch] = {}
    for name, way in ways.items():
        batches[name] = way.model.batch(valid)
        way.run(way.model.batch(make_letters(0)))
        loss = way.evaluate(batches[name])
        curves[name].losses.append(loss)
    for moment in range(1, 1 + moments):
        for name, way in ways.items():
            curve = curves[name]
            spent = curve.seconds[-1]
            step = curve.steps[-1]
            while spent < seconds * moment / moments:
                begin = perf_counter()
                way.run(way.model.batch(make_letters(step)))
                spent += perf_counter() - begin
                step += 1
            curve.seconds.append(spent)
            curve.steps.append(step)
            curve.losses.append(way.evaluate(batches[name]))
    return curves


@dataclass(frozen=True)
class StepTimes:
    """Times of a way's steps.

    Args:
      milliseconds: The median.
      ratio: The median of the ratios to the step of the first way in the same round.
      quartiles: Of these ratios.
    """

    milliseconds: float
    ratio: float
    quartiles: tuple[float, float]


def time_in_turns(
    ways: Mapping[str, Way],
    rounds: int,
    make_letters: Callable[[int], np.ndarray],
    warm_up: int = 1,
) -> dict[str, StepTimes]:
    """Times single steps, all ways in each round.

    Args:
      ways: By name; others are compared with the first.
      rounds: How many are timed.
      make_letters: By number of the step its letters.
      warm_up: Rounds before them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    gc.collect()
    for number in range(warm_up + rounds):
        letters = make_letters(number)
        for name, way in ways.items():
            begin = perf_counter()
            way.run(way.model.batch(letters))
            if number >= warm_up:
                seconds[name].append(perf_counter() - begin)
    first = np.array(seconds[next(iter(ways))])
    result = {}
    for name, own in seconds.items():
        ratios = np.array(own) / first
        low, high = np.quantile(ratios, [0.25, 0.75])
        result[name] = StepTimes(
            1000 * median(own),
            float(np.median(ratios)),
            (float(low), float(high)),
        )
    return result
