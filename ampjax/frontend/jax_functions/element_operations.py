"""Operations of JAX on whole sequences that do the same to each element: the operation on one element. Knows JAX's primitives, and no rows.

A sequence's axis may stand anywhere in an array's shape, as behind an axis for heads; where there are several, as in the scores of all pairs, the elements are
those of the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from ampjax.frontend.draft.long_axes import (
    is_known_length,
    is_sequence,
    long_axis,
    n_long_axes,
    without_axis,
)
from ampjax.frontend.jax_functions.own_derivatives import (
    OWN_DERIVATIVES,
    NotByElementError,
)
from ampjax.jaxprs.primitives import CALLS, bind, called, evaluate, for_usual_platforms, opened
from ampjax.jaxprs.rowwise import ELEMENTWISE

Params = dict[str, Any]


@dataclass(frozen=True)
class ElementForm:
    """An operation on one element of each sequence.

    Args:
      params: Its parameters.
      are_each: Of which operands it gets an element; of others it gets all.
      dropped: For each operand an axis of size 1 to leave out, which stands beside the elements; else None.
      turned: For each operand another axis whose elements it gets than the one that counts them in the operand; else None. Empty for none at all.
    """

    params: Params
    are_each: tuple[bool, ...]
    dropped: tuple[int | None, ...]
    turned: tuple[int | None, ...] = ()

    def axes(self, equation: Any) -> list[int | None]:
        """For each operand the axis whose elements the operation gets; None for an operand as a whole.

        Args:
          equation: JAX's equation.
        """
        found = []
        turned = self.turned or (None,) * len(self.are_each)
        for variable, is_each, other in zip(
            equation.invars,
            self.are_each,
            turned,
            strict=True,
        ):
            own = long_axis(variable.aval) if other is None else other
            found.append(own if is_each else None)
        return found


Shifted = Callable[[Any], "Params | None"]
"""From an equation whose sequences have the elements' axis first to the parameters of the same operation on one element; None where that is another operation."""

Formed = Callable[[Any], "ElementForm | None"]
"""From an equation to the same operation on one element; None where that is another operation."""


def element_axes(equation: Any) -> list[int | None] | None:
    """Finds the axis of which an operation gets an element at a time, for each operand; None for an operation that looks at more than one.

    Args:
      equation: JAX's equation, some of whose types have a symbolic axis.
    """
    if _is_call(equation):
        return _own_axes(equation)
    form = _form(equation)
    return None if form is None else form.axes(equation)


