"""`python -m experiments bench lanes`: loops of unequal lengths, in lanes beside `jax.vmap`, `jax.lax.map` and what is written by hand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.utils.text_tables import compact
from experiments.bench.lanes.plain_works import Work
from experiments.bench.lanes.works import ELEMENTS, WORKS
from experiments.records import append

MOST_ELEMENTS = 1024

LONG = 10.0
"""Seconds of a form's measured calls, after which it is not measured again."""


@dataclass(frozen=True, kw_only=True)
class LanesBench:
    """`amp.vmap` of plain JAX functions beside `jax.vmap` and one element after another: milliseconds of a call, medians of rounds in turn, and rows of loops.

    All forms compute the same results, which is checked first. Ours is measured as it chooses by itself, and in lanes. For NUTS there are state machines by hand, too.

    Args:
      work: Which works; all by default. Those of BlackJAX, diffrax, jaxopt and optimistix are left out where these are not installed.
      rounds: Measured rounds of each; fewer of a form whose calls take many seconds.
      lanes: Lanes of the form that does not choose.
      trips: Trips of innermost loops between looks, of that form.
      size: Elements, as a part of what is measured by default.
      json: File to which a JSON object is appended for each work.
    """

    work: tuple[str, ...] = ()
    rounds: int = 5
    lanes: int = 32
    trips: int = 4
    size: float = 1.0
    json: Path | None = None


def main(options: LanesBench, console: Console | None = None) -> list[dict[str, Any]]:
    """Prints a table; gives its rows.

    Raises:
      SettingsError: If a work is unknown, or an option is outside what it can be.
      ValueError: If the forms of a work differ.
    """
    unknown = sorted(set(options.work) - set(WORKS))
    if unknown or min(options.rounds, options.lanes, options.trips) < 1 or options.size <= 0:
        expected = f"works of {', '.join(WORKS)}, whole numbers from 1, and a size above 0"
        raise SettingsError("bench lanes", expected, f"{unknown or options}", "Change the option.")
    screen = console or Console(highlight=False)
    rows = []
    for name in options.work or WORKS:
        n = max(2, round(ELEMENTS.get(name, MOST_ELEMENTS) * options.size))
        try:
            work = WORKS[name](n)
        except ModuleNotFoundError as error:
            screen.print(f"{name}: left out, as {error.name} is not installed")
            continue
        row = {"bench": "lanes", "work": name, "elements": n, "jax": jax.__version__}
        row |= measured(name, work, options)
        append(options.json, [row])
        rows.append(row)
    screen.print(table_of(rows))
    return rows


def table_of(rows: list[dict[str, Any]]) -> Table:
    """A line for each work.

    Args:
      rows: As `main` gives them.
    """
    table = compact(
        "work",
        "elements",
        "vmap\nms",
        "map\nms",
        "lanes\nms",
        "chosen\nms",
        "to\nvmap",
        "to\nbest",
        "to\nhand",
        "rows\nvmap",
        "rows\nlanes",
        title="a call, how many times as fast the chosen form is as jax.vmap, as the better of jax.vmap and lax.map, and as what is written by hand, and rows computed for a useful one",
    )
    for row in rows:
        table.add_row(
            row["work"],
            f"{row['elements']:,}",
            *(f"{row[form]:,.1f}" for form in ("vmap_ms", "map_ms", "lanes_ms", "chosen_ms")),
            f"{row['to_vmap']:.2f}",
            f"{row['to_best']:.2f}",
            f"{row['to_hand']:.2f}" if "to_hand" in row else "",
            f"{row['rows_vmap'] / row['rows']:.2f}",
            f"{row['rows_lanes'] / row['rows']:.2f}",
        )
    return table


def measured(name: str, work: Work, options: LanesBench) -> dict[str, Any]:
    """Checks that all forms of a work agree, measures each form, and counts trips of loops, a row for each element that is computed.

    Args:
      name: The work's name.
      work: The work.
      options: The options.

    Raises:
      ValueError: If two forms differ.
    """
    function = work.function
    lanes = amp.vmap(function, lanes=options.lanes, trips=options.trips)
    forms: dict[str, Callable[..., Any]] = {
        "vmap": jax.jit(jax.vmap(function)),
        "map": jax.jit(lambda *args: jax.lax.map(lambda own: function(*own), args)),
        "lanes": lanes,
        "chosen": amp.vmap(function),
        **work.by_hand,
    }
    results = {form: compute(*work.args) for form, compute in forms.items()}
    for form, found in results.items():
        _require_same(f"{name}, {form}", work, found, results["vmap"])
    times: dict[str, list[float]] = {form: [] for form in forms}
    for _ in range(options.rounds):
        for form, compute in forms.items():
            if sum(times[form]) < LONG:
                times[form].append(_seconds(compute, work.args))
    medians = {form: 1e3 * statistics.median(each) for form, each in times.items()}
    best = min(medians["vmap"], medians["map"])
    by_hand = {form: medians.pop(form) for form in work.by_hand}
    row: dict[str, Any] = {f"{form}_ms": each for form, each in medians.items()}
    row["to_vmap"] = medians["vmap"] / medians["chosen"]
    row["to_best"] = best / medians["chosen"]
    if by_hand:
        row["by_hand_ms"] = by_hand
        row["to_hand"] = min(by_hand.values()) / medians["chosen"]
    report = lanes.explain(*work.args)
    row["rows"] = int(report.trips.sum())
    row["rows_vmap"] = report.rows_of_vmap
    row["rows_lanes"] = report.rows_of_lanes
    return row


def _seconds(compute: Callable[..., Any], args: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(compute(*args))
    return time.perf_counter() - start


def _require_same(
    where: str,
    work: Work,
    found: Any,
    wanted: Any,
) -> None:
    """Refuses results that differ by more than rounding."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        got = np.asarray(work.compared(a), np.float64)
        right = np.asarray(work.compared(b), np.float64)
        off = np.abs(got - right)
        limit = work.tolerance * (1 + np.abs(right).max(initial=0))
        if not off.max(initial=0) <= limit:
            raise ValueError(f"{where}: results differ by {off.max()}, more than {limit}")
