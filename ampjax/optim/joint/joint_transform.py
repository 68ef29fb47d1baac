"""One optimizer's step for the parameters of several nodes: the transform sees one pytree, as in plain optax training.

Pure functions on pytrees, as `optim.node_update` has them for a single node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ampjax.optim.joint.params_form import ParamsForm
from ampjax.optim.node_update import combine, gradient_of, trainable
from ampjax.optim.optax_transforms.transform_arguments import with_extra_arguments

Tree = Any
ByRole = Mapping[str, Tree]


@dataclass(frozen=True)
class JointTransform:
    """A transform for several nodes together. Hashable; equal transforms compare as equal.

    Args:
      tx: The optax transform.
      form: The pytree that it sees.
      gradients: For each node, its role, and `mean` (over the examples) or `sum`.
      wants_loss: Whether it needs the loss, as optax's extra argument `value`.
    """

    tx: optax.GradientTransformation
    form: ParamsForm
    gradients: tuple[tuple[str, str], ...]
    wants_loss: bool = False

    def params(
        self,
        nodes: ByRole,
        unread: Mapping[str, Any],
    ) -> Tree:
        """Builds the pytree of parameters that the transform sees: trained leaves, None in place of all others.

        Args:
          nodes: Parameters by role.
          unread: Values by path of the leaves that no node reads, if it is to see these.
        """
        return self.form.whole(
            {role: trainable(nodes[role]) for role, _ in self.gradients},
            unread,
        )

    def init(
        self,
        nodes: ByRole,
        unread: Mapping[str, Any],
    ) -> Tree:
        """The optimizer's state at the beginning.

        Args:
          nodes: Parameters by role.
          unread: As for `params`.
        """
        return self.tx.init(self.params(nodes, unread))

    def update(
        self,
        nodes: ByRole,
        unread: Mapping[str, Any],
        opt_state: Tree,
        sums: Mapping[str, Sequence[Tree]],
        examples: Any,
        **extra: Any,
    ) -> tuple[dict[str, Tree], dict[str, Any], Tree]:
        """Makes one step; to be jitted.

        Args:
          nodes: Parameters by role.
          unread: As for `params`.
          opt_state: The optimizer's state.
          sums: By role, the summed gradients of each of its copies.
          examples: A float scalar: the examples that they are summed over.
          **extra: optax's extra arguments; `value`, the mean loss of the examples, becomes their sum where gradients are sums.

        Returns:
          New parameters by role, new values of unread leaves, and the new state.
        """
        old = {role: trainable(nodes[role]) for role, _ in self.gradients}
        grads = {}
        for role, kind in self.gradients:
            grads[role] = gradient_of(
                old[role],
                reduce(_add_trees, sums[role]),
                examples,
                kind,
            )
        params = self.form.whole(old, unread)
        gradient = self.form.whole(
            grads,
            {path: jnp.zeros_like(value) for path, value in unread.items()},
        )
        if self.wants_loss and all(kind == "sum" for _, kind in self.gradients):
            extra["value"] = extra["value"] * examples
        step = with_extra_arguments(self.tx)
        updates, opt_state = step.update(gradient, opt_state, params, **extra)
        changed = optax.apply_updates(params, updates)
        new = self.form.parts(changed, old)
        return (
            {role: combine(nodes[role], new[role]) for role in old},
            self.form.unread_parts(changed),
            opt_state,
        )


def _add_trees(one: Tree, other: Tree) -> Tree:
    return jax.tree.map(jnp.add, one, other)
