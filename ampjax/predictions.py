"""What arrives at a sink, put in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.ir.graph import Node
from ampjax.ir.state import INSTANCE
from ampjax.sched.plan import Plan


@dataclass(frozen=True)
class Predictions:
    """The messages that arrived at a sink, sorted by instance and state.

    Args:
      payload: `[m, *shape]`, a row per message; for a ragged wire a list of `[n, *shape]`.
      instance: `[m]`, the position of each message's instance in the data.
      fields: The state fields, each `[m]`.
    """

    payload: Any
    instance: np.ndarray
    fields: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.instance)

    def __repr__(self) -> str:
        return f"Predictions({len(self)} messages of {len(np.unique(self.instance))} instances, fields {list(self.fields)})"


def gather_predictions(
    plan: Plan, outputs: Sequence[tuple[str, np.ndarray, Any, Any]], sinks: Mapping[str, Node]
) -> dict[str, Predictions]:
    """Sorts what sinks have received.

    Args:
      plan: The plan.
      outputs: For each dispatch: the sink's name, states, rows (padded), and the dispatch.
      sinks: The sinks by name; of copies of a sink any one.
    """
    return {name: _one(plan, [o for o in outputs if o[0] == name], node) for name, node in sinks.items()}


def _one(plan: Plan, outputs: Sequence[tuple[str, np.ndarray, Any, Any]], sink: Node) -> Predictions:
    wire = sink.inputs[0]
    assert wire is not None and wire.type is not None
    empty = np.zeros((0, plan.layout.width), np.int64)
    states = np.concatenate([empty, *(o[1] for o in outputs)])
    order = np.lexsort([*(states[:, plan.layout.column(f)] for f in reversed(wire.type.fields)), states[:, INSTANCE]])
    rows = [np.asarray(o[2])[: o[3].n_rows] for o in outputs]
    flat = np.concatenate([np.zeros((0, *wire.type.shape), wire.type.dtype), *rows])
    if wire.type.ragged:
        sizes = np.concatenate([np.zeros(0, np.int64), *(o[3].sizes for o in outputs)])
        parts = np.split(flat, np.cumsum(sizes)[:-1]) if len(sizes) else []
        payload: Any = [parts[i] for i in order]
    else:
        payload = flat[order]
    states = states[order]
    return Predictions(payload, states[:, INSTANCE], {f: states[:, plan.layout.column(f)] for f in wire.type.fields})
