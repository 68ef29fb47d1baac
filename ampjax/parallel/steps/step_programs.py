"""The compiled programs of a step: what runs on the replicas' devices, and the collectives in it.

Each is a pure function mapped over the replicas' axis by `jax.pmap`. Knows the rewritten loss and the split optimizer; nothing
of servers, machines or files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import tree_map_with_path

from ampjax.devices.loss_collectives import AXIS, scalar
from ampjax.devices.per_replica import Device
from ampjax.sparse.rewrite.pulled_step import SparseProgram

Tree = Any
LossFn = Callable[[Tree, Tree], Any]


class GradientResult(NamedTuple):
    """What the forward and backward pass of a step gives; with a leading axis of replicas where it is mapped.

    Args:
      loss: A scalar, reduced over replicas where they are mapped together.
      aux: The loss function's second result, or None; each replica's own.
      finite: Whether the loss and then each dense variable's gradient is, `[1 + n]`.
      grads: Gradients of dense variables, None at tables; reduced over replicas where they are mapped together.
      rows: By table, gradients of the pulled rows, `[m, *row]`, each replica's own; or, where they are gathered, all replicas' ids
        `[n, m]` and gradients `[n, m, *row]`.
    """

    loss: jax.Array
    aux: Tree
    finite: jax.Array
    grads: Tree
    rows: dict[str, Any]


@dataclass(frozen=True)
class Reduction:
    """What becomes of the replicas' results.

    Args:
      n: Number of replicas.
      dense: `mean` or `sum` of dense variables' gradients, and of the loss.
      sparse: `mean` or `sum` of sparse variables' gradients.
      by_rows: The paths of variables that are sparse, tables or not.
      across: Whether they are reduced in the program, by AllReduce. If not, servers do it.
      gather: Whether row gradients are gathered from all replicas, by AllGatherv.
    """

    n: int
    dense: str = "mean"
    sparse: str = "mean"
    by_rows: frozenset[str] = frozenset()
    across: bool = True
    gather: bool = False

    def kind_of(self, path: tuple[Any, ...]) -> str:
        """`mean` or `sum`: what a variable's gradients come to, by its key path."""
        return self.sparse if jax.tree_util.keystr(path) in self.by_rows else self.dense


def gradients(program: SparseProgram, has_aux: bool) -> Callable[..., GradientResult]:
    """One replica's forward and backward pass: `(dense_params, inputs, batch) -> Result`, nothing reduced.

    Rows may come narrower than the table; gradients are formed in the table's dtype.

    Args:
      program: The rewritten loss function.
      has_aux: Whether it gives `(loss, aux)`.
    """

    def local(dense_params: Tree, rows: dict[str, Any], inverse: dict[str, Any], batch: Tree) -> GradientResult:
        wide = {path: value.astype(program.tables[path].dtype) for path, value in rows.items()}
        out, (grads, row_grads) = program.value_and_grad(dense_params, wide, batch, inverse)
        loss, aux = out if has_aux else (out, None)
        return GradientResult(loss, aux, _finite(loss, grads), grads, row_grads)

    return local


def mapped_gradients(program: SparseProgram, has_aux: bool, devices: Sequence[Device], reduction: Reduction) -> Any:
    """`gradients` of all replicas: `(dense_params, rows, inverse, ids, batch) -> Result`, pmapped; ids only where they are gathered.

    Where a mean is wanted of what is reduced outside, each replica divides its own.
    """
    local = gradients(program, has_aux)

    def step(
        dense_params: Tree, rows: dict[str, Any], inverse: dict[str, Any], ids: dict[str, Any], batch: Tree
    ) -> GradientResult:
        result = local(dense_params, rows, inverse, batch)
        own = {path: _share(leaf, reduction.n, reduction.sparse) for path, leaf in result.rows.items()}
        if reduction.across:
            loss, grads = reduced(result.loss, result.grads, reduction)
            result = result._replace(loss=loss, grads=grads, finite=_finite(loss, grads))
        else:
            result = result._replace(grads=_divided(result.grads, reduction))
        if reduction.gather:
            own = {path: jax.lax.all_gather((ids[path], leaf), AXIS) for path, leaf in own.items()}
        return result._replace(rows=own)

    return jax.pmap(step, axis_name=AXIS, devices=list(devices))


