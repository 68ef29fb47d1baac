"""Two hosts, each held on a core, beside one process held on one core; and what control costs a dispatch, in the driver of hosts and in one process."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import optax
from rich.console import Console

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.train.training_data import n_examples
from experiments.bench.children import in_a_process
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.data import list_reduction, mnist
from experiments.models.mlp import mlp
from experiments.records import append

MODELS = "copies", "layers"
"""List reduction in two copies of the whole network, a host each; a perceptron whose layers take about 2 ms a dispatch, cut into two halves of equal work."""


@dataclass(frozen=True, kw_only=True)
class HostsBench:
    """Compares two hosts with one process, in turn; medians.

    Args:
      passes: Measured passes of each, behind two that compile.
      rounds: How often the two take turns.
      json: File to which a JSON object is appended for each.
    """

    passes: int = 5
    rounds: int = 2
    json: Path | None = None


def measure(
    model: str,
    hosts: int,
    passes: int,
) -> dict[str, float]:
    """Passes of one trainer; called in a process of its own.

    Args:
      model: One of `MODELS`.
      hosts: 2 for two hosts, a core each; 0 for this process on one core.
      passes: Measured passes.

    Returns:
      The median rate, microseconds a dispatch, and processor time a dispatch: of control, that is of the driver of hosts, or in one process of its thread
      without what the executor does; and of all processes together.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not hosts:
        hold(os.getpid(), cores[0])
    graph, data, options = _task(model)
    if hosts:
        places: dict[str, Any] = {"hosts": hosts}
    else:
        places = {"devices": jax.devices()[:1] * 2}
    trainer = amp.Trainer(
        graph,
        optax.adam(1e-3),
        workers=2,
        **places,
        **options,
    )
    processes = [host.process for host in trainer.hosts]
    for process, core in zip(processes, cores, strict=False):
        hold(process, core)
    trainer.fit(data, epochs=2, progress=False)
    gc.collect()  # what the start has left behind: otherwise this takes a quarter of a second of some pass
    before = [spent_s(process) for process in (os.getpid(), *processes)]
    history = trainer.fit(data, epochs=passes, progress=False)
    spent = []
    for p, s in zip((os.getpid(), *processes), before, strict=True):
        spent.append(spent_s(p) - s)
    dispatches = sum(epoch.dispatches for epoch in history.epochs)
    control_us = spent[0] / dispatches * 1e6 if hosts else control_alone_us(trainer, data, passes)
    trainer.close()
    rate = statistics.median(epoch.train_per_s for epoch in history.epochs)
    us = []
    for e in history.epochs:
        us.append(n_examples(data) / e.train_per_s / e.dispatches * 1e6)
    return {
        "per_s": rate,
        "us_a_dispatch": statistics.median(us),
        "control_us": control_us,
        "all_us": sum(spent) / dispatches * 1e6,
    }


def control_alone_us(trainer: amp.Trainer, data: Any, passes: int) -> float:
    """Processor time of this thread a dispatch, without what the executor does, in passes of their own: to measure takes time, too.

    Args:
      trainer: A trainer in this process; what its executor does is measured from then on.
      data: What it trains on.
      passes: How often.

    Returns:
      Microseconds.
    """
    calls = Calls()
    calls.measure(trainer.session.executor)
    began_s = time.thread_time()
    history = trainer.fit(data, epochs=passes, progress=False)
    spent_s = time.thread_time() - began_s - calls.seconds
    return spent_s / sum(epoch.dispatches for epoch in history.epochs) * 1e6


class Calls:
    """Measures the processor time of this thread within an executor's calls.

    Attributes:
      seconds: So far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def measure(self, executor: Any) -> None:
        """Measures an executor's calls from now on.

        Args:
          executor: The executor.
        """
        parts = (
            (executor, ("feed", "run", "change")),
            (executor.fences, ("of_worker",)),
            (executor.losses, ("take",)),
        )
        for part, names in parts:  # none of these calls another
            for name in names:
                setattr(part, name, self._measured(getattr(part, name)))

    def _measured(
        self,
        call: Callable[..., Any],
    ) -> Callable[..., Any]:
        def measured(*arguments: Any) -> Any:
            began_s = time.thread_time()
            try:
                return call(*arguments)
            finally:
                self.seconds += time.thread_time() - began_s

        return measured


def hold(process: int, core: int) -> None:
    """Holds all threads of a process on a core."""
    for thread in os.listdir(f"/proc/{process}/task"):
        os.sched_setaffinity(int(thread), {core})


def spent_s(process: int) -> float:
    """Processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _task(model: str) -> tuple[ag.Graph, Any, dict[str, Any]]:
    if model == "copies":
        options = {
            "max_active_keys": 128,
            "min_admission": 32,
            "min_update_interval": 100,
            "max_dispatch_size": 64,
        }
        data = list_reduction.Sequences(list_reduction.generate(2400), hidden=64)
        return list_reduction_rnn(64, copies=2), data, options
    options: dict[str, Any] = {
        "max_active_keys": 32,
        "min_update_interval": 128,
        "max_dispatch_size": 1,
    }
    options["affinity"] = {name: 0 for name in ("linear1", "relu1", "linear2", "relu2")} | {
        name: 1 for name in ("linear3", "relu3", "linear4", "relu4", "linear5", "xent")
    }
    return (
        mlp((784, 1024, 1024, 1024, 512, 10), 64),
        mnist.Batches(mnist.synthetic(6400, 64)[0], 64),
        options,
    )


def main(
    options: HostsBench,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints both models' rates, and the ratios of two hosts to one process: of rates, and of what control takes.

    Raises:
      SettingsError: If there are no two cores.
    """
    if (
        not hasattr(os, "sched_getaffinity")
        or len(os.sched_getaffinity(0)) < 2
        or not Path("/proc").exists()
    ):
        raise SettingsError(
            "bench hosts", "a Linux with two cores", "something else", "Run it on such a machine."
        )
    console = console or Console(highlight=False)
    found = []
    for model in MODELS:
        rows: dict[int, list[dict[str, float]]] = {
            0: [],
            2: [],
        }
        for _ in range(options.rounds):
            for hosts, row in rows.items():
                arguments = {"model": model, "hosts": hosts, "passes": options.passes}
                row.append(
                    in_a_process(measure, arguments, {"JAX_NUM_CPU_DEVICES": "1", "NPROC": "1"})
                )
        medians = {
            h: {k: statistics.median(r[k] for r in row) for k in row[0]} for h, row in rows.items()
        }
        for hosts, m in medians.items():
            what = "two hosts, a core each" if hosts else "one process on one core"
            console.print(
                f"{model}, {what}: {m['per_s']:,.0f}/s, {m['us_a_dispatch']:.0f} us a dispatch; processor time a dispatch: control {m['control_us']:.1f} us, all {m['all_us']:.0f} us"
            )
            found.append({"bench": "hosts", "model": model, "hosts": hosts, **m})
        rates, control = (
            [medians[hosts][key] for hosts in (2, 0)] for key in ("per_s", "control_us")
        )
        console.print(
            f"{model}: two hosts are {rates[0] / rates[1]:.2f} times one core; control takes {control[0] / control[1]:.2f} times as long"
        )
    append(options.json, found)
    return found
