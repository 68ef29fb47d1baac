"""`python -m experiments staleness`: what a delay of gradients costs, remedy by remedy and workload by workload."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.optim import RandomDelay
from ampjax.utils.text_tables import compact
from experiments.records import append, read
from experiments.staleness import gaussians, language, lists, ngrams, quadratic, trees
from experiments.staleness.pictures import heat_map
from experiments.staleness.remedies import REMEDIES

Workload = Literal[
    "quadratic",
    "quadratic-2",
    "lists",
    "trees",
    "lm",
    "ngram-rows",
    "ngram-dense",
    "gaussians",
]
QUADRATIC_RATES = 10.0 ** np.arange(-3.5, 0.3, 0.25)
RATES = {
    "quadratic": QUADRATIC_RATES,
    "quadratic-2": QUADRATIC_RATES,
    "lm": 10.0 ** np.arange(-3.5, -1.4, 0.5),
    "ngram-rows": 10.0 ** np.arange(-2.5, -0.4, 0.5),
    "ngram-dense": 10.0 ** np.arange(-3.5, -1.4, 0.5),
    "gaussians": 10.0 ** np.arange(-4, -1.4, 0.5),
    "lists": (1e-3, 3e-3, 1e-2),
    "trees": 10.0 ** np.arange(-3.5, -1.4, 0.5),
}
STEPS = {
    "quadratic": 400,
    "quadratic-2": 400,
    "lm": 150,
    "ngram-rows": 150,
    "ngram-dense": 150,
    "gaussians": 300,
    "lists": 500,
    "trees": 200,
}
TITLES = {
    "quadratic": "Quadratic of 20 rows",
    "quadratic-2": "Quadratic of 2 rows",
    "lists": "List reduction",
    "trees": "Tree-LSTM",
    "lm": "Language model",
    "ngram-rows": "Language model with a table, whose rows are late",
    "ngram-dense": "Language model with a table, all else is late",
    "gaussians": "Mixtures of Gaussians",
}


@dataclass(frozen=True, kw_only=True)
class StalenessOptions:
    """Trains with gradients that are 0, 1, 2, ... updates late, with each remedy, and compares the final losses.

    The learning rate is tuned separately for each remedy and delay, on a grid, with all seeds. The records of a remedy at a delay, a cell of the table, are
    written when it ends, each with the command that computes the cell again, to the bit.

    Args:
      workload: `quadratic` (20 rows) and `quadratic-2`, turned against the axes; `lists`: list reduction in AMP, each node delayed;
        `trees`: a Tree-LSTM on the treebank where AMPJAX_DATA has it, else on generated trees, by `amp.vmap`; `lm`: a
        small transformer of characters in plain JAX, on Multi30k where AMPJAX_DATA has it, else on generated sentences; `ngram-rows` and
        `ngram-dense`: one with a table of n-grams, whose rows alone are late, or all but these; `gaussians`: a network with one
        hidden layer on mixtures of Gaussians, in plain JAX.
      delay: Delays in updates; a run with 0 is what others are compared with.
      varying: Each update draws its delay, all from 0 to twice `delay` being equally likely.
      remedy: Some of the remedies; all by default. A table's rows have no `rotation`, which keeps a matrix of rows by rows.
      seed: Several seeds; the results are medians.
      angle: Angles of the quadratics' axes, in degrees; the table shows the last one.
      noise: Standard deviation of the noise of a quadratic's gradient, by parameter.
      steps: Updates of a run; 0 is the workload's own number.
      json: File to which a JSON object is appended for each run that counts.
      resume: Whether cells whose records the file has by now are taken from it.
      out: Folder for heat maps.
      data_dir: Folder with data; else AMPJAX_DATA.
    """

    workload: tuple[Workload, ...] = ("quadratic",)
    delay: tuple[int, ...] = (
        0,
        1,
        2,
        4,
        8,
        16,
    )
    varying: bool = False
    remedy: tuple[str, ...] = tuple(REMEDIES)
    seed: tuple[int, ...] = (0, 1, 2)
    angle: tuple[float, ...] = (0.0, 22.5, 45.0)
    noise: float = 0.1
    steps: int = 0
    json: Path | None = None
    resume: bool = False
    out: Path = Path("runs/staleness")
    data_dir: Path | None = None


def main(
    options: StalenessOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table for each workload and draws heat maps; gives a record for each run that counts.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    console = console or Console(highlight=False)
    _check(options)
    records: list[dict[str, Any]] = []
    written = read(options.json) if options.resume else []
    for workload in options.workload:
        begin = perf_counter()
        found = []
        for remedy in _remedies(options, workload):
            for delay in options.delay:
                replay = replay_of(options, workload, remedy, delay)
                cell = [record for record in written if record.get("replay") == replay]
                if not cell:
                    cell = _cell(options, workload, remedy, delay)
                    cell = [{**record, "replay": replay} for record in cell]
                    append(options.json, cell)
                found += cell
        table = table_of(found, options.angle[-1])
        console.print(_table(workload, table, options.delay))
        seeds = ", ".join(map(str, options.seed))
        console.print(f"{workload}: medians of seeds {seeds}; {perf_counter() - begin:.0f} s")
        _pictures(options, workload, found, table)
        records += found
    return records


def _remedies(options: StalenessOptions, workload: Workload) -> list[str]:
    """The remedies that a workload's parameters allow."""
    if workload != "ngram-rows":
        return list(options.remedy)
    return [name for name in options.remedy if name not in ngrams.TOO_LARGE]


