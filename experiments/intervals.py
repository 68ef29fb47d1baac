"""How often nodes update: intervals in gradient rows, and learning-rate schedules, from what the real scheduler does with a sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import optax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.ir.instances import Instances
from ampjax.sched.diagnose.statistics import NodeStats
from ampjax.simulation.simulate import simulate
from experiments.common import Options, sample


def updates_per_instance(
    graph: ag.Graph, data: Instances, settings: amp.Settings
) -> dict[str, float]:
    """How often each node will update per training instance: the real scheduler tells, on a sample, without numerics.

    A dispatch that holds more gradient rows than `min_update_interval` gives one update, so the number depends on the schedule. Learning-rate
    schedules count a node's own updates; with this number they can be laid out over a whole run. In batch mode every node updates after each
    batch.

    Args:
      graph: The graph.
      data: Training instances.
      settings: The settings of the run.
    """
    if settings.mode == "batch":
        return dict.fromkeys(graph.parameterised, 1 / settings.max_active_keys)
    n, nodes = _without_numerics(graph, data, settings)
    return {name: stats.updates / n for name, stats in nodes.items()}


def rows_per_instance(graph: ag.Graph, data: Instances, settings: amp.Settings) -> dict[str, float]:
    """How many gradient rows each node gets per training instance, found as in `updates_per_instance`.

    Where nodes see very different numbers of rows, an interval in rows of its own for each lets all of them update about equally often.
    """
    n, nodes = _without_numerics(graph, data, settings)
    return {name: stats.gradients / n for name, stats in nodes.items()}


def update_together(
    graph: ag.Graph,
    data: Instances,
    settings: amp.Settings,
    options: Options,
    batch: int,
    shown: str,
) -> amp.Settings:
    """Lets every node wait for the gradient rows that `batch` instances bring on average, unless the user has chosen an interval for all.

    In batch mode nothing waits: every node updates after each batch, whose examples are `max_active_keys`.

    Args:
      graph: The graph; its nodes' intervals are set.
      data: Training instances.
      settings: The settings of the run.
      options: The experiment's options.
      batch: Instances.
      shown: The node whose interval stands for all in the settings.

    Returns:
      The settings with that node's interval.
    """
    if options.min_update_interval is not None or settings.mode == "batch":
        return settings
    of_nodes = intervals(rows_per_instance(graph, data, settings), batch)
    set_options(graph, lambda node: {"min_update_interval": of_nodes[node]})
    any_copy = next(name for name, node in graph.parameterised.items() if node.role == shown)
    return replace(settings, min_update_interval=of_nodes[any_copy])


def intervals(
    rows: Mapping[str, float],
    batch: int,
) -> dict[str, int]:
    """Each node's interval: the rows that `batch` instances bring; replicas wait for as many as one node alone would.

    A node that got no row at all is taken to get one from each instance: it is behind a choice by computed values, which nobody knows without numerics.

    Args:
      rows: By node, the gradient rows of an instance.
      batch: Instances.
    """
    totals: dict[str, float] = {}
    for node, count in rows.items():
        totals[node.split("/")[0]] = totals.get(node.split("/")[0], 0.0) + count
    result = {}
    for node in rows:
        result[node] = max(
            1,
            round(batch * (totals[node.split("/")[0]] or 1.0)),
        )
    return result


def _without_numerics(
    graph: ag.Graph, data: Instances, settings: amp.Settings
) -> tuple[int, Mapping[str, NodeStats]]:
    copies = max(Counter(node.role for node in graph.parameterised.values()).values())
    n = min(
        len(data),
        copies * max(128, 4 * settings.max_active_keys),
    )
    return n, simulate(graph, sample(data, n, settings.seed), **vars(settings)).stats.nodes


def cosine(peak: float, updates: float) -> optax.Schedule:
    """Cosine decay from `peak` to 0 over the given number of updates."""
    return optax.cosine_decay_schedule(peak, max(1, round(updates)))


def set_options(
    graph: ag.Graph,
    options: Callable[[str], Mapping[str, Any]],
) -> ag.Graph:
    """Sets options of a graph's parameterised nodes, whoever built it.

    Args:
      graph: The graph.
      options: From a node's name to options of `amp.graphs.ppt`, for example `{"tx": optax.sgd(0.1)}`.

    Returns:
      The graph itself.
    """
    for name, node in graph.parameterised.items():
        node.options = replace(node.options, **options(name))
    return graph
