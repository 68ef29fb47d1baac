"""Kills the process that trains, at random moments, and resumes it until it is done: is the end that of a run which nobody killed?

List reduction in four ways: `sync`, `pipeline`, `virtual` (asynchronous on a simulated machine) and `replayed` (an asynchronous run on this
machine's clock, recorded; its replays are killed). Each life is a process of its own, ended by SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich.console import Console

import ampjax as amp
from ampjax.drivers.cost import FlopsCost
from ampjax.errors import SettingsError
from ampjax.train.checkpoints.fit_place import FitPlace
from ampjax.train.history import History
from ampjax.utils.text_tables import compact
from experiments.chaos.durations import summary, words
from experiments.chaos.outcome import outcome
from experiments.common import start_up
from experiments.list_reduction import ListReductionOptions, tasks
from experiments.records import append

WAYS = ("sync", "pipeline", "virtual", "replayed")
SNAPSHOTS = "snapshots"
RECORDING = "run.trace"


@dataclass(frozen=True, kw_only=True)
class ChaosOptions:
    """Kills the training process at random moments, and resumes it until training is done.

    Args:
      kills: The number of kills, divided among the ways of training.
      ways: Ways of training: `sync`, `pipeline`, `virtual`, `replayed`.
      n_train: Training sequences; a tenth as many for validation.
      epochs: Epochs.
      every_instances: Instances between two snapshots.
      within_s: The most seconds between the beginning (or the resumption) of training and a kill.
      seed: The seed of the moments of kills, and of the runs.
      json: File to which a JSON object is appended for each way.
    """

    kills: int = 20
    ways: tuple[str, ...] = WAYS
    n_train: int = 4000
    epochs: int = 4
    every_instances: int = 400
    within_s: float = 3.0
    seed: int = 0
    json: Path | None = None


@dataclass(frozen=True)
class Life:
    """What a process is to do.

    Args:
      way: One of `WAYS`.
      folder: Where its snapshots and its recording are.
      records: Whether it is the run that is recorded, in place of a replay.
      options: The options, by name.
    """

    way: str
    folder: str
    records: bool
    options: Mapping[str, Any]


def main(
    options: ChaosOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives what was found for each way.

    Raises:
      SettingsError: If an option is outside what it can be.
      RuntimeError: If a process fails of itself; its errors are on the terminal.
    """
    console = console or Console(highlight=False)
    unknown = [way for way in options.ways if way not in WAYS]
    if unknown or not options.ways:
        raise SettingsError(
            "--ways", f"some of {list(WAYS)}", f"{unknown or 'none'}", "Choose among these."
        )
    if (
        min(options.kills, options.n_train, options.epochs, options.every_instances) < 1
        or not options.within_s > 0
    ):
        raise SettingsError("chaos", "numbers above 0", f"{options}", "Change the option.")
    rng = np.random.default_rng(options.seed)
    found = []
    console.print(f"chaos: seed {options.seed}, {options.kills} kills")
    for i, way in enumerate(options.ways):
        n = len(range(i, options.kills, len(options.ways)))
        found.append(
            {
                "experiment": "chaos",
                "seed": options.seed,
                **_one_way(options, way, n, rng),
            }
        )
        append(options.json, found[-1:])
    console.print(_table(found))
    return found


