"""Bytes that a machine sends and receives in a step: Parallax's Table 3 beside what was measured.

One worker a machine, a server beside it, machines simulated in one process. Servers' bytes are counted at both ends of every pull
and push; AllReduce's are the operand sizes of the compiled program through the ring formula; AllGatherv's are the gathered buffers,
which are padded: where the rows that a worker touches are not 2^k or 3 · 2^k in number, more travel than the formula says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import SettingsError
from ampjax.parallel.planning.transfer_costs import all_gather_bytes, all_reduce_bytes, server_bytes
from ampjax.parallel.runner import Runner
from ampjax.sparse.rewrite.unique_ids import pulled_size
from ampjax.utils.text_tables import compact
from experiments.parallax.measure import write_json


@dataclass(frozen=True, kw_only=True)
class ParallaxTable3Options:
    """Formula and measurement for dense and sparse variables, by AllReduce or AllGatherv and by servers.

    Args:
      machines: Numbers of machines, each with one worker and a server; each needs a device (on a CPU they are made).
      rows: Rows of each variable.
      row_size: Numbers in a row, float32.
      alpha: Share of the rows of a sparse variable that a worker touches in a step.
      variables: Variables of each kind; the formulas are those of many variables, spread evenly over the servers.
      seed: Of the rows that are touched.
      json: File to which a JSON object is appended for each row of the table.
    """

    machines: tuple[int, ...] = (2, 4, 8)
    rows: int = 4096
    row_size: int = 32
    alpha: float = 0.25
    variables: int = 8
    seed: int = 0
    json: Path | None = None

    @property
    def workers(self) -> int:
        """Devices that are needed."""
        return max(self.machines, default=1)

    @property
    def touched(self) -> int:
        """Rows of each sparse variable that a worker touches in a step."""
        return max(1, round(self.alpha * self.rows))


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
      kind: `dense` or `sparse`.
      architecture: `AR` or `PS`.
      machines: N.
      formula: Bytes that Table 3 gives.
      measured: Bytes that were measured, the mean over machines.
    """

    kind: str
    architecture: str
    machines: int
    formula: float
    measured: float

    @property
    def error(self) -> float:
        """The measured bytes' relative distance from the formula."""
        return self.measured / self.formula - 1


def main(
    options: ParallaxTable3Options,
    console: Console | None = None,
) -> list[Row]:
    """Prints the table; gives its rows.

    Raises:
      SettingsError: If an option is outside what it can be, or there are fewer devices than machines.
    """
    _check(options)
    rows = []
    for n in options.machines:
        for row in measure(options, n):
            rows.append(row)
    table = compact(
        "variable", "architecture", "machines", "formula\nbytes", "measured\nbytes", "difference"
    )
    for row in rows:
        numbers = (
            f"{row.machines}",
            f"{row.formula:,.0f}",
            f"{row.measured:,.0f}",
            f"{100 * row.error:+.2f} %",
        )
        table.add_row(row.kind, row.architecture, *numbers)
    padded = (
        f"{pulled_size(options.touched):,} rows for the {options.touched:,} that a worker touches"
    )
    console = console or Console()
    console.print(table)
    console.print(
        f"AllGatherv's buffers have few sizes, padding and all, so that few programs are compiled: {padded}."
    )
    write_json(options.json, "parallax-table3", [asdict(row) for row in rows])
    return rows


def measure(options: ParallaxTable3Options, n: int) -> list[Row]:
    """The rows for N machines.

    Args:
      options: Of the experiment.
      n: Machines.
    """
    each = options.rows * options.row_size * 4
    w = options.variables * each
    alpha = options.touched / options.rows
    formulas = {
        ("dense", "AR"): all_reduce_bytes(w, n),
        ("dense", "PS"): server_bytes(w, 1.0, n),
        ("sparse", "AR"): all_gather_bytes(w, alpha, n),
        ("sparse", "PS"): server_bytes(w, alpha, n),
    }
    rows = []
    for architecture in ("AR", "PS"):
        runner = _stepped(options, n, architecture.lower())
        variables = runner.explain().variables
        for kind in ("dense", "sparse"):
            measured = sum(v.measured or 0.0 for v in variables if v.sparse == (kind == "sparse"))
            rows.append(Row(kind, architecture, n, formulas[kind, architecture], measured))
    return rows


def _stepped(options: ParallaxTable3Options, n: int, run_option: str) -> Runner:
    """A runner after two steps of a model that reads rows of some tables and all of some matrices."""
    rng = np.random.default_rng(options.seed)
    shape = (options.rows, options.row_size)
    params = {}
    for kind in ("dense", "sparse"):
        for i in range(options.variables):
            params[f"{kind}{i}"] = rng.normal(size=shape).astype(np.float32)
    devices = jax.local_devices()[:n]
    resources = Resources(
        tuple(Machine(f"machine-{i}", (device,)) for i, device in enumerate(devices))
    )
    runner = px.get_runner(
        _loss,
        params,
        optax.sgd(0.1),
        resources,
        px.ParallaxConfig(run_option=run_option),
    )
    for _ in range(2):
        runner.run(px.Parts(tuple(_ids(options, rng) for _ in range(n))))
    return runner


def _loss(
    params: dict[str, jax.Array],
    ids: dict[str, jax.Array],
) -> jax.Array:
    dense = []
    for name, value in params.items():
        if name.startswith("dense"):
            dense.append(jnp.mean(jnp.square(value)))
    return sum(dense, jnp.zeros(())) + sum(
        jnp.mean(jnp.square(params[name][own])) for name, own in ids.items()
    )


def _ids(
    options: ParallaxTable3Options,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Distinct rows for one worker: alpha is exact."""
    result = {}
    for i in range(options.variables):
        result[f"sparse{i}"] = rng.permutation(options.rows)[: options.touched].astype(np.int32)
    return result


def _check(options: ParallaxTable3Options) -> None:
    numbers: Sequence[Any] = (
        options.rows,
        options.row_size,
        options.variables,
        *options.machines,
    )
    if min(numbers) < 1 or not options.machines or not 0 < options.alpha <= 1:
        raise SettingsError(
            "--rows, --row-size, --variables, --machines, --alpha",
            "numbers above 0, alpha at most 1",
            f"{options}",
        )
    if max(options.machines) > len(jax.local_devices()):
        raise SettingsError(
            "--machines",
            f"at most {len(jax.local_devices())}, a device for each",
            f"{max(options.machines)}",
            "Set JAX_NUM_CPU_DEVICES to more.",
        )
