"""Models as functions beside the hand-written graphs: training passes in turn, and making the data."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.ir.instances import Instances, Messages
from ampjax.utils.text_tables import compact
from experiments.bench.front_end_pairs import PAIRS, Amount, Pair, alike
from experiments.records import append


@dataclass(frozen=True, kw_only=True)
class FrontEndBench:
    """Rates of models that are written as functions over those of the hand-written graphs: medians of passes in turn, in one process.

    Args:
      models: Which models; all by default.
      passes: Measured passes of each; one more before them is not counted.
      size: Instances of a pass, as a part of what is measured by default.
      synthetic: Generated data in place of the treebank and WikiNER.
      data_dir: Folder with data files; else AMPJAX_DATA.
      json: File to which a JSON object is appended for each model.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    passes: int = 7
    size: float = 1.0
    synthetic: bool = False
    data_dir: Path | None = None
    json: Path | None = None


def main(
    options: FrontEndBench,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives its rows.

    Raises:
      SettingsError: If a model is unknown, or an option is outside what it can be.
    """
    unknown = sorted(set(options.models) - set(PAIRS))
    if unknown or options.passes < 1 or options.size <= 0:
        expected = f"models of {', '.join(PAIRS)}, at least 1 pass, a size above 0"
        raise SettingsError(
            "bench front-end", expected, f"{unknown or options}", "Change the option."
        )
    table = compact(
        "model",
        "hand/s",
        "compiled/s",
        "ratio",
        "spread",
        "CPU ratio",
        "messages",
        "stages",
        "data",
    )
    rows = []
    amount = Amount(options.size, options.synthetic, options.data_dir)
    for name in options.models or PAIRS:
        row = {
            "bench": "front-end",
            "model": name,
            **measure(PAIRS[name](amount), options.passes),
        }
        rows.append(row)
        append(options.json, [row])
        low, high = row["spread"]
        table.add_row(
            name,
            f"{row['hand_per_s']:,.0f}",
            f"{row['compiled_per_s']:,.0f}",
            f"{row['ratio']:.3f}",
            f"{low:.2f} to {high:.2f}",
            f"{row['processor_ratio']:.3f}",
            " / ".join(f"{n:,.1f}" for n in row["messages"]),
            " / ".join(map(str, row["stages"])),
            f"{row['data_ratio']:.2f}",
        )
    (console or Console(highlight=False)).print(table)
    return rows


def measure(pair: Pair, passes: int) -> dict[str, Any]:
    """Rates, their ratios by the clock and by processor time, messages an instance, stages, and the time for the data over the adapter's."""
    alike(pair.graph, pair.compiled.graph)
    data = pair.adapter()
    plain = pair.plain()
    n = len(data)
    asked = Asked(pair.compiled.data(plain))
    trainers = [
        (
            amp.Trainer(
                pair.graph,
                pair.tx,
                settings=pair.settings,
                params=pair.params,
            ),
            data,
        ),
        (
            amp.Trainer(pair.compiled.graph, pair.tx, settings=pair.settings),
            asked,
        ),
    ]
    for trainer, instances in trainers:
        trainer.warm_up(instances, progress=False)
    times: list[list[tuple[float, float]]] = [
        [],
        [],
    ]
    for number in range(passes + 1):
        asked.batches.clear()
        for kept, (trainer, instances) in zip(times, trainers, strict=True):
            seconds = timed(lambda t=trainer, d=instances: t.fit(d, epochs=1, progress=False))
            if number:
                kept.append(seconds)
    hand, compiled = ([wall for wall, _ in kept] for kept in times)
    ratios = [a / b for a, b in zip(hand, compiled, strict=True)]
    of_data = data_seconds(pair, asked.batches)
    return {
        "instances": n,
        "hand_per_s": n / statistics.median(hand),
        "compiled_per_s": n / statistics.median(compiled),
        "ratio": statistics.median(ratios),
        "spread": (min(ratios), max(ratios)),
        "processor_ratio": statistics.median(a / b for (_, a), (_, b) in zip(*times, strict=True)),
        "messages": [trainer.statistics.messages / n for trainer, _ in trainers],
        "stages": [len(trainer.plan.stages) for trainer, _ in trainers],
        "data_seconds": of_data,
        "data_ratio": of_data[1] / of_data[0],
    }


class Asked:
    """A data set that notes which instances are asked for together.

    Args:
      data: The data set.

    Attributes:
      batches: The instances that were asked for, in order.
    """

    def __init__(self, data: Instances):
        self._data = data
        self.batches: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self._data)

    def gather(self, ids: np.ndarray) -> Mapping[str, Messages]:
        """Gives the messages of some instances, by pump.

        Args:
          ids: `[n]`: which instances.
        """
        self.batches.append(ids)
        return self._data.gather(ids)


def data_seconds(
    pair: Pair,
    batches: Sequence[np.ndarray],
    rounds: int = 9,
) -> list[float]:
    """Processor seconds for making the data set and what a pass asks for, by hand and compiled: medians of rounds in turn.

    Args:
      pair: The model.
      batches: The instances that a pass asks for, in order.
      rounds: Measured rounds; one more before them is not counted.
    """

    def once(make: Callable[[], Instances]) -> None:
        data = make()
        for ids in batches:
            data.gather(ids)

    makers = (
        pair.adapter,
        lambda: pair.compiled.data(pair.plain()),
    )
    rows = [[timed(lambda make=make: once(make))[1] for make in makers] for _ in range(rounds + 1)]
    result = []
    for column in zip(*rows[1:], strict=True):
        result.append(statistics.median(column))
    return result


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor, that a call takes."""
    wall = time.perf_counter()
    processor = time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - processor
