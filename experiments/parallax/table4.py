"""Parallax's table 4, in both versions: what each of its ideas adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console

from experiments.parallax import compare, paper
from experiments.parallax.compare import Figure
from experiments.parallax.measure import Timing, write_json
from experiments.parallax.options import LocalOptions
from experiments.parallax.workloads import Model

WAYS = ("AR", "naive PS", "optimised PS", "hybrid")
BETWEEN = {"BASE": "naive PS", "+OPSW": "hybrid"}
"""Steps of the arXiv version that are the same settings under another name."""


@dataclass(frozen=True, kw_only=True)
class Table4Options(LocalOptions):
    """Table 4: AR, naive PS, optimised PS and hybrid (EuroSys), and BASE, +HYB, +LA, +OPAU and +OPSW (arXiv); predicted and timed here.

    Args:
      models: Those that are timed here; predictions are made for both.
    """

    models: tuple[Model, ...] = ("lm", "nmt")


def main(
    options: Table4Options,
    console: Console | None = None,
) -> list[Figure]:
    """Prints the tables; gives all figures.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    console = console or Console(highlight=False)
    rows = compare.cluster(console, ("lm", "nmt"), WAYS, paper.TABLE4)
    rows += compare.cluster(
        console,
        ("lm", "nmt"),
        paper.LADDER,
        {},
    )
    compare.show_rates(console)
    ways = (
        "pmap",
        *WAYS,
        *(step for step in paper.LADDER if step not in BETWEEN),
    )
    here = []
    ladder = []
    for model in options.models:
        timings = options.time(model, ways)
        here += compare.timed(
            model,
            {way: timings[way] for way in (*WAYS, "pmap") if way in timings},
            paper.TABLE4,
        )
        ladder += compare.timed(model, _ladder(timings), {})
    for title, figures in (("tables at servers", here), ("step by step", ladder)):
        kind = "replicas" if options.resources is None else "worker processes"
        compare.show(console, f"Here, {title}: {options.workers} {kind}, small models", figures)
    write_json(
        options.json,
        "parallax-table4",
        [row.record() for row in rows + here + ladder],
    )
    return rows + here + ladder


def _ladder(timings: Mapping[str, Timing]) -> dict[str, Timing]:
    result = {}
    for step in paper.LADDER:
        result[step] = timings[BETWEEN.get(step, step)]
    return result
