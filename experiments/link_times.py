"""Measures what it costs that launches and rows travel between processes of this machine, for simulations of several hosts.

A small perceptron is trained in this process and on two hosts: in two copies, whose launches travel and whose rows do not; and cut in two, with narrow
and with wide rows that cross. What processors spend more on hosts is what travelling costs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.ir.instances import InstanceList
from ampjax.simulation import LinkTimes
from experiments.bench.hosts import spent_s

NARROW = 16
WIDE = 1024
ROWS = 64
"""Floats of a row that crosses, and rows of a message."""


@dataclass(frozen=True)
class Spent:
    """Nanoseconds of processors for a dispatch: of this process, and of all hosts together; and dispatches an instance."""

    driver_ns: float
    hosts_ns: float
    dispatches: float


def measure_link_times(instances: int = 2000, passes: int = 3) -> LinkTimes:
    """Measures this machine; on Linux, which tells what processes spend.

    Args:
      instances: Instances of a pass.
      passes: Passes of each, in turn; the least that was spent counts.
    """
    tasks = {
        "copies": _task(NARROW, True, instances),
        "narrow": _task(NARROW, False, instances),
        "wide": _task(WIDE, False, instances),
    }
    here, there = (
        {name: _spent(task, on_hosts, passes) for name, task in tasks.items()}
        for on_hosts in (False, True)
    )
    compute = _compute_ns(tasks["copies"]) / here["copies"].dispatches
    driver = max(
        0.0,
        there["copies"].driver_ns - (here["copies"].driver_ns - compute),
    )
    host = max(0.0, there["copies"].hosts_ns - compute)
    crossings = {}
    for name in ("narrow", "wide"):
        crossings[name] = max(
            0.0,
            (_of_all(there[name]) - _of_all(here[name]) - driver - host)
            * there[name].dispatches
            / CROSSINGS,
        )
    n_bytes = {}
    for name, width in (("narrow", NARROW), ("wide", WIDE)):
        n_bytes[name] = 4 * ROWS * width
    byte = max(
        0.0,
        (crossings["wide"] - crossings["narrow"]) / (n_bytes["wide"] - n_bytes["narrow"]),
    )
    message = max(0.0, crossings["narrow"] - byte * n_bytes["narrow"])
    return LinkTimes(driver, host, message / 2, byte / 2)  # each crossing has two ends


CROSSINGS = 2
"""Of an instance through a perceptron that is cut in two: forth and back."""


@dataclass(frozen=True)
class _Task:
    graph: ag.Graph
    data: Any
    settings: Mapping[str, Any]


def _task(width: int, in_copies: bool, instances: int) -> _Task:
    def network(x: Any) -> None:
        h = ag.ppt("first", lambda p, x: jnp.tanh(x @ p), params=_weights(NARROW, width))(x)
        y = ag.ppt("second", lambda p, h: h @ p, params=_weights(width, NARROW))(h)
        ag.loss("square", lambda y: jnp.square(y).mean())(y)

    with ag.Graph() as graph:
        x = ag.pump("x", (ROWS, NARROW))
        if in_copies:
            ag.replicate(network, 2)(x)
        else:
            network(x)
    rows = np.random.default_rng(0).normal(size=(instances, ROWS, NARROW)).astype(np.float32)
    settings: dict[str, Any] = {
        "max_active_keys": 8,
        "max_dispatch_size": 1,
        "min_update_interval": 1 << 30,
        "workers": 2,
    }
    if not in_copies:
        settings["affinity"] = {"first": 0, "second": 1, "square": 1}
    return _Task(
        graph,
        InstanceList([{"x": row} for row in rows]),
        settings,
    )


def _weights(
    rows: int,
    columns: int,
) -> Callable[[jax.Array], jax.Array]:
    return lambda key: jax.random.normal(key, (rows, columns)) / rows**0.5


def _spent(task: _Task, on_hosts: bool, passes: int) -> Spent:
    if on_hosts:
        places: dict[str, Any] = {"hosts": 2}
    else:
        places = {"devices": jax.devices()[:1] * 2}
    trainer = amp.Trainer(
        task.graph,
        optax.sgd(1e-3),
        **places,
        **task.settings,
    )
    processes = [
        os.getpid(),
        *(host.process for host in trainer.hosts),
    ]
    trainer.fit(task.data, epochs=2, progress=False)
    found = []
    for _ in range(passes):
        before = [spent_s(process) for process in processes]
        (epoch,) = trainer.fit(task.data, epochs=1, progress=False).epochs
        spent = []
        for p, s in zip(processes, before, strict=True):
            spent.append(1e9 * (spent_s(p) - s) / epoch.dispatches)
        found.append(
            Spent(
                spent[0],
                sum(spent[1:]),
                epoch.dispatches / len(task.data),
            )
        )
    trainer.close()
    return min(found, key=_of_all)


def _of_all(spent: Spent) -> float:
    return spent.driver_ns + spent.hosts_ns


def _compute_ns(task: _Task) -> float:
    """What kernels, and the calls of them, take for an instance that goes through one of two equal copies."""
    times = amp.profile(
        task.graph,
        task.data,
        passes=1,
        tx=optax.sgd(1e-3),
        **task.settings,
    )
    parts = (times.issue, times.kernels)
    return sum(ns for part in parts for sizes in part.values() for ns in sizes.values()) / 2


def describe(link: LinkTimes) -> str:
    """The times, in words for the screen."""
    parts: Sequence[str] = (
        f"driver {link.launch_driver_ns / 1e3:.0f} us a launch",
        f"host {link.launch_host_ns / 1e3:.0f} us a launch",
        f"{link.message_ns / 1e3:.0f} us and {link.byte_ns:.2f} ns a byte at each end of a message",
    )
    return "; ".join(parts)
