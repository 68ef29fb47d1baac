"""What tracing costs: passes of the engine with a trace over passes without one."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.trace.trace import Trace
from ampjax.trace.usage import usage
from ampjax.utils.text_tables import compact
from experiments.bench.engine import Bench, EngineOptions, timed
from experiments.records import append


@dataclass(frozen=True, kw_only=True)
class TracingOptions:
    """Time with a trace over time without, on the single-sequence RNN with full dispatches; medians of passes in turn.

    Args:
      sizes: Messages in a dispatch, and sequences in flight.
      messages: Messages in a pass, about.
      passes: Measured passes of each kind; one more before them is not counted.
      hidden: Features of the hidden state.
      every: `Trace.every` of the lighter trace; the other waits for every dispatch.
      json: File to which a JSON object is appended for each size.
    """

    sizes: tuple[int, ...] = (32, 64, 128)
    messages: int = 200_000
    passes: int = 15
    hidden: int = 128
    every: int = 64
    json: Path | None = None


def main(
    options: TracingOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives its rows as dictionaries.

    Raises:
      SettingsError: If an option is below 1.
    """
    if min(*options.sizes, options.messages, options.passes, options.hidden, options.every) < 1:
        raise SettingsError(
            "bench tracing, options", "numbers of at least 1", f"{options}", "Change the option."
        )
    table = compact(
        "dispatch\nsize",
        "untraced µs",
        "traced /\nuntraced",
        "waiting /\nuntraced",
        "busy %",
        "busy %, waiting",
    )
    rows = []
    for size in options.sizes:
        row = {
            "bench": "tracing",
            "dispatch_size": size,
            "every": options.every,
            **measure(options, size),
        }
        rows.append(row)
        append(options.json, [row])
        cells = (
            f"{row['untraced_us']:.2f}",
            f"{row['traced_ratio']:.3f}",
            f"{row['waited_ratio']:.2f}",
        )
        table.add_row(
            str(size), *cells, f"{100 * row['traced_busy']:.0f}", f"{100 * row['waited_busy']:.0f}"
        )
    (console or Console(highlight=False)).print(table)
    return rows


def measure(options: TracingOptions, size: int) -> dict[str, float]:
    """For one dispatch size: microseconds a message, medians of the ratios of neighbouring passes, and what the traces say."""
    traced = []
    waited = []
    untraced = []
    busy = []
    with Bench(EngineOptions(messages=options.messages, hidden=options.hidden), size) as bench:
        for n in range(options.passes + 1):
            light = Trace(every=options.every)
            exact = Trace(every=1)
            before = timed(partial(_train, bench))
            with_light = timed(partial(_train, bench, light))
            after = timed(partial(_train, bench))
            with_exact = timed(partial(_train, bench, exact))
            if n:
                untraced += [before, after]
                traced.append(2 * with_light / (before + after))
                waited.append(2 * with_exact / (before + after))
                busy.append([kernel_share(light), kernel_share(exact)])
    return {
        "untraced_us": 1e6 * statistics.median(untraced) / bench.n_messages,
        "traced_ratio": statistics.median(traced),
        "waited_ratio": statistics.median(waited),
        "traced_busy": statistics.median(light for light, _ in busy),
        "waited_busy": statistics.median(exact for _, exact in busy),
    }


def _train(bench: Bench, trace: Trace | None = None) -> float:
    """A pass, with the count of staleness that a trainer asks for after each epoch."""
    bench.engine(trace)
    return bench.stats.staleness_mean


def kernel_share(trace: Trace) -> float:
    """The part of the run in which the worker's device was at work."""
    times = usage(trace)[0]
    return 1 - times.get("host", 0) / sum(times.values())
