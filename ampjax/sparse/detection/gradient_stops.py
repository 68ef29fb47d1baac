"""Finds where a program chooses between a value and its own `stop_gradient`: a choice that changes gradients and no number.

JAX makes such choices of `jax.vmap` of `jax.lax.cond` or `switch`: all branches run, and an example's gradient comes back through its own
branch alone. So rows that are read through one are the table's, and ids are what they were.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import primitives as prim

from ampjax.jaxprs import primitives
from ampjax.sparse.detection import strides
from ampjax.sparse.detection.table_views import Stop, TableView, with_stop

_MOVES = (
    prim.broadcast_in_dim_p,
    prim.reshape_p,
    prim.transpose_p,
    prim.squeeze_p,
    prim.convert_element_type_p,
)


@dataclasses.dataclass(frozen=True)
class Repeated:
    """A value repeated along new axes, not yet computed: where the value decides between tables, the repeated array has their size.

    Args:
      eqn: The equation that repeats it.
      value: The value.
    """

    eqn: Any
    value: Any

    @property
    def whole(self) -> Any:
        """The repeated value."""
        return primitives.bind(self.eqn, [self.value])[0]


def whole_of(value: Any) -> Any:
    """Returns a value itself, or the whole array that a `Repeated` stands for."""
    return value.whole if isinstance(value, Repeated) else value


def is_repeated(eqn: Any) -> bool:
    """Tells whether an equation only repeats a boolean, which may decide between tables."""
    return (
        eqn.primitive is prim.broadcast_in_dim_p
        and eqn.outvars[0].aval.dtype == bool
        and len(eqn.invars) == 1
    )


def chosen_value(
    eqn: Any,
    operands: Sequence[Any],
    makers: Mapping[Any, Any],
) -> Any:
    """Finds a stand-in for an equation's result, if the equation chooses between a table, or integers, and their `stop_gradient`.

    Args:
      eqn: Any equation.
      operands: What stands for its operands; the first may be `Repeated`.
      makers: The equations that make variables, by variable.

    Returns:
      A view for a table, the operand for integers; None for any other equation.
    """
    if (
        eqn.primitive is not prim.select_n_p
        or len(operands) != 3
        or isinstance(operands[0], TableView)
    ):
        return None
    which, *cases = eqn.invars
    stopped = _stopped_case(cases[0], cases[1], makers)
    if stopped is None:
        return None
    value = operands[2 - stopped]
    if not isinstance(value, TableView):
        return None if primitives.is_inexact(cases[0].aval.dtype) else value
    varies = _varying_axes(which, makers)
    if any(value.strides[a] is None for a in varies):
        return None
    return with_stop(
        value,
        _stop(
            operands[0],
            which.aval.shape or (1,) * len(value.strides),
            varies,
            passes=stopped == 0,
        ),
    )


def _stopped_case(
    first: Any,
    second: Any,
    made: Mapping[Any, Any],
) -> int | None:
    """Finds which of two variables is the other one's `stop_gradient`, with the same moves; None for neither."""
    while True:
        makers = []
        for v in (first, second):
            makers.append(None if hasattr(v, "val") else made.get(v))
        for case, (maker, other) in enumerate(zip(makers, (second, first), strict=True)):
            if (
                maker is not None
                and maker.primitive is prim.stop_gradient_p
                and maker.invars[0] is other
            ):
                return case
        one, other = makers
        if one is None or other is None or not _moves_alike(one, other):
            return None
        first = one.invars[0]
        second = other.invars[0]


def _moves_alike(first: Any, second: Any) -> bool:
    """Tells whether two equations do the same to two values."""
    are_moves = first.primitive is second.primitive and first.primitive in _MOVES
    return (
        are_moves and first.params == second.params and len(first.invars) == len(second.invars) == 1
    )


def _varying_axes(
    atom: Any,
    makers: Mapping[Any, Any],
) -> list[int]:
    """The axes along which a value is not known to be the same."""
    eqn = None if hasattr(atom, "val") else makers.get(atom)
    shape = atom.aval.shape
    if eqn is None or eqn.primitive is not prim.broadcast_in_dim_p:
        return [a for a, n in enumerate(shape) if n != 1]
    pairs = zip(
        eqn.invars[0].aval.shape,
        eqn.params["broadcast_dimensions"],
        strict=True,
    )
    return [int(a) for n, a in pairs if n != 1]


def _stop(
    which: Any,
    shape: Sequence[int],
    varies: Sequence[int],
    passes: bool,
) -> Stop:
    """Builds the stop for a choice, which keeps only the axes along which the choice varies. One number that chooses has a shape of ones."""
    counted = strides.in_one_line([n if a in varies else None for a, n in enumerate(shape)])
    numbers = tuple(stride or 0 for stride in counted), 0
    if isinstance(which, frozenset):  # the program is only followed
        return Stop(which, *numbers)
    if isinstance(which, Repeated):
        mask = jnp.ravel(which.value)
    else:
        mask = jnp.reshape(which, jnp.shape(which) or shape)
        mask = mask[tuple(slice(None) if a in varies else 0 for a in range(len(shape)))].ravel()
    return Stop(mask if passes else ~mask, *numbers)
