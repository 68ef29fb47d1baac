"""Two workers on two cores beside one worker on one core."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ampjax.errors import SettingsError
from experiments.bench.common import Result, compare
from experiments.bench.dispatches import dispatch_statistics
from experiments.bench.program import Entry
from experiments.bench.workload import HERE, read_settings


@dataclass(frozen=True, kw_only=True)
class WorkersBench:
    """Compares two workers, each with a device, with one worker whose process is bound to one core; passes in turn.

    Both have the same number of instances in flight and the same largest dispatch. XLA spreads no kernel over cores (NPROC=1): the model's are too small for it.

    Args:
      experiment: Which.
      n_train: Training instances in a pass.
      max_active_keys: Instances in flight.
      settings: Settings of both, for example max_dispatch_size=8.
      two: Further settings of two workers, for example replicas=2; by default two copies of the whole network.
      one: Further settings of one worker.
      passes: Measured passes of each.
      synthetic: Generated data.
      data_dir: Folder with data files; else AMPJAX_DATA.
      json: File to which a JSON object is appended for each.
    """

    experiment: str = "list-reduction"
    n_train: int = 20_000
    max_active_keys: int = 32
    settings: tuple[str, ...] = ("policy=largest", "max_dispatch_size=4")
    two: tuple[str, ...] = ("copies=2",)
    one: tuple[str, ...] = ()
    passes: int = 5
    synthetic: bool = False
    data_dir: Path | None = None
    json: Path | None = None

    def arguments(self, workers: int) -> dict[str, Any]:
        """The experiment's options with so many workers."""
        own = read_settings([*self.settings, *(self.two if workers == 2 else self.one)])
        if self.data_dir:
            folder = {"data_dir": str(self.data_dir)}
        else:
            folder = {}
        return {
            "experiment": self.experiment,
            "n_train": self.n_train,
            "max_active_keys": self.max_active_keys,
            "synthetic": self.synthetic,
            "workers": workers,
            **folder,
            **own,
        }

    def entry(
        self,
        workers: int,
        cores: tuple[int, ...],
    ) -> Entry:
        """The program with so many workers on these cores."""
        environment = {"NPROC": "1", "JAX_NUM_CPU_DEVICES": str(workers)}
        rows = dispatch_statistics(**self.arguments(workers))
        setting = f"{len(cores)} core(s), {rows.messages / rows.dispatches:.1f} messages a dispatch"
        name = "ampjax, two workers" if workers == 2 else "ampjax, one worker"
        return Entry(
            name, setting, f"{HERE}.ours:Ours", self.arguments(workers), environment, cores=cores
        )


def main(
    options: WorkersBench,
    console: Console | None = None,
) -> list[Result]:
    """Prints the comparison; the ratio of the second row is what one worker reaches of two.

    Raises:
      SettingsError: If an option is outside what it can be, or there are no two cores.
    """
    if not hasattr(os, "sched_getaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        raise SettingsError(
            "bench workers", "a Linux with two cores", "something else", "Run it on such a machine."
        )
    console = console or Console(highlight=False)
    entries = [
        options.entry(2, tuple(cores[:2])),
        options.entry(1, tuple(cores[:1])),
    ]
    two, one = compare(
        "workers",
        entries,
        options.passes,
        json_file=options.json,
        console=console,
    )
    console.print(f"two workers over one: {two.train_per_s / one.train_per_s:.2f}")
    return [two, one]
