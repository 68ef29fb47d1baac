"""`python -m experiments tune NAME`: the settings with which a model trains to its target soonest, and whether a grid search finds better ones."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import optax
import tyro
from rich.console import Console

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.train.training_data import n_examples
from ampjax.tuning import Candidate, Tuned
from ampjax.tuning.budget import Budget
from ampjax.tuning.built_graphs import Graphs
from ampjax.tuning.predictor import Predictor, Prepared
from ampjax.tuning.search_space import candidates, full_space
from ampjax.tuning.trial import Goal, Trial
from ampjax.utils.progress import Reporter
from ampjax.utils.text_tables import compact
from experiments import babi15, list_reduction, mnist, permutation, qm9, sentiment, wikiner
from experiments.common import Options, require_positive
from experiments.intervals import intervals, rows_per_instance, set_options
from experiments.records import append

Name = Literal["list-reduction", "sentiment", "qm9", "mnist", "wikiner", "babi15", "permutation"]


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Tunes a model of the papers: throughput and staleness of all choices are simulated, some are trained in turn, within a budget.

    Learning rates do not fall here, since a schedule would have to know how many updates there will be.

    Args:
      name: The model.
      budget: Seconds that tuning may take, compilations included.
      target: Validation accuracy (of `qm9`: error) to reach; by default the model's here, which it reaches within minutes.
      seed: Of parameters, data and choices.
      n_train: Training examples of list reduction, and molecules; 0 is the model's number here.
      workers: Workers at most; each has a CPU device.
      grid: Trains every choice to the target, too, and compares the chosen one with the grid's best.
      repeats: Runs of both to the target after a grid search, in turn, each with a seed of its own.
      out: Folder for all choices as JSON Lines (`tuned.jsonl`, `grid.jsonl`) and for pictures; by default runs/tune-NAME.
      data_dir: Folder with data files; else AMPJAX_DATA.
      synthetic: Generated data in place of files.
    """

    name: tyro.conf.Positional[Name]
    budget: float = 60.0
    target: float | None = None
    seed: int = 0
    n_train: int = 0
    workers: int = 1
    grid: bool = False
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
    """

    module: Any
    options: Options
    target: float
    space: Mapping[str, Sequence[Any]]
    tx: optax.GradientTransformation | None = None


BATCH = "batch"
"""A knob: instances for which a node updates, on average. Each node waits for as many gradient rows as they bring to it."""

IN_FLIGHT = {"max_active_keys": (1, 4, 16, 64)}
MODELS: Mapping[str, Model] = {
    "list-reduction": Model(
        list_reduction,
        list_reduction.ListReductionOptions(n_train=20_000, n_valid=2000),
        0.7,
        {
            "max_active_keys": (1, 4, 16),
            "max_dispatch_size": (1, 4, 16),
            BATCH: (1, 2, 4),
            "policy": ("backward_first", "largest"),
            "min_admission": (1,),
        },
        optax.adam(2e-3),
    ),
    "sentiment": Model(
        sentiment,
        sentiment.SentimentOptions(),
        0.75,
        {
            "max_active_keys": (4, 16, 64),
            "max_dispatch_size": (64, 512),
            "min_update_interval": (50, 200),
            "policy": ("balanced", "wavefront"),
            "min_admission": (8,),
        },
    ),
    "qm9": Model(
        qm9,
        qm9.Qm9Options(n_train=10_000),
        10.5,
        {
            "max_active_keys": (4, 16, 64),
            "max_dispatch_size": (256, 1024),
            BATCH: (5, 20),
            "policy": ("balanced", "backward_first"),
            "min_admission": (1,),
        },
        optax.adam(1e-3),
    ),
    "mnist": Model(mnist, mnist.MnistOptions(), 0.96, {**IN_FLIGHT, "max_dispatch_size": (1, 4)}),
    "wikiner": Model(wikiner, wikiner.WikinerOptions(), 0.9, {**IN_FLIGHT, "max_dispatch_size": (256, 2048)}),
    "babi15": Model(babi15, babi15.Babi15Options(), 0.98, IN_FLIGHT),
    "permutation": Model(
        permutation,
        permutation.PermutationOptions(),
        0.9,
        {"max_active_keys": (64, 512, 4096), "max_dispatch_size": (512, 4096)},
    ),
}


def main(options: TuneOptions, console: Console | None = None) -> Tuned:
    """Tunes, prints the table and draws; with `grid` it compares.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    console = console or Console(highlight=False)
    require_positive(
        "The defaults are 60 and 3.", budget=options.budget, repeats=options.repeats, workers=options.workers
    )
    work = _work(options)
    folder = options.out or Path("runs") / f"tune-{options.name}"
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
    console.print(f"{tuned!r}", soft_wrap=True)
    tuned.save(folder / "tuned.jsonl")
    tuned.picture(folder / "front.png")
    tuned.epochs_picture(folder / "epochs.png")
    if options.grid:
        compare(options, work, tuned, folder, console)
    console.print(f"choices and pictures are in {folder}")
    return tuned


