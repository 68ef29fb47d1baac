"""The nodes of a model's parameters: a node for each top-level key, and for each name from `amp.node`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.devices.allreduce import average
from ampjax.errors import GraphError, ParameterError
from ampjax.frontend.combinators.user_errors import BATCHES_TAKE_IT
from ampjax.frontend.draft.values import Leaf
from ampjax.ir.graph import Graph
from ampjax.ir.host_tables import HostTable, is_table
from ampjax.optim.joint.params_form import UNREAD, ParamsForm
from ampjax.train.initial_params import require_like


@dataclass(eq=False)
class ParamsNode:
    """A node that has parameters.

    Args:
      name: Its name.
      leaves: Which leaves are its own, in order of first use.
      line: The user's line that uses it first.
      options: What `amp.node` was given.
      users: How many nodes compute with them so far.
      replicas: How many replicas each of these has.
      names: What it is called in the graph: by itself, or the names of its copies.
    """

    name: str
    line: str
    leaves: list[Leaf] = field(default_factory=list)
    options: Mapping[str, Any] = field(default_factory=dict)
    users: int = 0
    replicas: int = 1
    names: Sequence[str] = ()


class ParamsNodes:
    """The nodes with parameters; a leaf becomes a node's own at its first read.

    Args:
      initial: The model's parameters, a dictionary.
    """

    def __init__(self, initial: Mapping[str, Any]):
        self.initial = initial
        self._owners: dict[Leaf, ParamsNode] = {}
        self._nodes: dict[str, ParamsNode] = {}

    def owner(
        self,
        leaves: frozenset[Leaf],
        name: str | None,
        line: str,
    ) -> ParamsNode:
        """Finds the node that owns some leaves, which become its own at first use.

        Args:
          leaves: The leaves.
          name: The name that `amp.node` gave; None for the leaves' top-level key.
          line: The user's line.

        Raises:
          GraphError: If they belong to different nodes.
        """
        wanted = name or self.owner_name(leaves, line)
        node = self._nodes.setdefault(wanted, ParamsNode(wanted, line))
        for leaf in sorted(leaves):
            other = self._owners.setdefault(leaf, node)
            if other is not node:
                raise GraphError(
                    line,
                    f"parameters of the node `{node.name}` alone",
                    f"a leaf of `{leaf[0]}` that the node `{other.name}` uses ({other.line})",
                    "Let one node have it, or put it under a key of its own.",
                )
            if leaf not in node.leaves:
                node.leaves.append(leaf)
        return node

    def key_of(self, table: HostTable, line: str) -> str:
        """The key of a table in host memory, whose node has this name.

        Raises:
          GraphError: If it is none of the parameters.
        """
        key = next(
            (key for key, value in self.initial.items() if value is table),
            None,
        )
        if key is None:
            fix = 'Give it to `amp.compile` with the parameters, `{"embed": table, ...}`, and read `params["embed"]`.'
            raise GraphError(line, "a table that is one of the parameters", "another one", fix)
        self._nodes.setdefault(
            key,
            ParamsNode(key, line, [(key, 0)]),
        )
        return key

    def owner_name(self, leaves: frozenset[Leaf], line: str) -> str:
        """The top-level key that some leaves have in common.

        Raises:
          GraphError: If they are of several keys.
        """
        keys = sorted({key for key, _ in leaves})
        if len(keys) > 1:
            raise GraphError(
                line,
                "parameters of one node in one operation",
                f"those of {' and '.join(f'`{key}`' for key in keys)}",
                f"Put them under one key, or wrap the lines in a function made with `amp.node`. {BATCHES_TAKE_IT}",
            )
        return keys[0]

    def of(
        self,
        owner: ParamsNode,
    ) -> tuple[Any, tuple[Leaf, ...]]:
        """Collects a node's initial parameters, and its leaves in their order: all of its key's, if no other node has one of them."""
        key = owner.leaves[0][0]
        n_leaves = len(jax.tree.leaves(self.initial[key]))
        whole = tuple((key, i) for i in range(n_leaves))
        if owner.name == key and all(self._owners.get(leaf, owner) is owner for leaf in whole):
            return self.initial[key], whole
        leaves = tuple(sorted(owner.leaves))
        return {self.leaf_name(leaf): self.leaf(leaf) for leaf in leaves}, tuple(
            sorted(
                leaves, key=self.leaf_name
            )  # dictionaries are flattened in the order of their keys
        )

    def note_copies(self, graph: Graph) -> None:
        """Notes the names of the nodes in a graph.

        Args:
          graph: The graph that they have been built in.
        """
        for node in self._nodes.values():
            names = []
            for name, one in graph.parameterised.items():
                if one.role == node.name:
                    names.append(name)
            node.names = names

    def form(self) -> ParamsForm:
        """The structure of the model's parameters, and which leaves each node has."""
        structure = jax.tree.structure(dict(self.initial))
        numbers = structure.unflatten(range(structure.num_leaves))
        places = {}
        for key in self.initial:
            for i, place in enumerate(jax.tree.leaves(numbers[key])):
                places[(key, i)] = place
        owners = []
        for node in self._nodes.values():
            tree, leaves = self.of(node)
            owners.append(
                (
                    node.name,
                    tuple(places[leaf] for leaf in leaves),
                    jax.tree.structure(tree),
                )
            )
        return ParamsForm(
            structure,
            tuple(owners),
            tuple((self.leaf_name(leaf), places[leaf]) for leaf in self._unread),
        )

    def unread(self) -> dict[str, Any]:
        """The initial values of leaves that no node reads, by path."""
        return {self.leaf_name(leaf): self.leaf(leaf) for leaf in self._unread}

    @property
    def _unread(self) -> list[Leaf]:
        read = set()
        for node in self._nodes.values():
            for leaf in self.of(node)[1]:
                read.add(leaf)
        every = []
        for key, value in self.initial.items():
            for i in range(len(jax.tree.leaves(value))):
                every.append((key, i))
        result = []
        for leaf in every:
            if leaf not in read and not is_table(self.leaf(leaf)):
                result.append(leaf)
        return result

    def original(
        self,
        nodes: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Parameters of the graph's nodes in the structure of the model's parameters.

        Args:
          nodes: Parameters by node name, as `Trainer.params` gives them; of copies the mean is taken. Leaves that no node reads keep their
            initial values.

        Raises:
          ParameterError: If those of a node are missing, or do not fit.
        """
        unread = nodes.get(UNREAD, {})
        mean = lambda copies: np.asarray(average(copies)[0])
        values = self._restore(
            nodes,
            mean,
            lambda leaf, value: unread.get(self.leaf_name(leaf), value),
        )
        return jax.tree.map(jnp.asarray, values)  # of JAX, so that a traced number can index them

    def gradients(
        self,
        nodes: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Gradients of the graph's nodes in the structure of the model's parameters.

        Args:
          nodes: Gradients by node name; those of copies are added up. They are 0 for leaves that no node reads.

        Raises:
          ParameterError: If those of a node are missing, or do not fit.
        """
        return self._restore(
            nodes,
            lambda copies: np.sum(copies, axis=0),
            lambda leaf, value: np.zeros_like(value),
        )

    def _restore(
        self,
        nodes: Mapping[str, Any],
        together: Callable[[Any], Any],
        unread: Callable[[Leaf, Any], Any],
    ) -> dict[str, Any]:
        """Arranges values of the nodes in the structure of the parameters: `together` joins those of copies, `unread` gets other leaves and initial values."""
        values: dict[Leaf, Any] = {}
        for node in self._nodes.values():
            tree, leaves = self.of(node)
            for name in node.names:
                if name not in nodes:
                    fix = "Pass all that `trainer.params` or `trainer.gradients` gives."
                    raise ParameterError(
                        f"parameters of `{name}`", "a value for each node", f"{sorted(nodes)}", fix
                    )
                require_like(name, tree, nodes[name])
            copies = [jax.tree.leaves(nodes[name]) for name in node.names]
            if len(copies) == 1:
                joined = copies[0]
            else:
                joined = [together(each) for each in zip(*copies, strict=True)]
            values |= zip(leaves, joined, strict=True)
        top_level: dict[str, Any] = {}
        for key, value in self.initial.items():
            leaves, structure = jax.tree.flatten(value)
            top_level[key] = structure.unflatten(
                [
                    values[key, i] if (key, i) in values else unread((key, i), _as_array(x))
                    for i, x in enumerate(leaves)
                ]
            )
        return top_level

    def by_node(
        self,
        params: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Arranges parameters of the model's structure by node name, for `Trainer(params=...)`.

        Raises:
          ParameterError: If a key is missing, or its value has another structure or shape.
        """
        for key, value in self.initial.items():
            if key not in params:
                fix = "Pass parameters of the structure that the model was compiled with."
                raise ParameterError(
                    "node_params", f"the keys {sorted(self.initial)}", f"{sorted(params)}", fix
                )
            require_like(key, value, params[key])
        params_by_node: dict[str, Any] = {}
        for node in self._nodes.values():
            tree, leaves = self.of(node)
            if is_table(tree):
                _require_own_rows(node.name, tree, params[node.name])
                continue
            values = []
            for key, i in leaves:
                values.append(jax.tree.leaves(params[key])[i])
            params_by_node |= dict.fromkeys(
                node.names,
                jax.tree.structure(tree).unflatten(values),
            )
        unread = {}
        for key, i in self._unread:
            unread[self.leaf_name((key, i))] = jax.tree.leaves(params[key])[i]
        return params_by_node | ({UNREAD: unread} if unread else {})

    def leaf(self, leaf: Leaf) -> Any:
        """A leaf's initial value."""
        return jax.tree.leaves(self.initial[leaf[0]])[leaf[1]]

    def leaf_name(self, leaf: Leaf) -> str:
        """A leaf's path: `embed/w`."""
        path, _ = jax.tree_util.tree_flatten_with_path(self.initial[leaf[0]])[0][leaf[1]]
        return "/".join(
            [
                leaf[0],
                *(str(getattr(p, "key", getattr(p, "idx", getattr(p, "name", p)))) for p in path),
            ]
        )


def _as_array(leaf: Any) -> Any:
    return leaf.dense() if is_table(leaf) else leaf


def _require_own_rows(name: str, table: HostTable, params: Any) -> None:
    """Checks that the value given for a table is that table, or its own rows: no others can be put into a table."""
    if params is not table and not np.array_equal(params, table.dense()):
        fix = "Make the table from these rows, and compile with it."
        raise ParameterError(
            f"parameters of `{name}`", "the rows that its table has", "others", fix
        )
