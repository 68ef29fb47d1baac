"""`python -m experiments bench batch`: each work as one function of a batch, and in plain JAX by hand, in turn in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.frontend.batched import Batched
from ampjax.utils.text_tables import compact
from experiments.bench.batch import (
    alignment,
    attention,
    attention_forms,
    crf,
    distances,
    graphs,
    sequences,
    tagging,
    translation,
)
from experiments.bench.batch import trees as of_trees
from experiments.bench.batch.work import Amount, Work
from experiments.records import append

WORKS: Mapping[str, Callable[[Amount], Work]] = {
    "trees": of_trees.treebank,
    "tagger": tagging.tagging,
    "list-reduction-16": partial(sequences.list_reduction, batch=16),
    "list-reduction-100": partial(sequences.list_reduction, batch=100),
    "molecules-20": partial(graphs.molecules, batch=20),
    "molecules-64": partial(graphs.molecules, batch=64),
    "child-sum-trees": of_trees.child_sums,
    "translation": translation.translation,
    "input-feeding": translation.input_feeding,
    "graph-attention": graphs.attention,
    "attention-200": attention.one_text,
    "attention-64": attention.sentences,
    "soft-dtw": alignment.soft_dtw,
    "crf": crf.tagging,
    "distances": distances.graphs,
    "chain": sequences.chain,
    "chain-tree": sequences.tree_chain,
    "chain-recursion": sequences.recursive_chain,
    "small-graphs": graphs.small,
}
"""By name, what makes the work."""

GROUPS: Mapping[str, Mapping[str, Callable[[Amount], Work]]] = {
    "attention-forms": attention_forms.works(),
}
"""By name, works that are measured if they are asked for, one by one or by the name of their group."""

TOLERANCE = 2e-3
"""How far gradients may lie apart, as a part of the largest number of a leaf: thousands of roundings in float32."""


LARGE = 10_000
"""Packing of a row is measured in batches of so many rows at least: those of a work once or several times, so that what a batch costs apart shows little."""


@dataclass(frozen=True, kw_only=True)
class BatchBench:
    """`amp.vmap` beside plain JAX by hand: milliseconds of an update (forward, backward, Adam), medians of rounds in turn.

    Both compute the same loss and gradients, which is checked first, and run with the same settings of XLA and of the allocator. The first update
    includes tracing and compiling, without a cache. Packing comes in milliseconds for the batch, and in microseconds a row of a larger one.

    Args:
      work: Which works; all by default but those of groups, such as `attention-forms`.
      rounds: Measured rounds of each; one more before them is not counted.
      seconds: How long a round of one form lasts at least; it is one update at least.
      size: Examples, and lengths of generated ones, as a part of what is measured by default.
      synthetic: Generated data in place of the treebank, WikiNER and QM9.
      data_dir: Folder with data files; else AMPJAX_DATA.
      json: File to which a JSON object is appended for each work.
    """

    work: tuple[str, ...] = ()
    rounds: int = 9
    seconds: float = 0.1
    size: float = 1.0
    synthetic: bool = False
    data_dir: Path | None = None
    json: Path | None = None


def main(
    options: BatchBench,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives its rows.

    Raises:
      SettingsError: If a work is unknown, or an option is outside what it can be.
      DataError: If a data file is missing or damaged.
      ValueError: If both forms of a work differ.
    """
    names = _names(options.work or WORKS)
    unknown = sorted(set(names) - set(_known()))
    if unknown or options.rounds < 1 or min(options.size, options.seconds) <= 0:
        expected = (
            f"works of {', '.join([*WORKS, *GROUPS])}, at least 1 round, a size and seconds above 0"
        )
        raise SettingsError("bench batch", expected, f"{unknown or options}", "Change the option.")
    amount = Amount(
        options.size,
        options.synthetic,
        options.data_dir,
    )
    rows = []
    for name in names:
        rows.append(row_of(name, amount, options))
    (console or Console(highlight=False)).print(table_of(rows))
    return rows


def _known() -> dict[str, Callable[[Amount], Work]]:
    """All works by name, with the works of groups."""
    known = dict(WORKS)
    for group in GROUPS.values():
        known |= group
    return known


def _names(given: Iterable[str]) -> list[str]:
    """Names of works; the works of a group stand in the group's place."""
    names = []
    for name in given:
        names += GROUPS.get(name, [name])
    return names


