"""Optimizer steps of several nodes together, in synchronous and pipeline training: the places of the arrays, and the one call that changes all of the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ampjax.devices.allreduce import Device
from ampjax.engine.kernels.kernel import Kernel, jitted
from ampjax.engine.kernels.shared_kernels import shared
from ampjax.engine.memory.arenas import copy_array, zeros
from ampjax.optim.joint.joint_transform import JointTransform

Trees = dict[str, Any]


@dataclass(frozen=True)
class JointGroup:
    """Nodes whose parameters one transform updates together.

    Args:
      name: The group's name.
      transform: The transform.
      nodes: Their names, by role: several are copies of one node, whose gradients are added up and whose parameters stay equal.
      updates_unread: Whether the transform also updates the leaves that no node reads.
    """

    name: str
    transform: JointTransform
    nodes: Mapping[str, tuple[str, ...]]
    updates_unread: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all nodes."""
        result = []
        for names in self.nodes.values():
            for name in names:
                result.append(name)
        return tuple(result)


@dataclass(frozen=True, eq=False)
class JointUpdates:
    """Makes the steps of one group. Their result is on one device; nodes on others get copies.

    Args:
      group: The group.
      device_of: The device of each node.
    """

    group: JointGroup
    device_of: Mapping[str, Device]

    @cached_property
    def device(self) -> Device:
        """The device on which steps are computed and the optimizer's state lies: the device of the group's first node."""
        return self.device_of[self.group.names[0]]

    def init(
        self,
        params: Mapping[str, Any],
        unread: Mapping[str, Any],
    ) -> Any:
        """The optimizer's state at the beginning."""
        state = self.group.transform.init(self._first(params), unread)
        return jax.tree.map(
            lambda x: copy_array(x, self.device),
            state,
        )

    def step(
        self,
        params: Mapping[str, Any],
        unread: Mapping[str, Any],
        opt_state: Any,
        accumulators: Mapping[str, Any],
        examples: int,
        loss: float | None,
    ) -> tuple[Trees, Trees, Any, Trees]:
        """Makes a step. All arrays that are passed are donated.

        Args:
          params: Parameters by node.
          unread: Values of unread leaves, by path.
          opt_state: The optimizer's state.
          accumulators: The summed gradients of each node.
          examples: The examples that they are summed over.
          loss: The mean loss of these, for transforms that want it.

        Returns:
          New parameters by node, new values of unread leaves, the new state, and accumulators of zeros.
        """
        to_device = lambda tree: jax.device_put(tree, self.device)
        # All of it on one device: the parameters of each role's first copy, and the gradients of
        # all copies.
        old = to_device(self._first(params))
        sums = {}
        for role, names in self.group.nodes.items():
            sums[role] = [to_device(accumulators[name]) for name in names]
        extra = {"staleness": np.float32(0)} | ({} if loss is None else {"value": np.float32(loss)})
        step = _step_of(self.group.transform).once
        # The step donates the old parameters and the optimizer's state.
        new, new_unread, opt_state = step(
            old, dict(unread), opt_state, sums, np.float32(examples), extra
        )
        # The result goes back to where the nodes are.
        changed = {}
        for role, names in self.group.nodes.items():
            first, *others = names
            # The first has the result itself, the others copies: each is donated later by kernels of its own.
            changed[first] = jax.device_put(
                new[role],
                self.device_of[first],
            )
            for name in others:
                changed[name] = jax.tree.map(
                    lambda x, name=name: copy_array(x, self.device_of[name]),
                    new[role],
                )
        return (
            changed,
            new_unread,
            opt_state,
            {name: self._empty(name, accumulators[name]) for name in self.group.names},
        )

    def _first(self, params: Mapping[str, Any]) -> Trees:
        """By role, the parameters of the first copy."""
        result = {}
        for role, names in self.group.nodes.items():
            result[role] = params[names[0]]
        return result

    def _empty(self, name: str, accumulator: Any) -> Any:
        device = self.device_of[name]
        return jax.tree.map(
            lambda x: zeros(x.shape, x.dtype, device),
            accumulator,
        )


@shared
def _step_of(transform: JointTransform) -> Kernel:
    """`kernel(params, unread, opt_state, sums, examples, extra) -> (params, unread, opt_state)`: a step."""

    @jitted("params", "opt_state")
    def step(
        params: Any,
        unread: Any,
        opt_state: Any,
        sums: Any,
        examples: Any,
        extra: Any,
    ) -> Any:
        return transform.update(params, unread, opt_state, sums, examples, **extra)

    return step
