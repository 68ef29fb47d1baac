"""The results of the oracle: losses, gradients and messages of a synchronous run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.testing.message_states import StateDict


@dataclass(frozen=True)
class Reference:
    """The results of a synchronous run over some instances.

    Args:
      loss: The sum over all loss rows of all instances.
      metrics: By metric name, over all losses that have it: the mean over loss rows, or sum over count for pairs.
      grads: By node name, a pytree like its parameters: the gradient of `loss`. Empty without gradients.
      outputs: By sink name, `(state, payload)` of each message, instance by instance, in order of arrival.
      rows: By name of each parameterised node: its gradient rows (a ragged message counts its rows; dead rows count too).
      messages: By node name: how many messages arrived at it, on all ports together.
      mean_loss: The mean of `loss` over instances, as training and evaluation report it. None if the graph has no loss.
    """

    loss: float
    metrics: dict[str, float]
    grads: dict[str, Any]
    outputs: dict[str, list[tuple[StateDict, np.ndarray]]]
    rows: dict[str, int]
    messages: dict[str, int]
    mean_loss: float | None = None
