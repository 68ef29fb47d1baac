"""Parameters, optimizer states and accumulated gradients on hosts, as the driver sees these trees: gathered on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ampjax.devices.random_keys import on_host
from ampjax.engine.parameters import NodeTraining
from ampjax.hosts.fleet import Fleet
from ampjax.hosts.hosted_groups import HostedGroups, Together
from ampjax.hosts.hosted_tables import HostedTable
from ampjax.hosts.questions import TREES, leaves_of, with_leaves
from ampjax.ir.host_tables import SentTable
from ampjax.optim.joint.params_form import UNREAD
from ampjax.optim.node_update import trainable
from ampjax.sched.decisions.parameter_changes import JointUpdate


class HostedStore:
    """A `ParameterStore` whose trees are on hosts: answers the same questions by asking the hosts (and so has more than 15 methods).

    Args:
      fleet: The hosts.
      params: The parameters that hosts begin with, by node.
      training: How each node is trained.
      tables: The tables of nodes whose parameters are one, in the driver's memory.
      together: What is updated together.

    Attributes:
      groups: The same, with the optimizers' states.
      tables: The same on hosts, with the gradients that wait there.
    """

    def __init__(
        self,
        fleet: Fleet,
        params: Mapping[str, Any],
        training: Mapping[str, NodeTraining],
        tables: Mapping[str, SentTable],
        together: Together,
    ):
        self._fleet = fleet
        self.groups = HostedGroups(together, params)
        result = {}
        for node, table in tables.items():
            result[node] = HostedTable(fleet, node, table)
        self.tables = result
        floats = {node: trainable(tree) for node, tree in params.items()}
        trained = {node: tree for node, tree in floats.items() if node not in tables}
        states = dict.fromkeys(tables, ()) | {
            node: () if (tx := training[node].tx) is None else jax.eval_shape(tx.init, tree)
            for node, tree in trained.items()
        }
        of_kinds = zip(TREES, (params, states, floats), strict=True)
        self._like = {which: jax.eval_shape(dict, trees) for which, trees in of_kinds}

    @property
    def params(self) -> dict[str, Any]:
        """Parameters by node, as NumPy arrays; parameters that no node reads are under `UNREAD`."""
        unread = self.groups.unread
        return self._gather("params") | ({UNREAD: jax.tree.map(on_host, unread)} if unread else {})

    @property
    def opt_state(self) -> dict[str, Any]:
        """Optimizer states by node, and by group of nodes that are updated together."""
        return self._gather("opt_state") | jax.tree.map(on_host, self.groups.opt_state)

    @property
    def accumulators(self) -> dict[str, Any]:
        """Accumulated gradients by node."""
        return self._gather("accumulators")

    @property
    def all_params(self) -> dict[str, Any]:
        """Parameters by node, with copies of all rows of tables."""
        return self.params | {
            node: gradients.table.dense() for node, gradients in self.tables.items()
        }

    @property
    def not_finite(self) -> list[str]:
        """The nodes of whose parameters some are not finite; each host looks at its own."""
        answers = self._fleet.ask(self._fleet.everyone, "not finite")
        result = []
        for names, _ in answers:
            for node in names:
                result.append(node)
        return result

    def send_tables(self) -> None:
        """Gives hosts that have just started the tables of the driver."""
        for table in self.tables.values():
            table.send()

    def set_params(self, node: str, params: Any) -> None:
        """Puts a node's parameters on its host."""
        if node == UNREAD:
            self.groups.unread = dict(params)
            return
        host = self._fleet.layout.host_of_node[node]
        self._fleet.ask(
            [host],
            "set params",
            {host: leaves_of({node: params}, [node])},
            node=node,
        )

    def restore(
        self,
        params: Mapping[str, Any],
        opt_state: Mapping[str, Any],
        accumulators: Mapping[str, Any],
    ) -> None:
        """Puts every node's parameters, optimizer state and accumulated gradients on its host."""
        for host, nodes in self._nodes.items():
            leaves = []
            for trees in (params, opt_state, accumulators):
                for leaf in leaves_of(trees, nodes):
                    leaves.append(leaf)
            self._fleet.ask(
                [host],
                "restore",
                {host: leaves},
                nodes=nodes,
            )
        self.groups.restore(opt_state, params.get(UNREAD, {}))

    def change_together(self, change: JointUpdate, loss: float | None) -> None:
        """Makes one optimizer step of a group of nodes.

        Args:
          change: The change.
          loss: The mean loss of the examples that gradients come from, if the group's transform wants it.
        """
        nodes = self._fleet.layout.of_nodes(self.groups.nodes(change.group))
        params, sums = (self._of_nodes(which, nodes) for which in ("params", "accumulators"))
        new = self.groups.step(
            change.group,
            params,
            sums,
            change.examples,
            loss,
        )
        for host, names in nodes.items():
            self._fleet.ask(
                [host],
                "stepped",
                {host: leaves_of(new, names)},
                nodes=names,
            )

    def forget(self) -> None:
        """Lets hosts forget the stashes of instances that are given up, and the parameters that replicas have handed in."""
        self._fleet.ask(self._fleet.everyone, "forget")

    def warm_update(self, node: str) -> None:
        """Lets a node's host compile its update."""
        self._fleet.ask(
            [self._fleet.layout.host_of_node[node]],
            "warm update",
            node=node,
        )

    def warm_group(self, name: str) -> None:
        """Leaves the update of a group of nodes to its first call."""

    def warm_average(self, nodes: Sequence[str]) -> None:
        """Lets the hosts of replicas compile their averaging."""
        self._fleet.ask(
            list(self._fleet.layout.of_nodes(nodes)),
            "warm average",
            nodes=list(nodes),
        )

    @property
    def _nodes(self) -> dict[int, list[str]]:
        return self._fleet.layout.of_nodes(self._like["params"])

    def _gather(self, which: str) -> dict[str, Any]:
        trees = self._of_nodes(which, self._nodes)
        return {node: trees[node] for node in self._like["params"]}

    def _of_nodes(
        self,
        which: str,
        nodes: Mapping[int, list[str]],
    ) -> dict[str, Any]:
        """Trees of some nodes, which are given by host."""
        trees: dict[str, Any] = {}
        for host, names in nodes.items():
            ((_, leaves),) = self._fleet.ask(
                [host],
                "trees",
                which=which,
                nodes=names,
            )
            trees |= with_leaves(self._like[which], names, leaves)
        return trees
