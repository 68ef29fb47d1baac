"""`python -m experiments tune NAME`: the settings with which a model trains to its target soonest, and whether a grid search finds better ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import optax
import tyro
from rich.console import Console

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.tuning.trial import Goal
from ampjax.tuning.tuned import Tuned
from experiments import babi15, list_reduction, mnist, permutation, qm9, sentiment, wikiner
from experiments.common import Options, require_positive
from experiments.grid_search import GRIDS, Grid, Spent, Work, pairs
from experiments.intervals import intervals, rows_per_instance, set_options
from experiments.records import append

Name = Literal["list-reduction", "sentiment", "qm9", "mnist", "wikiner", "babi15", "permutation"]
Step = Literal["tune", "shared-grid", "plain-grid", "pairs"]


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Tunes a model of the papers: throughput and staleness of all choices are simulated, some are trained in turn, within a budget.

    Learning rates do not fall here, since a schedule would have to know how many updates there will be.

    Args:
      name: The model.
      budget: Seconds that tuning may take, compilations included; by default the model's here, about a tenth of what a grid search takes on two cores.
      target: Validation accuracy (of `qm9`: error) to reach; by default the model's here, which it reaches within minutes.
      seed: Of parameters, data and choices.
      n_train: Training examples of list reduction, and molecules; 0 is the model's number here.
      workers: Workers at most; each has a CPU device.
      steps: What is done, in this order: `tune`; `shared-grid` and `plain-grid` train every choice to the target; `pairs` trains the tuned choice and the grids' best
        ones in turn. Later steps may follow in a later call with the same `out`, where a grid search that was interrupted goes on.
      epochs: Epochs of a choice in a grid search at most.
      rivals: How many of a grid's best choices `pairs` trains.
      repeats: How often `pairs` trains each, each time with a seed of its own.
      out: Folder for all choices as JSON Lines (`tuned.jsonl`, `grid.jsonl`) and for pictures; by default runs/tune-NAME.
      data_dir: Folder with data files; else AMPJAX_DATA.
      synthetic: Generated data in place of files.
    """

    name: tyro.conf.Positional[Name]
    budget: float | None = None
    target: float | None = None
    seed: int = 0
    n_train: int = 0
    workers: int = 1
    steps: tuple[Step, ...] = ("tune",)
    epochs: int = 4
    rivals: int = 1
    repeats: int = 3
    out: Path | None = None
    data_dir: Path | None = None
    synthetic: bool = False

    @property
    def devices(self) -> int:
        """CPU devices to be made."""
        return self.workers


@dataclass(frozen=True)
class Model:
    """A model and its choices.

    Args:
      module: Its experiment.
      options: The experiment's options.
      target: A target that is reached within minutes.
      space: Values to choose from.
      tx: The optimizer of all nodes; None keeps those of the experiment.
      budget: Seconds that tuning takes at most.
    """

    module: Any
    options: Options
    target: float
    space: Mapping[str, Sequence[Any]]
    tx: optax.GradientTransformation | None = None
    budget: float = 60.0


BATCH = "batch"
"""A knob: instances for which a node updates, on average. Each node waits for as many gradient rows as they bring to it."""

IN_FLIGHT = {"max_active_keys": (1, 4, 16, 64)}
MODELS: Mapping[str, Model] = {
    "list-reduction": Model(
        list_reduction,
        list_reduction.ListReductionOptions(n_train=20_000, n_valid=2000),
        0.85,
        {
            "max_active_keys": (1, 4, 16),
            "max_dispatch_size": (1, 4, 16),
            BATCH: (1, 2, 4),
            "policy": ("backward_first", "largest"),
            "min_admission": (1,),
        },
        optax.adam(2e-3),
        budget=48.0,
    ),
    "sentiment": Model(
        sentiment,
        sentiment.SentimentOptions(),
        0.805,
        {
            "max_active_keys": (4, 16, 64),
            "max_dispatch_size": (64, 512),
            "min_update_interval": (50, 200),
            "policy": ("balanced", "wavefront"),
            "min_admission": (8,),
        },
        budget=80.0,
    ),
    "qm9": Model(
        qm9,
        qm9.Qm9Options(n_train=10_000),
        8.8,
        {
            "max_active_keys": (4, 16, 64),
            "max_dispatch_size": (256, 1024),
            BATCH: (5, 20),
            "policy": ("balanced", "backward_first"),
            "min_admission": (1,),
        },
        optax.adam(1e-3),
    ),
    "mnist": Model(
        mnist,
        mnist.MnistOptions(),
        0.96,
        {**IN_FLIGHT, "max_dispatch_size": (1, 4)},
    ),
    "wikiner": Model(
        wikiner,
        wikiner.WikinerOptions(),
        0.9,
        {**IN_FLIGHT, "max_dispatch_size": (256, 2048)},
    ),
    "babi15": Model(babi15, babi15.Babi15Options(), 0.98, IN_FLIGHT),
    "permutation": Model(
        permutation,
        permutation.PermutationOptions(),
        0.9,
        {"max_active_keys": (64, 512, 4096), "max_dispatch_size": (512, 4096)},
    ),
}