@dataclass(frozen=True)
class Work:
    """What is tuned."""

    graph: Any
    train: Any
    valid: Any
    tx: optax.GradientTransformation | None
    goal: Goal
    space: Mapping[str, Sequence[Any]]
    settings: Mapping[str, Any]


def _work(options: TuneOptions) -> Work:
    """The model of the options, with a function that builds its graph where nodes' intervals vary.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    model = MODELS[options.name]
    given: dict[str, Any] = {"data_dir": options.data_dir, "synthetic": options.synthetic, "seed": (options.seed,)}
    if options.n_train:
        if not hasattr(model.options, "n_train"):
            raise SettingsError("--n-train", "a model with such an option", options.name, "Leave it out.")
        given["n_train"] = options.n_train
    tasks = model.module.tasks(replace(model.options, **given))
    task = tasks(options.seed)

    def graph(batch: int) -> amp.Graph:
        fresh = tasks(options.seed)
        own = intervals(rows_per_instance(fresh.graph, fresh.train, fresh.settings), batch)
        return set_options(fresh.graph, lambda node: {"tx": model.tx, "min_update_interval": own[node]})

    space = {"workers": tuple(sorted({1, options.workers})), **model.space}
    target = model.target if options.target is None else options.target
    fixed = {"gradient": task.settings.gradient, "max_dispatch_size": task.settings.max_dispatch_size}
    fixed = {name: value for name, value in fixed.items() if name not in space}
    return Work(
        graph if BATCH in space else task.graph,
        task.train,
        task.valid,
        model.tx or task.tx,
        Goal(task.metric, target),
        space,
        fixed,
    )


def compare(options: TuneOptions, work: Work, tuned: Tuned, folder: Path, console: Console) -> dict[str, Any]:
    """Searches the grid, then trains its best choice and the tuned one to the target, in turn; gives a record of both.

    Args:
      options: The options.
      work: What is tuned.
      tuned: What tuning has found.
      folder: For `grid.jsonl`.
      console: For the outcome.
    """
    grid = Grid(options, work, len(tuned.candidates))
    best, spent_s, records = grid.search()
    (folder / "grid.jsonl").unlink(missing_ok=True)
    append(folder / "grid.jsonl", records)
    pair = {"tuned": _alike(tuned.best, grid.choices), "grid": best}
    seconds: dict[str, list[float]] = {name: [] for name in pair}
    for repeat in range(options.repeats):
        for name, choice in pair.items():
            seconds[name].append(grid.to_target(choice, options.seed + 1 + repeat))
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    ratio = statistics.median(a / b for a, b in zip(seconds["tuned"], seconds["grid"], strict=True))
    table = compact("", "search\nseconds", "seconds\nto target", "settings")
    for name, spent in (("tuned", tuned.spent_s), ("grid", spent_s)):
        table.add_row(name, f"{spent:.0f}", f"{medians[name]:.2f}", pair[name].label(tuned.varied))
    console.print(table)
    shown = {name: [round(s, 2) for s in found] for name, found in seconds.items()}
    console.print(
        f"{options.name}: tuned over grid {ratio:.2f} in seconds to the target (median of {options.repeats} pairs, in turn: {shown}), {tuned.spent_s / spent_s:.2f} in search time; seed {options.seed}",
        soft_wrap=True,
    )
    record = {"experiment": "tune", "name": options.name, "seed": options.seed, "ratio": ratio, "seconds": shown}
    record |= {"tuned_s": tuned.spent_s, "grid_s": spent_s, "n_choices": len(tuned.candidates)}
    append(folder / "compared.jsonl", [record])
    return record


def _alike(choice: Candidate, choices: Sequence[Candidate]) -> Candidate:
    """The grid's choice with the same settings and knobs."""
    return next(c for c in choices if c.settings == choice.settings and c.knobs == choice.knobs)


