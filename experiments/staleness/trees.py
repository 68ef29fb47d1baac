"""A small Tree-LSTM on sentiment trees: sixteen trees are in flight, and every node updates after them."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

import ampjax as amp
from ampjax.ir.instances import Instances, Subset
from ampjax.optim import RandomDelay
from experiments.data import sst
from experiments.models.tree_lstm import SPEC, Cells, init, tree_lstm
from experiments.staleness import amp_runs
from experiments.staleness.amp_runs import AmpWork

SIZE = 24
"""Features of word vectors and states."""

BATCH = 16
N_TRAIN = 960
N_VALID = 200


def grid(
    remedy: str,
    delay: int | RandomDelay,
    data_dir: Path | None,
    **runs: Any,
) -> np.ndarray:
    """The losses at the ends of runs.

    Args:
      remedy: By its name.
      delay: In a node's updates.
      data_dir: The folder with the treebank; else `AMPJAX_DATA`; without either, trees are generated.
      **runs: As `amp_runs.grid` takes them.

    Returns:
      The mean validation loss after the last three epochs, in nats a tree, `[rates, seeds]`.
    """
    return amp_runs.grid(_work(data_dir), remedy, delay, **runs)


@functools.cache
def _work(data_dir: Path | None) -> AmpWork:
    if data_dir or os.environ.get("AMPJAX_DATA"):
        train, valid = sst.load(data_dir, min_count=2)
    else:
        train, valid = sst.synthetic(N_TRAIN, N_VALID)
    cells = Cells("fold", SIZE, SIZE, keep=1.0)
    n_words = len(train.vocabulary)

    def start(seed: int) -> Any:
        return init(jax.random.key(seed), n_words, cells)

    compiled = amp.compile(tree_lstm(cells), start(0), SPEC)
    data = (
        _first(compiled.data(sst.plain(train)), N_TRAIN),
        _first(compiled.data(sst.plain(valid)), N_VALID),
    )
    return AmpWork(
        compiled.graph,
        lambda seed: compiled.node_params(start(seed)),
        lambda seed: data,
        BATCH,
        {"mode": "pipeline", "max_active_keys": BATCH},
    )


def _first(data: Instances, n: int) -> Instances:
    """The first instances, at most so many."""
    return Subset(data, np.arange(min(n, len(data))))
