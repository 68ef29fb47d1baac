"""The visits of workers to the server: their times, and the order of their pseudo-gradients.

A worker takes the server's parameters, makes some inner steps, and brings back by how much the parameters have moved: its pseudo-gradient. When the
first worker of a group is back, the server waits for a grace time: who is back by then is in the group, too. Then all of the group begin anew,
with the same parameters. So with an endless grace time training is synchronous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SECONDS_PER_STEP = (0.58, 0.75, 1.51, 3.33)
"""Of the study's four workers."""


@dataclass(frozen=True)
class Visit:
    """One time that a worker trains.

    Args:
      worker: Its number.
      begin: Seconds at which it takes the parameters.
      back: Seconds at which its inner steps are done.
      end: Seconds at which its group begins anew.
      shard: The part of the data that it trains on: one that was visited least.
      first_step: Inner steps that were made on this part before.
    """

    worker: int
    begin: float
    back: float
    end: float
    shard: int
    first_step: int


def plan_visits(
    n: int,
    inner_steps: int,
    grace: float,
    seed: int,
    seconds: Sequence[float] = SECONDS_PER_STEP,
) -> list[Visit]:
    """The first visits of a training, in the order in which workers are back; then the visits under way at their end.

    Args:
      n: How many.
      inner_steps: Of a visit.
      grace: Seconds for which the server waits for others; infinite for synchronous training.
      seed: Chooses among parts of the data that were visited equally often.
      seconds: By worker, the time of an inner step.
    """
    rng = np.random.default_rng(seed)
    workers = range(len(seconds))
    n_visits = np.zeros(len(seconds), int)  # by part of the data
    begun: dict[int, Visit] = {}

    def begin(worker: int, now: float) -> None:
        least = np.flatnonzero(n_visits == n_visits.min())
        shard = int(rng.choice(least))
        back = now + inner_steps * seconds[worker]
        begun[worker] = Visit(
            worker,
            now,
            back,
            back,
            shard,
            inner_steps * int(n_visits[shard]),
        )
        n_visits[shard] += 1

    for worker in workers:
        begin(worker, 0.0)
    visits: list[Visit] = []
    while len(visits) < n or any(visit.begin < visits[n - 1].end for visit in begun.values()):
        first = min(visit.back for visit in begun.values())
        group = []
        for visit in sorted(begun.values(), key=_order):
            if visit.back - first <= grace:
                group.append(visit)
        end = group[-1].back
        for visit in group:
            visits.append(
                Visit(
                    visit.worker,
                    visit.begin,
                    visit.back,
                    end,
                    visit.shard,
                    visit.first_step,
                )
            )
        for worker in sorted(visit.worker for visit in group):
            begin(worker, end)
    return [visit for visit in visits if visit.begin < visits[n - 1].end]


def _order(visit: Visit) -> tuple[float, float]:
    """The order in which workers are back; at one moment, but for rounding, the earlier visit is first."""
    return round(visit.back, 6), visit.begin


def in_order_of_admission(visits: Sequence[Visit]) -> list[Visit]:
    """The first visit of each worker, and then, for each visit that is back, the next one of that worker.

    Args:
      visits: In the order in which workers are back.
    """
    by_worker: dict[int, list[Visit]] = {}
    for visit in visits:
        by_worker.setdefault(visit.worker, []).append(visit)
    result = [by_worker[worker].pop(0) for worker in sorted(by_worker)]
    for visit in visits:
        if by_worker[visit.worker]:
            result.append(by_worker[visit.worker].pop(0))
    return result


def staleness_of(visits: Sequence[Visit]) -> list[int]:
    """By visit, the pseudo-gradients that were applied between its begin and its end.

    Args:
      visits: In the order in which they are applied.
    """
    result = []
    for place, visit in enumerate(visits):
        seen = sum(other.end <= visit.begin for other in visits[:place])
        result.append(place - seen)
    return result
