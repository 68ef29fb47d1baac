"""The choices: values for some settings, and for arguments of the function that builds the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import jax
import numpy as np

from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Instances, Subset
from ampjax.simulation.simulate import simulate
from ampjax.train.settings import Settings, require_messages, settings_from
from ampjax.tuning.candidate import Candidate
from ampjax.utils.setting_checks import spelling

GraphOrBuilder = Graph | Callable[..., Graph]
Space = Mapping[str, Sequence[Any]]

IN_FLIGHT = (1, 4, 16, 64)
"""Instances in flight; also, with `min_update_interval`, the instances for which there is an update."""
DISPATCH_SIZES = (8, 64, 512)
SEARCHED_POLICIES = ("balanced", "backward_first", "wavefront")
"""The policies that are tried, if the user does not say which; `sched.decisions.policy` has more."""
SEARCHED_MODES = ("async", "pipeline")
"""The modes that are tried."""
STALE = frozenset({"max_staleness", "drop_staler_than", "exact_staleness", "weights"})
"""Settings that mean something in asynchronous mode alone, as only there gradients are late."""
COUNTED = 64
"""Instances whose gradient rows are counted, to choose intervals."""


def check_space(
    graph: GraphOrBuilder,
    space: Space,
    options: Mapping[str, Any],
) -> None:
    """Checks the user's choice of settings to vary, and of settings to keep.

    Args:
      graph: A graph, or a function that builds one.
      space: Values by name.
      options: Settings that do not vary.

    Raises:
      SettingsError: If there are no values for a name, a name is varied and fixed, or it is no setting and there is no builder; or a
        fixed setting is outside what it can be.
    """
    settings_from(options)
    for name, values in space.items():
        if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not len(values):
            fix = "Leave the name out for the usual values."
            raise SettingsError(
                f"tune, `space`, `{name}`", "a list of values to choose from", f"{values!r}", fix
            )
        if name in options:
            raise SettingsError(
                f"tune, `{name}`", "values in `space`, or one setting", "both", "Leave one out."
            )
        if name not in Settings.__dataclass_fields__ and isinstance(graph, Graph):
            known = sorted(Settings.__dataclass_fields__)
            fix = "For an argument of the model, pass a function that builds the graph from it."
            where = f"tune, `space`, `{name}`"
            raise SettingsError(
                where,
                f"one of the settings {known}",
                "an unknown name",
                f"{spelling(name, known)} {fix}",
            )


def full_space(
    graph: Graph, train: Instances, space: Space, options: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Completes the user's space with usual values for settings that the user does not name.

    Those are `mode` (asynchronous, and pipeline unless a setting concerns staleness), `max_active_keys`, `min_update_interval` (an update for
    1, 4, ... instances at a node with the median number of gradient rows; only if there is a node without an interval of its own),
    `max_dispatch_size`, `policy`, `min_admission`, and `workers` up to as many as there are devices.

    Args:
      graph: The graph; of a builder one of its graphs.
      train: Training instances.
      space: What the user has chosen to vary.
      options: Settings that do not vary.
    """
    usual: dict[str, Sequence[Any]] = {
        "max_active_keys": [n for n in IN_FLIGHT if n <= max(1, len(train) // 4)],
        "max_dispatch_size": DISPATCH_SIZES,
        "policy": SEARCHED_POLICIES,
        "min_admission": (1, 8),
        "workers": sorted({1, len(jax.devices())}),
    }
    if {"min_update_interval", "min_update_frequency"}.isdisjoint({*space, *options}):
        usual["min_update_interval"] = intervals(graph, train)
    if STALE.isdisjoint({*space, *options}):
        usual["mode"] = SEARCHED_MODES
    whole = {}
    for name, values in usual.items():
        if name not in options and values:
            whole[name] = list(values)
    return {
        **whole,
        **{name: list(values) for name, values in space.items()},
    }


def intervals(graph: Graph, train: Instances) -> list[int]:
    """Intervals in gradient rows, for an update after 1, 4, ... instances; none if each node has one of its own."""
    values = []
    for name, node in graph.parameterised.items():
        if not node.options.min_update_interval:
            values.append(name)
    if not values:
        return []
    some = Subset(
        train,
        np.arange(min(len(train), COUNTED)),
    )
    nodes = simulate(graph, some, min_update_interval=1 << 30).stats.nodes
    rows = float(np.median([nodes[name].gradients for name in values])) / len(some)
    return sorted({max(1, round(rows * n)) for n in IN_FLIGHT})


def candidates(
    space: Space,
    options: Mapping[str, Any],
) -> list[Candidate]:
    """Lists all choices, each once. A `min_admission` above `max_active_keys` is lowered to it; without asynchrony there is one `min_update_interval`.

    Args:
      space: Values by name.
      options: Settings that do not vary; they are part of each choice.

    Raises:
      SettingsError: If a value is outside what it can be.
    """
    candidates_by_key: dict[str, Candidate] = {}
    for values in product(*space.values()):
        chosen = dict(zip(space, values, strict=True))
        settings = {
            **options,
            **{name: v for name, v in chosen.items() if name in Settings.__dataclass_fields__},
        }
        knobs = {name: v for name, v in chosen.items() if name not in settings}
        if isinstance(settings.get("min_admission"), int):
            most = settings.get("max_active_keys", Settings.max_active_keys)
            if isinstance(most, int):  # else it is refused below
                settings["min_admission"] = min(settings["min_admission"], most)
        if settings.get("mode", "async") != "async" and "min_update_interval" in space:
            settings["min_update_interval"] = Settings.min_update_interval
        require_messages("tune", settings_from(settings))
        candidates_by_key.setdefault(
            repr(
                (
                    sorted(
                        settings.items(),
                        key=str,
                    ),
                    sorted(knobs.items(), key=str),
                )
            ),
            Candidate(settings, knobs),
        )
    return list(candidates_by_key.values())
