"""The provenance of a run: properties that must be the same in a replay, and properties that may explain why a replay differs."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ampjax.engine.executor_protocol import AnyStore
from ampjax.errors import ReplayError
from ampjax.plan.planner import Plan
from ampjax.plan.row_seeds import RowSeeds
from ampjax.sched.updates.counters import UpdateCounters
from ampjax.trace.journal import digest
from ampjax.train.settings import Settings

PACKAGES = ("jax", "jaxlib", "numpy", "ampjax")

FREE = ("policy", "run_ahead", "compile_ahead", "check")
"""Settings that a replay may choose: the choices of the policy are recorded, and the others change no decision."""

_HEADER = {
    "epochs": int,
    "graph": str,
    "settings": dict,
    "start": dict,
    "made with": dict,
    "made on": dict,
}
_KIND_NAMES = {int: "a number", str: "text", dict: "values by name"}
_FOREIGN = "Pass a file that `fit(..., record=...)` has written."


def provenance(
    plan: Plan,
    settings: Settings,
    store: AnyStore,
    updates: UpdateCounters,
    rng: np.random.Generator,
    seeds: RowSeeds,
) -> dict[str, Any]:
    """Describes a run that is about to start, for a recording's header.

    Args:
      plan: The plan.
      settings: The trainer's settings.
      store: Parameters, optimizer states and gradients.
      updates: How many gradient rows each node has accumulated, and the versions of parameters.
      rng: Draws the order of instances.
      seeds: Where the random numbers of bodies come from.

    Returns:
      Values by name, which JSON can hold: digests of the graph and of what the run starts from, settings, versions and machine.
    """
    states = {}
    for node, waiting in store.tables.items():
        states[node] = waiting.table.opt_state
    pending = {}
    for node, waiting in store.tables.items():
        pending[node] = waiting.join_all()
    return {
        **identity(plan, settings),
        "start": {
            "parameters": digest(store.all_params).hex(),
            "optimizer states": digest({**store.opt_state, **states}).hex(),
            "gradients": digest(
                ({**store.accumulators, **pending}, updates.counts, updates.versions)
            ).hex(),
            "random numbers": _hex(repr((rng.bit_generator.state, seeds)).encode()),
        },
        "made with": {
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "made on": {
            "machine": platform.machine(),
            "devices": sorted({d.device_kind for d in jax.devices()}),
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        },
    }


def identity(plan: Plan, settings: Settings) -> dict[str, Any]:
    """Describes the subject and the settings of a training, independent of its progress.

    Args:
      plan: The plan.
      settings: The trainer's settings.

    Returns:
      Values by name, which JSON can hold: a digest of the graph and its plan, and the settings.
    """
    placed = settings.affinity
    if callable(placed) or (
        isinstance(placed, Mapping) and any(isinstance(wish, str) for wish in placed.values())
    ):
        placed = dict(plan.worker_of)  # so that a replay may have other hosts
    named = {
        "affinity": placed,
        "policy": getattr(settings.policy, "__name__", str(settings.policy)),
        "max_dispatch_size": settings.dispatch_limit,
    }
    return {
        "graph": _hex(f"{plan.graph!r}\n{plan!r}\n{plan.spaces}".encode()),
        "settings": {**vars(settings), **named},
    }


def find_change(
    was: Mapping[str, Any],
    now: Mapping[str, Any],
    free: Sequence[str],
) -> tuple[str, Any, Any] | None:
    """Finds the first thing that differs.

    Args:
      was: Parts of what `provenance` gave, and perhaps more, as JSON keeps them.
      now: The same parts, now.
      free: Settings that may differ.

    Returns:
      Its name, what it was and what it is; None if nothing differs.
    """
    for part in now:
        for name, before, after in _pairs(was.get(part), now[part]):
            if before != after and name not in free:
                return f"{part}{name and f', {name}'}", before, after
    return None


def settings_of(path: Path, header: Mapping[str, Any]) -> Settings:
    """Reads the settings of a recorded run from its header.

    A policy that the user wrote is not recorded, and not needed for a replay.

    Args:
      path: The recording, for errors.
      header: Its header.

    Raises:
      ReplayError: If the header has no settings of a trainer.
    """
    require_whole(path, header)
    recorded: dict[str, Any] = {}
    for k, v in header["settings"].items():
        if k not in FREE:
            recorded[k] = tuple(v) if isinstance(v, list) else v
    try:
        return Settings(**recorded)
    except (TypeError, ValueError) as error:
        raise ReplayError(
            f"recording `{path}`, settings", "those of a trainer", f"{error}", _FOREIGN
        ) from error


def require_whole(path: Path, header: Mapping[str, Any]) -> None:
    """Checks that a recording's header has all that a replay needs.

    Args:
      path: The recording, for errors.
      header: Its header.

    Raises:
      ReplayError: If something is missing, or is something else.
    """
    for name, kind in _HEADER.items():
        value = header.get(name)
        if type(value) is not kind:
            raise ReplayError(
                f"recording `{path}`, {name}", _KIND_NAMES[kind], f"{value!r:.60}", _FOREIGN
            )


def require_same(
    path: Path,
    recorded: Mapping[str, Any],
    now: Mapping[str, Any],
) -> None:
    """Checks that a run is about to start as the recorded one did.

    Args:
      path: The recording.
      recorded: Its header.
      now: The same of the run that is about to start.

    Raises:
      ReplayError: If graph, settings, or what the run starts from differ, or the header is not whole; names the first.
    """
    require_whole(path, recorded)
    fixes = {
        "graph": "Build the graph, and place it on workers and devices, as it was.",
        "settings": "Give the trainer the settings of the recorded run.",
        "start": "Start from a trainer like the recorded one: the same seed, `params` and `tx`, and as many runs before.",
    }
    for part, fix in fixes.items():
        difference = find_change(recorded, {part: now[part]}, FREE)
        if difference is not None:
            name, was, is_ = difference
            raise ReplayError(f"recording `{path}`, {name}", f"{was!r}", f"{is_!r}", fix)


def differences(
    recorded: Mapping[str, Any],
    now: Mapping[str, Any],
) -> str:
    """Names the differences in versions and machine, in a sentence.

    Args:
      recorded: A recording's header.
      now: The same of the run that is about to start.

    Returns:
      The sentence, with a space before it; empty if nothing differs.
    """
    changes = []
    for part in ("made with", "made on"):
        for name, was, is_ in _pairs(recorded[part], now[part]):
            if was != is_:
                changes.append(f"{name} {was} and now {is_}")
    return f" It was recorded with {', '.join(changes)}." if changes else ""


def _pairs(
    recorded: Any,
    now: Any,
) -> list[tuple[str, Any, Any]]:
    """Lists names and values, side by side, in JSON's types."""
    if not isinstance(recorded, Mapping):
        return [("", recorded, now)]
    names = dict.fromkeys([*recorded, *now])
    result = []
    for name in names:
        result.append((name, recorded.get(name), _plain(now.get(name))))
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # imported from a folder
        return "not installed"


def _hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
