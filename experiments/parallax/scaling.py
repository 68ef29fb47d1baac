"""Throughput by number of replicas: what figures 8 and 9 draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.parallax import paper
from experiments.parallax.options import LocalOptions
from experiments.parallax.predict import fitted, throughput
from experiments.parallax.workloads import Model

WAYS = ("hybrid", "naive PS", "AR")
PAPERS = {"hybrid": "hybrid", "naive PS": "PS", "AR": "AR"}
"""The papers' names: TensorFlow's parameter servers, and Horovod."""

Points = Mapping[str, Sequence[tuple[float, float]]]
"""By way, replicas and throughput."""


def here(
    options: LocalOptions,
    model: Model,
    counts: Sequence[int],
) -> Points:
    """Timed on one machine's replicas.

    Args:
      options: What is timed, and how.
      model: The model.
      counts: Numbers of replicas.
    """
    timed = {n: options.time(model, WAYS, n) for n in counts}
    there = []
    for way in WAYS:
        if all(way in timings for timings in timed.values()):
            there.append(way)
    result = {}
    for way in there:
        result[way] = [(n, timings[way].per_s) for n, timings in timed.items()]
    return result


def on_cluster(
    model: str,
    counts: Sequence[int] = (2, 4, 8),
) -> Points:
    """Predicted for numbers of machines of six GPUs; for two at least, since bytes inside a machine are not in the model.

    Args:
      model: The model.
      counts: Numbers of machines.
    """
    rates = fitted()
    each = paper.GPUS_A_MACHINE
    result = {}
    for way in WAYS:
        result[way] = [(n * each, throughput(model, way, rates, n)) for n in counts]
    return result


def records(
    where: str,
    model: str,
    points: Points,
    one: float,
) -> list[dict[str, Any]]:
    """JSON objects, with throughput over that of one replica.

    Args:
      where: `cluster` or `here`.
      model: The model.
      points: Throughputs.
      one: Throughput of one replica.
    """
    result = []
    for way, own in points.items():
        for n, per_s in own:
            result.append(
                {
                    "where": where,
                    "model": model,
                    "way": way,
                    "replicas": n,
                    "per_s": per_s,
                    "normalised": per_s / one,
                }
            )
    return result
