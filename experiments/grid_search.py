"""Grid searches beside tuning: every choice is trained, and the best ones run against the tuned one.

A shared grid is as quick as a grid can be: choices share kernels as trials do, and a choice ends when it has trained twice as long as the best so far. A plain grid is
the loop that users write: each choice is a trainer of its own, with arenas and kernels of its size, and trains to the target or for some epochs.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal

import numpy as np
import optax
from rich.console import Console

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import DataError, SettingsError
from ampjax.train.initial_params import initial_params
from ampjax.train.settings import Settings
from ampjax.train.training_data import n_examples
from ampjax.tuning.budget import Budget
from ampjax.tuning.built_graphs import BuiltGraphs
from ampjax.tuning.candidate import Candidate, plain_values
from ampjax.tuning.predictor import Predictor, Prepared
from ampjax.tuning.search_space import candidates, full_space
from ampjax.tuning.trial import Goal, Trial
from ampjax.utils.progress import Reporter
from ampjax.utils.text_tables import compact
from experiments.records import append

Kind = Literal["shared-grid", "plain-grid"]
GRIDS: tuple[Kind, ...] = ("shared-grid", "plain-grid")


@dataclass(frozen=True)
class Work:
    """What is tuned: the arguments of `amp.tune`, the settings that do not vary among them; and graphs by seed, whose parameters differ."""

    graph: Any
    graph_of: Callable[[int], ag.Graph]
    train: Any
    valid: Any
    tx: optax.GradientTransformation | None
    goal: Goal
    space: Mapping[str, Sequence[Any]]
    settings: Mapping[str, Any]


@dataclass
class Spent:
    """What something takes, from now on, on the clock and of processors: the latter counts what other programs do not slow down."""

    seconds: float = field(default_factory=perf_counter)
    processor_s: float = field(default_factory=process_time)

    def record(self) -> dict[str, float]:
        """Seconds, and processor seconds of all threads of this process."""
        return {
            "search_s": perf_counter() - self.seconds,
            "search_processor_s": process_time() - self.processor_s,
        }


@dataclass
class Grid:
    """The choices that tuning has, and how to train them.

    Args:
      work: What is tuned.
      seed: Of parameters and the order of instances.
      epochs: Epochs of a choice at most.
    """

    work: Work
    seed: int
    epochs: int
    choices: list[Candidate] = field(init=False)
    _prepared: dict[Any, Prepared] = field(default_factory=dict)

    PATIENCE = 2.0
    """Times the training of the best choice so far, after which a choice of a shared grid ends."""

    def __post_init__(self) -> None:
        work = self.work
        graphs = BuiltGraphs(self.work.graph)
        fixed = {**work.settings, "seed": self.seed}
        knobs = {}
        for name, vs in work.space.items():
            if name not in Settings.__dataclass_fields__:
                knobs[name] = vs[0]
        train = amp.Subset(
            work.train,
            np.random.default_rng(self.seed).permutation(len(work.train)),
        )
        self.choices = candidates(
            full_space(graphs.of(knobs), train, work.space, fixed),
            fixed,
        )
        per_instance = n_examples(work.train) / len(work.train)
        self._predictor = Predictor(
            graphs,
            work.tx,
            train,
            work.valid,
            None,
            1.0,
            Budget.unlimited(),
            per_instance,
        )

    def search(self, kind: Kind, path: Path) -> None:
        """Trains every choice, and writes a record of each as soon as it has ended. A search that was interrupted goes on.

        Args:
          kind: Which search.
          path: The file for the records.
        """
        done = _records(path) if path.exists() else []
        known = [r["tried_seconds_to_target"] for r in done]
        best_s = min(
            (s for s in known if s is not None),
            default=math.inf,
        )
        left = []
        for c in self.choices:
            if not any(_is_of(c, record) for record in done):
                left.append(c)
        with Reporter(True) as reporter, reporter.part(kind, len(left)) as advance:
            for choice in left:
                own = Spent()
                trial = self.shared(choice) if kind == "shared-grid" else self.alone(choice)
                processor_s = self._train(
                    trial, self.PATIENCE * best_s if kind == "shared-grid" else math.inf
                )
                tried = trial.result()
                if tried.seconds_to_target is not None:
                    best_s = min(best_s, tried.seconds_to_target)
                reached = {"processor_to_target": None if trial.to_target is None else processor_s}
                append(
                    path,
                    [{**replace(choice, tried=tried).record(), **reached, **own.record()}],
                )
                advance(1)

    def shared(self, choice: Candidate) -> Trial:
        """A trial with the kernels that all choices of its plan share; it is evaluated eight times an epoch."""
        key = choice.plan_key
        if key not in self._prepared:
            self._prepared[key] = self._predictor.prepare(
                [c for c in self.choices if c.plan_key == key],
                self.work.goal.metric,
            )
        return self._predictor.trial(
            choice,
            self._prepared[key],
            self.work.goal,
            len(self.work.train),
        )

    def alone(self, choice: Candidate) -> Trial:
        """A trial with arenas and kernels of its own, evaluated after each epoch."""
        p = self._predictor
        settings = Settings(**{**choice.settings, "compile_ahead": True})
        trainer = amp.Trainer(
            p.graphs.of(choice.knobs),
            p.tx,
            settings=settings,
        )
        return Trial(
            choice,
            trainer,
            p.train,
            p.valid,
            self.work.goal,
            len(p.train),
            p.per_instance,
        )

    def race(
        self,
        choices: Sequence[Candidate],
        seed: int,
    ) -> list[float]:
        """Seconds that each choice needs to the target, with another seed; infinite if it does not reach it.

        The choice that has trained least goes on, for an eighth of an epoch, so what else the machine does meets all alike.

        Args:
          choices: The choices.
          seed: Of parameters and the order of instances.
        """
        params = initial_params(self.work.graph_of(seed), {}, seed)
        order = np.random.default_rng(seed).permutation(len(self.work.train))
        trials = []
        for choice in choices:
            shared = self.shared(replace(choice, settings={**choice.settings, "seed": seed}))
            shared.trainer.set_params(params)
            trials.append(
                replace(
                    shared,
                    train=amp.Subset(self.work.train, order),
                    value=None,
                )
            )
            trials[-1].warm_up(Budget.unlimited())
        while able := [trial for trial in trials if self._goes_on(trial)]:
            min(able, key=lambda trial: trial.seconds[-1]).advance(Budget.unlimited())
        return [
            math.inf if (reached := trial.to_target) is None else reached[0] for trial in trials
        ]

    def _train(self, trial: Trial, longest_s: float) -> float:
        """Trains to the target, or until it is too late; gives the processor seconds of training and of evaluating."""
        trial.warm_up(Budget.unlimited())
        began = process_time()
        while trial.seconds[-1] < longest_s and self._goes_on(trial):
            trial.advance(Budget.unlimited())
        return process_time() - began

    def _goes_on(self, trial: Trial) -> bool:
        """Whether a trial may still reach the target."""
        most = self.epochs * n_examples(self.work.train)
        return (
            trial.to_target is None
            and trial.examples[-1] < most
            and not (trial.pieces and trial.has_diverged)
        )


def pairs(
    grid: Grid,
    folder: Path,
    rivals: int,
    repeats: int,
    name: str,
    console: Console,
) -> dict[str, Any]:
    """Trains the tuned choice and the best ones of each grid search to the target, in turn; gives a record, which it also writes.

    Args:
      grid: The choices.
      folder: Has what tuning and the grid searches have written; gets `compared.jsonl`.
      rivals: How many of a grid's choices, those that took least processor time to the target.
      repeats: How often, each time with a seed of its own.
      name: The model.
      console: For the outcome.

    Raises:
      DataError: If there is nothing to compare in the folder.
      SettingsError: If no choice of a grid has reached the target.
    """
    found = {"tuned": _records(folder / "tuned.jsonl")}
    found |= {
        kind: _records(folder / f"{kind}.jsonl")
        for kind in GRIDS
        if (folder / f"{kind}.jsonl").exists()
    }
    grids = [kind for kind in GRIDS if kind in found]
    if not grids:
        fix = "Let `--steps` have a grid search before `pairs`."
        raise DataError(f"{folder}", "records of a grid search", "none", fix)
    best_of = {}
    for kind in grids:
        for i, r in enumerate(_best(found[kind], rivals)):
            best_of[f"{kind} {i + 1}"] = r
    entrants = {}
    for who, r in {"tuned": found["tuned"][0], **best_of}.items():
        entrants[who] = _choice(grid, r)
    different = list({repr(choice): choice for choice in entrants.values()}.values())
    seconds: dict[str, list[float]] = {repr(choice): [] for choice in different}
    for repeat in range(repeats):
        for choice, needed_s in zip(
            different, grid.race(different, grid.seed + 1 + repeat), strict=True
        ):
            seconds[repr(choice)].append(needed_s)
    medians = {}
    for who, choice in entrants.items():
        medians[who] = statistics.median(seconds[repr(choice)])
    best = min(
        (who for who in entrants if who != "tuned"),
        key=medians.__getitem__,
    )
    own = seconds[repr(entrants["tuned"])]
    others = seconds[repr(entrants[best])]
    ratio = statistics.median(a / b for a, b in zip(own, others, strict=True))
    table = compact("", "search\nseconds", "processor\nseconds", "seconds\nto target", "settings")
    for who, choice in entrants.items():
        took = found[who.split()[0]]
        cells = [
            f"{sum(r.get(key, 0.0) for r in took):.0f}"
            for key in ("search_s", "search_processor_s")
        ]
        median = f"{medians[who]:.2f}" if math.isfinite(medians[who]) else "not reached"
        table.add_row(
            who,
            *cells,
            median,
            choice.label(_varied(grid.choices)),
        )
    console.print(table)
    shown = {}
    for who, choice in entrants.items():
        shown[who] = [round(s, 2) for s in seconds[repr(choice)]]
    console.print(
        f"{name}: tuned over {best} {ratio:.2f} in seconds to the target (median of {repeats} pairs, in turn)"
    )
    for who, needed in shown.items():
        text = ", ".join(f"{s:.2f}" if math.isfinite(s) else "not reached" for s in needed)
        console.print(f"{who}: {text}", soft_wrap=True)
    record = {
        "experiment": "tune",
        "name": name,
        "seed": grid.seed,
        "ratio": ratio,
        "best": best,
        "seconds": shown,
    }
    append(folder / "compared.jsonl", [record])
    return record


def _best(
    records: Sequence[Mapping[str, Any]],
    n: int,
) -> list[Mapping[str, Any]]:
    """The records of those that took least processor time to the target.

    Raises:
      SettingsError: If none reached it.
    """
    reached = [r for r in records if r["processor_to_target"] is not None]
    if not reached:
        fix = "Choose a nearer target with --target."
        raise SettingsError("--steps", "a choice that reaches the target", "none", fix)
    return sorted(reached, key=lambda r: r["processor_to_target"])[:n]


def _choice(grid: Grid, record: Mapping[str, Any]) -> Candidate:
    """The grid's choice of a record.

    Raises:
      DataError: If there is none.
    """
    for choice in grid.choices:
        if _is_of(choice, record):
            return choice
    fix = "Search again, with the seed and the values of now."
    raise DataError("--steps", "records of choices that there are", f"{record}", fix)


def _is_of(choice: Candidate, record: Mapping[str, Any]) -> bool:
    """Whether a record is of a choice."""
    return all(
        record.get(name) == value
        for name, value in plain_values({**choice.settings, **choice.knobs}).items()
    )


def _varied(choices: Sequence[Candidate]) -> tuple[str, ...]:
    """The settings and knobs that are not the same in all choices."""
    every = [plain_values({**c.settings, **c.knobs}) for c in choices]
    result = []
    for name in every[0]:
        if len({repr(values[name]) for values in every}) > 1:
            result.append(name)
    return tuple(result)


def _records(path: Path) -> list[dict[str, Any]]:
    """The records of a file.

    Raises:
      DataError: If it is not there.
    """
    if not path.exists():
        fix = "Let `--steps` have what writes it first, with the same `--out`."
        raise DataError(f"{path}", "a file that an earlier step has written", "no file", fix)
    result = []
    for line in path.read_text(encoding="utf-8").splitlines():
        result.append(json.loads(line))
    return result
