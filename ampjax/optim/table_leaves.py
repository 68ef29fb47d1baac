"""Trees of which some leaves belong to tables: takes these leaves out, and puts them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ampjax.errors import TableError

Tree = Any


@dataclass(frozen=True)
class TableLeaves:
    """The leaves of a tree, some of them tables' (parameters: one each; optimizer states: any number).

    Args:
      names: Each leaf's path, as `jax.tree_util.keystr` writes it.
      structure: The tree's structure.
      table_of: Each leaf's table, or None where it is shared.
    """

    names: tuple[str, ...]
    structure: Any
    table_of: tuple[str | None, ...]

    @classmethod
    def of(
        cls,
        tree: Tree,
        table_of: Sequence[str | None],
    ) -> TableLeaves:
        """Collects the leaves of a tree and their owners.

        Args:
          tree: A pytree.
          table_of: For each leaf its table, or None.
        """
        flat, structure = jax.tree_util.tree_flatten_with_path(tree)
        return cls(
            tuple(jax.tree_util.keystr(path) for path, _ in flat),
            structure,
            tuple(table_of),
        )

    def places(self, table: str | None) -> tuple[int, ...]:
        """Finds the positions of a table's leaves, or of the shared ones.

        Args:
          table: A table's name; None for the shared leaves.

        Returns:
          The leaves' numbers, rising.
        """
        return tuple(i for i, owner in enumerate(self.table_of) if owner == table)

    def split(
        self,
        tree: Tree,
    ) -> tuple[Tree, dict[str, list[Any]]]:
        """Takes tables' leaves out of a tree.

        Args:
          tree: A tree of this structure.

        Returns:
          The tree with None in place of tables' leaves, and by table its leaves.

        Raises:
          TableError: If the tree has another structure.
        """
        leaves, structure = jax.tree.flatten(tree)
        if structure != self.structure:
            raise TableError(
                "tree of leaves",
                f"structure {self.structure}",
                str(structure),
                "Pass a tree like the one that was split.",
            )
        tables = {}
        for t in self.table_of:
            if t is not None:
                tables[t] = [leaves[i] for i in self.places(t)]
        return self.fill([leaves[i] for i in self.places(None)]), tables

    def fill(
        self,
        shared: Sequence[Any],
        tables: Mapping[str, Sequence[Any]] | None = None,
    ) -> Tree:
        """Puts a tree together from shared leaves and tables' leaves.

        Args:
          shared: The shared leaves, in their order.
          tables: By table its leaves. Those of a table that is not given become None.

        Returns:
          The tree.
        """
        leaves: list[Any] = [None] * len(self.names)
        for table, values in ((None, shared), *(tables or {}).items()):
            for place, value in zip(self.places(table), values, strict=True):
                leaves[place] = value
        return jax.tree.unflatten(self.structure, leaves)

    def shared(self, tree: Tree, name: str) -> list[Any]:
        """The leaves of a tree that has None in place of tables' leaves.

        Raises:
          TableError: If it has another number of leaves.
        """
        leaves = jax.tree.leaves(tree)
        n = len(self.places(None))
        if len(leaves) != n:
            raise TableError(
                name,
                f"{n} leaves, and None in place of tables",
                f"{len(leaves)}",
                "Take the tables out with `split`.",
            )
        return leaves