def row_of(name: str, amount: Amount, options: BatchBench) -> dict[str, Any]:
    """Measures a work, and appends the figures to the options' file.

    Args:
      name: The work's name.
      amount: How much data the work gets.
      options: The options.

    Raises:
      DataError: If a data file is missing or damaged.
      ValueError: If both forms of the work differ.
    """
    jax.config.update(
        "jax_enable_compilation_cache",
        False,
    )  # first updates come without one
    work = _known()[name](amount)
    row = {
        "bench": "batch",
        "work": name,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        **measured(name, work, options),
    }
    append(options.json, [row])
    return row


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The figures of some works as a table.

    Args:
      rows: As `row_of` gives them.
    """
    table = compact(
        "work",
        "rows",
        "ours ms",
        "plain ms",
        "ratio",
        "first s",
        "temp. MB",
        "pack\nms",
        "pack\nus/row",
    )
    for row in rows:
        table.add_row(
            row["work"],
            f"{row['rows']:,}",
            f"{row['ours_ms']:,.2f}",
            f"{row['plain_ms']:,.2f}",
            f"{row['ratio']:.2f}",
            " ".join(f"{s:.1f}" for s in row["first_s"]),
            " ".join(f"{n / 1e6:.0f}" for n in row["temporary_bytes"]),
            f"{row['pack_ms']:.2f}",
            f"{row['pack_us_per_row']:.2f}",
        )
    return table


class Form:
    """One form of a work, compiled.

    Args:
      loss: The batch's mean loss, of parameters and data.
      params: The parameters.
      data: The data.

    Attributes:
      first: Seconds of tracing, compiling and the first update.
      temporary_bytes: What an update needs beside its arguments and results.
    """

    def __init__(
        self,
        loss: Callable[[Any, Any], jax.Array],
        params: Any,
        data: Any,
    ):
        tx = optax.adam(1e-3)

        def update(params: Any, state: Any, data: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params, data)
            changes, state = tx.update(
                grads,
                state,
                params,
            )
            return optax.apply_updates(params, changes), state, value

        self._data = jax.tree.map(jax.numpy.asarray, data)
        self._params = jax.tree.map(jax.numpy.array, params)
        self._state = tx.init(self._params)
        jax.block_until_ready((self._data, self._params, self._state))
        start = time.perf_counter()
        step = jax.jit(update, donate_argnums=(0, 1))
        given = (self._params, self._state, self._data)
        self._step = step.lower(*given).compile()
        self.run(1)
        self.first = time.perf_counter() - start
        analysis = self._step.memory_analysis()
        self.temporary_bytes = 0 if analysis is None else analysis.temp_size_in_bytes

    def run(self, n: int) -> float:
        """Seconds of some updates.

        Args:
          n: How many.
        """
        start = time.perf_counter()
        for _ in range(n):
            self._params, self._state, value = self._step(
                self._params,
                self._state,
                self._data,
            )
        value.block_until_ready()
        return time.perf_counter() - start


def measured(name: str, work: Work, options: BatchBench) -> dict[str, Any]:
    """Checks that both forms of a work agree, and measures both forms.

    Args:
      name: The work's name.
      work: The work.
      options: The options.

    Raises:
      ValueError: If both forms differ.
    """
    start = time.perf_counter()
    batched = amp.vmap(
        work.model,
        work.spec,
        params=work.params,
    )
    traced = time.perf_counter() - start
    # As an epoch of one batch: like the arrays of the code by hand, it has no room for others.
    (batch,) = batched.batches(
        work.examples,
        size=len(work.examples),
        seed=None,
    )

    ours = mean_of(batched)
    forms = [
        Form(ours, work.params, batch),
        Form(
            work.plain,
            work.params,
            work.arrays,
        ),
    ]
    require_same(
        name,
        work,
        ours,
        batch,
    )
    times: list[list[float]] = [[], []]
    counts = [max(1, round(options.seconds / form.run(1))) for form in forms]
    for number in range(options.rounds + 1):
        turns = [0, 1] if number % 2 else [1, 0]
        for i in turns:
            seconds = forms[i].run(counts[i]) / counts[i]
            if number:
                times[i].append(seconds)
    ratios = [plain / own for own, plain in zip(*times, strict=True)]
    return {
        "rows": work.n_rows,
        "ours_ms": 1e3 * statistics.median(times[0]),
        "plain_ms": 1e3 * statistics.median(times[1]),
        "ratio": statistics.median(ratios),
        "spread": (min(ratios), max(ratios)),
        "first_s": [traced + forms[0].first, forms[1].first],
        "temporary_bytes": [form.temporary_bytes for form in forms],
        **_packing(batched, work, options.rounds),
    }


def mean_of(batched: Batched) -> Callable[[Any, Any], jax.Array]:
    """The mean loss of a batch, of parameters and the batch.

    Args:
      batched: The model as a function of a batch.
    """

    def loss(params: Any, batch: Any) -> jax.Array:
        found = batched(params, batch)
        return (found[0] if isinstance(found, tuple) else found).mean()

    return loss


def _packing(batched: Batched, work: Work, rounds: int) -> dict[str, float]:
    """The time of packing, medians: milliseconds for the batch, microseconds a row for a larger batch."""
    n = -(-LARGE // work.n_rows)
    larger = [*work.examples] * n
    seconds = _seconds(lambda: batched.pack(larger), rounds)
    return {
        "pack_ms": 1e3 * _seconds(lambda: batched.pack(work.examples), rounds),
        "pack_us_per_row": 1e6 * seconds / (n * work.n_rows),
    }


def _seconds(call: Callable[[], Any], rounds: int) -> float:
    """Seconds of a call, the median."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def require_same(
    name: str,
    work: Work,
    ours: Callable[[Any, Any], jax.Array],
    batch: Any,
) -> None:
    """Refuses a work whose forms differ in loss or gradients.

    Args:
      name: Its name.
      work: The work.
      ours: Its loss as a function of a batch.
      batch: The batch.

    Raises:
      ValueError: If they differ.
    """
    found = jax.jit(jax.value_and_grad(ours))(
        work.params,
        batch,
    )
    want = jax.jit(jax.value_and_grad(work.plain))(
        work.params,
        work.arrays,
    )
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
        other = want
        for key in path:
            other = other[
                getattr(
                    key,
                    "key",
                    getattr(key, "idx", None),
                )
            ]
        largest = float(np.abs(other).max(initial=1e-6))
        apart = float(np.abs(np.asarray(leaf) - np.asarray(other)).max(initial=0)) / largest
        if not apart <= TOLERANCE:
            where = jax.tree_util.keystr(path)
            raise ValueError(f"{name}{where}: both forms lie {apart:.2g} apart")
