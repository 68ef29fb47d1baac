"""The homes of dense variables: a copy on every replica's device, or servers.

Both homes give the parameters to replicas, take their gradients, and make their part of an update (`optim.split_update`). Trees have None
in place of tables. Knows the split optimizer; nothing of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from ampjax.cluster.hosts.resources import Resources
from ampjax.devices.loss_collectives import AXIS
from ampjax.devices.mapped import map_over_devices
from ampjax.devices.per_replica import replica_entry, replicate, shard_of, spread
from ampjax.devices.random_keys import copy_leaf, data_of, wrapped_like
from ampjax.optim.split_transform import Split, Totals
from ampjax.optim.split_update import Proposal, SharedPart
from ampjax.optim.staleness_state import set_staleness
from ampjax.parallel.config.leaf_paths import path_text
from ampjax.parallel.homes.wire import MachineWire

Tree = Any


class DenseHome(SharedPart, Protocol):
    """The protocol of homes of dense variables: a `SharedPart` of the update, which replicas pull from and push to."""

    def pull(self) -> Tree:
        """The parameters for the replicas.

        Returns:
          A pytree of arrays `[n, *shape]`.
        """
        ...

    def push(self, grads: Tree) -> Tree:
        """Reduces the replicas' gradients over replicas.

        Args:
          grads: A pytree of arrays `[n, *shape]`.

        Returns:
          The gradients in the form in which this home keeps them.
        """
        ...

    def fetch(self, grads: Tree) -> Tree:
        """Reads reduced gradients.

        Args:
          grads: What `push` gave.

        Returns:
          A pytree of host arrays.
        """
        ...

    def read(self) -> tuple[Tree, Tree]:
        """Parameters and shared state as host arrays of their own."""
        ...

    def like(self) -> tuple[Tree, Tree]:
        """Trees like parameters and shared state, in shapes and dtypes."""
        ...

    def write(self, params: Tree, state: Tree) -> None:
        """Replaces parameters and shared state.

        Args:
          params: Dense parameters, None in place of tables.
          state: The optimizer's shared state.
        """
        ...

    def wait(self) -> None:
        """Returns when the parameters have been computed."""
        ...


class DenseOnDevices:
    """A copy on each replica's device; an AllReduce has made their gradients equal.

    Args:
      split: The optimizer.
      params: Dense parameters.
      devices: The replicas' devices.
    """

    def __init__(
        self,
        split: Split,
        params: Tree,
        devices: Sequence[Any],
    ):
        self._split = split
        self._devices = list(devices)
        self._update = map_over_devices(split.update, self._devices, AXIS)
        self.write(params, split.init(params))

    def write(self, params: Tree, state: Tree) -> None:
        """Replaces parameters and state on all devices.

        Args:
          params: Dense parameters, None in place of tables.
          state: The optimizer's shared state.
        """
        self._params = replicate(params, self._devices)
        self._state = replicate(state, self._devices)

    def read(self) -> tuple[Tree, Tree]:
        """Parameters and shared state as host arrays of their own."""
        return replica_entry(self._params), replica_entry(self._state)

    def like(self) -> tuple[Tree, Tree]:
        """Trees like parameters and shared state."""
        return self.read()

    def wait(self) -> None:
        """Returns when the parameters have been computed."""
        jax.block_until_ready(self._params)

    def pull(self) -> Tree:
        """The replicas' copies."""
        return self._params

    def push(self, grads: Tree) -> Tree:
        """Returns the gradients unchanged: an AllReduce has reduced them.

        Args:
          grads: The reduced gradients, on every device.
        """
        return grads

    def shared(
        self,
        turn: int,
        grads: Tree,
        totals: Totals,
    ) -> dict[str, list[np.ndarray]]:
        """The values that tables need for one round of reductions. Mostly there are none, and then nothing is computed.

        Returns:
          By table, host arrays.
        """
        if not any(rule.rounds[turn][1].shared for rule in self._split.rules.values()):
            return {table: [] for table in self._split.rules}
        first = (replica_entry(tree) for tree in (self._params, self._state, grads))
        return _on_host(self._split.jitted_shared(turn, *first, totals))

    def propose(self, grads: Tree, totals: Totals) -> Proposal:
        """Computes the same update on every device.

        Returns:
          The update, for `adopt`.
        """
        if not jax.tree.leaves((self._params, self._state, grads, totals)):
            # All variables are tables, and the optimizer has no state for all of them: nothing to map over.
            params, state, shared = self._split.jitted_update(
                self._params, self._state, grads, totals
            )
            return Proposal(params, state, _on_host(shared))
        # Totals go to each device as mapped arguments: JAX mistakes a tuple of axes for one of leaves if there are as many.
        everywhere = totals
        if totals:
            everywhere = spread([totals] * len(self._devices), self._devices)
        params, state, shared = self._update(
            self._params,
            self._state,
            grads,
            everywhere,
        )
        return Proposal(
            params,
            state,
            jax.tree.map(lambda leaf: shard_of(leaf, 0), shared),
        )

    def adopt(self, proposal: Proposal) -> None:
        """Replaces parameters and state by the proposed ones.

        Args:
          proposal: What `propose` gave.
        """
        self._params = proposal.params
        self._state = proposal.state

    def fetch(self, grads: Tree) -> Tree:
        """Reads reduced gradients.

        Args:
          grads: What `push` gave.

        Returns:
          A pytree of host arrays.
        """
        return replica_entry(grads)


