"""A runner's computations without a step: losses, gradients, and other functions of parameters and a batch.

One device computes it, as the single-device program would, from the rows that the function reads. Nothing of the training changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.devices.loss_collectives import scalar
from ampjax.devices.random_keys import is_key
from ampjax.jaxprs.primitives import is_inexact
from ampjax.parallel.config.leaf_paths import by_path, names
from ampjax.parallel.homes.assigned_rows import checked_row_ids, path_of
from ampjax.parallel.homes.dense_homes import DenseOnDevices
from ampjax.parallel.homes.row_homes import RowGrads
from ampjax.parallel.runner_model import BuiltModel
from ampjax.parallel.steps.batch_rows import PaddedSizes, copy_part
from ampjax.parallel.steps.synchronous_steps import DenseStep
from ampjax.sparse.detection.detect import look_again
from ampjax.sparse.detection.loss_jaxpr import signature, trace_loss
from ampjax.sparse.detection.row_axes import from_table
from ampjax.sparse.rewrite.split_loss import SplitLoss, make_split_loss
from ampjax.sparse.rewrite.unique_ids import UniqueRows, pad_rows, unique_rows

Tree = Any
MOST_FUNCTIONS = 32
"""Functions, and shapes of batches, whose programs are kept."""


class Evaluation(NamedTuple):
    """A loss without a step.

    Attributes:
      loss: The batch's loss.
      aux: The loss function's second result, as the single-device program gives it; None if there is none.
    """

    loss: float
    aux: Tree


@dataclass
class _Program:
    """A function of parameters and a batch, on pulled rows, for batches of one shape.

    Args:
      function: What the user gave; it is known by its identity.
      split: The function as the second result of a loss, split in two.
      whole: Leaves that are read as wholes though they are kept by rows.
      ids: Gives the ids that it reads.
      results: By whether gradients are wanted the compiled function.
    """

    function: Any
    split: SplitLoss
    whole: Sequence[str]
    ids: Callable[..., Any]
    results: dict[bool, Callable[..., Any]] = field(default_factory=dict)


@dataclass
class Evaluator:
    """Computes functions of a model's parameters.

    Args:
      model: The model.
    """

    model: BuiltModel
    _programs: dict[Hashable, _Program] = field(default_factory=dict)
    _sizes: PaddedSizes = field(default_factory=PaddedSizes)

    def evaluate(self, batch: Tree) -> Evaluation:
        """The loss of a batch.

        Returns:
          The loss and the second result.
        """
        loss_fn = self.model.setup.loss_fn
        out, _ = self._compute(loss_fn, scalar(loss_fn), batch, False)
        loss, aux = out if self.model.plan.has_aux else (out, None)
        return Evaluation(float(loss), aux)

    def apply(
        self,
        function: Callable[[Tree, Tree], Tree],
        batch: Tree,
    ) -> Tree:
        """A function of parameters and a batch.

        Returns:
          What it returns.
        """

        def as_aux(params: Tree, batch: Tree) -> tuple[Any, Tree]:
            return jnp.float32(0), function(params, batch)

        return self._compute(function, as_aux, batch, False)[0][1]

    def gradients(self, batch: Tree) -> dict[str, Any]:
        """The gradients of a batch's loss.

        Returns:
          By variable an array, or `RowGrads`.
        """
        loss_fn = self.model.setup.loss_fn
        _, (dense, rows) = self._compute(
            loss_fn,
            scalar(loss_fn),
            batch,
            True,
        )
        result: dict[str, Any] = {}
        for table, (unique, grads) in rows.items():
            parts = self.model.plan.program.stacks[table].parts(
                unique.ids, np.asarray(grads)[: len(unique.ids)]
            )
            result |= {path: RowGrads(ids, values) for path, ids, values in parts}
        gradients_by_path = dense | result
        results = {}
        for path, text in names(self.model.plan.program.params).items():
            if path in gradients_by_path:
                results[text] = gradients_by_path[path]
        return results

    def rows(self, name: str, ids: Any) -> np.ndarray:
        """Rows of a variable.

        Args:
          name: The variable, as `explain` writes it.
          ids: Integers of any shape.

        Returns:
          `[*ids, *row]`.
        """
        plan = self.model.plan
        path = path_of(plan.program.params, name, "rows")
        where = f"rows of `{name}`, ids"
        step = self.model.settle()
        if isinstance(step, DenseStep):
            part = None
        else:
            part = step.homes.parts().get(path)
        if part is None:
            dense = np.asarray(by_path(step.read()[0])[name])
            return dense[checked_row_ids(ids, (dense.shape or (0,))[0], where)]
        checked = checked_row_ids(ids, part.shape[0], where)
        distinct, inverse = np.unique(checked.reshape(-1), return_inverse=True)
        rows = part.pull(distinct)[inverse.reshape(-1)]
        return rows.reshape(*checked.shape, *rows.shape[1:])

    # ---- programs ----------------------------------------------------------------------------------------------------

    def _compute(
        self,
        function: Any,
        loss: Callable[..., Any],
        batch: Tree,
        differentiate: bool,
    ) -> tuple[Any, tuple[dict[str, Any], dict[str, tuple[UniqueRows, Any]]]]:
        """Computes a function's result; and the gradients of dense leaves and of rows, if wanted."""
        step = self.model.settle()
        stacks = self.model.plan.program.stacks
        program = self._program(function, loss, batch)
        batch = copy_part(batch)
        dense = self._dense(program)
        row_ids = program.ids(dense, batch)
        unique = {}
        for table, ids in row_ids.items():
            unique[table] = unique_rows(
                np.asarray(ids),
                stacks[table].n_rows,
            )
        rows = {}
        for table, rows_of_table in unique.items():
            pulled = step.tables[table][0].pull(rows_of_table.ids)
            rows[table] = pad_rows(
                pulled,
                self._sizes.at_least(table, len(rows_of_table.ids)),
            )
        inverse = {table: distinct.inverse for table, distinct in unique.items()}
        if differentiate not in program.results:
            program.results[differentiate] = jax.jit(_result(program.split, differentiate))
        out, grads = jax.block_until_ready(
            program.results[differentiate](dense, rows, inverse, batch)
        )
        if grads is None:
            return out, ({}, {})
        return out, (
            {path: np.asarray(grad) for path, grad in grads[0].items()},
            {table: (own, grads[1][table]) for table, own in unique.items()},
        )

    def _program(
        self,
        function: Any,
        loss: Callable[..., Any],
        batch: Tree,
    ) -> _Program:
        key = id(function), signature(batch)
        if key not in self._programs:
            if len(self._programs) >= MOST_FUNCTIONS:
                del self._programs[next(iter(self._programs))]
            self._programs[key] = self._make_program(function, loss, batch)
        return self._programs[key]

    def _make_program(
        self,
        function: Any,
        loss: Callable[..., Any],
        batch: Tree,
    ) -> _Program:
        program = self.model.plan.program
        traced = trace_loss(loss, program.params, batch)
        flow, variables = look_again(traced, program.axes)
        read = set()
        for r in flow.reads.values():
            read.add(traced.leaves[r.leaf].path)
        by_rows = {v.path: v.axes for v in variables if v.sparse}
        used = {traced.leaves[leaf].path for leaf in flow.uses}
        split = make_split_loss(traced, by_rows, program.stacks)
        whole = [path for path in program.axes if path in used | read and path not in by_rows]
        ids = jax.jit(lambda dense, batch: split.ids(_inputs(split, _unstack(dense), batch)))
        return _Program(function, split, whole, ids if by_rows else lambda *_: {})

    def _dense(self, program: _Program) -> dict[str, Any]:
        """Collects the leaves that a program does not read by rows, by path, with a leading axis of one, on one device if they are on devices."""
        step = self.model.step
        plan = self.model.plan
        if isinstance(step, DenseStep):
            tree = _on_first(step.params)
        elif isinstance(home := step.homes.dense, DenseOnDevices):
            tree = _on_first(home.pull())
        else:
            tree = jax.tree.map(
                lambda leaf: leaf[None],
                home.read()[0],
            )
        paths = []
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
            paths.append(jax.tree_util.keystr(path))
        result = dict(zip(paths, jax.tree.leaves(tree), strict=True))
        if program.whole and not isinstance(step, DenseStep):
            parts = step.homes.parts()
            shapes = {leaf.path: leaf.shape for leaf in program.split.traced.leaves}
            for path in program.whole:
                result[path] = from_table(
                    parts[path].arrays(1)[0],
                    shapes[path],
                    plan.program.axes[path],
                )[None]
        return result


def _on_first(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def _unstack(dense: dict[str, Any]) -> dict[str, Any]:
    return {path: leaf[0] for path, leaf in dense.items()}


def _inputs(
    split: SplitLoss,
    dense: dict[str, Any],
    batch: Tree,
) -> list[Any]:
    return [
        *(dense.get(leaf.path) for leaf in split.traced.leaves),
        *jax.tree.leaves(batch),
    ]


def _result(split: SplitLoss, differentiate: bool) -> Callable[..., Any]:
    """`(dense, rows, inverse, batch) -> (result, gradients)`, for `jax.jit`."""

    def result(
        dense: dict[str, Any],
        rows: Any,
        inverse: Any,
        batch: Tree,
    ) -> tuple[Any, Any]:
        dense = _unstack(dense)
        floats = {}
        for path, x in dense.items():
            if not is_key(x) and is_inexact(jnp.result_type(x)):
                floats[path] = x

        def of_floats(floats: dict[str, Any], rows: Any) -> Any:
            return split.loss(_inputs(split, dense | floats, batch), rows, inverse)

        if not differentiate:
            return of_floats(floats, rows), None
        return jax.value_and_grad(of_floats, argnums=(0, 1), has_aux=split.traced.has_aux)(
            floats, rows
        )

    return result
