"""Checks of the instances' numbers that index an axis of known size: JAX would read another row, or none, without a word.

What says itself that numbers may lie outside is left alone: modes `clip` and `fill` with a value, `jnp.clip` around the number, a negative class of
`jax.nn.one_hot`. Mode `clip` of a single number can't be told from none: JAX makes the same slice of both. Rows of a region are looked at, so what `amp.cond` keeps away is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError
from ampjax.frontend.deduction.equations import Atom, Equation, Known, Name
from ampjax.frontend.deduction.numpy_equations import is_exact
from ampjax.frontend.draft.index_spaces import Column, Region

if TYPE_CHECKING:
    from ampjax.frontend.instances.instance_columns import Columns

_SHAPES = ("broadcast_in_dim", "copy", "expand_dims", "reshape", "squeeze")
"""Operations that leave numbers what they are."""


@dataclass(frozen=True)
class Index:
    """A number that indexes something.

    Args:
      atom: The number.
      n: How many there are of what it indexes.
      operand: What it indexes; None for the classes of `one_hot`, of which a negative number is none.
    """

    atom: Atom
    n: int
    operand: Atom | None


def indices(
    equation: Equation,
    makers: Mapping[Any, Equation],
) -> Iterator[Index]:
    """Yields the numbers by which an operation reads single rows or entries.

    Args:
      equation: The operation.
      makers: For what follows from the instance, the equation that computes it.
    """
    name = equation.source.primitive.name
    params = equation.source.params
    inputs = equation.inputs
    if name == "dynamic_slice":
        sizes = zip(
            inputs[1:],
            inputs[0].aval.shape if isinstance(inputs[0], Name) else _shape(inputs[0]),
            strict=True,
        )
        for (atom, n), size in zip(sizes, params["slice_sizes"], strict=True):
            if size == 1:
                yield Index(atom, n, inputs[0])
    elif name == "gather" and _is_strict(params):
        of = params["dimension_numbers"].start_index_map
        shape = _shape(inputs[0])
        for atom, axis in zip(
            _parts(
                inputs[1],
                len(of),
                makers,
            ),
            of,
            strict=False,
        ):
            if params["slice_sizes"][axis] == 1:
                yield Index(atom, shape[axis], inputs[0])
    elif name == "eq" and _is_one_hot(equation):
        number, _ = base(inputs[0], makers)
        yield Index(
            number,
            math.prod(equation.outputs[0].aval.shape) // max(math.prod(_shape(number)), 1),
            None,
        )


def base(
    atom: Atom,
    makers: Mapping[Any, Equation],
) -> tuple[Atom, bool]:
    """Traces a number back to before its shape was changed and before JAX added the length to a negative one.

    Args:
      atom: The number.
      makers: For what follows from the instance, the equation that computes it.

    Returns:
      What it was, and whether a negative one counts from the end.
    """
    wraps = False
    while (maker := makers.get(atom)) is not None:
        name = maker.source.primitive.name
        if name in _SHAPES or (name == "convert_element_type" and _is_integer(maker.inputs[0])):
            atom = maker.inputs[0]
        elif name == "select_n" and _wraps(maker, makers):
            atom = maker.inputs[1]
            wraps = True
        else:
            break
    return atom, wraps


def is_cheap(atom: Atom, makers: Mapping[Any, Equation]) -> bool:
    """Tells whether a number is the instance's own, or NumPy computes it from such numbers.

    Args:
      atom: The number.
      makers: For what follows from the instance, the equation that computes it.
    """
    maker = makers.get(atom)
    return maker is None or (
        is_exact(maker.source) and all(is_cheap(each, makers) for each in maker.inputs)
    )


def check(
    data: Columns,
    column: Column,
    region: Region,
    least: int | None,
    n: int,
    where: str,
    expected: str,
) -> None:
    """Checks numbers of all instances.

    Args:
      data: The data set.
      column: The numbers.
      region: Where they index something.
      least: The smallest that is allowed; None for any.
      n: All must be below it.
      where: The user's line.
      expected: Which numbers are allowed, in words.

    Raises:
      DataError: If one is outside; names the instance.
    """
    space = region.space
    values = column.of(data)
    outside = np.asarray(values >= n if least is None else (values < least) | (values >= n))
    if not outside.any():
        return
    rows = region.rows(data)
    if rows is None:
        rows = np.arange(space.n_rows(data))
    rows_of_values = space.rows_of(data, column.space, np.arange(len(values)))[rows]
    is_wrong: np.ndarray = outside.reshape(
        len(values),
        -1,
    ).max(axis=1)
    for at in np.flatnonzero(is_wrong[rows_of_values])[:1]:
        got = np.extract(outside[rows_of_values[at]], values[rows_of_values[at]])[0]
        fix = "Mend the data, or make what it indexes larger. Where it stands for none, choose with `amp.cond`, or clip it before."
        raise DataError(
            f"{where}, instance {space.instances(data)[rows[at]]}", expected, f"{got}", fix
        )


def _shape(atom: Atom) -> Sequence[int]:
    if isinstance(atom, Name):
        return atom.aval.shape
    return jnp.shape(atom.value)


def _is_integer(atom: Atom) -> bool:
    if isinstance(atom, Name):
        dtype = atom.aval.dtype
    else:
        dtype = jnp.result_type(atom.value)
    return jnp.issubdtype(dtype, jnp.integer)


def _is_strict(params: Mapping[str, Any]) -> bool:
    """Tells whether a gather takes for granted that numbers are inside: there is no fill value or mode for others."""
    mode = params["mode"]
    fill = params["fill_value"]
    if mode == jax.lax.GatherScatterMode.CLIP:
        return _was_slice(params["dimension_numbers"])
    return (
        mode == jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS or fill is None or bool(np.isnan(fill))
    )


def _was_slice(numbers: Any) -> bool:
    """Recognises the gather that `jax.vmap` makes of `x[i]`: a slice of one row, with a start along each axis."""
    axes = len(numbers.offset_dims)
    return not numbers.collapsed_slice_dims and len(numbers.start_index_map) == axes


def _parts(
    atom: Atom,
    n: int,
    makers: Mapping[Any, Equation],
) -> list[Atom]:
    """The numbers for each of n axes, along the last axis of a gather's indices; none where that can't be told."""
    if n == 1:
        return [atom]
    maker = makers.get(atom)
    joins = (
        maker is not None
        and maker.source.primitive.name == "concatenate"
        and len(maker.inputs) == n
    )
    return [*maker.inputs] if maker is not None and joins else []


def _wraps(maker: Equation, makers: Mapping[Any, Equation]) -> bool:
    """Tells whether an equation chooses between a number and the number plus a length, as JAX does for negative ones."""
    if len(maker.inputs) != 3:
        return False
    _, number, longer = maker.inputs
    adds = makers.get(longer)
    return (
        adds is not None
        and adds.source.primitive.name == "add"
        and adds.inputs[0] is number
        and isinstance(adds.inputs[1], Known)
    )


def _is_one_hot(equation: Equation) -> bool:
    return any(caller.params.get("name") == "_one_hot" for caller in equation.place.callers)
