"""Convolutions and pooling along whole sequences: the operation on the window of each element, whose elements are read by numbers that the host knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batch_rules.sequence_steps import of_elements
from ampjax.frontend.batches.room_bodies import Body, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.combinators.sequences import least, most
from ampjax.frontend.combinators.tracing import trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import Column
from ampjax.frontend.draft.long_axes import element_type, length_name, long_axis, n_long_axes
from ampjax.frontend.draft.values import Elements, Static
from ampjax.frontend.whole_sequences.sequence_parts import length_of
from ampjax.jaxprs.primitives import bind


def convolved(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Convolves a sequence with a kernel of fixed size, as `jax.lax.conv_general_dilated` does; None for a kernel that is a sequence, too."""
    xs, kernel = values
    given, weights = map(
        type_of_atom,
        equation.inputs,
    )
    params = equation.source.params
    numbers = params["dimension_numbers"]
    axis = long_axis(given)
    if (
        axis is None
        or isinstance(
            kernel,
            Elements,
        )
        or axis not in numbers.lhs_spec[2:]
    ):
        return None
    place = numbers.lhs_spec.index(axis) - 2
    if params["lhs_dilation"][place] != 1 or numbers.out_spec[place + 2] != axis:
        return None
    window = _Window(
        axis,
        weights.shape[numbers.rhs_spec[place + 2]],
        params["rhs_dilation"][place],
        params["window_strides"][place],
        params["padding"][place][0],
    )
    changed = {
        **params,
        "padding": _replace_one(
            params["padding"],
            place,
            (0, 0),
        ),
        "window_strides": _replace_one(
            params["window_strides"],
            place,
            1,
        ),
        "rhs_dilation": _replace_one(
            params["rhs_dilation"],
            place,
            1,
        ),
    }
    source = equation.source.replace(params=changed)
    return window.compute(
        body,
        equation,
        xs,
        [(kernel, weights)],
        0,
        lambda x, own: bind(
            source,
            [x, own],
        ),
    )


def pooled(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Pools a sequence, as `jax.lax.reduce_window` does with sums, maxima and minima."""
    (xs,) = values
    given = type_of_atom(equation.inputs[0])
    params = equation.source.params
    axis = long_axis(given)
    if axis is None or params["base_dilation"][axis] != 1:
        return None
    window = _Window(
        axis,
        params["window_dimensions"][axis],
        params["window_dilation"][axis],
        params["window_strides"][axis],
        params["padding"][axis][0],
    )
    changed = {
        **params,
        "padding": _replace_one(
            params["padding"],
            axis,
            (0, 0),
        ),
        "window_strides": _replace_one(
            params["window_strides"],
            axis,
            1,
        ),
        "window_dilation": _replace_one(
            params["window_dilation"],
            axis,
            1,
        ),
    }
    source = equation.source.replace(params=changed)
    fill = POOLED[source.primitive.name](given.dtype)
    return window.compute(
        body,
        equation,
        xs,
        [],
        fill,
        lambda x: bind(source, [x]),
    )


@dataclass(frozen=True)
class _Window:
    """The elements of which one element of the result is computed.

    Args:
      axis: The axis of the elements.
      size: How many elements it has.
      dilation: How far they are apart.
      stride: How far the next window is.
      before: How many elements the first window begins before the first element; may be a length.
    """

    axis: int
    size: int
    dilation: int
    stride: int
    before: Any

    def compute(
        self,
        body: Body,
        equation: Equation,
        xs: Value,
        closed: Sequence[tuple[Value, Any]],
        fill: Any,
        operate: Any,
    ) -> list[Value] | None:
        """Computes an operation on each window; None for a sequence of sequences.

        Args:
          body: Where.
          equation: JAX's operation.
          xs: The sequence.
          closed: What the operation gets beside, and the types.
          fill: What stands for elements that are not there.
          operate: From a window, along the elements' axis, and what is beside to the result, of which that axis has size 1.
        """
        given = type_of_atom(equation.inputs[0])
        kind = equation.outputs[0].aval
        if (
            not isinstance(
                xs,
                Elements,
            )
            or n_long_axes(given) > 1
            or long_axis(kind) != self.axis
        ):
            return None
        line = equation.line
        before = length_of(
            body,
            self.before,
            [],
            line,
        )
        space = body.low.lengths.space(
            length_name(kind),
            body.space,
            [],
            line,
        )
        lengths = xs.space.lengths

        def number(data: Any, tap: int) -> np.ndarray:
            first = self.stride * space.numbers(data) - before(data)[space.parents(data)]
            return first + tap * self.dilation

        def sizes(data: Any) -> np.ndarray:
            return lengths(data)[space.parents(data)]

        def is_there(data: Any) -> np.ndarray:
            every = [
                number(
                    data,
                    tap,
                )
                for tap in range(self.size)
            ]
            own = np.stack(every, 1)
            return (own >= 0) & (own < sizes(data)[:, None])

        rows = []
        for tap in range(self.size):

            def origin(data: Any, tap: int = tap) -> np.ndarray:
                most = np.maximum(
                    sizes(data) - 1,
                    0,
                )
                own = np.clip(
                    number(data, tap),
                    0,
                    most,
                )
                return xs.space.starts(data)[space.parents(data)] + own

            way = ("window", before, self, tap)
            rows.append(
                body.low.value_at(
                    xs.element,
                    xs.space,
                    space,
                    origin,
                    way,
                )
            )
        there = jax.ShapeDtypeStruct(
            (self.size,),
            np.bool_,
        )
        n = len(closed)

        def of_one(*args: Any) -> Any:
            own = args[:n]
            each = args[n:-1]
            counts = args[-1]
            taps = []
            for tap, x in enumerate(each):
                taps.append(
                    jnp.where(
                        counts[tap],
                        x,
                        jnp.asarray(fill, x.dtype),
                    )
                )
            (found,) = operate(
                jnp.stack(taps, self.axis),
                *own,
            )
            return jax.lax.squeeze(
                found,
                [self.axis],
            )

        one = element_type(given)
        types = [kind for _, kind in closed]
        traced = trace(
            of_one,
            *types,
            *[one] * self.size,
            there,
        )[0]
        beside = [value for value, _ in closed]
        counts = Static(Column(space, is_there))
        return of_elements(
            body,
            space,
            traced,
            beside,
            [*rows, counts],
            of_whole=True,
        )


def _replace_one(values: Sequence[Any], place: int, value: Any) -> tuple[Any, ...]:
    """Some values with another one at a place."""
    return (*values[:place], value, *values[place + 1 :])


POOLED = {
    "reduce_window_sum": lambda dtype: 0,
    "reduce_window_max": least,
    "reduce_window_min": most,
}
"""By the name of JAX's operation: from a dtype to what stands for elements that are not there."""
