"""The engine alone: microseconds a message, and its time over that of its kernels."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from rich.console import Console

from ampjax.drivers.asyncio_driver import AsyncioDriver
from ampjax.drivers.controller import InstanceSource
from ampjax.drivers.run import DriverLoop
from ampjax.engine.executor import Executor
from ampjax.engine.parameters import NodeTraining
from ampjax.errors import SettingsError
from ampjax.ir.instances import Subset
from ampjax.plan.affinity import assign
from ampjax.plan.passes import Pass
from ampjax.plan.planner import make_plan
from ampjax.sched.decisions.policy import largest
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.diagnose.statistics import Statistics
from ampjax.sched.scheduler import Scheduler
from ampjax.trace.trace import Trace
from ampjax.train.initial_params import initial_params
from ampjax.utils.text_tables import compact
from experiments.bench.issued import Call, keeping, repeat
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.data.list_reduction import MAX_LENGTH, Sequences, generate
from experiments.records import append


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Measures microseconds a message with the single-sequence RNN; all sequences have length 10, so dispatches are full.

    Three times, medians of passes in turn: control (the asyncio driver as in training, which decides on up to 16 dispatches in one call, but nothing is issued; processor
    time of its one thread, which other programs on the machine change less), the whole engine, and the same calls of kernels made again back to back without a scheduler.
    Schedulers are kept from pass to pass, so that their tables have grown before anything is measured.

    Args:
      sizes: Messages in a dispatch, and sequences in flight.
      messages: Messages in a pass, about.
      passes: Measured passes; one more before them is not counted.
      hidden: Features of the hidden state.
      json: File to which a JSON object is appended for each size.
    """

    sizes: tuple[int, ...] = (
        1,
        8,
        32,
        64,
        256,
        512,
    )
    messages: int = 20_000
    passes: int = 5
    hidden: int = 128
    json: Path | None = None


def main(
    options: EngineOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives its rows as dictionaries.

    Raises:
      SettingsError: If an option is below 1.
    """
    if min(*options.sizes, options.messages, options.passes, options.hidden) < 1:
        raise SettingsError(
            "bench engine, options", "numbers of at least 1", f"{options}", "Change the option."
        )
    table = compact(
        "dispatch\nsize",
        "in fact",
        "control µs",
        "engine µs",
        "kernels µs",
        "engine /\nkernels",
        title="a message",
    )
    rows = []
    for size in options.sizes:
        row = {"bench": "engine", "dispatch_size": size, **measure(options, size)}
        rows.append(row)
        table.add_row(
            str(size),
            f"{row['mean_dispatch']:.1f}",
            *(
                f"{row[name]:.2f}"
                for name in ("control_us", "engine_us", "kernels_us", "engine_over_kernels")
            ),
        )
    (console or Console(highlight=False)).print(table)
    append(options.json, rows)
    return rows


def measure(options: EngineOptions, size: int) -> dict[str, float]:
    """Medians for one dispatch size."""
    clocks = {
        "control": time.thread_time,
        "engine": time.perf_counter,
        "kernels": time.perf_counter,
    }
    times: dict[str, list[float]] = {name: [] for name in clocks}
    with Bench(options, size) as bench:
        for n in range(options.passes + 1):
            for name, clock in clocks.items():
                seconds = timed(getattr(bench, name), clock)
                if n:
                    times[name].append(seconds)
    medians = {}
    for name, t in times.items():
        medians[f"{name}_us"] = 1e6 * statistics.median(t) / bench.n_messages
    ratios = []
    for e, k in zip(times["engine"], times["kernels"], strict=True):
        ratios.append(e / k)
    return {
        "mean_dispatch": bench.mean_dispatch,
        **medians,
        "engine_over_kernels": statistics.median(ratios),
    }


def timed(
    part: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds that something takes, by a clock."""
    begin = clock()
    part()
    return clock() - begin


class Bench:
    """One dispatch size: a scheduler, an executor, and the dispatches of the last pass.

    Args:
      options: Features, and messages in a pass.
      size: Messages in a dispatch, and sequences in flight.
    """

    def __init__(self, options: EngineOptions, size: int):
        self._graph = list_reduction_rnn(options.hidden)
        self._plan = make_plan(self._graph, assign(self._graph, 1))
        stages = 2 * (
            MAX_LENGTH + 1
        )  # each sequence passes the loop's stage 10 times and the end's once, forth and back
        n = max(size, options.messages // stages // size * size)
        data = generate(20 * n + 200)
        full = np.flatnonzero(data.lengths == MAX_LENGTH)[:n]
        self._data = Subset(Sequences(data, options.hidden), full)
        self._settings = SchedulerSettings(
            max_active_keys=size,
            max_dispatch_size=size,
            intervals=dict.fromkeys(self._graph.parameterised, 100),
            policy=largest,
            history=1,
            capacity=4096,
        )
        training = {}
        for name in self._graph.parameterised:
            training[name] = NodeTraining(optax.adam(1e-3))
        params = initial_params(self._graph, {}, 0)
        self._executor = Executor(
            self._plan,
            params,
            training,
            jax.devices()[:1],
        )
        self._issued: list[Call] = []
        self._scheduler = Scheduler(self._plan, self._settings)
        self._control = Scheduler(self._plan, self._settings)
        self._runner = asyncio.Runner()  # kept, so that no pass has to make an event loop
        self.n_messages = 0
        self.mean_dispatch = 0.0

    def __enter__(self) -> Bench:
        """Begins to measure."""
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing more is measured."""
        self._runner.close()

    @property
    def stats(self) -> Statistics:
        """Counts of the last pass with everything."""
        return self._scheduler.counts.read()

    def control(self) -> None:
        """A pass without kernels."""
        self._runner.run(AsyncioDriver(self._loop(self._control, None)).run())

    def engine(self, trace: Trace | None = None) -> None:
        """A pass with everything."""
        self._issued.clear()
        self._scheduler.counts.reset()
        with keeping(self._issued):
            self._runner.run(
                AsyncioDriver(self._loop(self._scheduler, self._executor), trace=trace).run()
            )
        self._executor.fences.wait()
        stats = self._scheduler.counts.read()
        self.n_messages = stats.messages
        self.mean_dispatch = stats.messages / stats.dispatches

    def kernels(self) -> None:
        """The kernels of the last pass with everything, again."""
        repeat(self._issued)

    def _loop(self, scheduler: Scheduler, executor: Executor | None) -> DriverLoop:
        source = InstanceSource(
            scheduler,
            Pass(self._data, np.arange(len(self._data))),
        )
        return DriverLoop(scheduler, executor, [source])
