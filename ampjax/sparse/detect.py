"""Which parameter leaves are sparse, found in the loss function's jaxpr (Parallax §4.1; there by the type of the gradient).

A leaf is sparse when all its uses read whole rows by ids that are known before the step: then its gradient is a set of rows,
and the step needs no more of it than these. In doubt a leaf is dense, and its reason says why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ampjax.sparse import jaxprs
from ampjax.sparse.findings import Cause, Deps, Place, Read, Value
from ampjax.sparse.flow import Flow
from ampjax.sparse.reads import View
from ampjax.sparse.trace import Axes, Leaf, LossFn, Traced, trace_loss

MIN_ROWS = 8
"""Below that many rows a table is dense: there is nothing to save."""


@dataclasses.dataclass(frozen=True)
class Variable:
    """What was found about one parameter leaf.

    Args:
      path: Its name, as `jax.tree_util.keystr` writes it.
      shape: Its shape.
      dtype: Its dtype.
      sparse: Whether it is.
      reason: Its reads, or what made it dense: the primitive and, where JAX kept it, the user's source line.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any
    sparse: bool
    reason: str


@dataclasses.dataclass(frozen=True)
class Analysis:
    """All parameter leaves of a loss function, in the order of the flattened parameters.

    Args:
      variables: One entry a leaf.
    """

    variables: tuple[Variable, ...]

    @property
    def sparse(self) -> tuple[str, ...]:
        """The paths of the sparse leaves."""
        return tuple(v.path for v in self.variables if v.sparse)

    def __getitem__(self, path: str) -> Variable:
        return {v.path: v for v in self.variables}[path]

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables)

    def __str__(self) -> str:
        kinds = [f"{v.dtype}{list(v.shape)}" for v in self.variables]
        wide, typed = max(len(v.path) for v in self.variables), max(map(len, kinds))
        return "\n".join(
            f"{v.path:{wide}}  {kind:{typed}}  {'sparse' if v.sparse else 'dense '}  {v.reason}"
            for v, kind in zip(self.variables, kinds, strict=True)
        )

    def __repr__(self) -> str:
        return str(self)


def find_sparse(loss_fn: LossFn, params: Any, batch: Any, min_rows: int = MIN_ROWS, axes: Axes = ()) -> Analysis:
    """Finds the sparse parameter leaves of a single-device loss function. Nothing is computed.

    Reads are gathers of whole rows: `table[ids]`, `jnp.take`, `.at[ids].get`, `table[i]`, embeddings of flax. They may
    stand behind casts, reshapes that keep rows in one piece, slices of all rows and `stop_gradient`, and inside `jit`, `checkpoint`, `custom_jvp`, `vmap`,
    `scan`, `cond` and, where ids don't change from step to step, `while`. Ids may come from the batch, from constants, from
    integer parameters and from random keys among these; not from float parameters, nor from rows that were read.

    Args:
      loss_fn: `loss_fn(params, batch) -> loss` or `(loss, aux)`.
      params: Any pytree of arrays or `jax.ShapeDtypeStruct`s.
      batch: The same for one batch. Its sizes may differ from those of later batches.
      min_rows: A leaf with fewer rows is dense.
      axes: Names and sizes of the axes over which the loss function will be mapped.

    Raises:
      ParameterError: If no parameter leaf is a float array, or one is no array.
      DataError: If a leaf of the batch is no array.
      SettingsError: If the loss is not a float scalar.
      Exception: Whatever the loss function raises while JAX traces it.

    >>> import jax.numpy as jnp
    >>> def loss(params, ids):
    ...     return jnp.sum(params["table"][ids] @ params["w"])
    >>> print(find_sparse(loss, {"table": jnp.ones((100, 8)), "w": jnp.ones(8)}, jnp.arange(3)))
    ['table']  float32[100, 8]  sparse  1 read: gather ...
    ['w']      float32[8]       dense   used by `dot_general` ...
    """
    variables, _ = analyse(trace_loss(loss_fn, params, batch, axes), min_rows)
    return Analysis(variables)


def analyse(traced: Traced, min_rows: int) -> tuple[tuple[Variable, ...], Flow]:
    """The leaves of a traced loss function, and all that was found while it was followed."""
    flow = Flow()
    barred = [_barred(leaf, max(min_rows, 2)) for leaf in traced.leaves]
    params: list[Value] = [_start(i, leaf, barred[i]) for i, leaf in enumerate(traced.leaves)]
    others: list[Value] = [frozenset()] * (len(traced.jaxpr.invars) - len(params))
    for out in flow.run(traced.jaxpr, [*params, *others], Place()):
        flow.used(out, "the result of the loss function")
    found = [(False, why) if why else _judge(i, traced.leaves, flow) for i, why in enumerate(barred)]
    variables = (Variable(leaf.path, leaf.shape, leaf.dtype, *f) for leaf, f in zip(traced.leaves, found, strict=True))
    return tuple(variables), flow


def _barred(leaf: Leaf, min_rows: int) -> str:
    """Why a leaf can't be sparse, whatever the program does with it; empty if it can."""
    if not jaxprs.is_inexact(leaf.dtype):
        return f"{leaf.dtype} has no gradient"
    if not leaf.shape:
        return "a scalar has no rows"
    if leaf.shape[0] < min_rows:
        return f"{leaf.shape[0]} rows, fewer than {min_rows}"
    return ""


def _start(index: int, leaf: Leaf, barred: str) -> Value:
    if not jaxprs.is_inexact(leaf.dtype):
        return frozenset()  # no step changes it, so it is known before the step
    return frozenset({index}) if barred else View(index, axis=0)


def _judge(index: int, leaves: tuple[Leaf, ...], flow: Flow) -> tuple[bool, str]:
    own = [read for read in flow.reads.values() if read.leaf == index]
    if index in flow.uses:
        return False, f"used by {flow.uses[index]}" + (f", beside {_counted(own)}" if own else "")
    unknown = next((read for read in own if read.deps), None)
    if unknown is not None:
        return False, f"row ids of {_read_text(unknown)} depend on {_origins(index, unknown.deps, leaves)}"
    if not own:
        return False, "not used by the loss"
    places = ", ".join(dict.fromkeys(_read_text(read) for read in own))
    return True, f"{_counted(own)}: {places}"


def _counted(own: list[Read]) -> str:
    return f"{len(own)} read" + ("s" if len(own) != 1 else "")


def _read_text(read: Read) -> str:
    return f"{read.primitive} {read.mode}" + (f" ({read.line})" if read.line else "")


def _origins(index: int, deps: Deps, leaves: tuple[Leaf, ...]) -> str:
    """Parameters and causes, in the order of the leaves."""
    causes = sorted({d.text for d in deps if isinstance(d, Cause)})
    own = ["its own rows"] if index in deps else []
    others = [f"parameter `{leaves[i].path}`" for i in sorted(d for d in deps if isinstance(d, int)) if i != index]
    return ", ".join([*own, *others[:3], *causes])
