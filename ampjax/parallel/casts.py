"""The dtype in which a program reads a table's rows: a cast that can be done before rows travel (Parallax, arXiv version, +OPSW)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampjax.sparse.jaxprs import called, opened
from ampjax.sparse.rewrite import SparseProgram
from ampjax.sparse.settings import DTYPES

Tree = Any
Outside = Callable[[int], set[np.dtype]]
_CALLS = ("jit", "pjit", "closed_call", "remat", "checkpoint")
_PASSES = ("copy", "reshape", "squeeze", "broadcast_in_dim", "transpose", "gather", "dynamic_slice", "slice")
"""Operations that commute with a cast: they move numbers and don't change them."""


def read_dtype(program: SparseProgram, path: str, batch: Tree) -> np.dtype | None:
    """The dtype to which a program casts all rows of a table before it computes with them, if that is narrower than the table's.

    Rows cast at the server are then the very rows that the program would have made of them; gradients stay as wide as they are.

    Args:
      program: The loss on pulled rows.
      path: The table.
      batch: A batch.

    Returns:
      The dtype; None if rows are used as they are, or in several ways, or in a dtype in which rows don't travel.
    """
    plan = program.plan(batch)
    jaxpr, _ = opened(plan.traced.jaxpr)
    place = [leaf.path for leaf in plan.traced.leaves].index(path)
    table = np.dtype(program.tables[path].dtype)
    dtypes = _first_uses(jaxpr, jaxpr.invars[place], lambda number: {table})
    only = dtypes.pop() if len(dtypes) == 1 else table
    return only if only in DTYPES and only.itemsize < table.itemsize else None


def _first_uses(jaxpr: Any, var: Any, outside: Outside) -> set[np.dtype]:
    """The dtypes in which a value is first computed with; `outside` tells it for what a jaxpr hands out."""
    found: set[np.dtype] = set()
    for number, out in enumerate(jaxpr.outvars):
        found |= outside(number) if out is var else set()
    for eqn in jaxpr.eqns:
        for place, operand in enumerate(eqn.invars):
            found |= _uses_by(eqn, place, jaxpr, outside) if operand is var else set()
    return found


def _uses_by(eqn: Any, place: int, jaxpr: Any, outside: Outside) -> set[np.dtype]:
    """The dtypes in which one equation uses one of its operands."""
    name = eqn.primitive.name
    if name == "convert_element_type":
        return {np.dtype(eqn.params["new_dtype"])}
    if name in _CALLS:
        inner, _ = opened(called(eqn))
        return _first_uses(inner, inner.invars[place], lambda number: _first_uses(jaxpr, eqn.outvars[number], outside))
    if name in _PASSES and place == 0:
        return _first_uses(jaxpr, eqn.outvars[0], outside)
    return {np.dtype(eqn.invars[place].aval.dtype)}