class DenseAtServers:
    """Whole variables at servers, as in a parameter server without AllReduce.

    It has more than 15 methods, since it has those that all homes have, and the clients' three ways to pull and push.

    Args:
      split: The optimizer.
      params: Dense parameters.
      resources: The machines.
      servers: By variable, the number of its server.
      wire: The way to them.
      local_aggregation: Whether the replicas of a machine pull and push together.
    """

    def __init__(
        self,
        split: Split,
        params: Tree,
        resources: Resources,
        servers: Mapping[str, int],
        wire: MachineWire,
        local_aggregation: bool,
    ):
        self._split = split
        self._resources = resources
        self._wire = wire
        self._machine = {path: resources.servers[server] for path, server in servers.items()}
        self._together = local_aggregation
        self.write(params, split.init(params))

    def write(self, params: Tree, state: Tree) -> None:
        """Replaces parameters and state at the servers.

        Args:
          params: Dense parameters, None in place of tables.
          state: The optimizer's shared state.
        """
        self._params, self._state = jax.tree.map(
            copy_leaf,
            (params, state),
        )

    def read(self) -> tuple[Tree, Tree]:
        """Parameters and shared state as host arrays of their own."""
        return jax.tree.map(copy_leaf, (self._params, self._state))

    def like(self) -> tuple[Tree, Tree]:
        """Trees like parameters and shared state."""
        return self.read()

    def wait(self) -> None:
        """Returns at once: updates end on the host."""

    def pull(self) -> Tree:
        """Gathers all variables for all replicas. Each machine gets them once, or each replica does."""
        pulled = [self.pull_for(machine) for machine, _ in self._clients()]
        return spread(self._for_replicas(pulled), self._resources.devices)

    def pull_for(self, machine: int) -> Tree:
        """Sends all variables to a machine.

        Returns:
          A pytree of host arrays.
        """
        return self._travel(self._params, lambda home: (home, machine))

    def push(self, grads: Tree) -> Tree:
        """Sums the replicas' gradients at the servers. Where a mean is wanted, each replica has divided its own.

        Args:
          grads: A pytree of arrays `[n, *shape]`.

        Returns:
          A pytree of host arrays.
        """
        sums = []
        for machine, replicas in self._clients():
            replica_grads = [
                jax.tree.map(lambda leaf, r=r: shard_of(leaf, r), grads) for r in replicas
            ]
            sums.append((machine, jax.tree.map(_sum, *replica_grads)))
        return self.sum_of(sums)

    def sum_of(self, pushes: Sequence[tuple[int, Tree]]) -> Tree:
        """Sums the clients' gradients, at the servers.

        Args:
          pushes: By client its machine and its gradients.

        Returns:
          A pytree of host arrays.
        """
        return jax.tree.map(
            _sum,
            *(self.push_from(machine, grads) for machine, grads in pushes),
        )

    def push_from(self, machine: int, grads: Tree) -> Tree:
        """Sends one client's gradients to the servers.

        Returns:
          A pytree of host arrays.
        """
        return self._travel(grads, lambda home: (machine, home))

    def tell(self, staleness: int) -> None:
        """Passes the staleness of the next update's gradients to the optimizer, if the optimizer asks for it (`optim.staleness_state`).

        Args:
          staleness: Updates since their parameters were pulled.
        """
        self._state = set_staleness(self._state, staleness)

    def shared(
        self,
        turn: int,
        grads: Tree,
        totals: Totals,
    ) -> dict[str, list[np.ndarray]]:
        """The values that tables need for one round of reductions.

        Returns:
          By table, host arrays.
        """
        return _on_host(self._split.jitted_shared(turn, self._params, self._state, grads, totals))

    def propose(self, grads: Tree, totals: Totals) -> Proposal:
        """Computes the update at the chief.

        Returns:
          The update, for `adopt`.
        """
        params, state, shared = self._split.jitted_update(
            self._params,
            self._state,
            grads,
            totals,
        )
        return Proposal(_on_host(params), _on_host(state), _on_host(shared))

    def adopt(self, proposal: Proposal) -> None:
        """Replaces parameters and state by the proposed ones.

        Args:
          proposal: What `propose` gave.
        """
        self._params = proposal.params
        self._state = proposal.state

    def fetch(self, grads: Tree) -> Tree:
        """Returns reduced gradients, which are host arrays already.

        Args:
          grads: What `push` gave.
        """
        return grads

    def _travel(self, tree: Tree, ends: Any) -> Tree:
        """A tree's arrays, each over the way between its variable's home and somebody."""

        def send(path: Any, leaf: np.ndarray) -> np.ndarray:
            name = path_text(path)
            source, target = ends(self._machine[name])
            return self._wire.send(source, target, leaf, name)

        return jax.tree_util.tree_map_with_path(send, tree)

    def _clients(self) -> list[tuple[int, list[int]]]:
        return self._resources.clients(self._together)

    def _for_replicas(self, pulled: list[Tree]) -> list[Tree]:
        places = {}
        for (_, replicas), tree in zip(self._clients(), pulled, strict=True):
            for replica in replicas:
                places[replica] = tree
        return [places[replica] for replica in range(len(places))]


def _sum(
    first: np.ndarray,
    *others: np.ndarray,
) -> np.ndarray:
    """A sum in the arrays' dtype, formed in float32 at least."""
    if not others:
        return first
    wide = np.result_type(first.dtype, np.float32)
    return functools.reduce(
        np.add,
        others,
        first.astype(wide, copy=False),
    ).astype(first.dtype, copy=False)


def _on_host(tree: Tree) -> Tree:
    return jax.tree.map(
        lambda leaf: wrapped_like(leaf, data_of(leaf)),
        tree,
    )
