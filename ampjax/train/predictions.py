"""Predictions: the messages that arrive at sinks, sorted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.drivers.issue_queue import Arrival
from ampjax.ir.nodes import Node
from ampjax.ir.state import INSTANCE
from ampjax.plan.planner import Plan

Outputs = Sequence[Arrival]
"""The messages that have arrived at sinks, dispatch by dispatch."""


@dataclass(frozen=True)
class Predictions:
    """The messages that arrived at a sink, sorted by instance and state.

    Args:
      payload: `[m, *shape]`, a row per message; for a ragged wire a list of `[n, *shape]`.
      instance: `[m]`, the position of each message's instance in the data.
      fields: The state fields, each `[m]`; none in batch mode.
    """

    payload: Any
    instance: np.ndarray
    fields: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.instance)

    def __repr__(self) -> str:
        return f"Predictions({len(self)} messages of {len(np.unique(self.instance))} instances, fields {list(self.fields)})"


def gather_predictions(
    plan: Plan, outputs: Outputs, sinks: Mapping[str, Node]
) -> dict[str, Predictions]:
    """Sorts the messages that sinks have received.

    Args:
      plan: The plan.
      outputs: What has arrived.
      sinks: The sinks by name; of copies of a sink any one.

    Returns:
      By the sink's name, its messages in the order of instances and states.
    """
    by_sink: dict[str, list[Arrival]] = {name: [] for name in sinks}
    for arrival in outputs:
        by_sink[plan.stages[arrival.stage].nodes[-1].role].append(arrival)
    result = {}
    for name, node in sinks.items():
        result[name] = _one(plan, by_sink[name], node)
    return result


def _one(plan: Plan, outputs: Outputs, sink: Node) -> Predictions:
    wire = sink.inputs[0]
    assert wire is not None and wire.type is not None
    empty = np.zeros((0, plan.layout.width), np.int64)
    states = np.concatenate([empty, *(arrival.states for arrival in outputs)])
    order = np.lexsort(
        [
            *(states[:, plan.layout.column(f)] for f in reversed(wire.type.fields)),
            states[:, INSTANCE],
        ]
    )
    rows = [np.asarray(arrival.rows)[: arrival.n_rows] for arrival in outputs]
    flat = np.concatenate(
        [
            np.zeros(
                (0, *wire.type.shape),
                wire.type.dtype,
            ),
            *rows,
        ]
    )
    if wire.type.ragged:
        sizes = np.concatenate(
            [
                np.zeros(0, np.int64),
                *(a.sizes for a in outputs if a.sizes is not None),
            ]
        )
        if len(sizes):
            parts = np.split(flat, np.cumsum(sizes)[:-1])
        else:
            parts = []
        payload: Any = [parts[i] for i in order]
    else:
        payload = flat[order]
    states = states[order]
    return Predictions(
        payload,
        states[:, INSTANCE],
        {f: states[:, plan.layout.column(f)] for f in wire.type.fields},
    )