def _one_way(
    options: ChaosOptions, way: str, kills: int, rng: np.random.Generator
) -> dict[str, Any]:
    """A run that nobody kills; then the same, killed."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        folders = {name: Path(scratch) / name for name in ("whole", "killed", "tmp")}
        for folder in folders.values():
            folder.mkdir()
        given = {}
        for name, value in asdict(options).items():
            if name != "json":
                given[name] = value
        whole = _Process(
            Life(way, str(folders["whole"]), True, given),
            folders["tmp"],
        )
        expected = whole.end()
        if way == "replayed":
            (folders["whole"] / RECORDING).rename(folders["killed"] / RECORDING)
        life = Life(way, str(folders["killed"]), False, given)
        lives = 0
        n_killed = 0
        last_kill = 0.0
        to_go_on: list[float] = []
        exact = True
        left = set[str]()
        while True:
            process = _Process(life, folders["tmp"])
            lives = lives + 1
            began = process.next("begins")
            if n_killed:
                to_go_on.append(began["at"] - last_kill)
            if n_killed < kills:
                killed_at = process.kill_after(rng.uniform(0, options.within_s))
            else:
                killed_at = None
            if killed_at is not None:
                n_killed = n_killed + 1
                last_kill = killed_at
                continue
            ended = process.end(began)
            exact &= ended["result"] == expected["result"]
            left |= _left_behind(folders)
            if n_killed >= kills:
                break
            for path in sorted((folders["killed"] / SNAPSHOTS).rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()  # it was done before all kills: once more
        return {
            "way": way,
            "kills": n_killed,
            "lives": lives,
            "exact": exact,
            "resumed": ended["resumed"],
            "to_go_on_s": summary(to_go_on),
            "first_start_s": expected["start_s"],
            "train_s": expected["train_s"],
            "snapshots": expected["snapshots"],
            "snapshot_ms": expected["snapshot_ms"],
            "left_behind": sorted(left),
        }


class _Process:
    """A life."""

    def __init__(self, life: Life, tmp: Path):
        environment = {
            **os.environ,
            "TMPDIR": str(tmp),
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        command = [
            sys.executable,
            "-c",
            "from experiments.chaos.driver import live; live()",
            json.dumps(asdict(life)),
        ]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment, text=True
        )
        assert self._process.stdout is not None
        self._out: IO[str] = self._process.stdout

    def next(self, event: str) -> dict[str, Any]:
        """What it says next.

        Raises:
          RuntimeError: If it says something else, or nothing more.
        """
        line = self._out.readline()
        told = json.loads(line) if line else {}
        if event not in told.get("event", ""):
            self._process.kill()
            raise RuntimeError(f"the process was to say {event!r}, and said {line!r}")
        return told

    def kill_after(self, seconds: float) -> float | None:
        """Kills it; gives the time, or None if it had ended before."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            at = time.time()
            self._process.wait()
            self._out.close()
            return at
        return None

    def end(
        self,
        began: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Waits for its end; gives what it has found."""
        began = began or self.next("begins")
        told = began if began["event"] == "begins and ends" else self.next("ends")
        if self._process.wait() != 0:
            raise RuntimeError(f"the process ended with {self._process.returncode}")
        self._out.close()
        return told


def live() -> None:
    """What a process does: trains, and tells when it has begun and what it has come to."""
    life = Life(**json.loads(sys.argv[1]))
    start = time.time()
    options = life.options
    folder = Path(life.folder)
    start_up()
    trainer, task = _trainer(life, folder)
    times: list[float] = []
    begun = _tell_when_it_begins(trainer)
    _time_snapshots(trainer, times)
    if life.way == "replayed" and not life.records:
        history = amp.replay(
            folder / RECORDING,
            trainer,
            task.train,
            task.valid,
            progress=False,
            resume=True,
        )
    else:
        record = folder / RECORDING if life.way == "replayed" else None
        fit = partial(
            trainer.fit,
            epochs=options["epochs"],
            progress=False,
            record=record,
        )
        history = fit(task.train, task.valid, resume=not life.records)
    now = time.time()
    started = begun[0] if begun else now
    print(
        json.dumps(
            {
                "event": "ends" if begun else "begins and ends",
                "at": now,
                "result": outcome(trainer, history),
                "resumed": history.resumed,
                "start_s": started - start,
                "train_s": now - started,
                "snapshots": len(times),
                "snapshot_ms": 1e3 * statistics.median(times) if times else 0.0,
            }
        ),
        flush=True,
    )


def _trainer(
    life: Life,
    folder: Path,
) -> tuple[amp.Trainer, Any]:
    """List reduction with buckets of 10."""
    given = life.options
    mode = life.way if life.way in ("sync", "pipeline") else "async"
    model = ListReductionOptions(
        mode=mode,
        n_train=given["n_train"],
        n_valid=max(10, given["n_train"] // 10),
        batch_size=10,
        hidden=32,
    )
    task = tasks(model)(given["seed"])
    snapshot = amp.Snapshots(
        folder / SNAPSHOTS, every_instances=max(1, given["every_instances"] // 10)
    )
    cost = partial(FlopsCost, flops=1e12) if life.way == "virtual" else None
    return amp.Trainer(
        task.graph,
        task.tx,
        cost=cost,
        snapshot=snapshot,
        settings=task.settings,
    ), task


def _tell_when_it_begins(trainer: amp.Trainer) -> list[float]:
    """Says so when the first dispatch is issued; gives a list that then holds the time."""
    begun: list[float] = []
    run = trainer.session.executor.run

    def told(launches: Any) -> int:
        begun.append(time.time())
        trainer.session.executor.run = run
        print(
            json.dumps({"event": "begins", "at": begun[0]}),
            flush=True,
        )
        return run(launches)

    trainer.session.executor.run = told
    return begun


def _time_snapshots(trainer: amp.Trainer, times: list[float]) -> None:
    assert trainer.keeper is not None
    take = trainer.keeper.take

    def timed(place: FitPlace, history: History) -> None:
        began = time.perf_counter()
        take(place, history)
        times.append(time.perf_counter() - began)

    trainer.keeper.take = timed


def _left_behind(folders: Mapping[str, Path]) -> set[str]:
    """What is there beside snapshots and the recording."""
    found = {f"tmp/{path.name}" for path in folders["tmp"].iterdir()}
    found |= {
        path.name for path in folders["killed"].iterdir() if path.name not in (SNAPSHOTS, RECORDING)
    }
    snapshots = list((folders["killed"] / SNAPSHOTS).iterdir())
    found |= {path.name for path in snapshots if not path.name.removeprefix("snapshot-").isdigit()}
    return found | ({f"{len(snapshots)} snapshots"} if len(snapshots) > 2 else set())


def _table(found: list[dict[str, Any]]) -> Any:
    table = compact(
        "way",
        "kills",
        "lives",
        "exact",
        "to go on, s\nmedian, worst",
        "snapshot\nms",
        "left behind",
    )
    for one in found:
        table.add_row(
            one["way"],
            str(one["kills"]),
            str(one["lives"]),
            "yes" if one["exact"] else "NO",
            words(one["to_go_on_s"], 1),
            f"{one['snapshot_ms']:.0f}",
            ", ".join(one["left_behind"]) or "nothing",
        )
    return table
