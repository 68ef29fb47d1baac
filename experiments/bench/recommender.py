"""Recommenders' tables: DLRM on random data beside PyTorch, one large table beside plain JAX by hand, and many tables beside one."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import ampjax.parallel as px
from ampjax.errors import SettingsError
from ampjax.optim import rowwise_adagrad
from ampjax.utils.text_tables import compact
from experiments.bench.peers.towers_jax import HandWritten
from experiments.parallax.measure import Program, Timing, Turns, write_json
from experiments.parallax.programs import Ours, machines

N_DENSE = 13
"""Numbers of an example that are no ids, as in Criteo's data."""
HIDDEN = 64
LEARNING_RATE = 0.01

What = Literal["dlrm-8", "dlrm-26", "one-table", "stacked-26", "stacked-100"]
Params = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RecommenderBench:
    """Milliseconds of a training step, programs in turn.

    `dlrm-8`: DLRM on random data, 8 tables of 100,000 × 32, 20 ids each, batches of 256, row-wise Adagrad, beside PyTorch's `EmbeddingBag` with sparse
    gradients under its Adagrad and under DLRM's row-wise one. `dlrm-26`: 26 tables of 20,000 × 16, an id each, batches of 64. `one-table`: 1,000,000 × 64,
    40 ids, batches of 512, Adagrad, beside plain JAX that scatters updated rows by hand. `stacked-26`, `stacked-100`: so many tables beside one with as
    many rows and ids. Without PyTorch its programs are left out, with a line that says so.

    Args:
      what: Which comparisons.
      scale: The tables' rows are divided by this, for a quick look.
      replicas: Devices of ours; the batch is cut between them.
      turns: Turns of each program.
      steps: Steps of a turn, each on a batch of its own.
      json: File to which a JSON object for each program is appended.
    """

    what: tuple[What, ...] = ("dlrm-8", "dlrm-26", "one-table", "stacked-26", "stacked-100")
    scale: int = 1
    replicas: int = 1
    turns: int = 9
    steps: int = 8
    json: Path | None = None

    @property
    def workers(self) -> int:
        """Devices that are needed."""
        return self.replicas


@dataclass(frozen=True)
class TableSizes:
    """The sizes of a recommender.

    Args:
      tables: Tables.
      rows: Rows of each.
      features: Numbers in a row.
      ids: Ids of an example in each.
      batch: Examples of a step.
    """

    tables: int
    rows: int
    features: int
    ids: int
    batch: int

    @property
    def names(self) -> list[str]:
        """The tables' names, also of the columns with their ids."""
        return [f"t{i}" for i in range(self.tables)]


SIZES = {
    "dlrm-8": TableSizes(8, 100_000, 32, 20, 256),
    "dlrm-26": TableSizes(26, 20_000, 16, 1, 64),
    "one-table": TableSizes(
        1,
        1_000_000,
        64,
        40,
        512,
    ),
    "stacked-26": TableSizes(26, 20_000, 16, 1, 64),
    "stacked-100": TableSizes(100, 5_000, 16, 1, 64),
}


@dataclass(frozen=True)
class RecommenderResult:
    """The time of one program.

    Args:
      what: The comparison.
      program: Its name; the first one is ours.
      timing: Of its steps.
      times: How often its time holds the time of ours.
    """

    what: str
    program: str
    timing: Timing
    times: float


def main(
    options: RecommenderBench,
    console: Console | None = None,
) -> list[RecommenderResult]:
    """Prints a table; gives a row for each program.

    Raises:
      SettingsError: If a number is below 1.
    """
    if (
        min(
            options.scale,
            options.replicas,
            options.turns,
            options.steps,
        )
        < 1
    ):
        raise SettingsError(
            "bench recommender, options",
            "numbers of at least 1",
            f"{options}",
            "Change the option.",
        )
    console = console or Console(highlight=False)
    results = []
    for what in options.what:
        results += list(_compare(what, options, console))
        gc.collect()
    table = compact(
        "what",
        "program",
        "ms",
        "spread",
        "times ours",
    )
    for each in results:
        table.add_row(
            each.what,
            each.program,
            f"{1e3 * each.timing.median:.3g}",
            f"{100 * each.timing.spread:.0f} %",
            f"{each.times:.2f}",
        )
    console.print(table)
    rows = []
    for each in results:
        rows.append(
            {
                "what": each.what,
                "program": each.program,
                "seconds": each.timing.median,
                "times": each.times,
            }
        )
    write_json(
        options.json,
        "bench-recommender",
        rows,
    )
    return results


