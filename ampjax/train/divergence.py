"""A training loss that is not finite: warns of it, with the nodes whose parameters are lost and where the values may have come from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.drivers.controller import LoopInstances, batches_of
from ampjax.optim.node_update import trainable
from ampjax.train.training_data import AnyInstances

SHOWN = 6
"""How many nodes a warning names, at most."""

SEARCHED_TOGETHER = 256
"""How many instances are searched for such values at a time."""


def warn_of(loss: float, where: str, params: Callable[[], Mapping[str, Any]], data: AnyInstances) -> bool:
    """Warns if a training loss is not finite.

    The warning names the nodes whose parameters are lost, and the first instance that pumps a value that is not finite.

    Args:
      loss: The epoch's mean loss.
      where: What the warning calls the epoch.
      params: Gives parameters by node name, as they are now: it is called only if the loss is not finite, as hosts must send them.
      data: What was trained on.

    Returns:
      Whether the loss is not finite.
    """
    if math.isfinite(loss):
        return False
    lost = [f"`{node}`" for node, tree in params().items() if not _finite(tree)]
    named = ", ".join(lost[:SHOWN]) + (f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else "")
    nodes = f"; parameters of {named} are not finite any more" if lost else ""
    bad = None if isinstance(data, LoopInstances) else _first_bad(data)
    cause = "" if bad is None else f" Instance {bad[0]} pumps a value that is not finite to `{bad[1]}`."
    warnings.warn(
        f"{where}: expected a finite training loss, got {loss}{nodes}.{cause} Look at payloads and labels, and for a maximum of nothing; lower the learning rate, or let the "
        "optimizer leave such gradients out (`optax.apply_if_finite`); begin again from earlier parameters, or from what `trainer.save` wrote.",
        RuntimeWarning,
        stacklevel=2,
    )
    return True


def _finite(tree: Any) -> bool:
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(trainable(tree)))


def _first_bad(data: AnyInstances) -> tuple[int, str] | None:
    """The first instance with a payload that holds a value that is not finite, and the payload's pump."""
    for start in range(0, len(data), SEARCHED_TOGETHER):
        ids = np.arange(start, min(start + SEARCHED_TOGETHER, len(data)))
        for batch in batches_of(data, ids):
            for pump, messages in batch.items():
                payload = np.asarray(messages.payload)
                if not len(payload) or not np.issubdtype(payload.dtype, np.inexact):
                    continue
                bad = np.flatnonzero(~np.isfinite(payload).reshape(len(payload), -1).all(axis=1))
                if len(bad):
                    sizes = messages.sizes if messages.sizes is not None else np.ones(len(messages.instance), int)
                    return int(ids[np.repeat(messages.instance, sizes)[bad[0]]]), pump
    return None
