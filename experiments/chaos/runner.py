"""Kills and stops servers and workers of a runner at random moments: does it end with the bits of a run that nobody disturbed?"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from rich.console import Console

import ampjax.parallel as px
from ampjax.parallel.runner import Runner
from ampjax.parallel.steps.step_outcome import Metrics
from ampjax.utils.setting_checks import at_least
from ampjax.utils.text_tables import compact
from experiments.chaos.durations import summary, words
from experiments.parallax.programs import machines, processes
from experiments.parallax.workloads import Model, Sizes, workload
from experiments.records import append


@dataclass(frozen=True, kw_only=True)
class ChaosRunnerOptions:
    """Kills and stops random processes of a runner while it trains: two machines with a server and a worker each, all on this machine.

    Args:
      model: What is trained.
      kills: How often one is killed.
      hangs: How often one is stopped.
      steps_between: Steps from one fault to the next, on average.
      every_steps: Steps between two checkpoints.
      run_option: Of `ParallaxConfig`.
      sync: Likewise; `--no-sync` trains without a barrier.
      ahead: Whether workers get the next batch while they compute one.
      sizes: Of model and data.
      seed: Of the moments, and of parameters and data.
      json: File to which a JSON object is appended.
    """

    model: Model = "lm"
    kills: int = 6
    hangs: int = 3
    steps_between: int = 10
    every_steps: int = 8
    run_option: Literal["hybrid", "ar", "ps"] = "hybrid"
    sync: bool = True
    ahead: bool = False
    sizes: Sizes = field(
        default_factory=lambda: Sizes(
            vocabulary=2_000,
            units=16,
            samples=64,
            batch=4,
            words=8,
        )
    )
    seed: int = 0
    json: Path | None = None

    @property
    def workers(self) -> int:
        """Devices that the undisturbed run needs."""
        return 2


@dataclass
class Fault:
    """What happened to a process.

    Args:
      sign: The signal.
      role: The process's.
      sent: When, in seconds since 1970.
      noticed_s: How long it took until the runner knew it.
      seconds: How long it took to go on.
    """

    sign: signal.Signals
    role: str = ""
    sent: float = 0.0
    noticed_s: float = 0.0
    seconds: float = 0.0


def main(
    options: ChaosRunnerOptions,
    console: Console | None = None,
) -> dict[str, Any]:
    """Prints a table; gives what was found.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    for name in ("kills", "hangs"):
        at_least(name, getattr(options, name), 0)
    at_least("steps_between", options.steps_between, 1)
    rng = np.random.default_rng(options.seed)
    work = workload(options.model, 2, options.sizes, seed=options.seed)
    signs = [signal.SIGKILL] * options.kills + [signal.SIGSTOP] * options.hangs
    faults = []
    for i in rng.permutation(len(signs)):
        faults.append(Fault(signs[i]))
    n_steps = (len(faults) + 1) * options.steps_between
    at = {}
    for i, fault in zip(
        sorted(rng.choice(n_steps, len(faults), replace=False)), faults, strict=True
    ):
        at[int(i)] = fault
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)

        def config(name: str) -> px.ParallaxConfig:
            # Both save: without a barrier a checkpoint waits for what is under way, which changes staleness.
            checkpoint = px.Checkpoints(
                Path(folder) / name, every_steps=options.every_steps, keep=2
            )
            kept = {"check_equivalence": "off", "checkpoint": checkpoint}
            return px.ParallaxConfig(run_option=options.run_option, sync=options.sync, **kept)

        here = px.get_runner(
            work.loss,
            work.params,
            work.tx,
            machines(2, 1),
            config("here"),
        )
        with px.get_runner(
            work.loss, work.params, work.tx, processes(2, 1), config("there")
        ) as there:
            for step in range(n_steps):
                batch, following = (work.batches[(step + i) % len(work.batches)] for i in (0, 1))
                found = _step(
                    there,
                    batch,
                    following if options.ahead else None,
                    at.get(step),
                    rng,
                )
                losses = here.run(batch).loss, found.loss
                assert losses[0] == losses[1], f"step {step}: {losses}"
            ends = [(runner.params, runner.opt_state) for runner in (here, there)]
            n_recoveries = len(there.recoveries)
    exact = all(jax.tree.leaves(jax.tree.map(np.array_equal, *ends)))
    result = {
        "experiment": "chaos-runner",
        "seed": options.seed,
        "exact": exact,
        "recoveries": n_recoveries,
    }
    result["faults"] = [vars(fault) | {"sign": fault.sign.name} for fault in faults]
    append(options.json, [result])
    _show(console or Console(highlight=False), options, faults, result)
    return result


def _step(
    runner: Runner,
    batch: Any,
    following: Any,
    fault: Fault | None,
    rng: np.random.Generator,
) -> Metrics:
    """A step, in which something may happen to a process."""
    if fault is None or not any(state.process for state in runner.hosts):
        return runner.run(batch, following=following)
    state = runner.hosts[int(rng.integers(len(runner.hosts)))]
    n = len(runner.recoveries)
    fault.role = state.role

    def strike() -> None:
        assert state.process is not None
        fault.sent = time.time()
        os.kill(state.process, fault.sign)

    timer = threading.Timer(float(rng.uniform(0, 0.02)), strike)
    timer.start()
    metrics = runner.run(batch, following=following)
    timer.join()
    if len(runner.recoveries) > n:
        recovery = runner.recoveries[-1]
        fault.noticed_s = recovery.noticed - fault.sent
        fault.seconds = recovery.seconds
    return metrics


def _show(
    console: Console,
    options: ChaosRunnerOptions,
    faults: list[Fault],
    result: dict[str, Any],
) -> None:
    table = compact(
        "what", "faults", "noticed after, s\nmedian, worst", "going on, s\nmedian, worst"
    )
    for sign in (signal.SIGKILL, signal.SIGSTOP):
        own = [fault for fault in faults if fault.sign == sign and fault.seconds]
        if own:
            times = []
            for name in ("noticed_s", "seconds"):
                times.append([getattr(fault, name) for fault in own])
            table.add_row(
                sign.name,
                f"{len(own)}",
                *(words(summary(t)) for t in times),
            )
    console.print(table)
    same = "the same bits as" if result["exact"] else "NOT the bits of"
    console.print(
        f"{options.model}: {result['recoveries']} recoveries; {same} a run in one process that nobody disturbed"
    )
