"""Kills and stops the hosts that a trainer's workers are on, at random moments: does the run end as one that nobody disturbed?

`fit` notices a host that died or hangs, starts others, and goes on from the newest snapshot. In pipeline mode the end has to be the same, bit for
bit: then no update since that snapshot was lost, and none was made twice.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.utils.text_tables import compact
from experiments.chaos.durations import summary, words
from experiments.chaos.outcome import outcome
from experiments.common import Task
from experiments.list_reduction import ListReductionOptions
from experiments.list_reduction import tasks as list_reduction
from experiments.records import append
from experiments.sentiment import SentimentOptions
from experiments.sentiment import tasks as sentiment

SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}
MODELS = "list-reduction", "trees", "layers"
"""The first two in copies of the whole network, one a host; of the last one, list reduction, each host has some layers."""


@dataclass(frozen=True, kw_only=True)
class ChaosHostsOptions:
    """Kills and stops hosts at random moments while they train.

    Args:
      kills: Hosts that are killed (SIGKILL), dealt out to the models.
      hangs: Hosts that are stopped (SIGSTOP), dealt out likewise.
      models: `list-reduction` in buckets, `trees` (generated), each in two copies of the whole network; `layers`: list reduction whose layers
        are on different hosts, which exchange rows at each step.
      hosts: Hosts of a run.
      n_train: Training instances.
      epochs: Epochs of a run; as many runs as it takes until all hosts have been killed or stopped.
      every_instances: Instances between two snapshots.
      within_s: It happens so many seconds after training has begun or gone on, at most.
      seed: Of the moments, of who is hit, and of the runs.
      json: File to which a JSON object is appended for each model.
    """

    kills: int = 100
    hangs: int = 50
    models: tuple[str, ...] = MODELS[:2]
    hosts: int = 2
    n_train: int = 400
    epochs: int = 10
    every_instances: int = 100
    within_s: float = 2.0
    seed: int = 0
    json: Path | None = None


def main(
    options: ChaosHostsOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives what was found for each model.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    console = console or Console(highlight=False)
    unknown = [model for model in options.models if model not in MODELS]
    if unknown or not options.models:
        raise SettingsError(
            "--models", f"some of {list(MODELS)}", f"{unknown or 'none'}", "Choose among these."
        )
    counts = (
        options.hosts,
        options.n_train,
        options.epochs,
        options.every_instances,
        options.kills + options.hangs,
    )
    if min(counts) < 1 or min(options.kills, options.hangs) < 0 or not options.within_s > 0:
        raise SettingsError("chaos-hosts", "numbers above 0", f"{options}", "Change the option.")
    console.print(f"chaos-hosts: seed {options.seed}, {options.kills} kills, {options.hangs} hangs")
    rng = np.random.default_rng(options.seed)
    found = []
    todo = [
        *["kill"] * options.kills,
        *["hang"] * options.hangs,
    ]
    rng.shuffle(todo)
    for i, model in enumerate(options.models):
        own = todo[i :: len(options.models)]
        found.append(
            {
                "experiment": "chaos-hosts",
                "seed": options.seed,
                **_one_model(options, model, own, rng, console),
            }
        )
        append(options.json, found[-1:])
    console.print(_table(found))
    return found


def _one_model(
    options: ChaosHostsOptions,
    model: str,
    todo: list[str],
    rng: np.random.Generator,
    console: Console,
) -> dict[str, Any]:
    """A run that nobody disturbs; then the same, disturbed, until all is done."""
    task = _task(options, model)
    expected = _run(options, task, None)
    faults = Faults(todo, rng, options.within_s)
    runs = 0
    is_exact = True
    while faults.todo:
        found = _run(options, task, faults)
        runs = runs + 1
        is_exact = is_exact and found in (None, expected)
        said = {None: "a host died after its end", True: "exact", False: "NOT EXACT"}[
            found and found == expected
        ]
        console.print(f"{model}: run {runs}, {said}; {len(faults.todo)} faults to go")
    return {
        "model": model,
        "runs": runs,
        "exact": is_exact,
        "unprovoked": faults.unprovoked,
        **faults.times(),
    }


def _run(
    options: ChaosHostsOptions,
    task: Task,
    faults: Faults | None,
) -> dict[str, Any] | None:
    """What a run has come to; None if a host was hit when it had ended, so that nobody can ask for it."""
    with tempfile.TemporaryDirectory(prefix="chaos-hosts-") as folder:
        snapshot = amp.Snapshots(folder, every_instances=options.every_instances)
        trainer = amp.Trainer(
            task.graph,
            task.tx,
            hosts=options.hosts,
            snapshot=snapshot,
            settings=task.settings,
        )
        try:
            with faults.during(trainer) if faults else nullcontext():
                history = trainer.fit(task.train, epochs=options.epochs, progress=False)
            return None if faults and faults.was_late else outcome(trainer, history)
        finally:
            trainer.close()


def _task(options: ChaosHostsOptions, model: str) -> Task:
    copies = {
        "copies": 1 if model == "layers" else options.hosts,
        "workers": options.hosts,
        "mode": "pipeline",
    }
    if model == "trees":
        trees = SentimentOptions(
            synthetic=True,
            n_train=options.n_train,
            embedding=32,
            hidden=32,
            max_active_keys=16,
            **copies,
        )
        task = sentiment(trees)(options.seed)
    else:
        lists = ListReductionOptions(
            n_train=10 * options.n_train,
            n_valid=10,
            batch_size=10,
            hidden=32,
            max_active_keys=8,
            **copies,
        )
        task = list_reduction(lists)(options.seed)
    return replace(task, settings=replace(task.settings, replica_sync="none"))


@dataclass
class Faults:
    """Kills and stops hosts of one trainer after the other, and measures how that is noticed.

    Args:
      todo: `kill` or `hang`, for each that is left.
      rng: For moments and hosts.
      within_s: The longest time between two.

    Attributes:
      unprovoked: How often other hosts were started although nothing had happened: the machine was so busy that a host seemed to hang.
      was_late: Whether the last run ended before it noticed what had happened.
      noticed_s: By fault, seconds until it was noticed.
      to_go_on_s: By fault, seconds until training went on.
    """

    todo: list[str]
    rng: np.random.Generator
    within_s: float
    unprovoked: int = 0
    was_late: bool = False
    noticed_s: dict[str, list[float]] = field(
        default_factory=lambda: {name: [] for name in SIGNALS}
    )
    to_go_on_s: dict[str, list[float]] = field(
        default_factory=lambda: {name: [] for name in SIGNALS}
    )
    _happened: tuple[str, float] | None = None

    @contextmanager
    def during(self, trainer: amp.Trainer) -> Iterator[None]:
        """Disturbs a trainer whose `fit` is called inside. What it has not noticed before its end was late, and has to come again."""
        runs = threading.Event()
        over = threading.Event()
        self._watch(trainer, runs)
        thread = threading.Thread(
            target=self._disturb,
            args=[trainer, runs, over],
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            runs.set()
            thread.join()
            self.was_late = self._happened is not None
            self._happened = None

    def _watch(self, trainer: amp.Trainer, runs: threading.Event) -> None:
        """Takes down when other hosts are started, and when these get their first launch; `runs` is set from then on."""
        restart = trainer.restart_hosts
        run = trainer.session.executor.run

        def restarted() -> None:
            runs.clear()
            if self._happened is None:
                self.unprovoked += 1
            else:
                fault, at = self._happened
                self.noticed_s[fault].append(time.monotonic() - at)
            restart()

        def told(launches: Any) -> int:
            if not runs.is_set():
                if self._happened is not None:
                    fault, at = self._happened
                    self.to_go_on_s[fault].append(time.monotonic() - at)
                    self.todo.pop()
                self._happened = None
                runs.set()
            return run(launches)

        vars(trainer)["restart_hosts"] = restarted  # of this trainer alone
        trainer.session.executor.run = told

    def _disturb(
        self,
        trainer: amp.Trainer,
        runs: threading.Event,
        over: threading.Event,
    ) -> None:
        while self.todo:
            runs.wait()
            if over.wait(self.rng.uniform(0, self.within_s)):
                return
            host = trainer.hosts[self.rng.choice(len(trainer.hosts))]
            self._happened = self.todo[-1], time.monotonic()
            os.kill(host.process, SIGNALS[self.todo[-1]])
            while self._happened is not None:
                if over.wait(0.01):
                    return

    def times(self) -> dict[str, Any]:
        """By fault, how many there were, and seconds: until noticed, and until training went on."""
        result = {}
        for fault in SIGNALS:
            result[fault] = {
                "n": len(self.to_go_on_s[fault]),
                "noticed_s": summary(self.noticed_s[fault]),
                "to_go_on_s": summary(self.to_go_on_s[fault]),
            }
        return result


def _table(found: Sequence[Mapping[str, Any]]) -> Any:
    table = compact(
        "model, fault", "n", "exact", "noticed, s\nmedian, worst", "to go on, s\nmedian, worst"
    )
    for one in found:
        for fault in SIGNALS:
            cells = [words(one[fault][name]) for name in ("noticed_s", "to_go_on_s")]
            table.add_row(
                f"{one['model']}, {fault}",
                str(one[fault]["n"]),
                "yes" if one["exact"] else "NO",
                *cells,
            )
    return table
