"""Gradient parity: the engine against the reference interpreter, under several schedules (DESIGN, law 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

from ampjax.ir.graph import Graph
from ampjax.params import initial_params
from ampjax.settings import Settings
from ampjax.testing.differences import Difference, compare, difference_table, wide
from ampjax.testing.reference import Reference, reference
from ampjax.train import Data, Trainer

SCHEDULES = (
    Settings(max_active_keys=1, max_dispatch_size=1, fuse=False, policy="backward_first"),
    Settings(max_active_keys=4, max_dispatch_size=64),
    Settings(max_active_keys=3, max_dispatch_size=2, workers=2, fuse=False, policy="largest"),
)
"""One message at a time as in the paper; coalesced and fused; two workers with small dispatches."""


@dataclass(frozen=True)
class Verification:
    """What `verify` found.

    Args:
      ok: Whether everything agrees within the tolerance.
      worst: The largest difference, max |difference| / max |reference| over leaves, losses and norms.
      report: A readable account, one part per schedule.
    """

    ok: bool
    worst: float
    report: str

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return self.report


def verify(
    graph: Graph,
    instances: Data,
    *,
    params: Mapping[str, Any] | None = None,
    schedules: Sequence[Settings] = SCHEDULES,
    tolerance: float = 1e-5,
    seed: int = 0,
) -> Verification:
    """Compares loss, every gradient and the gradient norm with `jax.grad` of the composed function, across schedules.

    Parameters are frozen, whatever schedules and nodes say of updates. Random bodies are compared without randomness only if they do nothing then.

    Args:
      graph: A closed graph with at least one loss.
      instances: A few instances.
      params: Parameters by node name; nodes that are left out are initialised from the seed.
      schedules: Settings to try.
      tolerance: Largest difference allowed: max |difference| / max |reference| per leaf.
      seed: Of the initial parameters.

    Returns:
      The verdict; it prints as a readable report and is true if all agree.
    """
    start = initial_params(graph, dict(params or {}), seed)
    wanted = reference(graph, start, instances)
    parts, worst = [], 0.0
    for settings in schedules:
        found = engine_gradients(graph, instances, start, settings)
        differences = differences_of(found, wanted)
        largest = max(d[2] for d in differences)
        worst = max(worst, largest)
        name = f"max_active_keys={settings.max_active_keys}, max_dispatch_size={settings.max_dispatch_size}, workers={settings.workers}, {settings.policy}"
        agrees = f": loss, gradient norm and {len(differences) - 2} gradients, at most {largest:.1e} apart"
        parts.append(name + (agrees if largest <= tolerance else f"\n{difference_table(differences, tolerance)}"))
    verdict = "agrees with" if worst <= tolerance else "differs from"
    head = f"The engine {verdict} jax.grad: largest difference {worst:.1e}, tolerance {tolerance:.0e}."
    return Verification(worst <= tolerance, worst, "\n".join([head, *parts]))


@dataclass(frozen=True)
class EngineRun:
    """Summed loss, summed gradients and gradient rows by node, as the engine found them."""

    loss: float
    grads: Mapping[str, Any]
    rows: Mapping[str, int]


def engine_gradients(graph: Graph, instances: Data, params: Mapping[str, Any], settings: Settings) -> EngineRun:
    """Runs instances forward and backward once with frozen parameters."""
    trainer = Trainer(graph, optax.sgd(0.0), params=params, settings=settings)
    metrics = trainer.accumulate(instances, update=False)
    found = trainer.gradients
    return EngineRun(
        metrics["loss_sum"], {n: g for n, (g, _) in found.items()}, {n: rows for n, (_, rows) in found.items()}
    )


def differences_of(found: EngineRun, wanted: Reference) -> list[Difference]:
    """Every difference between the engine and the reference: loss, gradient norm, each leaf."""
    extra = [
        ("loss", "", _relative(found.loss, wanted.loss)),
        ("gradient", "norm", _relative(_norm(found.grads), _norm(wanted.grads))),
    ]
    return [*extra, *compare(dict(found.grads), wanted.grads)]


def _norm(grads: Mapping[str, Any]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.square(np.abs(wide(leaf))))) for leaf in jax.tree.leaves(dict(grads)))))


def _relative(found: float, wanted: float) -> float:
    return abs(found - wanted) / abs(wanted) if wanted else abs(found)
