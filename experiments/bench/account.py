"""Where an instance's time goes: a pass of ours beside its kernels, issued again without a scheduler, and beside the matrix products in them.

The products alone, at the rate of a large one, are the floor of any program of the same model; what lies between is told stage by stage.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console

from ampjax.drivers.cost import FlopsCost, product_shapes
from ampjax.engine.executor import Executor
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.utils.text_tables import compact
from experiments.bench.children import in_a_process
from experiments.bench.floor import ROWS, product
from experiments.bench.issued import Call, keeping, repeat
from experiments.bench.ours import Ours
from experiments.bench.program import Entry
from experiments.common import cache_compilations

N_PRODUCTS = 50
"""Products that are timed together for the machine's rate."""


def account(entry: Entry, passes: int) -> dict[str, Any]:
    """What `measured` finds out of one of our programs, in a process with its environment.

    Args:
      entry: The program, made by `Ours`.
      passes: Measured passes.

    Raises:
      AmpError: What making the program raises of these.
      RuntimeError: If the process fails otherwise; its errors are on the terminal.
    """
    return in_a_process(
        measured,
        {"passes": passes, **entry.arguments},
        entry.environment,
    )


def show(
    found: Mapping[str, Any],
    setting: str,
    console: Console,
) -> None:
    """Prints an account."""
    headers = (
        "stage",
        "direction",
        "dispatches\nper 1,000",
        "rows a\ndispatch",
        "kernels\nµs",
        "products\nMFLOP",
        "at that\nrate µs",
    )
    table = compact(*headers, title=f"where an instance's time goes, {setting}")
    for row in found["stages"]:
        counts = f"{1e3 * row['dispatches']:,.0f}", f"{row['rows']:,.1f}"
        times = f"{row['kernels_us']:,.1f}", f"{row['mflop']:,.2f}", f"{row['products_us']:,.1f}"
        table.add_row(
            row["stage"],
            row["direction"],
            *counts,
            *times,
        )
    console.print(table)
    rows, n_in, n_out = found["product"]
    console.print(
        f"a pass: {found['wall_us']:,.1f} µs an instance by the clock; of processors {found['host_us']:,.1f} by the thread that schedules and issues, {found['others_us']:,.1f} by others\n"
        f"its kernels issued again, without a scheduler: {found['kernels_us']:,.1f} µs; issuing takes {found['issue_us']:,.1f} of the thread's\n"
        f"its products at {found['gflop_per_s']:,.0f} GFLOP/s, the rate of {rows} x {n_in} x {n_out} here: {found['products_us']:,.1f} µs, {found['products_us'] / found['wall_us']:.2f} of a pass"
    )


def measured(
    experiment: str,
    passes: int,
    **arguments: Any,
) -> dict[str, Any]:
    """Trains here; gives medians over passes in turn, in microseconds an instance.

    Args:
      experiment: Its name.
      passes: Measured passes; one more before them is not counted.
      **arguments: Options of the experiment.

    Returns:
      `wall_us`, `host_us`, `others_us`: a pass by the clock, and the processor time of the thread that schedules and of all others. `kernels_us`, `issue_us`: its
      kernels again, by the clock and of the thread that issues them. `stages`: for each stage and direction dispatches an instance, rows a dispatch, the time of its kernels
      and of the updates that follow them, and its products' operations and time at `gflop_per_s`, which is the rate of the largest `product`, `[rows, in, out]`. `products_us`: of all stages.
    """
    cache_compilations()
    ours = Ours(experiment, **arguments)
    calls = list[Call]()
    spent = list[list[float]]()
    n = 1
    for _ in range(passes + 1):
        calls.clear()
        with keeping(calls):
            n, *seconds = clocked(ours.train)
        spent.append(seconds)
    stages = _by_stage(calls)
    executor = calls[0].executor
    size = _largest_matrix(executor)
    operations = FlopsCost(executor.plan).operations
    again = list[tuple[float, float]]()
    by_stage = list[list[float]]()
    rates = list[float]()
    repeat(calls)
    for _ in range(passes):
        again.append(clocked(functools.partial(repeat, calls))[1:3])
        by_stage.append([clocked(functools.partial(repeat, own))[1] for own in stages.values()])
        rates.append(_rate(*size))
    rate = float(np.median(rates))
    wall, host, others = (1e6 * np.median(spent[1:], axis=0) / n).tolist()
    kernels, issue = (1e6 * np.median(again, axis=0) / n).tolist()
    rows = [
        _row(
            *key,
            [d for call in own for d in call.dispatches],
            seconds / n,
            operations,
            n=n,
            rate=rate,
        )
        for (key, own), seconds in zip(
            stages.items(),
            np.median(by_stage, axis=0).tolist(),
            strict=True,
        )
    ]
    return {
        **{
            "wall_us": wall,
            "host_us": host,
            "others_us": others,
            "kernels_us": kernels,
            "issue_us": issue,
        },
        **{
            "products_us": sum(row["products_us"] for row in rows),
            "gflop_per_s": rate / 1e9,
            "product": [ROWS, *size],
        },
        "stages": rows,
    }


def clocked(part: Callable[[], Any]) -> tuple[Any, float, float, float]:
    """What something returns; its seconds by the clock, and of processors: of this thread, and of others."""
    clocks = time.perf_counter, time.thread_time, time.process_time
    begin = [clock() for clock in clocks]
    result = part()
    wall, own, every = (clock() - before for clock, before in zip(clocks, begin, strict=True))
    return result, wall, own, every - own


def _by_stage(calls: Sequence[Call]) -> dict[tuple[str, str], list[Call]]:
    """Calls by the stage and the direction of their dispatches; parameter changes alone are a stage of their own."""
    found: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        first = call.dispatches[0]
        if first.stage < 0:
            stage = "changes"
        else:
            stage = call.executor.plan.stages[first.stage].name
        found.setdefault((stage, first.direction), []).append(call)
    return found


def _row(
    stage: str,
    direction: str,
    dispatches: Sequence[Dispatch],
    seconds: float,
    operations: Callable[[Dispatch], float],
    *,
    n: int,
    rate: float,
) -> dict[str, Any]:
    flops = sum(map(operations, dispatches)) / n
    return {
        **{"stage": stage, "direction": direction, "dispatches": len(dispatches) / n},
        **{
            "rows": sum(d.n_rows for d in dispatches) / len(dispatches),
            "kernels_us": 1e6 * seconds,
        },
        **{"mflop": flops / 1e6, "products_us": 1e6 * flops / rate},
    }


def _largest_matrix(executor: Executor) -> tuple[int, int]:
    """The sizes `(in, out)` of the largest matrix that a node with parameters multiplies by."""
    nodes = []
    for node in executor.plan.graph.nodes.values():
        if node.has_params:
            nodes.append(node)
    sizes = []
    for node in nodes:
        for _, n_in, n_out in product_shapes(node):
            sizes.append((n_in, n_out))
    return max(sizes, key=math.prod, default=(1, 1))


def _rate(n_in: int, n_out: int) -> float:
    """Operations a second of the product of some rows with such a matrix."""
    key = jax.random.key(0)
    rows = jax.random.normal(key, (ROWS, n_in))
    w = jax.random.normal(key, (n_in, n_out))

    def several() -> None:
        for _ in range(N_PRODUCTS):
            result = product(rows, w)
        result.block_until_ready()

    several()
    return 2 * ROWS * n_in * n_out * N_PRODUCTS / clocked(several)[1]
