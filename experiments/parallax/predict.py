"""Throughput on the paper's cluster: bytes from `loads`, seconds from `ampjax.parallel.planning.cluster_model`, rates fitted once to the published cells.

The computation's seconds are those of one GPU in the paper. Four rates are free, the same for all models and ways; the fifth, that of
the network cards, is known. They are found by least squares of the logarithms, and printed with what comes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import least_squares

from ampjax.parallel.planning.cluster_model import ClusterRates, Load, step_seconds
from experiments.parallax import paper
from experiments.parallax.loads import WAYS, Counted, Step, paper_step


@dataclass(frozen=True)
class Cell:
    """A published throughput.

    Args:
      model: The model.
      way: In `loads.WAYS`.
      per_s: Words or images a second.
    """

    model: str
    way: str
    per_s: float


CELLS: Sequence[Cell] = tuple(
    dict.fromkeys(
        [
            Cell(m, "naive PS" if way == "PS" else way, v)
            for m, row in paper.TABLE1.items()
            for way, v in row.items()
        ]
        + [Cell(m, way, v) for m, row in paper.TABLE4.items() for way, v in row.items()]
    )
)
"""Tables 1 and 4, each cell once."""


def full_step(model: str) -> Step:
    """A step of a full-size model on all GPUs."""
    return paper_step(model, paper.MACHINES * paper.GPUS_A_MACHINE)


@lru_cache(maxsize=32)
def counted(model: str, machines: int, each: int) -> Counted:
    """A full-size model's step on some machines."""
    return Counted(paper_step(model, machines * each), machines, each)


@lru_cache(maxsize=256)
def load(
    model: str,
    way: str,
    machines: int,
    each: int,
) -> Load:
    """A step's bytes."""
    return counted(model, machines, each).load(WAYS[way])


def compute_seconds(model: str) -> float:
    """A step's computation on one GPU: its words or images over figure 9's denominator."""
    return full_step(model).units / paper.one_gpu(model)


def throughput(
    model: str,
    way: str,
    rates: ClusterRates,
    machines: int = paper.MACHINES,
    each: int = paper.GPUS_A_MACHINE,
) -> float:
    """Words or images a second of all workers."""
    seconds = step_seconds(
        load(model, way, machines, each),
        rates,
        compute_seconds(model),
    )
    return machines * each * full_step(model).units / seconds


@lru_cache(maxsize=4)
def fitted(cells: Sequence[Cell] = CELLS) -> ClusterRates:
    """The four rates with which predictions come nearest to published cells.

    Args:
      cells: What is fitted to.
    """

    def errors(logs: np.ndarray) -> list[float]:
        rates = _rates(logs)
        result = []
        for cell in cells:
            result.append(np.log(throughput(cell.model, cell.way, rates) / cell.per_s))
        return result

    return _rates(least_squares(errors, np.log([5e9, 1e9, 1e9, 1e9])).x)


def _rates(logs: np.ndarray) -> ClusterRates:
    return ClusterRates(
        *(float(rate) for rate in np.exp(logs)),
        link=paper.LINK_BYTES_PER_S,
    )


def same_order(
    ours: Mapping[str, float],
    theirs: Mapping[str, float],
) -> bool:
    """Whether two rows of a table put the same ways in the same order.

    >>> same_order({"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 9.0})
    True
    """
    return sorted(theirs, key=lambda way: ours[way]) == sorted(theirs, key=lambda way: theirs[way])
