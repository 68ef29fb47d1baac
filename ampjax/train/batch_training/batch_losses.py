"""Sums of losses and metrics over batches, on the device until a caller asks for the sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.engine.memory.loss_metrics import LossSums

Sums = Mapping[str, Any]
"""By metric a sum and a count, `[2]`; under `LOSS` the number of examples and their summed loss."""

LOSS = "loss"
"""No metric is called so."""

TOGETHER = 8
"""How many batches' sums are added by one call: a call takes a tenth of the time of a small step."""


class BatchLosses:
    """The sums of training and of inference (`engine.executor_protocol.AnyLosses`)."""

    def __init__(self) -> None:
        self._sums: dict[bool, list[Sums]] = {}

    def add(self, train: bool, sums: Sums) -> None:
        """Adds the sums of a batch.

        Args:
          train: Whether it was trained on.
          sums: Its sums.
        """
        waiting = self._sums.setdefault(train, [])
        waiting.append(sums)
        if len(waiting) > TOGETHER:
            self._sums[train] = [_add_sums(waiting)]

    def clear(self) -> None:
        """Forgets all sums."""
        self._sums.clear()

    def take(self, train: bool) -> list[LossSums]:
        """Returns the sums since the last call. Waits for the device.

        Args:
          train: In training, or in inference.
        """
        waiting = self._sums.pop(train, None)
        if waiting is None:
            return []
        sums = _added_on_host(waiting)
        names = [name for name in sums if name != LOSS]
        lines = [np.asarray(sums[name], np.float64) for name in (LOSS, *names)]
        return [LossSums(names, np.concatenate(lines))]

    def state(self) -> list[list[Any]]:
        """Gives the sums that nobody has taken, in a form for JSON. Waits for the device."""
        result = []
        for train, waiting in self._sums.items():
            for name, held in _added_on_host(waiting).items():
                result.append(
                    [
                        train,
                        name,
                        str(held.dtype),
                        held.tobytes().hex(),
                    ]
                )
        return result

    def resume(self, state: Sequence[Sequence[Any]]) -> None:
        """Goes on adding up from another's `state`.

        Args:
          state: What `state` gave.
        """
        by_purpose: dict[bool, dict[str, Any]] = {}
        for train, name, dtype, data in state:
            pair = np.frombuffer(
                bytes.fromhex(data),
                dtype,
            )
            by_purpose.setdefault(train, {})[name] = jnp.asarray(pair)
        self._sums = {train: [sums] for train, sums in by_purpose.items()}


@jax.jit
def _add_sums(sums: Sequence[Sums]) -> Sums:
    """Adds sums one after the other, with the same rounding for any number of sums in a call."""
    total, *others = sums
    for other in others:
        total = jax.tree.map(jnp.add, total, other)
    return total


def _added_on_host(sums: Sequence[Sums]) -> dict[str, np.ndarray]:
    """Adds the same numbers as `_add_sums` in the same order, without a program for each number of batches."""
    first, *others = jax.device_get(sums)
    total = dict(first)
    for other in others:
        for name, pair in other.items():
            total[name] = total[name] + pair
    return total
