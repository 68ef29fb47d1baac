"""The consumers of a dispatch's weight gradients, which accumulate the gradients for a later update, or make the update at once.

A kernel calls such a `GradientConsumer` with the stage's parameters, the state that it keeps of each node (donated), and the sums of the
gradient rows. Where a dispatch brings all the rows of an update, and nothing had been accumulated before, the update is part of the kernel:
the accumulators, which are zero and stay so, are neither written nor read, which is four passes over the parameters less.
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
    """Adds the gradients to accumulators, which are its state.

    Args:
      drops: For each node, whether its gradients are dropped: XLA then does not compute them. Empty if none are.

    Attributes:
      donates_params: Whether parameters change.
      loopable: Whether the next dispatch of a looped kernel can take over what is returned.
    """

    drops: tuple[bool, ...] = ()
    donates_params: ClassVar[bool] = False
    loopable: ClassVar[bool] = True

    def __call__(
        self,
        params: Any,
        states: Any,
        grads: Any,
        scalars: None,
        read: Any,
    ) -> tuple[Any, ...]:
        """The accumulators of each node with its gradients added; `params`, `scalars` and `read` are not used."""
        drops = self.drops or (False,) * len(states)
        added = jax.tree.map(
            lambda a, g: a + g.astype(a.dtype),
            tuple(states),
            tuple(grads),
        )
        # A dropped gradient leaves the accumulator as it is; XLA then computes nothing for it.
        result = []
        for old, new, dropped in zip(states, added, drops, strict=True):
            result.append(old if dropped else new)
        return tuple(result)


@dataclass(frozen=True)
class Updating:
    """Updates all nodes of the stage; its state are their optimizer states.

    Args:
      rules: Each node's optax transform, and `mean` or `sum` over gradient rows.

    Attributes:
      donates_params, loopable: As `Accumulating` has them.
    """

    rules: tuple[tuple[Any, str], ...]
    donates_params: ClassVar[bool] = True
    loopable: ClassVar[bool] = False

    def __call__(
        self,
        params: Any,
        states: Any,
        grads: Any,
        scalars: Array,
        read: Any,
    ) -> tuple[tuple[Any, Any], ...]:
        """Updates the parameters of each node.

        Args:
          params: Parameters of each node.
          states: Its optimizer state.
          grads: Its gradients, summed over rows.
          scalars: `[nodes, 2]`, float32: how many rows these are, and their mean staleness.
          read: Values for which old parameters are needed. These are known to be read before new ones are written, so they need not be
            copied.

        Returns:
          Parameters and optimizer state of each node.
        """
        # False, but XLA can't know before `read` has been read: so new parameters are written over
        # old ones afterwards.
        keep = false_after(scalars[0, 0] < 0, *read)
        updated = []
        for (tx, gradient), old, state, grad, (count, staleness) in zip(
            self.rules, params, states, grads, scalars, strict=True
        ):
            new, opt_state, _ = make_update(tx, gradient)(
                old, state, grad, count, staleness=staleness
            )
            updated.append(
                (
                    jax.tree.map(
                        lambda o, n: n if n is o else jnp.where(keep, o, n),
                        old,
                        new,
                    ),
                    opt_state,
                )
            )
        return tuple(updated)


GradientConsumer = Accumulating | Updating

ACCUMULATING = Accumulating()
