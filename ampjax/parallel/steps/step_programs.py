"""The compiled programs of a step: the computation on the replicas' devices, with its collectives.

Each is a pure function mapped over the replicas' axis. Knows the rewritten loss and the split optimizer; nothing
of servers, machines or files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import tree_map_with_path

from ampjax.devices.loss_collectives import AXIS, scalar
from ampjax.devices.mapped import map_over_devices
from ampjax.devices.per_replica import Device
from ampjax.optim.optax_transforms.transform_arguments import with_extra_arguments
from ampjax.sparse.rewrite.pulled_step import SparseProgram

Tree = Any
LossFn = Callable[[Tree, Tree], Any]


class GradientResult(NamedTuple):
    """The results of a step's forward and backward pass; with a leading axis of replicas in mapped programs.

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
class GradientReduction:
    """The reduction of the replicas' results.

    Args:
      n: Number of replicas.
      dense: `mean` or `sum` of dense variables' gradients, and of the loss.
      sparse: `mean` or `sum` of sparse variables' gradients.
      by_rows: The paths of variables that are sparse, tables or not.
      across: Whether they are reduced in the program, by AllReduce. If not, servers do it.
      gather: Whether row gradients are gathered from all replicas, by AllGatherv.
      at_once: Whether one AllReduce takes all variables of a dtype, where each costs a message between processes.
    """

    n: int
    dense: str = "mean"
    sparse: str = "mean"
    by_rows: frozenset[str] = frozenset()
    across: bool = True
    gather: bool = False
    at_once: bool = False

    def kind_of(self, path: tuple[Any, ...]) -> str:
        """Tells whether a variable's gradients are averaged or summed.

        Returns:
          `mean` or `sum`.
        """
        return self.sparse if jax.tree_util.keystr(path) in self.by_rows else self.dense


def gradients(program: SparseProgram, has_aux: bool) -> Callable[..., GradientResult]:
    """One replica's forward and backward pass: `(dense_params, rows, inverse, batch) -> GradientResult`, nothing reduced.

    Rows may come narrower than the table; gradients are formed in the table's dtype.

    Args:
      program: The rewritten loss function.
      has_aux: Whether it gives `(loss, aux)`.

    Returns:
      A pure function; its gradients are in the dtypes of the parameters and tables.
    """

    def local(
        dense_params: Tree,
        rows: dict[str, Any],
        inverse: dict[str, Any],
        batch: Tree,
    ) -> GradientResult:
        wide = {}
        for path, value in rows.items():
            wide[path] = value.astype(program.tables[path].dtype)
        out, (grads, row_grads) = program.value_and_grad(dense_params, wide, batch, inverse)
        loss, aux = out if has_aux else (out, None)
        return GradientResult(loss, aux, _finite(loss, grads), grads, row_grads)

    return local


def mapped_gradients(
    program: SparseProgram, has_aux: bool, devices: Sequence[Device], reduction: GradientReduction
) -> Any:
    """`gradients` of all replicas, mapped: `(dense_params, rows, inverse, ids, batch) -> GradientResult`.

    Ids are given only where row gradients are gathered. Where a mean is wanted of what is reduced elsewhere, each replica divides its
    own.

    Args:
      program: The rewritten loss.
      has_aux: Whether it gives `(loss, aux)`.
      devices: The replicas' devices.
      reduction: The reduction over replicas.

    Returns:
      The mapped function.
    """
    local = gradients(program, has_aux)

    def step(
        dense_params: Tree,
        rows: dict[str, Any],
        inverse: dict[str, Any],
        ids: dict[str, Any],
        batch: Tree,
    ) -> GradientResult:
        result = local(dense_params, rows, inverse, batch)
        row_grads = {}
        for path, leaf in result.rows.items():
            row_grads[path] = _share(leaf, reduction.n, reduction.sparse)
        if reduction.across:
            loss, grads = reduce_over_replicas(result.loss, result.grads, reduction)
            result = result._replace(
                loss=loss,
                grads=grads,
                finite=_finite(loss, grads),
            )
        else:
            result = result._replace(grads=_divide_grads(result.grads, reduction))
        if reduction.gather:
            row_grads = {
                path: jax.lax.all_gather((ids[path], leaf), AXIS)
                for path, leaf in row_grads.items()
            }
        return result._replace(rows=row_grads)

    return map_over_devices(step, devices, AXIS)