def on_element(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation for one element.

    Args:
      equation: JAX's equation.
      operands: For each operand an element or its value, as `element_axes` says.

    Raises:
      NotByElementError: If the operation is none that does the same to each element.
    """
    name = equation.primitive.name
    if name in CALLS:
        jaxpr, constants = opened(called(equation))
        return evaluate(
            jaxpr,
            constants,
            operands,
            _inside,
        )
    if name in OWN_DERIVATIVES:
        return OWN_DERIVATIVES[name](equation, operands, _inside)
    if name == "triangular_solve" and not _is_long(equation.invars[0]):
        return _solved_for_one(equation, operands)
    form = _form(equation)
    if form is None:
        raise NotByElementError(name)
    given = []
    for value, axis in zip(
        operands,
        form.dropped,
        strict=True,
    ):
        given.append(
            value
            if axis is None
            else jax.lax.squeeze(
                value,
                [axis],
            )
        )
    return bind(
        equation.replace(params=form.params),
        given,
    )


def _inside(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation of a function, for one element of each sequence."""
    if not any(
        map(
            _is_long,
            [*equation.invars, *equation.outvars],
        )
    ):
        return bind(equation, operands)
    usual = for_usual_platforms(equation)
    if usual is not None:
        jaxpr, constants = opened(usual)
        return evaluate(jaxpr, constants, operands[1:], _inside)
    if element_axes(equation) != _own_axes(equation):
        raise NotByElementError(equation.primitive.name)
    return on_element(equation, operands)


def _is_call(equation: Any) -> bool:
    name = equation.primitive.name
    return name in CALLS or name in OWN_DERIVATIVES


def _is_long(variable: Any) -> bool:
    return is_sequence(variable.aval)


def _own_axes(equation: Any) -> list[int | None]:
    """The axis that counts the elements of each operand; None for an array."""
    return [long_axis(variable.aval) for variable in equation.invars]


def _form(equation: Any) -> ElementForm | None:
    """The operation on one element; None for operations on a sequence as a whole."""
    rule = _FORMS.get(equation.primitive.name)
    if rule is None or not all(
        map(
            _is_long,
            equation.outvars,
        )
    ):
        return None
    return rule(equation)


# -- operations whose elements' axis stands anywhere


def _axes_of(equation: Any) -> tuple[list[int | None], int]:
    """The elements' axis of each operand, and of the result."""
    result = long_axis(equation.outvars[0].aval)
    assert result is not None
    return _own_axes(equation), result


def _cut(shape: Sequence[Any], axis: int) -> tuple[Any, ...]:
    """A shape without an axis."""
    return (*shape[:axis], *shape[axis + 1 :])


def _of_each(
    params: Params,
    n: int = 1,
    turned: int | None = None,
) -> ElementForm:
    """The form of an operation that gets an element of every operand, along another axis if that is told."""
    return ElementForm(
        params,
        (True,) * n,
        (None,) * n,
        () if turned is None else (turned,) * n,
    )


def _elementwise(equation: Any) -> ElementForm | None:
    """The same to each entry; an operand of size 1 beside the elements is the same for all."""
    own, axis = _axes_of(equation)
    rank = len(equation.outvars[0].aval.shape)
    are_each = []
    dropped: list[int | None] = []
    for variable, long in zip(
        equation.invars,
        own,
        strict=True,
    ):
        shape = variable.aval.shape
        is_each = long == axis
        is_beside = len(shape) == rank and not is_each
        if shape and (len(shape) != rank or (is_beside and shape[axis] != 1)):
            return None
        are_each.append(is_each)
        dropped.append(axis if is_beside else None)
    return ElementForm(
        equation.params,
        tuple(are_each),
        tuple(dropped),
    )


def _over_axes(name: str) -> Formed:
    """An operation over several axes, of which none is the elements'; a reduction over the elements' axis goes through the next axis that is left."""

    def formed(equation: Any) -> ElementForm | None:
        (own,), axis = _axes_of(equation)
        (given,) = equation.invars
        axes = tuple(
            map(
                int,
                equation.params[name],
            )
        )
        if own is None:
            return None
        turned = None
        if own in axes:
            left = [number for number in range(len(given.aval.shape)) if number not in axes]
            if len(left) != len(equation.outvars[0].aval.shape):
                return None
            turned = own = left[axis]
        shifted = {
            **equation.params,
            name: without_axis(
                axes,
                own,
            ),
        }
        return _of_each(shifted, turned=turned)

    return formed


def _broadcast(equation: Any) -> ElementForm | None:
    (own,), axis = _axes_of(equation)
    params = equation.params
    axes = [
        *map(
            int,
            params["broadcast_dimensions"],
        )
    ]
    is_each = False
    dropped = None
    if axis in axes:
        place = axes.index(axis)
        is_each = own == place
        if not is_each:
            dropped = place
            if equation.invars[0].aval.shape[place] != 1:
                return None
    shifted = {
        **params,
        "shape": _cut(
            params["shape"],
            axis,
        ),
        "broadcast_dimensions": without_axis(axes, axis),
    }
    return ElementForm(
        shifted,
        (is_each,),
        (dropped,),
    )


def _reshape(equation: Any) -> ElementForm | None:
    """Another shape of each element: axes before the elements' own have as many entries as before."""
    (own,), axis = _axes_of(equation)
    sizes = equation.params["new_sizes"]
    shape = equation.invars[0].aval.shape
    if own is None or sizes[axis] != shape[own]:
        return None
    if math.prod(sizes[:axis]) != math.prod(shape[:own]):
        return None
    return _of_each(
        {
            **equation.params,
            "new_sizes": _cut(
                sizes,
                axis,
            ),
        }
    )


def _transpose(equation: Any) -> ElementForm | None:
    (own,), axis = _axes_of(equation)
    order = [
        *map(
            int,
            equation.params["permutation"],
        )
    ]
    if own is None:
        return None
    shifted = {
        **equation.params,
        "permutation": without_axis(
            order,
            order[axis],
        ),
    }
    return _of_each(
        shifted,
        turned=order[axis],
    )


def _tile(equation: Any) -> ElementForm | None:
    (own,), axis = _axes_of(equation)
    reps = equation.params["reps"]
    if own != axis or reps[axis] != 1:
        return None
    return _of_each({"reps": _cut(reps, axis)})


def _iota(equation: Any) -> ElementForm | None:
    _, axis = _axes_of(equation)
    params = equation.params
    if params["dimension"] == axis:
        return None
    (dimension,) = without_axis(
        [params["dimension"]],
        axis,
    )
    shifted = {
        **params,
        "dimension": dimension,
        "shape": _cut(
            params["shape"],
            axis,
        ),
    }
    return ElementForm(shifted, (), ())


def _product(equation: Any) -> ElementForm | None:
    """A matrix product, of whose axes the elements' is one of both, or of one: then each element meets all of the other."""
    _, axis = _axes_of(equation)
    contracted, batched = equation.params["dimension_numbers"]
    n_batched = len(batched[0])
    numbers: list[list[tuple[int, ...]]] = [[], []]
    free = []
    for side in range(2):
        bound = {*contracted[side], *batched[side]}
        rank = len(equation.invars[side].aval.shape)
        free.append([number for number in range(rank) if number not in bound])
    if axis < n_batched:
        gone = [batched[0][axis], batched[1][axis]]
    else:
        side = int(axis - n_batched >= len(free[0]))
        place = axis - n_batched - side * len(free[0])
        gone = [None, None]
        gone[side] = free[side][place]
    for side, lost in enumerate(gone):
        axes = contracted[side], batched[side]
        if lost is not None:
            axes = (
                without_axis(
                    contracted[side],
                    lost,
                ),
                without_axis(batched[side], lost),
            )
            if is_known_length(equation.invars[side].aval.shape[lost]):
                return None
        for found, kept in zip(
            numbers,
            axes,
            strict=True,
        ):
            found.append(tuple(kept))
    are_each = [lost is not None for lost in gone]
    shifted = {
        **equation.params,
        "dimension_numbers": (tuple(numbers[0]), tuple(numbers[1])),
    }
    return ElementForm(
        shifted,
        tuple(are_each),
        (None, None),
        tuple(gone),
    )


def _numbered(equation: Any) -> ElementForm:
    """A product with a matrix that numbers choose, which is kept as the product of one element."""
    are_each = tuple(axis is not None for axis in _own_axes(equation))
    return ElementForm(equation.params, are_each, (None,) * len(are_each))


def _along(name: str, adds_axis: bool = False) -> Formed:
    """An operation along a single axis, which is not the elements'.

    Args:
      name: The parameter that says which.
      adds_axis: Whether the result has this axis more than the operands.
    """

    def formed(equation: Any) -> ElementForm | None:
        own, axis = _axes_of(equation)
        along = int(equation.params[name])
        place = axis - int(adds_axis and along < axis)
        if along == axis or any(each != place for each in own):
            return None
        (shifted,) = without_axis(
            [along],
            axis,
        )
        return _of_each(
            {**equation.params, name: shifted},
            len(own),
        )

    return formed


def _slice(equation: Any) -> ElementForm | None:
    """A part of each element, along other axes than the elements' own."""
    _, axis = _axes_of(equation)
    params = equation.params
    shape = equation.invars[0].aval.shape
    steps = params["strides"] or (1,) * len(shape)
    own = (params["start_indices"][axis], steps[axis], params["limit_indices"][axis])
    if own != (0, 1, shape[axis]):
        return None
    shifted = {
        "start_indices": _cut(
            params["start_indices"],
            axis,
        ),
        "limit_indices": _cut(
            params["limit_indices"],
            axis,
        ),
        "strides": _cut(steps, axis),
    }
    return _of_each(shifted, turned=axis)


# -- operations on the last axes: decompositions of matrices, transforms


def _of_matrices(n_axes: int) -> Formed:
    """An operation on matrices of fixed size, of which each element has one.

    Args:
      n_axes: How many axes of each operand the operation is about, the last ones.
    """

    def formed(equation: Any) -> ElementForm | None:
        own, _ = _axes_of(equation)
        for variable, axis in zip(equation.invars, own, strict=True):
            shape = variable.aval.shape
            if axis is None or axis >= len(shape) - n_axes:
                return None
            if not all(map(is_known_length, shape[-n_axes:])):
                return None
        return _of_each(equation.params, len(own)) if len({*own}) == 1 else None

    return formed


def _transformed(equation: Any) -> ElementForm | None:
    """A Fourier transform of each element."""
    return _of_matrices(len(equation.params["fft_lengths"]))(equation)


def _with_keys(equation: Any) -> ElementForm | None:
    """Draws by a key that each element has, and makes of keys; a key or a number without axes is the same for all."""
    own, axis = _axes_of(equation)
    for variable, each in zip(equation.invars, own, strict=True):
        if each != axis and (each is not None or variable.aval.shape):
            return None
    are_each = tuple(each is not None for each in own)
    return ElementForm(equation.params, are_each, (None,) * len(own)) if any(are_each) else None


def _triangular_solve(equation: Any) -> ElementForm | None:
    """Solves for each element, with a matrix of its own; or with one matrix for all elements, which are the right sides."""
    matrix, right = equation.invars
    if is_sequence(matrix.aval):
        return _of_matrices(2)(equation)
    if len(right.aval.shape) != 2 or long_axis(right.aval) != int(equation.params["left_side"]):
        return None
    return ElementForm(equation.params, (False, True), (None, None))


def _solved_for_one(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Solves with one matrix for all elements, for a single right side."""
    matrix, right = operands
    axis = int(equation.params["left_side"])
    (found,) = bind(equation, [matrix, jax.numpy.expand_dims(right, axis)])
    return [jax.lax.squeeze(found, [axis])]


# -- operations whose sequences have the elements' axis first


def _first(shifted: Shifted) -> Formed:
    """The form of an operation that is taken where each sequence has the elements' axis first."""

    def formed(equation: Any) -> ElementForm | None:
        own, axis = _axes_of(equation)
        if axis or any(own):
            return None
        params = shifted(equation)
        if params is None:
            return None
        are_each = tuple(each is not None for each in own)
        return ElementForm(
            params,
            are_each,
            (None,) * len(own),
        )

    return formed


def _less(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis - 1 for axis in axes)


def _pad(equation: Any) -> Params | None:
    first, *others = equation.params["padding_config"]
    if any(first):
        return None
    return {"padding_config": tuple(others)}


def _gather(equation: Any) -> ElementForm | None:
    """Reads in each element of a sequence, or of an array by the numbers that a sequence holds."""
    for rule in (_gather_in_elements, _first(_gathered), _gather_by_pairs):
        found = rule(equation)
        if found is not None:
            return found
    return None


def _gather_in_elements(equation: Any) -> ElementForm | None:
    """Reads in each element of a sequence, by numbers that are the same for all elements."""
    _, axis = _axes_of(equation)
    params = equation.params
    numbers = params["dimension_numbers"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    sizes = params["slice_sizes"]
    kept = [number for number in range(len(sizes)) if number not in gone]
    if axis not in numbers.offset_dims:
        return None
    of_operand = kept[numbers.offset_dims.index(axis)]
    size = equation.invars[0].aval.shape[of_operand]
    is_apart = of_operand in numbers.start_index_map or is_known_length(size)
    if is_apart or sizes[of_operand] != size:
        return None
    shifted = replace_numbers(
        numbers,
        offset_dims=without_axis(
            numbers.offset_dims,
            axis,
        ),
        collapsed_slice_dims=without_axis(
            numbers.collapsed_slice_dims,
            of_operand,
        ),
        start_index_map=without_axis(
            numbers.start_index_map,
            of_operand,
        ),
        operand_batching_dims=without_axis(
            numbers.operand_batching_dims,
            of_operand,
        ),
    )
    cut = {
        **params,
        "dimension_numbers": shifted,
        "slice_sizes": _cut(
            sizes,
            of_operand,
        ),
    }
    return ElementForm(
        cut,
        (True, False),
        (None, None),
        (of_operand, None),
    )


def _gathered(equation: Any) -> Params | None:
    if is_sequence(equation.invars[0].aval):
        return _gather_in_each(equation.params)
    return _by_own_numbers(equation)


def _gather_by_pairs(equation: Any) -> ElementForm | None:
    """Reads elements of a sequence by a matrix of numbers: in each row by the numbers of the row."""
    operand, at = (variable.aval for variable in equation.invars)
    if not is_sequence(operand) or n_long_axes(at) < 2 or long_axis(at):
        return None
    params = _by_own_numbers(equation)
    return None if params is None else ElementForm(params, (False, True), (None, None))


def _by_own_numbers(equation: Any) -> Params | None:
    """Reads of the same array by the numbers that each element has."""
    params = equation.params
    numbers = params["dimension_numbers"]
    is_in_each = bool(numbers.operand_batching_dims) or 0 in numbers.offset_dims
    if is_in_each or not is_sequence(equation.invars[1].aval):
        return None
    shifted = replace_numbers(
        numbers,
        offset_dims=_less(numbers.offset_dims),
    )
    return {**params, "dimension_numbers": shifted}


def _batch_axes_inside(
    of_operand: Sequence[int],
    of_numbers: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The batch axes of a read or an update in one element of a sequence; None if the elements' axis is no batch axis.

    Args:
      of_operand: The batch axes of the array.
      of_numbers: The same axes of the numbers.
    """
    first, *others = sorted(zip(of_operand, of_numbers, strict=True)) or [(1, 1)]
    if first != (0, 0):
        return None
    return _less([axis for axis, _ in others]), _less([axis for _, axis in others])


def _gather_in_each(params: Params) -> Params | None:
    """Reads in each element of a sequence, by numbers from the same element of another one: `jnp.take_along_axis`."""
    numbers = params["dimension_numbers"]
    beside = _batch_axes_inside(
        numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
    )
    if beside is None or 0 in numbers.offset_dims:
        return None
    shifted = replace_numbers(
        numbers,
        offset_dims=_less(numbers.offset_dims),
        collapsed_slice_dims=_less(numbers.collapsed_slice_dims),
        start_index_map=_less(numbers.start_index_map),
        operand_batching_dims=beside[0],
        start_indices_batching_dims=beside[1],
    )
    return {
        **params,
        "dimension_numbers": shifted,
        "slice_sizes": params["slice_sizes"][1:],
    }


def _scatter(equation: Any) -> Params | None:
    """Updates of the same part of each element, by changes that each element has."""
    params = equation.params
    numbers = params["dimension_numbers"]
    operand, at, update = (is_sequence(variable.aval) for variable in equation.invars)
    if operand and at and update:
        return _scatter_in_each(params)
    if at or not operand or not update or 0 in numbers.scatter_dims_to_operand_dims:
        return None
    if numbers.operand_batching_dims or numbers.update_window_dims[:1] != (0,):
        return None
    shifted = replace_numbers(
        numbers,
        update_window_dims=_less(numbers.update_window_dims[1:]),
        inserted_window_dims=_less(numbers.inserted_window_dims),
        scatter_dims_to_operand_dims=_less(numbers.scatter_dims_to_operand_dims),
    )
    return {**params, "dimension_numbers": shifted}


def update_of_axes(
    source: Any,
    renumbered: Callable[[Sequence[int]], tuple[int, ...]],
) -> Any:
    """The same update of arrays with other axes.

    Args:
      source: JAX's `scatter`.
      renumbered: From axes of the array to the axes in their place.
    """
    numbers = source.params["dimension_numbers"]
    own = replace_numbers(
        numbers,
        inserted_window_dims=renumbered(numbers.inserted_window_dims),
        scatter_dims_to_operand_dims=renumbered(numbers.scatter_dims_to_operand_dims),
    )
    return source.replace(params={**source.params, "dimension_numbers": own})


def replace_numbers(numbers: Any, **changes: Any) -> Any:
    """Replaces some of JAX's dimension numbers, in a named tuple or a data class."""
    return (
        numbers._replace(**changes)
        if hasattr(
            numbers,
            "_replace",
        )
        else replace(numbers, **changes)
    )


def _scatter_in_each(params: Params) -> Params | None:
    """Updates of each element of a sequence, at numbers and by changes that each has, as `jax.vmap` makes of `xs.at[i].set(x)`."""
    numbers = params["dimension_numbers"]
    beside = _batch_axes_inside(
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
    )
    if beside is None or 0 in numbers.update_window_dims:
        return None
    shifted = replace_numbers(
        numbers,
        update_window_dims=_less(numbers.update_window_dims),
        inserted_window_dims=_less(numbers.inserted_window_dims),
        scatter_dims_to_operand_dims=_less(numbers.scatter_dims_to_operand_dims),
        operand_batching_dims=beside[0],
        scatter_indices_batching_dims=beside[1],
    )
    return {**params, "dimension_numbers": shifted}


_FORMS: Mapping[str, Formed] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(
        ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"],
        _over_axes("axes"),
    ),
    **dict.fromkeys(
        ["reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin"],
        _over_axes("axes"),
    ),
    **dict.fromkeys(
        ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"],
        _along("axis"),
    ),
    **dict.fromkeys(
        ["concatenate", "sort"],
        _along("dimension"),
    ),
    **dict.fromkeys(
        ["squeeze", "rev"],
        _over_axes("dimensions"),
    ),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    **dict.fromkeys(
        ["cholesky", "eigh", "svd", "lu", "qr", "geqrf"],
        _of_matrices(2),
    ),
    "lu_pivots_to_permutation": _of_matrices(1),
    "triangular_solve": _triangular_solve,
    "fft": _transformed,
    **dict.fromkeys(
        ["random_fold_in", "random_bits", "random_split", "random_wrap", "random_unwrap"],
        _with_keys,
    ),
    "iota": _iota,
    "tile": _tile,
    "split": _along("axis"),
    "top_k": _along("axis"),
    "stack": _along("axis", adds_axis=True),
    "slice": _slice,
    "pad": _first(_pad),
    "dot_general": _product,
    "gather": _gather,
    "numbered_product": _numbered,
    **dict.fromkeys(
        ["scatter", "scatter-add", "scatter-sub", "scatter-mul"],
        _first(_scatter),
    ),
    **dict.fromkeys(
        ["scatter-min", "scatter-max"],
        _first(_scatter),
    ),
}
