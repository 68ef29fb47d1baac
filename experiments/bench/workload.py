"""What the comparisons of all workloads share: their options, and how their programs are listed."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from ampjax.errors import SettingsError
from experiments.bench.account import account, show
from experiments.bench.common import Result, compare
from experiments.bench.ours import EXPERIMENTS
from experiments.bench.program import Entry
from experiments.fusions import Fusions, flags_of
from experiments.records import append

HERE = "experiments.bench"
SPREAD = {"NPROC": None, "JAX_NUM_CPU_DEVICES": "1"}
"""XLA may spread a kernel over all cores."""
MODES: dict[str, dict[str, Any]] = {
    "ampjax one by one": {"policy": "backward_first", "max_dispatch_size": 1},
    "ampjax backward first": {"policy": "backward_first"},
    "ampjax synchronous": {"mode": "sync"},
    "ampjax pipeline": {"mode": "pipeline"},
}
"""Our engine in its other modes: by name, the settings that differ."""
SLOW = 10
"""Slow programs train on one in so many of the instances: rates need no more."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Training and inference throughput, medians, programs in turn. Fields of a workload's own are options of all its programs.

    Args:
      passes: Measured passes of each program.
      n_train: Training instances in a pass; 0 takes all.
      max_active_keys: Ours: instances in flight; one program for each number.
      ours: Ours: further settings, for example policy=largest min_admission=8.
      batch: The peers': instances in a minibatch; one program of each kind for each number.
      programs: Only programs whose names begin so; ours at the first number of instances in flight is always there.
      to_target: Train programs up to this validation accuracy (QM9: error) first, in the experiment's epochs at most, and measure the time.
      beside: Ours of another checkout too, for example of an earlier commit: the folder.
      synthetic: Generated data.
      data_dir: Folder with data files; else AMPJAX_DATA.
      fusions: Every program in JAX once for each of these choices of XLA's fused kernels; by default `no-reduce`, which importing ampjax sets.
      account: Then say where an instance's time goes in ours, at the first number in flight: stage by stage, beside its kernels alone and their products alone.
      json: File to which a JSON object is appended for each program, and one for the account.
    """

    experiment: ClassVar[str]
    metric: ClassVar[str] = "accuracy"
    passes: int = 5
    n_train: int = 1000
    max_active_keys: tuple[int, ...] = (16, 64)
    ours: tuple[str, ...] = ()
    batch: tuple[int, ...] = (32,)
    programs: tuple[str, ...] = ()
    to_target: float | None = None
    beside: Path | None = None
    synthetic: bool = False
    data_dir: Path | None = None
    fusions: tuple[Fusions, ...] = ()
    account: bool = False
    json: Path | None = None

    def peers(self) -> Iterable[Entry]:
        """The other programs."""
        raise NotImplementedError

    def after(self, console: Console) -> None:
        """What to print when the comparison has been made."""

    def best(self) -> dict[str, Any]:
        """Ours: the settings at which it runs best, where they are not the experiment's."""
        return {}

    def data(
        self,
        n_train: int | None = None,
    ) -> dict[str, Any]:
        """The arguments that all programs have: the workload's own options, and which data."""
        own = {f.name for f in fields(self)} - {f.name for f in fields(Workload)}
        return {
            **{name: getattr(self, name) for name in sorted(own)},
            "n_train": self.n_train if n_train is None else n_train,
            "synthetic": self.synthetic,
            "data_dir": str(self.data_dir) if self.data_dir else None,
        }

    def spread(self) -> bool:
        """Whether our kernels are large enough for XLA to spread each over the cores."""
        return False

    def two_workers(self) -> int | None:
        """Instances in flight for ours with two workers, a copy of the network on each; None where that is no faster than kernels on both cores."""
        return None

    def entries(self) -> list[Entry]:
        """Ours, the other programs, and ours in other modes."""
        first, *more = (self._ours("ampjax", n) for n in self.max_active_keys)
        others = [*more, *self.peers(), *self.modes()]
        chosen = [
            first,
            *(e for e in others if not self.programs or e.name.startswith(self.programs)),
        ]
        if self.beside:
            chosen[1:1] = [
                replace(first, name=f"ampjax in {self.beside.name}", checkout=self.beside)
            ]
        if not self.fusions:
            return chosen
        result = []
        for e in chosen:
            if e.needs is None:
                for fusions in self.fusions:
                    result.append(with_fusions(e, fusions))
        return result

    def modes(self) -> Iterable[Entry]:
        """Our engine in other modes, at the first number of instances in flight."""
        keys = self.max_active_keys[0]
        of_two = self.two_workers()
        if of_two is not None:
            yield self._ours("ampjax two workers", of_two, workers=2, copies=2)
        for name, settings in MODES.items():
            slow = settings.get("max_dispatch_size") == 1 or settings.get("mode") == "sync"
            yield self._ours(name, keys, self._few if slow else None, **settings)

    def jax(
        self,
        name: str,
        setting: str,
        make: str,
        slow: bool = False,
        **arguments: Any,
    ) -> Entry:
        """A peer in JAX; a slow one has few instances in a pass, and no target."""
        data = self.data(self._few if slow else None)
        return Entry(
            name, setting, f"{HERE}.peers.{make}", {**data, **arguments}, SPREAD, to_target=not slow
        )

    def torch(
        self,
        name: str,
        setting: str,
        make: str,
        slow: bool = False,
        **arguments: Any,
    ) -> Entry:
        """A peer in PyTorch; a slow one has few instances in a pass, and no target."""
        data = self.data(self._few if slow else None)
        return Entry(
            name,
            setting,
            f"{HERE}.peers.{make}",
            {**data, **arguments},
            needs="torch",
            to_target=not slow,
        )

    @property
    def _few(self) -> int:
        """Training instances in a pass of a slow program; 0 takes all, as everywhere."""
        return -(-self.n_train // SLOW)

    def _ours(
        self,
        name: str,
        keys: int,
        n_train: int | None = None,
        **settings: Any,
    ) -> Entry:
        arguments = {
            **self.data(n_train),
            **self.best(),
            **read_settings(self.ours),
            **settings,
        }
        of = {"experiment": self.experiment, "max_active_keys": keys}
        if "min_admission" in arguments:
            arguments["min_admission"] = min(arguments["min_admission"], keys)
        workers = arguments.get("workers", 1)
        spread = self.spread() and workers == 1  # several workers share the cores among them
        environment = {
            **(SPREAD if spread else {"NPROC": "1"}),
            "JAX_NUM_CPU_DEVICES": str(workers),
        }
        setting = " ".join([f"{keys} in flight", *self.ours])
        return Entry(
            name,
            setting,
            f"{HERE}.ours:Ours",
            {**arguments, **of},
            environment,
            to_target=n_train is None,
        )


def with_fusions(entry: Entry, fusions: Fusions) -> Entry:
    """The program with another choice of fused kernels, which may make its numbers wrong (see `ampjax.numerics`)."""
    variables = {**entry.environment, "XLA_FLAGS": flags_of(fusions)}
    return replace(entry, setting=f"{entry.setting}, fusions {fusions}", environment=variables)


def read_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Settings from `name=value`; a value that is no Python literal is text.

    Raises:
      SettingsError: If there is no `=`.

    >>> read_settings(["policy=largest", "min_admission=8"])
    {'policy': 'largest', 'min_admission': 8}
    """
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(
                "bench, --ours",
                "settings as name=value",
                f"{text!r}",
                "Write for example workers=2.",
            )
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
    return settings


def main(
    options: Workload,
    console: Console | None = None,
) -> list[Result]:
    """Prints the comparison.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    name = options.experiment
    metric = options.metric
    _, kind = EXPERIMENTS[name]
    goal = options.to_target
    console = console or Console(highlight=False)
    entries = options.entries()
    results = compare(
        name,
        entries,
        options.passes,
        target=goal,
        epochs=kind.epochs,
        json_file=options.json,
        console=console,
        metric=metric,
    )
    options.after(console)
    if options.account:
        found = account(entries[0], options.passes)
        show(found, f"{name}, {entries[0].setting}", console)
        append(
            options.json,
            [{"bench": "account", "of": name, "setting": entries[0].setting, **found}],
        )
    return results