def replay_of(
    options: StalenessOptions,
    workload: Workload,
    remedy: str,
    delay: int,
) -> str:
    """The command that computes one cell again: the same learning rates and seeds, and so the same bits on the same machine.

    Args:
      options: Of the whole table.
      workload: The cell's.
      remedy: The cell's.
      delay: The cell's.
    """
    words = ["python -m experiments staleness", "--workload", workload, "--remedy", remedy]
    words += ["--delay", f"{delay}"]
    words += ["--seed", *map(str, options.seed)]
    words += ["--steps", f"{options.steps or STEPS[workload]}"]
    if options.varying:
        words.append("--varying")
    if workload.startswith("quadratic"):
        words += ["--noise", f"{options.noise:g}"]
        words += ["--angle", *(f"{angle:g}" for angle in options.angle)]
    return " ".join(words)


def table_of(
    records: Sequence[dict[str, Any]],
    angle: float,
) -> dict[tuple[str, int], float]:
    """The median loss over seeds, by remedy and delay.

    Args:
      records: Of one workload.
      angle: Which one of a quadratic's.
    """
    cells: dict[tuple[str, int], list[float]] = {}
    for record in records:
        if record.get("angle", angle) == angle:
            cells.setdefault((record["remedy"], record["delay"]), []).append(record["loss"])
    return {cell: statistics.median(losses) for cell, losses in cells.items()}


def _cell(
    options: StalenessOptions, workload: Workload, remedy: str, delay: int
) -> list[dict[str, Any]]:
    """A remedy at a delay: a record for each seed, and angle, with the learning rate whose median over seeds is best."""
    steps = options.steps or STEPS[workload]
    rates = [float(rate) for rate in RATES[workload]]
    late = RandomDelay.uniform(2 * delay) if options.varying else delay
    common = {
        "experiment": "staleness",
        "workload": workload,
        "remedy": remedy,
        "delay": delay,
        "steps": steps,
    }
    own: list[dict[str, Any]] = [{**common, "varying": options.varying}]
    runs: dict[str, Any] = {
        "rates": rates,
        "seeds": options.seed,
        "steps": steps,
    }
    if workload.startswith("quadratic"):
        own = [{**own[0], "noise": options.noise, "angle": angle} for angle in options.angle]
        n = 2 if workload == "quadratic-2" else 20
        found = quadratic.grid(
            remedy,
            late,
            n,
            angles=options.angle,
            noise=options.noise,
            **runs,
        )
    else:
        found = _grid(options, workload, remedy, late, runs)[None]
    best = np.median(found, -1).argmin(-1)
    result = []
    for i, record in enumerate(own):
        for k, seed in enumerate(options.seed):
            result.append(
                {
                    **record,
                    "seed": seed,
                    "rate": rates[best[i]],
                    "loss": float(found[i, best[i], k]),
                }
            )
    return result


