"""What becomes of the weight gradients of a dispatch: they are accumulated for an update to come, or make theirs at once.

A kernel calls it with the stage's parameters, what it keeps of each node (donated), and the sums of the gradient rows. Where a dispatch brings all the rows of
an update, and nothing had been accumulated before, the update is part of the kernel: the accumulators, which are zero and stay so, are neither written nor read,
which is four passes over the parameters less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from ampjax.optim.node_update import false_after, make_update


@dataclass(frozen=True)
class Accumulating:
    """Adds the gradients to accumulators."""

    donated: ClassVar[tuple[int, ...]] = ()
    goes_on: ClassVar[bool] = True  # the next dispatch of a streak can take over what is made

    def __call__(self, params: Any, accumulators: Any, grads: Any, told: None, read: Any) -> tuple[Any, ...]:
        """The accumulators, a tree for each node; `told` is nothing."""
        return accumulate(accumulators, grads)


@dataclass(frozen=True)
class Updating:
    """Makes the updates of all nodes of the stage.

    Args:
      rules: Each node's optax transform, and `mean` or `sum` over gradient rows.
    """

    rules: tuple[tuple[Any, str], ...]
    donated: ClassVar[tuple[int, ...]] = (0,)  # a kernel's first argument: the parameters
    goes_on: ClassVar[bool] = False

    def __call__(self, params: Any, opt_states: Any, grads: Any, told: Array, read: Any) -> tuple[tuple[Any, Any], ...]:
        """Parameters and optimizer state of each node; `told` is `[nodes, 2]`: the gradient rows of each, and their mean staleness.

        `read` are values for which old parameters are needed: these are known to be read when new ones are written, so they need not be copied.
        """
        keep = false_after(told[0, 0] < 0, *read)
        made = []
        for (tx, gradient), old, state, grad, (count, staleness) in zip(
            self.rules, params, opt_states, grads, told, strict=True
        ):
            new, opt_state, _ = make_update(tx, gradient)(old, state, grad, count, staleness=staleness)
            made.append((jax.tree.map(lambda o, n: n if n is o else jnp.where(keep, o, n), old, new), opt_state))
        return tuple(made)


Learning = Accumulating | Updating

ACCUMULATING = Accumulating()


def accumulate(accumulators: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """The accumulators with weight gradients added."""
    return jax.tree.map(lambda a, g: a + g.astype(a.dtype), accumulators, grads)