class Grid:
    """A grid search over the choices that tuning had.

    Each is trained until it reaches the target, or for twice as long as the best so far has needed. They share kernels as trials do, which makes the search
    shorter than one that compiles for each.

    Args:
      options: The options.
      work: What is tuned.
      n: How many choices there are, for progress.
    """

    PATIENCE = 2.0
    LONGEST_S = 120.0
    """Seconds of training for a choice, as long as none has reached the target."""

    def __init__(self, options: TuneOptions, work: Work, n: int):
        self._options, self._work, self._n = options, work, n
        graphs = Graphs(work.graph)
        fixed = {**work.settings, "seed": options.seed}
        knobs = {BATCH: work.space[BATCH][0]} if BATCH in work.space else {}
        order = np.random.default_rng(options.seed).permutation(len(work.train))
        train = amp.Subset(work.train, order)
        self.choices = candidates(full_space(graphs.of(knobs), train, work.space, fixed), fixed)
        per_instance = n_examples(work.train) / len(work.train)
        self._budget = Budget.unlimited()
        self._predictor = Predictor(graphs, work.tx, train, work.valid, None, 1.0, self._budget, per_instance)
        self._prepared: dict[Any, Prepared] = {}

    def search(self) -> tuple[Candidate, float, list[dict[str, Any]]]:
        """Trains every choice; gives the best one, the seconds that all took, and a record of each.

        Raises:
          SettingsError: If none reaches the target.
        """
        began, best_s, records, found = perf_counter(), float("inf"), [], []
        with Reporter(True) as reporter, reporter.part("grid search", self._n) as advance:
            for choice in self.choices:
                trial = self._run(choice, min(self.LONGEST_S, self.PATIENCE * best_s))
                tried = trial.result()
                if tried.seconds_to_target is not None:
                    best_s = min(best_s, tried.seconds_to_target)
                    found.append((tried.seconds_to_target, len(found), choice))
                records.append(replace(choice, tried=tried).record())
                advance(1)
        if not found:
            fix = "Choose a nearer target with --target."
            raise SettingsError("--grid", f"a choice that reaches {self._work.goal.target}", "none", fix)
        return min(found)[2], perf_counter() - began, records

    def to_target(self, choice: Candidate, seed: int) -> float:
        """Seconds that a choice needs to the target, with another seed; infinite if it does not reach it.

        Args:
          choice: The choice.
          seed: Of parameters and the order of instances.
        """
        seeded = replace(choice, settings={**choice.settings, "seed": seed})
        seconds = self._run(seeded, 2 * self.LONGEST_S).result().seconds_to_target
        return float("inf") if seconds is None else seconds

    def _run(self, choice: Candidate, longest_s: float) -> Trial:
        key = choice.plan_key
        if key not in self._prepared:
            self._prepared[key] = self._predictor.prepare([c for c in self.choices if c.plan_key == key])
        trial = self._predictor.trial(choice, self._prepared[key], self._work.goal, len(self._work.train))
        trial.warm_up(self._budget)
        while trial.to_target is None and trial.seconds[-1] < longest_s and not (trial.pieces and trial.has_diverged):
            trial.advance(self._budget)
        return trial
