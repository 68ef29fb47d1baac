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


class BatchLosses:
    """The sums of training and of inference (`engine.executor_protocol.AnyLosses`)."""

    def __init__(self) -> None:
        self._sums: dict[bool, Sums] = {}

    def add(self, train: bool, sums: Sums) -> None:
        """Adds the sums of a batch.

        Args:
          train: Whether it was trained on.
          sums: Its sums.
        """
        before = self._sums.get(train)
        self._sums[train] = sums if before is None else _add(before, sums)

    def add_rounds(self, train: bool, sums: Sums, n: int) -> None:
        """Adds the sums of several batches, in their order, with the rounding of one `add` after the other.

        Args:
          train: Whether they were trained on.
          sums: Their sums, `[batches, 2]` each.
          n: How many count: the first ones.
        """
        before = self._sums.get(train)
        self._sums[train] = _add_rounds(
            before,
            sums,
            np.int32(n),
        )

    def clear(self) -> None:
        """Forgets all sums."""
        self._sums.clear()

    def take(self, train: bool) -> list[LossSums]:
        """Returns the sums since the last call. Waits for the device.

        Args:
          train: In training, or in inference.
        """
        sums = self._sums.pop(train, None)
        if sums is None:
            return []
        names = [name for name in sums if name != LOSS]
        lines = [np.asarray(sums[name], np.float64) for name in (LOSS, *names)]
        return [LossSums(names, np.concatenate(lines))]

    def state(self) -> list[list[Any]]:
        """Gives the sums that nobody has taken, in a form for JSON. Waits for the device."""
        result = []
        for train, sums in self._sums.items():
            for name, pair in sums.items():
                held = np.asarray(pair)
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
        self._sums = {**by_purpose}


@jax.jit
def _add(one: Sums, other: Sums) -> Sums:
    return jax.tree.map(jnp.add, one, other)


@jax.jit
def _add_rounds(before: Sums | None, sums: Sums, n: Any) -> Sums:
    if before is None:
        before = jax.tree.map(
            lambda pairs: jnp.zeros_like(pairs[0]),
            sums,
        )

    def add_round(i: Any, total: Sums) -> Sums:
        return jax.tree.map(
            lambda pair, pairs: pair + pairs[i],
            total,
            sums,
        )

    return jax.lax.fori_loop(
        0,
        n,
        add_round,
        before,
    )
