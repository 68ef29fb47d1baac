"""A model as a program over the rows of a batch, for parameters of some types."""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.batches.batch import Batch
from ampjax.frontend.batches.programs_of_rows import Block, Rows, Run, View
from ampjax.frontend.batches.row_lowering import Body, RowLowering, Rule, Value
from ampjax.frontend.batches.row_tables import RowTables
from ampjax.frontend.combinators.tracing import trace, tracing
from ampjax.frontend.combinators.user_errors import in_users_words, refuse_callbacks, refuse_leaks
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.values import Constant, Elements, Static
from ampjax.frontend.instance_columns import Columns
from ampjax.frontend.instance_spec import LeafSpec
from ampjax.frontend.missing_labels import missing_leaves
from ampjax.jaxprs.primitives import shape_text


class RowProgram:
    """A traced model as steps over rows.

    Args:
      function: `function(params, example)`.
      types: Types of the parameters, a pytree.
      leaves: The leaves of the spec.
      structure: The spec's structure.
      rules: How each combinator becomes steps.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        types: Any,
        leaves: Sequence[LeafSpec],
        structure: Any,
        rules: Mapping[str, Rule],
    ):
        self._leaves = leaves
        self._low = low = RowLowering(rules)
        root = IndexSpace()
        self._block = Block()
        room = low.room(low.root, root)
        body = Body(low, self._block, room)
        with tracing() as dimensions:
            example = structure.unflatten([leaf.aval(dimensions) for leaf in leaves])
            with in_users_words(_names(structure)):
                traced, constants, results = trace(function, types, example)
            refuse_leaks(traced.jaxpr, constants)
            refuse_callbacks(traced.jaxpr, traced.line)
            self._params = [Rows(kind, None) for kind in jax.tree.leaves(types)]
            self._block.give(self._params)
            of_params = [View(rows, root) for rows in self._params]
            of_example = [_example_value(leaf, root, low) for leaf in leaves]
            values = body.run(traced, [*map(Constant, constants), *of_params, *of_example])
            self._results = [_rows_of(body, value, kind) for value, kind in zip(values, results, strict=True)]
        self._structure = traced.results
        self._slots = low.slots
        self.layout = hashlib.sha256(repr([len(self._slots), str(traced.jaxpr)]).encode()).hexdigest()[:16]

    def pack(self, columns: Columns, size: int) -> Batch:
        """Examples as arrays.

        Args:
          columns: The examples.
          size: Rows of the batch: as many as examples, or more.

        Raises:
          DataError: If a number in an example is not what the model can use.
        """
        for check in self._low.host.draft.checks:
            missing_leaves(columns, lambda check=check: check(columns))
        tables = RowTables(columns, size)
        weights = np.zeros(size, np.float32)
        weights[: len(columns)] = 1
        return Batch(weights, tuple(slot.make(tables) for slot in self._slots), self.layout)

    def __call__(self, params: Any, arrays: Sequence[Any], key: Any = None) -> Any:
        """What the model returns for each example.

        Args:
          params: The parameters.
          arrays: The arrays of a batch.
          key: A PRNG key, if random numbers are to be drawn; else None.
        """
        run = Run(dict(zip(self._slots, map(jnp.asarray, arrays), strict=True)), ChainMap(), key)
        run.put(self._params, [jnp.asarray(leaf) for leaf in jax.tree.leaves(params)])
        self._block.run(run)
        return self._structure.unflatten([run.get(rows) for rows in self._results])


def _names(structure: Any) -> str:
    """What an example holds, in words."""
    return f"spec: {str(structure).removeprefix('PyTreeDef(').removesuffix(')')}"


def _rows_of(body: Body, value: Value, kind: Any) -> Rows:
    """A result as rows: one for each example."""
    if isinstance(value, Elements):
        fix = "Reduce it, or take an element."
        raise GraphError("the function's result", "arrays of fixed shapes", f"a sequence, {shape_text(kind)}", fix)
    return body.rows(value, kind)


def _example_value(leaf: LeafSpec, root: IndexSpace, low: RowLowering) -> Value:
    """What is known of a leaf of the examples: nested sequences, with the values in the innermost space."""
    spaces: list[IndexSpace] = []
    space = root
    for depth, name in enumerate(leaf.dimensions):
        path = leaf.dimensions[: depth + 1]
        sizes = Column(space, lambda data, path=path: data.sizes(path))
        low.host.lengths.setdefault(name, sizes)
        space = space.along(name, sizes)
        spaces.append(space)
    value: Any = Static(Column(space, lambda data: data.leaf(leaf.path)))
    for inner in reversed(spaces):
        value = Elements(inner, value)
    return value
