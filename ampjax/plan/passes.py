"""A pass over the data: the part of the graph that is run, its purpose, and the changes that the pass may make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ampjax.ir.ways_to_sinks import nodes_before_sinks
from ampjax.plan.planner import Plan
from ampjax.plan.row_seeds import RowSeeds

PURPOSES = "train", "losses", "sinks", "both"
"""Training; inference for losses, for what sinks see, or for both."""


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over some instances, training or inference.

    Args:
      data: Where the instances come from.
      ids: `[n]`: which of them, in order.
      purpose: One of `PURPOSES`.
      may_update: False keeps all parameters as they are in training; gradients are accumulated all the same.
      seeds: Where random bodies' numbers come from in training.
    """

    data: Any
    ids: np.ndarray
    purpose: str = "train"
    may_update: bool = True
    seeds: RowSeeds = field(default_factory=RowSeeds)

    @property
    def train(self) -> bool:
        """Whether the pass trains."""
        return self.purpose == "train"


def stages_left_out(plan: Plan, purpose: str) -> frozenset[int]:
    """The numbers of the stages that a pass does not reach.

    Args:
      plan: The plan.
      purpose: One of `PURPOSES`.

    Returns:
      The stages' numbers.
    """
    before = nodes_before_sinks(plan.graph) if purpose == "sinks" else set[str]()
    unwanted = {
        "train": lambda stage: not stage.trains,
        "losses": lambda stage: not stage.trains,
        "sinks": lambda stage: (
            stage.kind.starts_backward
            or (stage.nodes and before.isdisjoint(node.name for node in stage.nodes))
        ),
        "both": lambda stage: False,
    }[purpose]
    return frozenset(stage.number for stage in plan.stages if unwanted(stage))