def _grid(
    options: StalenessOptions,
    workload: Workload,
    remedy: str,
    late: int | RandomDelay,
    runs: dict[str, Any],
) -> np.ndarray:
    """A cell's losses, `[rates, seeds]`, of a workload without angles."""
    match workload:
        case "lm":
            letters = language.text(options.data_dir)
            return language.grid(remedy, late, *letters, **runs)
        case "ngram-rows" | "ngram-dense":
            letters = language.text(options.data_dir)
            part = "rows" if workload == "ngram-rows" else "dense"
            return ngrams.grid(
                remedy,
                late,
                part,
                *letters,
                **runs,
            )
        case "gaussians":
            return gaussians.grid(remedy, late, **runs)
        case "trees":
            return trees.grid(remedy, late, options.data_dir, **runs)
        case _:
            return lists.grid(remedy, late, **runs)


def _table(
    workload: str,
    table: dict[tuple[str, int], float],
    delays: Sequence[int],
) -> Any:
    shown = compact(workload, *(f"τ={delay}" for delay in delays))
    last = delays[-1]
    for remedy in sorted({remedy for remedy, _ in table}, key=lambda name: table[name, last]):
        shown.add_row(remedy, *(f"{table[remedy, delay]:.3g}" for delay in delays))
    return shown


def _pictures(
    options: StalenessOptions,
    workload: Workload,
    records: Sequence[dict[str, Any]],
    table: dict[tuple[str, int], float],
) -> None:
    """Remedy by delay; and of the quadratics angle by delay, for each remedy."""
    title = TITLES[workload]
    stem = f"{workload}-varying" if options.varying else workload
    late = [str(delay) for delay in options.delay]
    turned = workload.startswith("quadratic")

    def draw(
        values: Any,
        rows: Sequence[str],
        about: str,
        name: str,
    ) -> None:
        delay = "mean delay" if options.varying else "delay"
        heat_map(
            np.array(values),
            rows,
            late,
            f"{title}, {about}: loss",
            options.out / f"{name}.png",
            delay=delay,
        )

    order = sorted(
        _remedies(options, workload),
        key=lambda name: table[name, options.delay[-1]],
    )
    about = f"{options.angle[-1]:g}°" if turned else "learning rate tuned"
    draw(
        [[table[remedy, delay] for delay in options.delay] for remedy in order],
        order,
        about,
        stem,
    )
    if not turned or len(options.angle) < 2:
        return
    rows = [f"{angle:g}°" for angle in options.angle]
    for remedy in options.remedy:
        by_angle = []
        for angle in options.angle:
            by_angle.append(table_of([r for r in records if r["remedy"] == remedy], angle))
        draw(
            [[at[remedy, delay] for delay in options.delay] for at in by_angle],
            rows,
            remedy,
            f"{stem}-{remedy}",
        )


def _check(options: StalenessOptions) -> None:
    for name in options.remedy:
        if name not in REMEDIES:
            raise SettingsError(
                "--remedy", f"some of {list(REMEDIES)}", f"`{name}`", "Choose among these."
            )
    for name in ("delay", "seed", "angle", "remedy", "workload"):
        values = getattr(options, name)
        if not values or len(set(values)) < len(values):
            raise SettingsError(
                f"--{name}",
                "different ones, at least one",
                f"{values}",
                "Leave it out for the defaults.",
            )
    if min(options.delay) < 0:
        raise SettingsError(
            "--delay", "at least 0", f"{min(options.delay)}", "A delay counts updates; 0 is none."
        )
    if not options.noise >= 0:
        raise SettingsError("--noise", "at least 0", f"{options.noise}", "0 gives exact gradients.")
    if options.steps and options.steps < 10:
        raise SettingsError(
            "--steps", "at least 10, or 0", f"{options.steps}", "0 is the workload's own number."
        )
