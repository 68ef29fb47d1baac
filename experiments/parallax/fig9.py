"""Parallax's figure 9: throughput on all replicas over that on one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ampjax.utils.text_tables import compact
from experiments.parallax import paper
from experiments.parallax.fig8 import Fig8Options
from experiments.parallax.measure import write_json
from experiments.parallax.pictures import bars
from experiments.parallax.scaling import PAPERS, WAYS, here, on_cluster
from experiments.parallax.workloads import Model


@dataclass(frozen=True, kw_only=True)
class Fig9Options(Fig8Options):
    """Figure 9: normalised throughput on 48 GPUs, predicted, beside the paper's; and here on all replicas over one.

    Args:
      models: Those that are timed here; predictions are made for all four.
      out: Folder for the pictures.
    """

    models: tuple[Model, ...] = ("lm", "nmt")
    out: Path = Path("runs/parallax-fig9")


def main(
    options: Fig9Options,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints the table, draws pictures; gives all figures.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    console = console or Console(highlight=False)
    predicted = {}
    for model in paper.MODELS:
        predicted[model] = {
            way: own[-1][1] / paper.one_gpu(model)
            for way, own in on_cluster(model, (paper.MACHINES,)).items()
        }
    rows = []
    for model, own in predicted.items():
        for row in _records("cluster", model, own):
            rows.append(row)
    _draw(predicted, options.out / "cluster.png", "48 GPUs, predicted")
    timed = {}
    for model in options.models:
        points = here(
            options,
            model,
            (1, *options.counts[-1:]),
        )
        one = max(own[0][1] for own in points.values())  # the fastest way to train on one replica
        timed[model] = {way: own[-1][1] / one for way, own in points.items()}
        rows += _records("here", model, timed[model])
    if timed:
        _draw(timed, options.out / "here.png", f"{options.workers} replicas here")
    table = compact("where", "model", "way", "over one\nreplica", "paper", "ours over\npaper's")
    for row in rows:
        theirs = row["paper"]
        ours = ("", "") if theirs is None else (f"{theirs:g}", f"{row['normalised'] / theirs:.2f}")
        table.add_row(
            row["where"],
            paper.NAMES[row["model"]],
            row["way"],
            f"{row['normalised']:.2f}",
            *ours,
        )
    console.print(table)
    write_json(options.json, "parallax-fig9", rows)
    return rows


def _records(
    where: str,
    model: str,
    own: Mapping[str, float],
) -> list[dict[str, Any]]:
    published = paper.NORMALISED[model] if where == "cluster" else {}
    result = []
    for way in WAYS:
        result.append(
            {
                "where": where,
                "model": model,
                "way": way,
                "normalised": own[way],
                "paper": published.get(PAPERS[way]),
            }
        )
    return result


def _draw(
    groups: Mapping[str, Mapping[str, float]],
    path: Path,
    title: str,
) -> None:
    named = {paper.NAMES[model]: own for model, own in groups.items()}
    bars(named, "throughput over that of one replica", path, title)
