"""Parameters, optimizer states and accumulated gradients that hosts keep, as the driver sees them: gathered on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ampjax.engine.parameters import NodeTraining
from ampjax.hosts.fleet import Fleet
from ampjax.hosts.hosted_tables import HostedTable
from ampjax.hosts.questions import TREES, leaves_of, with_leaves
from ampjax.ir.host_tables import SentTable
from ampjax.optim.node_update import trainable


class HostedStore:
    """Stands in a `ParameterStore`'s place.

    Args:
      fleet: The hosts.
      params: The parameters that hosts begin with, by node.
      training: How each node is trained.
      tables: The tables of nodes whose parameters are one, in the driver's memory.

    Attributes:
      tables: The same on hosts, with the gradients that wait there.
    """

    def __init__(
        self,
        fleet: Fleet,
        params: Mapping[str, Any],
        training: Mapping[str, NodeTraining],
        tables: Mapping[str, SentTable],
    ):
        self._fleet = fleet
        self.tables = {node: HostedTable(fleet, node, table) for node, table in tables.items()}
        floats = {node: trainable(tree) for node, tree in params.items()}
        trained = {node: tree for node, tree in floats.items() if node not in tables}
        states = dict.fromkeys(tables, ()) | {
            node: jax.eval_shape(training[node].tx.init, tree) for node, tree in trained.items()
        }
        of_kinds = zip(TREES, (params, states, floats), strict=True)
        self._like = {which: {n: jax.tree.structure(tree) for n, tree in trees.items()} for which, trees in of_kinds}

    @property
    def params(self) -> dict[str, Any]:
        """Parameters by node, as NumPy arrays."""
        return self._gathered("params")

    @property
    def opt_state(self) -> dict[str, Any]:
        """Optimizer states by node."""
        return self._gathered("opt_state")

    @property
    def accumulators(self) -> dict[str, Any]:
        """Accumulated gradients by node."""
        return self._gathered("accumulators")

    @property
    def all_params(self) -> dict[str, Any]:
        """Parameters by node, with copies of all rows of tables."""
        return self.params | {node: own.table.dense() for node, own in self.tables.items()}

    def send_tables(self) -> None:
        """Gives hosts that have just started the tables of the driver."""
        for table in self.tables.values():
            table.send()

    def set_params(self, node: str, params: Any) -> None:
        """Puts a node's parameters on its host.

        Args:
          node: Its name.
          params: A pytree of arrays.
        """
        host = self._fleet.layout.host_of_node[node]
        self._fleet.ask([host], "set params", {host: leaves_of({node: params}, [node])}, node=node)

    def restore(self, params: Mapping[str, Any], opt_state: Mapping[str, Any], accumulators: Mapping[str, Any]) -> None:
        """Puts every node's parameters, optimizer state and accumulated gradients on its host.

        Args:
          params: Parameters by node.
          opt_state: Optimizer states by node.
          accumulators: Accumulated gradients by node.
        """
        for host, nodes in self._nodes.items():
            leaves = [leaf for trees in (params, opt_state, accumulators) for leaf in leaves_of(trees, nodes)]
            self._fleet.ask([host], "restore", {host: leaves}, nodes=nodes)

    def forget(self) -> None:
        """Lets hosts forget what belongs to instances that are given up, and what replicas have handed in."""
        self._fleet.ask(self._fleet.everyone, "forget")

    def warm_update(self, node: str) -> None:
        """Lets a node's host compile its update.

        Args:
          node: Its name.
        """
        self._fleet.ask([self._fleet.layout.host_of_node[node]], "warm update", node=node)

    def warm_average(self, nodes: Sequence[str]) -> None:
        """Lets the hosts of replicas compile their averaging.

        Args:
          nodes: The replicas of one node.
        """
        self._fleet.ask(list(self._fleet.layout.of_nodes(nodes)), "warm average", nodes=list(nodes))

    @property
    def _nodes(self) -> dict[int, list[str]]:
        return self._fleet.layout.of_nodes(self._like["params"])

    def _gathered(self, which: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for host, nodes in self._nodes.items():
            ((_, leaves),) = self._fleet.ask([host], "trees", which=which, nodes=nodes)
            found |= with_leaves(self._like[which], nodes, leaves)
        return {node: found[node] for node in self._like["params"]}
