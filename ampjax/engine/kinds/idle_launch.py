"""Launches that read and write the trash slot only: what is run to compile kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ampjax.engine.kernels.launch import Launch
from ampjax.plan.ladders import is_padded
from ampjax.plan.stages import ArenaKey, Stage
from ampjax.sched.decisions import packs


def idle_launch(stage: Stage, direction: str, n_in: int, n_out: int, capacity: Callable[[ArenaKey], int]) -> Launch:
    """A launch of `n_in` rows at each port and `n_out` of each output, all in the trash slot; one message for each input row.

    Args:
      stage: The stage.
      direction: `forward`, `backward` or `infer`.
      n_in: Input rows.
      n_out: Output rows.
      capacity: The rows that an arena has.
    """
    rows, out = np.zeros(n_in, np.int64), np.zeros(n_out, np.int64)
    size = n_in if is_padded(stage) else 0
    if size:
        pack = packs.padded([rows] * len(stage.ports), [out] * len(stage.outputs), size).ravel()
    else:
        pack = packs.unpadded([rows] * len(stage.ports) + [out] * len(stage.outputs))
    return Launch(
        number=0,
        worker=stage.worker,
        stage=stage.number,
        direction=direction,
        n_messages=n_in if size else 0,
        n_rows=n_in,
        n_ports=len(stage.ports),
        n_outputs=len(stage.outputs),
        pack=pack,
        size=size,
        capacities=[capacity(key) for key in stage.arenas],
        sizes=np.ones(n_in, np.int64) if stage.ragged else None,
        seeds=[np.zeros(n_in, np.uint32)],
    )


def steps(sizes: Callable[[int], int], most: int, more: int = 0) -> list[int]:
    """The steps of a ladder up to the first that holds `most`, and `more` behind it.

    >>> steps(lambda n: 4 * -(-n // 4), 9, more=1)
    [4, 8, 12, 16]
    """
    found = [sizes(1)]
    while found[-1] < most:
        found.append(sizes(found[-1] + 1))
    for _ in range(more):
        found.append(sizes(found[-1] + 1))
    return found
