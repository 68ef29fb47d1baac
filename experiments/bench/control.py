"""The control plane alone: the scheduler's own processor time, and what unfolding costs beside it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ampjax.drivers.issue_queue import AHEAD
from ampjax.ir.instances import Subset
from ampjax.plan.affinity import assign
from ampjax.plan.planner import make_plan
from ampjax.sched.decisions.policy import largest
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.scheduler import Scheduler
from ampjax.unfold.unfolder import Unfolder
from ampjax.utils.text_tables import compact
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.common import require_positive
from experiments.data.list_reduction import MAX_LENGTH, Sequences, generate
from experiments.records import append


@dataclass(frozen=True, kw_only=True)
class ControlOptions:
    """Processor time of control a message, as `bench engine` has it: single sequences of length 10, so that dispatches are full.

    Each dispatch is done before the next is decided; one by one and as many ahead as the asyncio driver decides, passes in turn. Programs are known;
    what unfolding them costs is a column of its own, since later epochs do not pay it.

    Args:
      sizes: Messages in a dispatch, and sequences in flight.
      messages: Messages in a pass, about.
      passes: Measured passes, of which the median counts; one more before them is not counted.
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
    passes: int = 7
    json: Path | None = None


def main(
    options: ControlOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives its rows as dictionaries.

    Raises:
      SettingsError: If an option is below 1.
    """
    sizes = {name: getattr(options, name) for name in ("messages", "passes")}
    require_positive(
        "See the defaults.",
        sizes=min(options.sizes, default=0),
        **sizes,
    )
    rows = [measure(options, size) for size in options.sizes]
    table = compact(
        "dispatch\nsize",
        "one by one µs",
        "16 ahead µs",
        "one by one /\n16 ahead",
        "unfolding µs",
        title="a message",
    )
    for row in rows:
        times = (f"{row[name]:.3f}" for name in ("singly_us", "ahead_us"))
        table.add_row(
            str(row["dispatch_size"]), *times, f"{row['ratio']:.1f}", f"{row['unfolding_us']:.3f}"
        )
    (console or Console(highlight=False)).print(table)
    append(options.json, rows)
    return rows


def measure(options: ControlOptions, size: int) -> dict[str, Any]:
    """Medians for one dispatch size."""
    bench = Bench(options, size)
    parts: dict[str, Callable[[], None]] = {
        "singly": bench.singly,
        "ahead": bench.ahead,
        "unfolding": bench.unfolding,
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for n in range(options.passes + 1):
        for name, part in parts.items():
            begin = time.thread_time()
            part()
            if n:
                times[name].append(time.thread_time() - begin)
    medians = {}
    for name, own in times.items():
        medians[f"{name}_us"] = 1e6 * statistics.median(own) / bench.n_messages
    ratio = statistics.median(a / b for a, b in zip(times["singly"], times["ahead"], strict=True))
    return {
        "bench": "control",
        "dispatch_size": size,
        "messages": bench.n_messages,
        **medians,
        "ratio": ratio,
    }


class Bench:
    """One dispatch size: a scheduler that is kept from pass to pass.

    Args:
      options: Messages in a pass.
      size: Messages in a dispatch, and sequences in flight.
    """

    def __init__(self, options: ControlOptions, size: int):
        graph = list_reduction_rnn(128)
        self._plan = make_plan(graph, assign(graph, 1))
        each = (
            2 * MAX_LENGTH + 3
        )  # of a sequence: its steps and the feed of its first state, forth and back; the loss
        n = max(size, options.messages // each // size * size)
        data = generate(20 * n + 200)
        full = np.flatnonzero(data.lengths == MAX_LENGTH)[:n]
        self._data = Subset(Sequences(data, 128), full)
        intervals = dict.fromkeys(graph.parameterised, 100)
        limits: dict[str, Any] = {
            "max_active_keys": size,
            "max_dispatch_size": size,
            "capacity": 4096,
            "history": 1,
        }
        settings = SchedulerSettings(intervals=intervals, policy=largest, **limits)
        self._scheduler = Scheduler(self._plan, settings)
        self._unfolder = Unfolder(self._plan)
        self._ids = np.arange(len(self._data))
        self._scheduler.admission.foresee(
            self._ids,
            self._data.gather(self._ids),
        )
        self.n_messages = 0

    def singly(self) -> None:
        """A pass, a dispatch at a time."""

        def step() -> None:
            dispatch = self._scheduler.next(0)
            if dispatch is not None:
                self._scheduler.done(dispatch)

        self._pass(step)

    def ahead(self) -> None:
        """The same, as many dispatches at a time as the asyncio driver decides before they are issued (decision 16)."""
        self._pass(lambda: self._scheduler.ahead(0, AHEAD[0]))

    def _pass(self, step: Callable[[], object]) -> None:
        s = self._scheduler
        left = self._ids
        s.counts.reset()
        while len(left) or not s.idle:
            s.admission.take_ended()
            n = min(s.admission.room(), len(left))
            if n:
                handles = s.open(left[:n])
                s.pump(handles, self._data.gather(left[:n]))
                s.close(handles)
                left = left[n:]
            step()
        self.n_messages = s.counts.read().messages

    def unfolding(self) -> None:
        """The programs of all instances of a pass, 256 together."""
        for start in range(0, len(self._data), 256):
            self._unfolded(np.arange(start, min(start + 256, len(self._data))))

    def _unfolded(self, ids: np.ndarray) -> Any:
        return self._unfolder.end(self._unfolder.unfold([self._data.gather(ids)], ids))