def main(options: TuneOptions, console: Console | None = None) -> Tuned | None:
    """Tunes, prints the table and draws; searches grids and compares, if the steps say so. Gives what tuning has found, if that was a step.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    console = console or Console(highlight=False)
    if options.budget is None:
        options = replace(options, budget=MODELS[options.name].budget)
    counts = {}
    for name in ("budget", "epochs", "rivals", "repeats", "workers"):
        counts[name] = getattr(options, name)
    require_positive("See the defaults.", **counts)
    work = _work(options)
    folder = options.out or Path("runs") / f"tune-{options.name}"
    if "tune" in options.steps:
        tuned = _tune(options, work, folder, console)
    else:
        tuned = None
    if options.steps != ("tune",):
        grid = Grid(work, options.seed, options.epochs)
        for kind in GRIDS:
            if kind in options.steps:
                grid.search(kind, folder / f"{kind}.jsonl")
        if "pairs" in options.steps:
            pairs(
                grid,
                folder,
                options.rivals,
                options.repeats,
                options.name,
                console,
            )
    console.print(f"choices and pictures are in {folder}")
    return tuned


def _tune(
    options: TuneOptions,
    work: Work,
    folder: Path,
    console: Console,
) -> Tuned:
    """Tunes, prints the table and draws."""
    spent = Spent()
    assert options.budget is not None
    tuned = amp.tune(
        work.graph,
        work.train,
        work.tx,
        target=work.goal.target,
        metric=work.goal.metric,
        budget_s=options.budget,
        valid=work.valid,
        space=work.space,
        seed=options.seed,
        **work.settings,
    )
    took = spent.record()
    console.print(f"{tuned!r}", soft_wrap=True)
    (folder / "tuned.jsonl").unlink(missing_ok=True)
    append(
        folder / "tuned.jsonl",
        [{**record, **(took if i == 0 else {})} for i, record in enumerate(tuned.records())],
    )
    tuned.picture(folder / "front.png")
    tuned.epochs_picture(folder / "epochs.png")
    return tuned


def _work(options: TuneOptions) -> Work:
    """The model of the options, with a function that builds its graph where nodes' intervals vary.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    model = MODELS[options.name]
    given: dict[str, Any] = {
        "data_dir": options.data_dir,
        "synthetic": options.synthetic,
        "seed": (options.seed,),
    }
    if options.n_train:
        if not hasattr(model.options, "n_train"):
            raise SettingsError(
                "--n-train", "a model with such an option", options.name, "Leave it out."
            )
        given["n_train"] = options.n_train
    tasks = model.module.tasks(replace(model.options, **given))
    task = tasks(options.seed)

    def graph(batch: int) -> ag.Graph:
        fresh = tasks(options.seed)
        own = intervals(
            rows_per_instance(fresh.graph, fresh.train, fresh.settings),
            batch,
        )
        return set_options(
            fresh.graph,
            lambda node: {"tx": model.tx, "min_update_interval": own[node]},
        )

    space = {
        "workers": tuple(sorted({1, options.workers})),
        **model.space,
    }
    target = model.target if options.target is None else options.target
    fixed = {
        "gradient": task.settings.gradient,
        "max_dispatch_size": task.settings.dispatch_limit,
    }
    fixed = {name: value for name, value in fixed.items() if name not in space}
    return Work(
        graph if BATCH in space else task.graph,
        lambda seed: tasks(seed).graph,
        task.train,
        task.valid,
        model.tx or task.tx,
        Goal(task.metric, target),
        space,
        fixed,
    )
