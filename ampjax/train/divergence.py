"""A training loss or parameters that are not finite: a warning with the lost nodes and the possible origins of the values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

from ampjax.drivers.controller import LoopInstances, batches_of
from ampjax.train.training_data import AnyInstances

SHOWN = 6
"""How many nodes a warning names, at most."""

SEARCHED_TOGETHER = 256
"""How many instances are searched for such values at a time."""


def warn_of(
    loss: float,
    where: str,
    lost: Sequence[str],
    data: AnyInstances,
    stops: bool,
) -> bool:
    """Warns if a training loss is not finite, or parameters are not.

    The warning names the nodes whose parameters are lost, and the first instance that pumps a value that is not finite.

    Args:
      loss: The epoch's mean loss.
      where: What the warning calls the epoch.
      lost: The nodes of whose parameters some are not finite.
      data: What was trained on.
      stops: Whether training ends if parameters are lost.

    Returns:
      Whether it has warned.
    """
    if math.isfinite(loss) and not lost:
        return False
    names = [f"`{node}`" for node in lost]
    named = ", ".join(names[:SHOWN]) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )
    nodes = f"parameters of {named} are not finite any more" if lost else ""
    text = f"expected a finite training loss, got {loss}{'; ' if nodes else ''}{nodes}"
    if math.isfinite(loss):
        text = f"expected finite parameters, got others: {nodes} (the training loss is {loss})"
    bad = None if isinstance(data, LoopInstances) else _first_bad(data)
    cause = (
        "" if bad is None else f" Instance {bad[0]} pumps a value that is not finite to `{bad[1]}`."
    )
    ends = " Training ends here, since nothing that follows would be a number; `fit(..., stop_on_nan=False)` goes on."
    warnings.warn(
        f"{where}: {text}.{ends if lost and stops else ''}{cause} Look at payloads and labels, and for a maximum of nothing; lower the learning rate, or let the "
        "optimizer leave such gradients out (`optax.apply_if_finite`); begin again from earlier parameters, or from what `trainer.save` wrote.",
        RuntimeWarning,
        stacklevel=2,
    )
    return True


def _first_bad(data: AnyInstances) -> tuple[int, str] | None:
    """The first instance with a payload that holds a value that is not finite, and the payload's pump."""
    for start in range(0, len(data), SEARCHED_TOGETHER):
        ids = np.arange(start, min(start + SEARCHED_TOGETHER, len(data)))
        for batch in batches_of(data, ids):
            for pump, messages in batch.items():
                payload = np.asarray(messages.payload)
                if not len(payload) or not np.issubdtype(payload.dtype, np.inexact):
                    continue
                bad = np.flatnonzero(
                    ~np.isfinite(payload)
                    .reshape(
                        len(payload),
                        -1,
                    )
                    .all(axis=1)
                )
                if len(bad):
                    if messages.sizes is not None:
                        sizes = messages.sizes
                    else:
                        sizes = np.ones(len(messages.instance), int)
                    return int(ids[np.repeat(messages.instance, sizes)[bad[0]]]), pump
    return None
