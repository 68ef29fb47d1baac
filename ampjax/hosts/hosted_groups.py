"""Nodes that are updated together although hosts keep their arrays: the driver makes the step, and has the optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ampjax.devices.allreduce import Device
from ampjax.devices.random_keys import on_host
from ampjax.engine.joint_updates import JointGroup, JointUpdates


@dataclass(frozen=True, eq=False)
class Together:
    """Nodes that are updated together.

    Args:
      groups: The groups of nodes.
      unread: The initial values of the parameters that no node reads, by path.
      device: Where steps are computed: a device of the driver's process.
    """

    groups: Sequence[JointGroup]
    unread: Mapping[str, Any]
    device: Device


NOTHING = Together((), {}, None)
"""What is updated together in asynchronous training."""


class HostedGroups:
    """The optimizer states of groups, and the parameters that no node reads, in the driver's process.

    Args:
      together: What is updated together.
      params: The parameters that hosts begin with, by node.

    Attributes:
      opt_state: The state of each group's optimizer, by name.
      unread: The parameters that no node reads, by path.
    """

    def __init__(self, together: Together, params: Mapping[str, Any]):
        self._groups = {group.name: group for group in together.groups}
        self._device = together.device
        self.unread: dict[str, Any] = dict(together.unread)
        opt_state = {}
        for name in self._groups:
            opt_state[name] = self._updates(name).init(
                params,
                self._unread_of(name),
            )
        self.opt_state = opt_state

    @property
    def names(self) -> tuple[str, ...]:
        """The groups' names."""
        return tuple(self._groups)

    def nodes(self, group: str) -> list[str]:
        """The nodes of a group."""
        return list(self._groups[group].names)

    def wants_loss(self, group: str) -> bool:
        """Whether a group's transform wants the loss."""
        return self._groups[group].transform.wants_loss

    def step(
        self,
        group: str,
        params: Mapping[str, Any],
        accumulators: Mapping[str, Any],
        examples: int,
        loss: float | None,
    ) -> dict[str, Any]:
        """Makes a step.

        Args:
          group: The group's name.
          params: Parameters by node, as hosts have them.
          accumulators: Their summed gradients.
          examples: The examples that these are summed over.
          loss: The mean loss of these, for transforms that want it.

        Returns:
          New parameters by node, for the hosts.
        """
        on_driver = jax.tree.map(
            on_host,
            (dict(params), dict(accumulators)),
        )
        new, unread, state, _ = self._updates(group).step(
            on_driver[0],
            self._unread_of(group),
            self.opt_state[group],
            on_driver[1],
            examples,
            loss,
        )
        self.opt_state[group] = state
        self.unread |= unread
        return new

    def restore(
        self,
        opt_state: Mapping[str, Any],
        unread: Mapping[str, Any],
    ) -> None:
        """Takes states and parameters over.

        Args:
          opt_state: Among others, the state of each group's optimizer.
          unread: The parameters that no node reads, by path.
        """
        result = {}
        for name in self._groups:
            result[name] = jax.device_put(opt_state[name], self._device)
        self.opt_state = result
        self.unread = dict(unread)

    def _updates(self, group: str) -> JointUpdates:
        of_group = self._groups[group]
        return JointUpdates(of_group, dict.fromkeys(of_group.names, self._device))

    def _unread_of(self, group: str) -> dict[str, Any]:
        """The parameters without a node that a group's transform updates."""
        return self.unread if self._groups[group].updates_unread else {}
