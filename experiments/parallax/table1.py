"""Parallax's table 1: parameter servers against AllReduce for models with and without sparse variables."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from ampjax.utils.text_tables import compact
from experiments.parallax import compare, paper
from experiments.parallax.compare import Figure
from experiments.parallax.measure import write_json
from experiments.parallax.options import LocalOptions
from experiments.parallax.predict import full_step
from experiments.parallax.workloads import Model

PUBLISHED = {m: {"naive PS": row["PS"], "AR": row["AR"]} for m, row in paper.TABLE1.items()}


@dataclass(frozen=True, kw_only=True)
class Table1Options(LocalOptions):
    """Table 1: naive PS and AR, for the paper's cluster by the transfer model and timed here, beside plain `pmap`.

    Args:
      models: Those that are timed here; predictions are made for all four.
    """

    models: tuple[Model, ...] = ("resnet", "inception", "lm", "nmt")


def main(
    options: Table1Options,
    console: Console | None = None,
) -> list[Figure]:
    """Prints the tables; gives all figures.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    console = console or Console(highlight=False)
    _alphas(console)
    rows = compare.cluster(console, paper.MODELS, ("naive PS", "AR"), PUBLISHED)
    compare.show_rates(console)
    here = []
    for model in options.models:
        here += compare.timed(
            model,
            options.time(model, ("naive PS", "AR", "pmap")),
            PUBLISHED,
        )
    if here:
        compare.show(console, f"Here: {options.workers} replicas, small models", here)
    write_json(
        options.json,
        "parallax-table1",
        [row.record() for row in rows + here],
    )
    return rows + here


def _alphas(console: Console) -> None:
    """Prints how much of the full-size models a worker touches in a step."""
    table = compact(
        "model",
        "dense\nelements",
        "sparse\nelements",
        "alpha, by\nreadings",
        "paper's",
        "alpha, by\nrows",
        title="Full-size models",
    )
    for model in paper.MODELS:
        step = full_step(model)
        sparse = sum(rows.n_rows * rows.width for rows in step.tables.values())
        numbers = (
            f"{step.dense / 1e6:.1f} M",
            f"{sparse / 1e6:.1f} M",
            f"{step.alpha(False):.3g}",
            f"{paper.ALPHA[model]:g}",
            f"{step.alpha(True):.3g}",
        )
        table.add_row(paper.NAMES[model], *numbers)
    console.print(table)