def _compare(
    what: What,
    options: RecommenderBench,
    console: Console,
) -> Iterator[RecommenderResult]:
    own = SIZES[what]
    rows = max(own.ids, own.rows // options.scale)
    sizes = TableSizes(
        own.tables,
        rows,
        own.features,
        own.ids,
        own.batch,
    )
    if what == "one-table":
        programs = _by_hand(sizes, options)
    elif what.startswith("stacked"):
        programs = _stacked(sizes, options)
    else:
        programs = _dlrm(sizes, options, console)
    timings = Turns(
        programs,
        batches(sizes, options.steps),
    ).run(
        options.turns,
        options.steps,
    )
    ours = next(iter(timings.values()))
    for name, timing in timings.items():
        yield RecommenderResult(
            what,
            name,
            timing,
            timing.median / ours.median,
        )


# ---- data and models -------------------------------------------------------------------------------------------------


def batches(sizes: TableSizes, n: int) -> list[dict[str, np.ndarray]]:
    """Random examples: numbers, ids of each table, a label."""
    rng = np.random.default_rng(1)
    result = []
    for _ in range(n):
        batch = {}
        for name in sizes.names:
            batch[name] = rng.integers(
                0,
                sizes.rows,
                (sizes.batch, sizes.ids),
            )
        batch["dense"] = rng.normal(size=(sizes.batch, N_DENSE)).astype(np.float32)
        batch["label"] = rng.integers(
            0,
            2,
            sizes.batch,
        ).astype(np.float32)
        result.append(batch)
    return result


def parameters(sizes: TableSizes) -> dict[str, Any]:
    """Tables by name, and `layers`: the networks below and above the products of features."""
    rng = np.random.default_rng(0)
    params: dict[str, Any] = {}
    for name in sizes.names:
        params[name] = rng.normal(
            0,
            0.1,
            (sizes.rows, sizes.features),
        ).astype(np.float32)
    n_products = (sizes.tables + 1) * sizes.tables // 2
    params["layers"] = {
        "bottom": _layers(
            rng,
            (N_DENSE, HIDDEN, sizes.features),
        ),
        "top": _layers(
            rng,
            (sizes.features + n_products, HIDDEN, 1),
        ),
    }
    return params


def _layers(
    rng: np.random.Generator,
    widths: Sequence[int],
) -> list[list[np.ndarray]]:
    layers = []
    for start, end in pairwise(widths):
        weight = rng.normal(
            0,
            start**-0.5,
            (start, end),
        ).astype(np.float32)
        layers.append(
            [
                weight,
                np.zeros(
                    end,
                    np.float32,
                ),
            ]
        )
    return layers


def _network(layers: Any, x: jax.Array) -> jax.Array:
    for number, (weight, bias) in enumerate(layers):
        x = (jax.nn.relu(x) if number else x) @ weight + bias
    return x


def loss_of_bags(
    layers: Any,
    bags: Sequence[jax.Array],
    batch: Mapping[str, Any],
) -> jax.Array:
    """DLRM's mean logistic loss.

    Args:
      layers: As `parameters` makes them.
      bags: By table the sum of an example's rows, `[n, features]`.
      batch: Numbers and labels.
    """
    bottom = jax.nn.relu(
        _network(
            layers["bottom"],
            batch["dense"],
        )
    )
    stacked = jnp.stack([bottom, *bags], 1)
    products = stacked @ stacked.transpose(0, 2, 1)
    first, second = np.tril_indices(
        stacked.shape[1],
        -1,
    )
    joined = jnp.concatenate(
        [bottom, products[:, first, second]],
        1,
    )
    scores = _network(layers["top"], joined)[:, 0]
    return optax.sigmoid_binary_cross_entropy(
        scores,
        batch["label"],
    ).mean()


def loss(
    names: Sequence[str],
    params: Params,
    batch: Mapping[str, Any],
) -> jax.Array:
    """The same as a program for one device."""
    bags = [params[name][batch[name]].sum(1) for name in names]
    return loss_of_bags(
        params["layers"],
        bags,
        batch,
    )


# ---- programs --------------------------------------------------------------------------------------------------------


def _runner(
    loss_fn: Callable[..., Any],
    params: Params,
    tx: optax.GradientTransformation,
    options: RecommenderBench,
) -> Ours:
    config = px.ParallaxConfig(alpha_threshold=2)
    devices = machines(1, options.replicas)
    return Ours(
        px.get_runner(
            loss_fn,
            params,
            tx,
            devices,
            config,
        )
    )


def _dlrm(
    sizes: TableSizes,
    options: RecommenderBench,
    console: Console,
) -> dict[str, Program]:
    tx = rowwise_adagrad(LEARNING_RATE)
    params = parameters(sizes)
    programs: dict[str, Program] = {
        "ours, row-wise": _runner(
            partial(loss, sizes.names),
            params,
            tx,
            options,
        )
    }
    if importlib.util.find_spec("torch") is None:
        console.print("PyTorch is not installed (the extra `bench`): its programs are left out.")
        return programs
    try:
        from experiments.bench.peers.recommender_torch import RecommenderTorch
    except ImportError as error:
        console.print(f"PyTorch can't be imported, so its programs are left out: {error}")
        return programs

    for name, is_rowwise in (("torch, Adagrad", False), ("torch, row-wise by hand", True)):
        programs[name] = RecommenderTorch(
            params,
            sizes.names,
            LEARNING_RATE,
            is_rowwise,
        )
    return programs


def _by_hand(
    sizes: TableSizes,
    options: RecommenderBench,
) -> dict[str, Program]:
    tx = optax.adagrad(LEARNING_RATE)
    params = parameters(sizes)
    (name,) = sizes.names

    def loss_of_rows(
        dense: Params,
        rows: Params,
        batch: Mapping[str, Any],
    ) -> jax.Array:
        own = rows[name].reshape(*batch[name].shape, -1)
        return loss_of_bags(
            dense["layers"],
            [own.sum(1)],
            batch,
        )

    by_hand = HandWritten(
        loss_of_rows,
        params,
        {name: name},
        "adagrad",
        tx,
        learning_rate=LEARNING_RATE,
        devices=machines(1, options.replicas).devices,
    )
    return {
        "ours": _runner(
            partial(loss, sizes.names),
            params,
            tx,
            options,
        ),
        "by hand": by_hand,
    }


def _stacked(
    sizes: TableSizes,
    options: RecommenderBench,
) -> dict[str, Program]:
    """Many tables beside one with their rows, one after the other."""
    tx = rowwise_adagrad(LEARNING_RATE)
    params = parameters(sizes)
    joined = {
        "table": np.concatenate([params[name] for name in sizes.names]),
        "layers": params["layers"],
    }

    def loss_of_one(params: Params, batch: Mapping[str, Any]) -> jax.Array:
        columns = [batch[name] for name in sizes.names]
        offsets = sizes.rows * np.arange(sizes.tables)
        ids = jnp.stack(columns, 1) + offsets[:, None]
        bags = params["table"][ids].sum(2)
        return loss_of_bags(
            params["layers"],
            [bags[:, i] for i in range(sizes.tables)],
            batch,
        )

    return {
        "many tables": _runner(
            partial(loss, sizes.names),
            params,
            tx,
            options,
        ),
        "one table": _runner(
            loss_of_one,
            joined,
            tx,
            options,
        ),
    }