def mapped_step(
    loss_fn: LossFn,
    has_aux: bool,
    tx: optax.GradientTransformation,
    devices: Sequence[Device],
    reduction: Reduction,
    check_finite: bool,
    keep: bool,
) -> Any:
    """A whole step of a model without tables: `(params, opt_state, batch) -> (params, opt_state, Result)`, pmapped.

    A transform that asks for the loss (`optax.contrib.reduce_on_plateau`) gets the reduced one, as `value`.
    Parameters and optimizer state are donated. Where gradients are checked and one is not finite, they stay as they are.

    Args:
      loss_fn: The user's loss function.
      has_aux: Whether it gives `(loss, aux)`.
      tx: An optax transform.
      devices: The replicas' devices.
      reduction: The reduction over replicas.
      check_finite: Whether gradients that are not finite leave everything as it is; if not, the transform gets them.
      keep: Whether the result holds the reduced gradients.
    """
    update = optax.with_extra_args_support(tx).update

    def step(params: Tree, state: Tree, batch: Tree) -> tuple[Tree, Tree, GradientResult]:
        out, grads = jax.value_and_grad(scalar(loss_fn), has_aux=has_aux)(params, batch)
        loss, aux = out if has_aux else (out, None)
        loss, grads = reduced(loss, grads, reduction)
        finite = _finite(loss, grads)

        def updated(params: Tree, state: Tree) -> tuple[Tree, Tree]:
            updates, new = update(grads, state, params, value=loss, grad=grads)
            return _typed_like((params, state), (optax.apply_updates(params, updates), new))

        if check_finite:
            # A branch is updated in place, where choosing number by number would copy all parameters and state first.
            params, state = jax.lax.cond(finite.all(), updated, lambda *old: old, params, state)
        else:
            params, state = updated(params, state)
        return params, state, GradientResult(loss, aux, finite, grads if keep else None, {})

    return jax.pmap(step, axis_name=AXIS, devices=list(devices), donate_argnums=(0, 1))


def reduced(loss: jax.Array, grads: Tree, reduction: Reduction) -> tuple[jax.Array, Tree]:
    """The loss and the gradients over replicas: one AllReduce for each leaf, in float32 at least."""

    def reduce(leaf: jax.Array, kind: str) -> jax.Array:
        total = jax.lax.psum(leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), AXIS)
        return _share(total, reduction.n, kind).astype(leaf.dtype)

    return reduce(loss, reduction.dense), tree_map_with_path(
        lambda path, leaf: reduce(leaf, reduction.kind_of(path)), grads
    )


def _divided(grads: Tree, reduction: Reduction) -> Tree:
    """Each variable's share of what is summed over replicas elsewhere."""
    return tree_map_with_path(lambda path, leaf: _share(leaf, reduction.n, reduction.kind_of(path)), grads)


def _share(leaf: jax.Array, n: int, kind: str) -> jax.Array:
    return (leaf / n).astype(leaf.dtype) if kind == "mean" else leaf


def _finite(loss: jax.Array, grads: Tree) -> jax.Array:
    # A sum is finite only if all its terms are; one number for each leaf is cheaper than a mask of each.
    sums = [jnp.sum(leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))) for leaf in jax.tree.leaves(grads)]
    return jnp.isfinite(jnp.stack([loss.astype(jnp.float32), *sums]))


def _typed_like(old: Tree, new: Tree) -> Tree:
    """New values in the dtypes of the old ones: what a transform widens would else be compiled for anew."""
    return jax.tree.map(lambda o, n: n if n.dtype == o.dtype else n.astype(o.dtype), old, new)
