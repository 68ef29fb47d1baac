"""Parallax's figure 7: training to a score, and the time that it takes.

All ways train the same program from the same parameters on the same batches, so they need the same number of steps but for rounding;
they take turns, and each one's own training time counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from ampjax.utils.setting_checks import at_least
from ampjax.utils.text_tables import compact
from experiments.parallax import paper
from experiments.parallax.learning import Learner, Task, learn_lm, learn_nmt, learn_resnet
from experiments.parallax.measure import seconds_of, write_json
from experiments.parallax.pictures import lines
from experiments.parallax.programs import machines, make_all


@dataclass(frozen=True, kw_only=True)
class Fig7Options:
    """Figure 7: seconds to a target score: perplexity (LM), BLEU (NMT; multi30k where there are data files), top-1 error (ResNet).

    Args:
      models: Which.
      ways: Which ways to train, names of `parallax-table4` or `pmap`.
      replicas: Replicas, on one machine.
      every: Steps between two evaluations, which take no time.
      steps: Steps at most.
      target: In place of each model's own score to reach.
      n_train: Only so many of the pairs of sentences.
      synthetic: Generated data in place of files.
      data_dir: Folder with data files; else the environment variable AMPJAX_DATA, else generated data.
      seed: Of parameters and data.
      json: File to which a JSON object is appended for each evaluation.
      out: Folder for the pictures.
    """

    models: tuple[Learner, ...] = ("lm", "nmt", "resnet")
    ways: tuple[str, ...] = ("hybrid", "naive PS", "AR", "pmap")
    replicas: int = 2
    every: int = 25
    steps: int = 1000
    target: float | None = None
    n_train: int | None = None
    synthetic: bool = False
    data_dir: Path | None = None
    seed: int = 0
    json: Path | None = None
    out: Path = Path("runs/parallax-fig7")

    @property
    def workers(self) -> int:
        """Devices that are needed."""
        return self.replicas


@dataclass
class Curve:
    """One way's training.

    Args:
      points: Seconds of training and the score then.
      steps: Steps so far.
      done: Whether the target has been reached.
    """

    points: list[tuple[float, float]]
    steps: int = 0
    done: bool = False


def main(
    options: Fig7Options,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Trains, prints the table, draws a picture for each model; gives the table's rows.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a data file is wrong.
    """
    at_least("every", options.every, 1)
    console = console or Console(highlight=False)
    rows = []
    for model in options.models:
        task = _task(options, model)
        target = task.target if options.target is None else options.target
        console.print(
            f"{paper.NAMES[model]}: until {task.score} is {target:g}, {options.steps} steps at most; compiling first"
        )
        curves = train(options, task, target, console)
        rows += _records(model, task, target, curves)
        drawn = {way: curve.points for way, curve in curves.items()}
        lines(
            drawn,
            "training time [s]",
            task.score,
            options.out / f"{model}.png",
            title=paper.NAMES[model],
        )
    _show(console, rows)
    write_json(options.json, "parallax-fig7", rows)
    return rows


def train(
    options: Fig7Options,
    task: Task,
    target: float,
    console: Console,
) -> dict[str, Curve]:
    """Trains in every way, in turn, until each has reached the target or taken all steps.

    Args:
      options: Of the experiment.
      task: What is trained.
      target: The score to reach.
      console: Gets a line for each turn.
    """
    programs = make_all(
        task.work,
        options.ways,
        machines(1, options.replicas),
    )
    for program in programs.values():
        seconds_of(program, list(islice(task.batches(), 8)))  # compiles
        program.reset(task.work.params)
    batches = {way: task.batches() for way in programs}
    curves = {}
    for way in programs:
        curves[way] = Curve([(0.0, task.evaluate(task.work.params))])
    while going := [
        way for way, curve in curves.items() if not curve.done and curve.steps < options.steps
    ]:
        for way in going:
            curve = curves[way]
            program = programs[way]
            seconds = seconds_of(
                program,
                list(islice(batches[way], options.every)),
            )
            score = task.evaluate(program.params)
            curve.points.append((curve.points[-1][0] + seconds, score))
            curve.steps += options.every
            curve.done = score >= target if task.higher else score <= target
        now = (
            f"{way} {curves[way].points[-1][1]:.4g} at {curves[way].points[-1][0]:.1f} s"
            for way in going
        )
        console.print(f"step {max(curve.steps for curve in curves.values())}: {', '.join(now)}")
    return curves


def _task(options: Fig7Options, model: Learner) -> Task:
    if model == "lm":
        return learn_lm(options.replicas, options.seed)
    if model == "resnet":
        return learn_resnet(options.replicas, options.seed)
    return learn_nmt(
        options.replicas, options.seed, options.data_dir, options.synthetic, options.n_train
    )


def _records(
    model: Learner, task: Task, target: float, curves: dict[str, Curve]
) -> list[dict[str, Any]]:
    """The table's rows of a model."""
    slowest = max(
        (curve.points[-1][0] for curve in curves.values() if curve.done),
        default=0.0,
    )
    result = []
    for way, curve in curves.items():
        result.append(
            {
                "model": model,
                "way": way,
                "score": task.score,
                "target": target,
                "steps": curve.steps,
                "seconds": curve.points[-1][0] if curve.done else None,
                "speedup": slowest / curve.points[-1][0] if curve.done else None,
                "last": curve.points[-1][1],
                "points": curve.points,
            }
        )
    return result


def _show(
    console: Console,
    rows: list[dict[str, Any]],
) -> None:
    table = compact(
        "model",
        "way",
        "score",
        "target",
        "seconds",
        "times the\nslowest's speed",
        "steps",
        "last\nscore",
    )
    for row in rows:
        times = (
            ("not reached", "")
            if row["seconds"] is None
            else (f"{row['seconds']:.1f}", f"{row['speedup']:.2f}")
        )
        numbers = (f"{row['target']:g}", *times, f"{row['steps']}", f"{row['last']:.4g}")
        table.add_row(
            paper.NAMES[row["model"]],
            row["way"],
            row["score"],
            *numbers,
        )
    console.print(table)
    console.print(
        "The paper's targets: "
        + ", ".join(f"{paper.NAMES[m]} {goal}" for m, goal in paper.TARGETS.items())
        + "."
    )
