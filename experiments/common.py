"""What all experiments share: options named after the papers' hyperparameters, start-up, and the run itself.

An experiment gives a `Task` for each seed; `run` trains it, writes an object per epoch to JSON Lines as each epoch ends, and leaves a
history, a convergence plot and a Gantt chart in a folder.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax
from rich.console import Console

import ampjax as amp
import ampjax.graphs as ag
from ampjax.drivers.cost import Cost, FlopsCost
from ampjax.errors import SettingsError
from ampjax.ir.instances import Instances
from ampjax.plan.planner import Plan
from ampjax.simulation.profile import Profile
from ampjax.simulation.profile_cost import ProfileCost
from ampjax.trace.trace import Trace
from ampjax.train.history import Epoch, History, reaches
from ampjax.train.training_data import n_examples
from ampjax.utils.compilation_cache import use_compilation_cache
from ampjax.utils.counted import count_of
from ampjax.utils.text_tables import compact
from ampjax.viz.convergence import convergence
from ampjax.viz.gantt import gantt
from ampjax.viz.perfetto import to_perfetto
from ampjax.viz.traffic import in_bytes, traffic
from experiments.records import append

FIELDS = (
    "experiment",
    "seed",
    "mode",
    "max_active_keys",
    "min_update_interval",
    "replicas",
    "workers",
    "epoch",
    "train_loss",
    "train_accuracy",
    "train_error",
    "valid_loss",
    "valid_accuracy",
    "valid_error",
    "train_per_s",
    "valid_per_s",
    "staleness_mean",
    "staleness_max",
    "messages",
    "compilations",
    "seconds",
)
"""The order in which the fields of a JSON object come; others follow."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of all experiments.

    Args:
      max_active_keys: The most instances in flight; in batch mode the examples of a batch.
      min_update_interval: The least number of gradient rows that a node accumulates before it updates; by default the experiment's choice.
      max_staleness: The largest staleness of a gradient that goes into an update, in versions; by default there is no bound.
      drop_staler_than: The largest staleness of a gradient that is not dropped, in versions; by default none is dropped.
      weights: The parameters that backward passes use: the current ones, those of the forward pass, or an estimate of these.
      replicas: Copies of the layers that do most of the work; they share one network's other layers.
      copies: Copies of the whole network, each on a worker of its own.
      workers: Workers; each has a device of its own.
      hosts: The number of processes on which the workers run, each with at least one worker; 0: all run in this process.
      resources: A resource file, in place of `--hosts`: the workers run on its machines, at least one for each device.
      epochs: Epochs at most.
      seed: One seed or several; each is a run of its own.
      mode: `async`: nodes update themselves. `pipeline`: max-active-keys instances, then an update. `sync`: one instance, then an update.
        `batch`: as `pipeline`, each round one compiled call without messages; what belongs to messages is left out, and refused where it is asked for.
      data_dir: Folder with data files; else the environment variable AMPJAX_DATA, else a download. Not read where data are generated.
      synthetic: Generated data in place of files.
      full: Use all data of the folder and the paper's settings; this has no effect if they are the defaults.
      json: File to which a JSON object is appended for each epoch, as it ends.
      out: Folder for history, convergence plot and Gantt chart; by default runs/EXPERIMENT.
      policy: Which messages a worker takes next: `balanced`, `backward_first`, `largest` or another one of ampjax's policies; an unknown
        name's error lists all.
      min_admission: Instances are admitted when there is room for so many at once (or for max-active-keys, if that is fewer).
      group_by_size: Instances of about the same size follow one another, so many at a time; 1 takes all in random order.
      max_dispatch_size: Messages (rows, where messages are ragged) in one dispatch at most; 1 is the paper's Algorithm 1. By default 64 in
        asynchronous mode, else 512.
      replica_sync: How replicas are kept together: `epoch`, `none`, `every_k:K` or `message:K` (K: updates between).
      flops: Train in the virtual time of a machine whose workers have devices of so many operations per second each (the paper's has 1e12):
        fully connected layers take their flops' time. By default, this machine and its time.
      rest: With `flops`: the time of everything else on that machine: `none`, or as `measured` on this one (the paper's table 3).
      profile: With `--rest measured`: the file of measured times. It is read if it is there, else measured and written; so what was measured while nothing
        else ran can be used again at any time.
      target: Validation accuracy (for regression: error) to reach.
      keep_going: Train all epochs, also when the target is reached.
    """

    max_active_keys: int = 16
    min_update_interval: int | None = None
    max_staleness: int | None = None
    drop_staler_than: int | None = None
    weights: Literal["current", "stashed", "estimated"] = "current"
    replicas: int = 1
    copies: int = 1
    workers: int = 1
    hosts: int = 0
    resources: Path | None = None
    epochs: int = 10
    seed: tuple[int, ...] = (0,)
    mode: Literal["async", "pipeline", "sync", "batch"] = "async"
    data_dir: Path | None = None
    synthetic: bool = False
    full: bool = False
    json: Path | None = None
    out: Path | None = None
    policy: str = "balanced"
    min_admission: int = 1
    group_by_size: int = 1
    max_dispatch_size: int | None = None
    replica_sync: str = "epoch"
    flops: float | None = None
    rest: Literal["none", "measured"] = "none"
    profile: Path | None = None
    target: float = 0.97
    keep_going: bool = False

    def settings(
        self,
        seed: int,
        min_update_interval: int,
        gradient: str = "mean",
    ) -> amp.Settings:
        """The trainer's settings.

        Args:
          seed: Of this run.
          min_update_interval: What to take where the option is absent.
          gradient: `mean` or `sum` over gradient rows.

        Raises:
          SettingsError: If an option is outside what it can be.
        """
        settings = amp.Settings(
            max_active_keys=self.max_active_keys,
            mode=self.mode,
            group_by_size=self.group_by_size,
            gradient=gradient,
            compile_ahead=True,  # the first epoch's rate is a result, too
            seed=seed,
        )
        return replace(settings, **self._of_messages(min_update_interval))

    def _of_messages(self, min_update_interval: int) -> dict[str, Any]:
        """The settings that belong to messages; in batch mode only settings that the user has chosen, which the trainer refuses.

        Args:
          min_update_interval: What to take where the option is absent.
        """
        interval = self.min_update_interval
        settings = {
            "min_update_interval": min_update_interval if interval is None else interval,
            "max_staleness": self.max_staleness,
            "drop_staler_than": self.drop_staler_than,
            "weights": self.weights,
            "workers": self.workers,
            "policy": self.policy,
            "min_admission": min(self.min_admission, self.max_active_keys),
            "max_dispatch_size": self.max_dispatch_size,
            "replica_sync": sync_rule(self.replica_sync),
        }
        if self.mode == "batch":
            given = changed(self)
            return {name: value for name, value in settings.items() if name in given}
        # Unfused where rest is measured: else a layer's time would stand for its neighbours' too.
        return {**settings, "fuse": self.rest == "none"}


def sync_rule(text: str) -> str | tuple[str, int]:
    """A rule for replicas from the command line.

    Raises:
      SettingsError: If what follows the colon is no number. Whether the rule exists is checked with the other settings.

    >>> sync_rule("epoch"), sync_rule("every_k:20")
    ('epoch', ('every_k', 20))
    """
    rule, colon, every = text.partition(":")
    if not colon:
        return rule
    if not every.isdigit():
        raise SettingsError(
            "--replica-sync",
            "`epoch`, `none`, `every_k:K` or `message:K`",
            f"{text!r}",
            "Give K, for example every_k:20.",
        )
    return rule, int(every)


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained for one seed.

    Args:
      graph: The model.
      train: Training instances.
      valid: Validation instances.
      settings: The trainer's settings.
      tx: The optax transform of nodes that have none of their own.
      metric: The validation metric that the target is for: `accuracy`, or `error` for regression.
    """

    graph: ag.Graph
    train: Instances
    valid: Instances
    settings: amp.Settings
    tx: optax.GradientTransformation | None = None
    metric: str = "accuracy"


def start_up(workers: int = 1, spread_kernels: bool = False) -> None:
    """Chooses devices, threads and the compilation cache; call it before JAX makes its first array.

    What the user has set in the environment (`NPROC`, `JAX_NUM_CPU_DEVICES`, `JAX_COMPILATION_CACHE_DIR`) stays.

    Args:
      workers: Workers of the run: each gets a CPU device of its own.
      spread_kernels: Whether kernels are large enough for XLA to spread each over the cores. Small ones run faster if it does not try.
    """
    if not spread_kernels:
        os.environ.setdefault("NPROC", "1")
    if "JAX_NUM_CPU_DEVICES" not in os.environ and workers > 1:
        jax.config.update("jax_num_cpu_devices", workers)
    cache_compilations()


def cache_compilations() -> None:
    """Switches JAX's persistent compilation cache on, for the smallest programs too: in `JAX_COMPILATION_CACHE_DIR`, else in the user's cache folder."""
    use_compilation_cache()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def run(
    name: str,
    options: Options,
    tasks: Callable[[int], Task],
    console: Console | None = None,
) -> list[History]:
    """Trains a task for each seed and leaves the results in a folder.

    Args:
      name: The experiment's name.
      options: The options.
      tasks: From a seed to what is trained.
      console: Where tables go.

    Returns:
      A history per seed.

    Raises:
      AmpError: If an option, a data file or a setting does not fit.
    """
    console = console or Console(highlight=False)
    _check(options)
    folder = _made(options.out or Path("runs") / name, options.json)
    record = folder / "history.jsonl"
    histories: dict[str, History] = {}
    task = trainer = None
    for seed in options.seed:
        task = tasks(seed)
        s = task.settings
        console.print(f"{name}: seed {seed}, {described(s, options.replicas)}", soft_wrap=True)
        trainer = amp.Trainer(
            task.graph,
            task.tx,
            cost=machine(options, task),
            hosts=options.resources or options.hosts or None,
            settings=s,
        )
        s = trainer.settings  # hosts may have more workers
        if not histories:
            record.unlink(missing_ok=True)
        label = {
            "experiment": name,
            "seed": seed,
            "mode": s.mode,
            "max_active_keys": s.in_flight,
            "min_update_interval": s.min_update_interval,
            "replicas": options.replicas,
            "workers": s.workers,
            "target": options.target,
            "n_train": n_examples(task.train),
            "n_valid": n_examples(task.valid),
            "options": changed(options),
        }
        history = History(settings=label)
        write = partial(
            _write,
            label,
            [record, *([options.json] if options.json else [])],
        )
        stop = partial(_reached, options, task.metric)
        trainer.fit(
            task.train,
            task.valid,
            epochs=options.epochs,
            callbacks=[write, stop],
            history=history,
        )
        histories[f"seed {seed}"] = history
        if len(history):
            console.print(history.table())
        if history.interrupted:
            console.print("interrupted")
            break
    seeds = f"seed {' '.join(map(str, options.seed))}"
    if task is None or trainer is None or not any(map(len, histories.values())):
        console.print(f"{seeds}; no epoch has ended, so nothing was written")
    else:
        _summary(console, histories, options.target, task.metric)
        if not options.keep_going and any(
            0 < len(h) < options.epochs and not h.interrupted for h in histories.values()
        ):
            console.print(
                "Runs end at the target; with --keep-going they train all epochs.", soft_wrap=True
            )
        _pictures(folder, name, histories, options, task, trainer)
        for host in trainer.hosts:
            sent = in_bytes(host.bytes_sent)
            received = in_bytes(host.bytes_received)
            nodes = count_of(len(host.nodes), "node")
            console.print(
                f"{host.name} ({host.place}): {nodes} with parameters; {sent} to it, {received} from it"
            )
        trainer.close()
        left = "history and convergence plot"
        if task.settings.mode != "batch":
            left = "history, convergence plot and Gantt chart"
        console.print(f"{seeds}; {left} are in {folder}")
    return list(histories.values())


def described(settings: amp.Settings, replicas: int) -> str:
    """A line that tells how a run trains.

    Args:
      settings: The trainer's settings.
      replicas: Copies of the layers that do most of the work.
    """
    if settings.mode == "batch":
        return f"batch, {count_of(settings.max_active_keys, 'example')} a batch"
    parts = (
        settings.mode,
        f"max_active_keys {settings.in_flight}",
        f"min_update_interval {settings.min_update_interval}",
        count_of(replicas, "replica"),
        count_of(settings.workers, "worker"),
        count_of(len(jax.devices()), "device"),
    )
    return ", ".join(parts)


def machine(
    options: Options,
    task: Task,
) -> Callable[[Plan], Cost] | None:
    """The cost model of the machine that the options describe; None for this one."""
    if options.flops is None:
        return None
    flops = partial(FlopsCost, flops=options.flops)
    if options.rest == "none":
        return flops
    measured = profiled(options.profile, task)
    return lambda plan: ProfileCost(plan, measured, flops(plan))


def profiled(path: Path | None, task: Task) -> Profile:
    """How long this machine takes for each of a task's kernels: from a file, if it is there; else measured, and kept there.

    Args:
      path: The file; None to measure and keep nothing.
      task: What is trained.

    Raises:
      DataError: If the file is no profile.
    """
    if path is not None and path.exists():
        return Profile.load(path)
    s = task.settings
    found = amp.profile(
        task.graph,
        sample(
            task.train,
            max(32, 2 * s.in_flight),
            s.seed,
        ),
        tx=task.tx,
        **vars(s),
    )
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        found.save(path)
    return found


def changed(options: Options) -> dict[str, Any]:
    """The options that are not the experiment's defaults, but for those that every record has or that don't change a result."""
    silent = {"mode", "max_active_keys", "seed", "json", "out", "data_dir", "target", "keep_going"}
    given = {}
    for f in fields(options):
        if f.name not in silent:
            given[f.name] = (
                getattr(options, f.name),
                f.default,
            )
    result = {}
    for name, (v, default) in given.items():
        if v != default:
            result[name] = str(v) if isinstance(v, Path) else v
    return result


def require_positive(hint: str, **options: float) -> None:
    """Checks options that must be more than 0, and finite.

    Args:
      hint: What to tell where one is not, for example the defaults.
      **options: The values by name.

    Raises:
      SettingsError: Names the option as it is written on the command line.
    """
    for name, value in options.items():
        if not 0 < value < np.inf:
            raise SettingsError(
                f"--{name.replace('_', '-')}", "more than 0, and finite", f"{value}", hint
            )


def require_seeds(seeds: Sequence[int]) -> None:
    """Checks that there are seeds, all different.

    Args:
      seeds: The option's value.

    Raises:
      SettingsError: If there is none, or one comes twice.
    """
    if not seeds:
        raise SettingsError(
            "--seed", "at least one seed", "none", "Give one, for example --seed 0."
        )
    if len(set(seeds)) < len(seeds):
        raise SettingsError(
            "--seed", "different seeds", f"{seeds}", "Each seed is a run of its own."
        )


def _check(options: Options) -> None:
    require_seeds(options.seed)
    if options.resources is not None and options.hosts:
        got = f"both, {options.hosts} and `{options.resources}`"
        raise SettingsError(
            "--hosts, --resources",
            "one of the two",
            got,
            "Leave --hosts out: the file says how many.",
        )
    if options.flops is not None:
        require_positive("The paper's device has 1e12.", flops=options.flops)
    elif options.rest != "none":
        raise SettingsError(
            "--rest",
            "--flops beside it",
            f"`{options.rest}` alone",
            "Name the machine: --flops 1e12.",
        )
    if math.isnan(options.target):
        raise SettingsError(
            "--target",
            "a number",
            "nan",
            "Give the accuracy, or for regression the error, to reach.",
        )
    for name in ("replicas", "copies", "epochs"):
        if getattr(options, name) < 1:
            raise SettingsError(
                f"--{name}", "at least 1", f"{getattr(options, name)}", "Change the option."
            )


def _made(folder: Path, json: Path | None) -> Path:
    """Makes the folders: what can't be written to is told before anything is trained."""
    for flag, make in (
        ("--out", partial(folder.mkdir, parents=True, exist_ok=True)),
        ("--json", partial(append, json, ())),
    ):
        try:
            make()
        except OSError as error:
            raise SettingsError(
                flag, "a path that can be written to", f"{error}", "Choose another one."
            ) from error
    return folder


def _write(
    label: Mapping[str, Any],
    paths: Sequence[Path],
    trainer: amp.Trainer,
    epoch: Epoch,
) -> None:
    """A callback: appends the epoch to files, so that nothing is lost when a run is stopped."""
    record = {**label, **epoch.record()}
    for path in paths:
        append(
            path,
            [{**{field: record[field] for field in FIELDS if field in record}, **record}],
        )


def _reached(
    options: Options,
    metric: str,
    trainer: amp.Trainer,
    epoch: Epoch,
) -> bool:
    """A callback: stops at the target."""
    return not options.keep_going and reaches(epoch.valid[metric], options.target, metric)


def _summary(
    console: Console, histories: Mapping[str, History], target: float, metric: str
) -> None:
    """Epochs and seconds to the target, by seed, and their medians."""
    goal = f"{100 * target:g} %" if metric == "accuracy" else f"{target:g}"
    table = compact("run", f"best {metric}", f"epochs to {goal}", "seconds", "train/s", "valid/s")
    rows = []
    for label, history in histories.items():
        if not len(history):
            continue
        first = history.first_to(target, metric)
        speed = [
            statistics.median(getattr(e, part) for e in history.epochs)
            for part in ("train_per_s", "valid_per_s")
        ]
        rows.append(
            (
                history.best(metric),
                *((first.epoch, first.seconds) if first else (np.inf, np.inf)),
                *speed,
            )
        )
        table.add_row(label, *_cells(rows[-1], metric))
    if len(rows) > 1:
        table.add_row(
            "median",
            *_cells([statistics.median(column) for column in zip(*rows, strict=True)], metric),
        )
    if rows:
        console.print(table)


def _cells(row: Sequence[float], metric: str) -> list[str]:
    best, epochs, seconds, train_per_s, valid_per_s = row
    reached = [f"{epochs:g}", f"{seconds:.1f}"] if np.isfinite(epochs) else ["not reached", ""]
    shown = f"{100 * best:.2f} %" if metric == "accuracy" else f"{best:.3f}"
    return [shown, *reached, f"{train_per_s:,.0f}", f"{valid_per_s:,.0f}"]


def _pictures(
    folder: Path,
    name: str,
    histories: Mapping[str, History],
    options: Options,
    task: Task,
    trainer: amp.Trainer,
) -> None:
    """The convergence plot of all runs, and, where there are messages, a Gantt chart and a trace for Perfetto of some more instances of the last one."""
    runs = {}
    for label, history in histories.items():
        if len(history):
            runs[label] = history.records()
    convergence(runs, folder / "convergence.png", f"valid_{task.metric}", options.target)
    s = task.settings
    if s.mode == "batch":
        return
    n = min(
        max(4, min(2 * s.in_flight, 16)),
        len(task.train),
    )
    trace = Trace(every=1)
    trainer.accumulate(
        sample(task.train, n, s.seed),
        trace=trace,
    )
    if trace.traffic:
        traffic(trace, folder / "traffic.png", title=f"{name}, {n} instances")
    how = "each dispatch is waited for" if options.flops is None else "virtual time"
    gantt(trace, folder / "gantt.png", title=f"{name}, {s.mode}, {n} instances; {how}")
    to_perfetto(trace, folder / "trace.json")


def sample(data: Instances, n: int, seed: int) -> amp.Subset:
    """`n` instances at random (all, if there are fewer)."""
    return amp.Subset(
        data,
        np.random.default_rng(seed).permutation(len(data))[:n],
    )
