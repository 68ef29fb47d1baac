"""A step on pulled rows beside `jax.value_and_grad` of the whole program, and the measure between the two."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from ampjax.optim.node_update import combine, trainable
from ampjax.sparse.rewrite.pulled_step import SparseProgram
from ampjax.sparse.rewrite.unique_ids import pad_rows, pulled_size, unique_rows

# Each program is compiled to be run once.
quick_jit = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)


def reference(
    loss: Any,
    params: Any,
    batch: Any,
    has_aux: bool,
) -> Any:
    """`jax.value_and_grad` over the float leaves, None at the others."""

    def of_floats(floats: Any) -> Any:
        return loss(combine(params, floats), batch)

    return jax.value_and_grad(of_floats, has_aux=has_aux)(trainable(params))


def step_inside(program: SparseProgram, params: Any, batch: Any) -> Any:
    """Ids, pulled rows, step and scattered gradients as one function for `jax.jit`: the results, with gradients of whole tables.

    What is pulled is the table backwards: rows without duplicates, in places of their own, and no sort to be compiled.
    """
    dense, tables = program.split(params)
    rows = {}
    for path, table in tables.items():
        rows[path] = table[::-1]
    inverse = {}
    for path, ids in program.ids(dense, batch).items():
        inverse[path] = len(tables[path]) - 1 - ids
    out, (grads, row_grads) = program.value_and_grad(dense, rows, batch, inverse)
    return out, program.join(
        grads,
        {path: g[::-1] for path, g in row_grads.items()},
    )


def step_on_host(
    program: SparseProgram, params: Any, batch: Any, jitted: Any, jitted_ids: Any
) -> Any:
    """The same as a runner does it: duplicates out on the host, rows padded to bounded sizes."""
    dense, tables = program.split(params)
    found = {}
    for p, i in jitted_ids(dense, batch).items():
        found[p] = unique_rows(
            np.asarray(i),
            program.tables[p].shape[0],
        )
    rows = {}
    for p, u in found.items():
        rows[p] = pad_rows(
            np.asarray(tables[p])[u.ids],
            pulled_size(len(u.ids)),
        )
    out, (grads, row_grads) = jitted(
        dense,
        rows,
        batch,
        {p: u.inverse for p, u in found.items()},
    )
    whole = {}
    for path, unique in found.items():
        whole[path] = np.zeros(
            tables[path].shape,
            tables[path].dtype,
        )
        whole[path][unique.ids] = row_grads[path][: len(unique.ids)]
        assert not np.any(row_grads[path][len(unique.ids) :])  # padding has no gradient
    return out, program.join(grads, whole)


def assert_equal(got: Any, want: Any, name: str = "") -> None:
    """Same structure, and max |difference| / max |wanted| at most 1e-5 for each leaf; NaN where NaN is wanted."""
    assert jax.tree.structure(got) == jax.tree.structure(want), name
    leaves = jax.tree_util.tree_flatten_with_path(want)[0]
    for (path, w), g in zip(
        leaves,
        jax.tree.leaves(got),
        strict=True,
    ):
        w = np.asarray(w, np.float64)
        g = np.asarray(g, np.float64)
        scale = np.max(
            np.abs(np.nan_to_num(w)),
            initial=0.0,
        )
        np.testing.assert_allclose(
            g,
            w,
            rtol=0,
            atol=1e-5 * (scale or 1.0),
            err_msg=name + jax.tree_util.keystr(path),
        )


def arrays_with(size: int, jaxpr: Any) -> list[str]:
    """The equations, at any depth, that make or take an array with an axis of this size."""
    body = getattr(jaxpr, "jaxpr", jaxpr)
    found = []
    for eqn in body.eqns:
        if any(size in getattr(v.aval, "shape", ()) for v in [*eqn.invars, *eqn.outvars]):
            found.append(str(eqn.primitive))
    for eqn in body.eqns:
        for value in jax.tree.leaves(
            list(eqn.params.values()),
            is_leaf=_is_jaxpr,
        ):
            if _is_jaxpr(value):
                found += arrays_with(size, value)
    return found


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
