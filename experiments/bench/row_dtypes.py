"""The error of a table by the way in which its rows are kept: as float32, in 16 bits, in eight."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.optim import stochastic_rounding
from ampjax.sparse import Table
from ampjax.utils.text_tables import compact
from experiments.records import append

KINDS = {
    "float32": (np.float32, False, None),
    "bfloat16, to the nearest": (jnp.bfloat16, False, None),
    "bfloat16, stochastic": (jnp.bfloat16, True, None),
    "int8": (np.float32, False, "int8"),
    "float8_e4m3fn": (np.float32, False, "float8_e4m3fn"),
    "float8_e5m2": (np.float32, False, "float8_e5m2"),
}
"""The dtype of parameters, whether their optimizer rounds stochastically, and the `row_dtype`."""


@dataclass(frozen=True, kw_only=True)
class RowDtypesBench:
    """The mean error of rows that are to become given ones, of which each step sees some, with noise and without.

    Args:
      rows: Rows of the table.
      features: Numbers in a row.
      ids: Rows of a step.
      steps: Steps; ten times as many with a tenth of the learning rate.
      rate: The share of its way that a row goes at each sight.
      noise: The deviation of the noise on the wanted rows.
      seed: Of rows and noise.
      json: File to which a JSON object for each kind is appended.
    """

    rows: int = 1000
    features: int = 16
    ids: int = 64
    steps: int = 2000
    rate: float = 0.08
    noise: float = 1.0
    seed: int = 0
    json: Path | None = None


def main(
    options: RowDtypesBench,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives a row for each kind.

    Raises:
      SettingsError: If a count is below 1.
    """
    if (
        min(
            options.rows,
            options.features,
            options.ids,
            options.steps,
        )
        < 1
    ):
        raise SettingsError(
            "bench row-dtypes, options",
            "numbers of at least 1",
            f"{options}",
            "Change the option.",
        )
    table = compact(
        "rows",
        "bytes\na row",
        f"{options.steps}\nsteps",
        "small\nsteps",
        "noise",
        "noise,\nsmall steps",
    )
    found = []
    for kind in KINDS:
        errors = []
        for noise in (0.0, options.noise):
            for slower in (1, 10):
                errors.append(
                    error(
                        kind,
                        options,
                        noise,
                        slower,
                    )
                )
        n_bytes = options.features * np.dtype(KINDS[kind][0]).itemsize
        if KINDS[kind][2] is not None:
            n_bytes = options.features + 1
        table.add_row(
            kind,
            f"{n_bytes}",
            *[f"{each:.4f}" for each in errors],
        )
        found.append({"bench": "row-dtypes", "rows": kind, "bytes": n_bytes, "errors": errors})
    (console or Console(highlight=False)).print(table)
    append(options.json, found)
    return found


def error(
    kind: str,
    options: RowDtypesBench,
    noise: float,
    slower: int,
) -> float:
    """The mean error of all numbers after training.

    Args:
      kind: One of `KINDS`.
      options: Sizes.
      noise: The deviation of the noise.
      slower: How often the learning rate is divided, and the steps multiplied.
    """
    rng = np.random.default_rng(options.seed)
    shape = (options.rows, options.features)
    wanted = rng.normal(size=shape).astype(np.float32)
    dtype, is_stochastic, row_dtype = KINDS[kind]
    tx = optax.sgd(options.rate / slower)
    table = Table(
        np.zeros(shape, dtype),
        stochastic_rounding(tx) if is_stochastic else tx,
        row_dtype=row_dtype,
    )
    for _ in range(options.steps * slower):
        ids = rng.permutation(options.rows)[: options.ids]
        seen = wanted[ids]
        if noise:
            seen = seen + noise * rng.normal(size=seen.shape).astype(np.float32)
        rows = table.pull(ids).astype(np.float32)
        table.push(ids, rows - seen)
    rows = table.dense().astype(np.float32)
    return float(np.abs(rows - wanted).mean())
