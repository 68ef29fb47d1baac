"""Losses that are numbers no longer: says so once, with what was lost and where it may have come from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.drivers.controller import LoopInstances, batches_of
from ampjax.optim.node_update import trainable
from ampjax.train.training_data import AnyInstances

SHOWN = 6
"""Nodes that a warning names, at most."""

AT_ONCE = 256
"""Instances that are looked at at once."""


def warn_of(loss: float, where: str, params: Mapping[str, Any], data: AnyInstances) -> bool:
    """Warns if a training loss is not finite; says whether it was so.

    Args:
      loss: The epoch's mean loss.
      where: What the warning calls the epoch.
      params: Parameters by node name, as they are now.
      data: What was trained on.
    """
    if math.isfinite(loss):
        return False
    lost = [f"`{node}`" for node, tree in params.items() if not _finite(tree)]
    named = ", ".join(lost[:SHOWN]) + (f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else "")
    told = f"; parameters of {named} are not finite any more" if lost else ""
    found = None if isinstance(data, LoopInstances) else _first_bad(data)
    cause = "" if found is None else f" Instance {found[0]} pumps a value that is not finite to `{found[1]}`."
    warnings.warn(
        f"{where}: expected a finite training loss, got {loss}{told}.{cause} Look at payloads and labels, lower the learning rate, or let the "
        "optimizer leave such gradients out (`optax.apply_if_finite`); begin again from earlier parameters, or from what `trainer.save` wrote.",
        RuntimeWarning,
        stacklevel=2,
    )
    return True


def _finite(tree: Any) -> bool:
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(trainable(tree)))


def _first_bad(data: AnyInstances) -> tuple[int, str] | None:
    """The first instance one of whose payloads holds a value that is not finite, and the pump."""
    for start in range(0, len(data), AT_ONCE):
        ids = np.arange(start, min(start + AT_ONCE, len(data)))
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
