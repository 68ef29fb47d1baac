"""The structure in which users see the parameters of a graph: one pytree, of which each node has some leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

Tree = Any

UNREAD = "unread parameters"
"""The name, among those of nodes, under which leaves are kept that no node reads."""


@dataclass(frozen=True)
class ParamsForm:
    """A pytree of all parameters, and the owner of each leaf. Hashable; equal forms compare as equal.

    Args:
      structure: The pytree's structure.
      owners: By node (by role: copies are one), for each leaf of its parameters the leaf's place in the pytree, and the structure of its parameters.
      unread: Of leaves that no node reads, their paths and places.
    """

    structure: Any
    owners: tuple[tuple[str, tuple[int, ...], Any], ...]
    unread: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def by_node(params: Mapping[str, Tree]) -> ParamsForm:
        """The form of a graph that is built by hand: a dictionary with a pytree for each node.

        Args:
          params: The parameters by role.
        """
        structure = jax.tree.structure(dict(params))
        numbers = structure.unflatten(range(structure.num_leaves))
        owners = []
        for role, tree in numbers.items():
            owners.append((role, tuple(jax.tree.leaves(tree)), jax.tree.structure(tree)))
        return ParamsForm(structure, tuple(owners))

    @cached_property
    def nodes(self) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        """By role, the places of the node's leaves, and the structure of its parameters."""
        return {role: (places, structure) for role, places, structure in self.owners}

    def whole(
        self,
        nodes: Mapping[str, Tree],
        unread: Mapping[str, Any],
    ) -> Tree:
        """The pytree of some nodes' values, with None in the places of all others.

        Args:
          nodes: By role, a tree with a leaf or None for each parameter.
          unread: Values by path.
        """
        leaves: list[Any] = [None] * self.structure.num_leaves
        for role, tree in nodes.items():
            places, structure = self.nodes[role]
            for place, leaf in zip(places, structure.flatten_up_to(tree), strict=True):
                leaves[place] = leaf
        for path, place in self.unread:
            leaves[place] = unread.get(path)
        return self.structure.unflatten(leaves)

    def parts(
        self,
        tree: Tree,
        roles: Iterable[str],
    ) -> dict[str, Tree]:
        """The nodes' values in a pytree."""
        leaves = self.structure.flatten_up_to(tree)
        values = {}
        for role in roles:
            places, structure = self.nodes[role]
            values[role] = structure.unflatten([leaves[place] for place in places])
        return values

    def unread_parts(self, tree: Tree) -> dict[str, Any]:
        """Collects the values of unread leaves in a pytree, by path, without leaves that are None."""
        leaves = self.structure.flatten_up_to(tree)
        result = {}
        for path, place in self.unread:
            if leaves[place] is not None:
                result[path] = leaves[place]
        return result
