"""Which stages a pass over the data leaves out."""

from __future__ import annotations

from ampjax.sched.plan import Plan

PURPOSES = "train", "losses", "sinks", "both"
"""Training; inference for losses, for what sinks see, or for both."""


def left_out(plan: Plan, purpose: str) -> frozenset[int]:
    """The numbers of the stages that a pass does not reach.

    Args:
      plan: The plan.
      purpose: One of `PURPOSES`.
    """
    unwanted = {
        "train": lambda stage: not stage.trains,
        "losses": lambda stage: not stage.trains,
        "sinks": lambda stage: stage.kind == "loss",
        "both": lambda stage: False,
    }[purpose]
    return frozenset(stage.number for stage in plan.stages if unwanted(stage))
