"""Parallax's figure 8: throughput by number of machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ampjax.utils.text_tables import compact
from experiments.parallax import paper
from experiments.parallax.measure import short, write_json
from experiments.parallax.options import LocalOptions
from experiments.parallax.pictures import lines
from experiments.parallax.scaling import here, on_cluster, records
from experiments.parallax.workloads import Model


@dataclass(frozen=True, kw_only=True)
class Fig8Options(LocalOptions):
    """Figure 8: scaling of hybrid, parameter servers and AllReduce, predicted for 2 to 8 machines of 6 GPUs and timed here.

    Args:
      models: Those that are timed here; predictions are made for all four.
      counts: Numbers of replicas here.
      out: Folder for the pictures.
    """

    models: tuple[Model, ...] = ("lm", "nmt")
    counts: tuple[int, ...] = (1, 2)
    out: Path = Path("runs/parallax-fig8")

    @property
    def workers(self) -> int:
        """Devices that are needed."""
        return max(self.counts, default=1)


def main(
    options: Fig8Options,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints tables, draws a picture for each model; gives all figures.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    console = console or Console(highlight=False)
    unit = {}
    for model in paper.MODELS:
        unit[model] = "images" if model in ("resnet", "inception") else "words"
    rows = []
    for model in paper.MODELS:
        points = on_cluster(model)
        lines(
            points, "GPUs", f"{unit[model]} per second", options.out / f"cluster-{model}.png",
            title=f"{paper.NAMES[model]}, predicted for the paper's cluster",
        )  # fmt: skip
        rows += records("cluster", model, points, paper.one_gpu(model))
    for model in options.models:
        points = here(options, model, options.counts)
        lines(
            points, "replicas" if options.resources is None else "worker processes", f"{unit[model]} per second",
            options.out / f"here-{model}.png", title=paper.NAMES[model],
        )  # fmt: skip
        rows += records(
            "here",
            model,
            points,
            max(own[0][1] for own in points.values()),
        )
    table = compact("where", "model", "way", "replicas", "per s", "over one\nreplica")
    for row in rows:
        names = (
            row["where"],
            paper.NAMES[row["model"]],
            row["way"],
        )
        table.add_row(*names, f"{row['replicas']}", short(row["per_s"]), f"{row['normalised']:.2f}")
    console.print(table)
    write_json(options.json, "parallax-fig8", rows)
    return rows