def mapped_step(
    loss_fn: LossFn,
    has_aux: bool,
    tx: optax.GradientTransformation,
    devices: Sequence[Device],
    reduction: GradientReduction,
    *,
    check_finite: bool,
    keep: bool,
) -> Any:
    """A whole step of a model without tables, mapped: `(params, opt_state, batch) -> (params, opt_state, GradientResult)`.

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

    Returns:
      The mapped function.
    """
    update = with_extra_arguments(tx).update

    def step(
        params: Tree,
        state: Tree,
        batch: Tree,
    ) -> tuple[Tree, Tree, GradientResult]:
        out, grads = jax.value_and_grad(scalar(loss_fn), has_aux=has_aux)(
            params,
            batch,
        )
        loss, aux = out if has_aux else (out, None)
        loss, grads = reduce_over_replicas(loss, grads, reduction)
        finite = _finite(loss, grads)

        def update_params(params: Tree, state: Tree) -> tuple[Tree, Tree]:
            updates, new = update(grads, state, params, value=loss, grad=grads)
            return _cast_like(
                (params, state),
                (optax.apply_updates(params, updates), new),
            )

        if check_finite:
            # A branch is updated in place, where choosing number by number would copy all parameters and state first.
            params, state = jax.lax.cond(
                finite.all(),
                update_params,
                lambda *old: old,
                params,
                state,
            )
        else:
            params, state = update_params(params, state)
        return params, state, GradientResult(loss, aux, finite, grads if keep else None, {})

    return map_over_devices(step, devices, AXIS, donate_argnums=(0, 1))


def reduce_over_replicas(
    loss: jax.Array,
    grads: Tree,
    reduction: GradientReduction,
) -> tuple[jax.Array, Tree]:
    """Reduces the loss and the gradients over replicas, by one AllReduce for each leaf, or for all, in float32 at least.

    Args:
      loss: Each replica's loss.
      grads: Each replica's gradients.
      reduction: What becomes of them.

    Returns:
      The loss and the gradients, equal on all replicas, in the dtypes in which they came.
    """
    old = (loss, grads)
    wide = jax.tree.map(
        lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)),
        old,
    )
    if reduction.at_once:
        totals = _sum_at_once(wide)
    else:
        totals = jax.tree.map(
            lambda leaf: jax.lax.psum(leaf, AXIS),
            wide,
        )

    def share(
        total: jax.Array,
        leaf: jax.Array,
        kind: str,
    ) -> jax.Array:
        return _share(total, reduction.n, kind).astype(leaf.dtype)

    return share(totals[0], loss, reduction.dense), tree_map_with_path(
        lambda path, total, leaf: share(total, leaf, reduction.kind_of(path)), totals[1], grads
    )


def _sum_at_once(tree: Tree) -> Tree:
    """The sums over replicas, by one AllReduce for all leaves of a dtype."""
    leaves, structure = jax.tree.flatten(tree)
    result: list[Any] = list(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        total = jax.lax.psum(
            jnp.concatenate([leaves[i].ravel() for i in places]),
            AXIS,
        )
        stops = np.cumsum([leaves[i].size for i in places])
        for i, stop in zip(places, stops, strict=True):
            result[i] = total[stop - leaves[i].size : stop].reshape(leaves[i].shape)
    return jax.tree.unflatten(structure, result)


def _divide_grads(grads: Tree, reduction: GradientReduction) -> Tree:
    """Divides gradients to each variable's share of a sum over replicas that is made elsewhere."""
    return tree_map_with_path(
        lambda path, leaf: _share(leaf, reduction.n, reduction.kind_of(path)),
        grads,
    )


def _share(
    leaf: jax.Array,
    n: int,
    kind: str,
) -> jax.Array:
    if kind == "mean":
        return (leaf / n).astype(leaf.dtype)
    return leaf


def _finite(loss: jax.Array, grads: Tree) -> jax.Array:
    return jnp.stack(
        [
            jnp.isfinite(loss),
            *map(
                _all_finite,
                jax.tree.leaves(grads),
            ),
        ]
    )


def _all_finite(leaf: jax.Array) -> jax.Array:
    """Tells whether all numbers of a leaf are finite: then their mean is, and one number for each leaf is cheaper than a mask."""
    wide = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
    return jnp.isfinite(jnp.sum(wide * (1 / max(leaf.size, 1))))


def _cast_like(old: Tree, new: Tree) -> Tree:
    """Casts new values to the dtypes of the old ones: a dtype widened by a transform would need another compilation."""
    return jax.tree.map(
        lambda o, n: n if n.dtype == o.dtype else n.astype(o.dtype),
        old,
        new,
    )
