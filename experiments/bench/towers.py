"""A recommender of two towers, each with a table of its own: our hybrid step beside plain JAX that updates touched rows by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax.parallel as px
from experiments.bench.children import in_a_process
from experiments.bench.peers.towers_jax import HandWritten, Optimizer
from experiments.data import zipf
from experiments.parallax.programs import Ours, machines

TABLES = {"users": "user_ids", "items": "item_ids"}
"""Each table, and the column of a batch that has its ids."""

LEARNING_RATE = 0.01
OPTIMIZERS: tuple[Optimizer, ...] = ("adagrad", "adam")
WAYS = "faithful", "lazy", "by hand"
"""Ours, where all rows follow the optimizer or only those of a step, and plain JAX, where only those of a step do."""


def parameters(
    rows: int,
    width: int,
) -> dict[str, np.ndarray]:
    """Two tables `[rows, width]`, and a dense layer for each tower."""
    rng = np.random.default_rng(0)
    tables = {}
    for name in TABLES:
        tables[name] = rng.normal(0, 0.1, (rows, width)).astype(np.float32)
    layers = {}
    for name in TABLES:
        layers[f"{name}_layer"] = rng.normal(0, width**-0.5, (width, width)).astype(np.float32)
    return tables | layers


def batches(
    n: int,
    size: int,
    ids: int,
    rows: int,
) -> list[dict[str, np.ndarray]]:
    """Examples of `ids` ids for each tower, by Zipf's law, and whether the two belong together."""
    rng = np.random.default_rng(1)

    def column(seed: int) -> np.ndarray:
        return zipf.tokens(n * size * ids, rows, seed=seed).reshape(
            n,
            size,
            ids,
        )

    users = column(2)
    items = column(3)
    labels = rng.integers(0, 2, (n, size)).astype(np.float32)
    result = []
    for i in range(n):
        result.append({"user_ids": users[i], "item_ids": items[i], "label": labels[i]})
    return result


def loss_of_rows(
    dense: Mapping[str, Any],
    rows: Mapping[str, jax.Array],
    batch: Mapping[str, Any],
) -> jax.Array:
    """The mean logistic loss; a tower is the mean of its rows, a dense layer and a tanh."""

    def tower(name: str) -> jax.Array:
        own = rows[name].reshape(
            *batch[TABLES[name]].shape,
            -1,
        )
        return jnp.tanh(own.mean(1) @ dense[f"{name}_layer"])

    scores = (tower("users") * tower("items")).sum(-1)
    return optax.sigmoid_binary_cross_entropy(scores, batch["label"]).mean()


def loss(
    params: Mapping[str, Any],
    batch: Mapping[str, Any],
) -> jax.Array:
    """The same as a program for one device."""
    return loss_of_rows(
        params,
        {name: params[name][batch[ids]] for name, ids in TABLES.items()},
        batch,
    )


@dataclass(frozen=True)
class Model:
    """What is trained, and where.

    Args:
      optimizer: Its name.
      rows: Rows of each table.
      width: Numbers in a row.
      devices: Replicas of one machine.
    """

    optimizer: Optimizer
    rows: int
    width: int
    devices: int


def make(way: str, model: Model) -> Ours | HandWritten:
    """One of the programs that are compared."""
    tx = {"adagrad": optax.adagrad, "adam": optax.adam}[model.optimizer](LEARNING_RATE)
    params = parameters(model.rows, model.width)
    resources = machines(1, model.devices)
    if way == "by hand":
        return HandWritten(
            loss_of_rows,
            params,
            TABLES,
            model.optimizer,
            tx,
            learning_rate=LEARNING_RATE,
            devices=resources.devices,
        )
    return Ours(
        px.get_runner(
            loss,
            params,
            tx,
            resources,
            px.ParallaxConfig(table_mode=way),
        )
    )


def peak_bytes(
    way: str,
    model: Model,
    size: int,
    ids: int,
) -> int:
    """The resident memory that a process with one program needs at most, for batches of `size` examples of `ids` ids in each table."""
    arguments = {
        "way": way,
        "model": asdict(model),
        "size": size,
        "ids": ids,
    }
    return in_a_process(measured_peak, arguments, {"JAX_NUM_CPU_DEVICES": str(model.devices)})


def measured_peak(
    way: str,
    model: Mapping[str, Any],
    size: int,
    ids: int,
) -> int:
    """What such a process does."""
    program = make(way, Model(**model))
    for batch in batches(4, size, ids, model["rows"]):
        program.step(batch)
    program.wait()
    # `getrusage` would tell the peak of the process that has started this one, if that was higher.
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
