"""Recursion over the elements of a sequence: plain Python on a concrete instance, one equation in a traced model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray

from ampjax.errors import DataError, GraphError
from ampjax.frontend.combinators.draw_places import EACH, Use
from ampjax.frontend.combinators.empty_sequences import learns_types, none_of
from ampjax.frontend.combinators.sequences import (
    dimension_of,
    is_symbolic,
    length_of,
    row_type,
    sequences_of,
)
from ampjax.frontend.combinators.structures import stack
from ampjax.frontend.combinators.tracing import (
    Call,
    Combinator,
    along,
    as_arrays,
    bind,
    call_user,
    concrete_number,
    require_same,
    require_structure,
    trace,
    type_of,
    user_line,
)
from ampjax.jaxprs.primitives import shape_text

RECURSE = Combinator("recurse")
RECALL = Combinator("recall", row_by_row=True)
"""The state of another element, within the function of a recursion."""

_MEND_NUMBERS = "Mend the numbers in the data."

_DEEPEST = 50
"""How many elements' functions run inside one another at most, where a model runs as it is."""


def recurse(
    f: Callable[..., Any],
    init: Any,
    *xs: Any,
) -> Any:
    """A recursion over the elements of a sequence: each result may be made of other elements' results, whichever the instance names.

    So directed acyclic graphs, tables of dynamic programming, and trees by any arrays of numbers are gone through. Each element's result is
    computed once, however many ask for it.

    When it runs: `f` is traced once. Then it runs on the device: as messages once for each element, when the results that it is made of
    have come, as a batch once for all elements that wait for equally many others.

    Args:
      f: `f(recur, *elements) -> result`, a pytree of arrays. `recur(j)` gives the result at element `j`, an integer that follows from the
        instance alone; for a negative `j` it gives `init`.
      init: What `recur` gives for a negative number, of the type of the results.
      xs: Pytrees of sequences of one length, whose elements `f` gets.

    Returns:
      The sequence of all results, in the order of the elements.

    Raises:
      GraphError: If the result has other types than `init`, or `recur` gets a number that is computed.
      DataError: If `recur` gets a number that no element has, or an element's result is made of itself.

    >>> import numpy as np
    >>> left, right = np.array([-1, -1, 0, 2]), np.array([-1, -1, 1, 2])  # the operands of each of four additions
    >>> recurse(lambda recur, a, b: recur(a) + recur(b), 1, left, right).tolist()
    [2, 2, 4, 8]
    """
    leaves, structure = sequences_of("recurse", xs)
    init = as_arrays("to begin with", init)
    use = Use()
    if not is_symbolic(leaves):
        return _run_recursion(f, init, leaves, structure, use)
    line = user_line()
    dimension = dimension_of("recurse", leaves)
    first, tree = jax.tree.flatten(init)
    recursion = object()

    def recur(j: Any) -> Any:
        _require_integer(j)
        call = Call(
            RECALL,
            [ShapedArray(x.shape, x.dtype) for x in first],
            line=user_line(),
            options={"of": recursion},
        )
        return tree.unflatten(bind(call, [jnp.asarray(j), *first]))

    each, closed, results = trace(
        lambda *elements: call_user(f, recur, *elements),
        *structure.unflatten([row_type(x) for x in leaves]),
        inside=use.inside(0, EACH),
    )
    _require_like_init(line, tree, first, each.results, results)
    call = Call(
        RECURSE,
        [along(dimension, y) for y in results],
        (each,),
        (len(closed),),
        line,
        {"of": recursion},
    )
    return tree.unflatten(bind(call, [*closed, *leaves]))


class _TooDeep(Exception):
    """An element has to be done first, from a stack of its own: Python's is not deep enough for a long chain."""


def _run_recursion(
    f: Callable[..., Any],
    init: Any,
    leaves: Sequence[Any],
    structure: Any,
    use: Use,
) -> Any:
    """`recurse` on a concrete instance: depth first, in the order in which elements are asked for."""
    n = length_of("recurse", leaves)
    line = user_line()
    results: dict[int, Any] = {}
    first, tree = jax.tree.flatten(init)
    waiting: list[int] = []  # elements whose function runs, or has to run again
    depth = 0

    def recur(j: Any) -> Any:
        _require_integer(j)
        if learns_types():
            return init
        at = concrete_number("recur", j)
        if at >= n:
            raise DataError(
                user_line(), f"an element below {n}, or a negative number", f"{at}", _MEND_NUMBERS
            )
        if at in waiting:
            way = " -> ".join(
                map(
                    str,
                    [*waiting[waiting.index(at) :], at],
                )
            )
            raise DataError(
                user_line(),
                "results that are not made of themselves",
                f"elements {way}",
                _MEND_NUMBERS,
            )
        if at >= 0 and at not in results:
            waiting.append(at)
            if depth == _DEEPEST:
                raise _TooDeep
            compute(at)
        return init if at < 0 else results[at]

    def compute(at: int) -> None:
        nonlocal depth
        depth += 1
        try:
            with use.inside(0, at):
                result = f(
                    recur,
                    *structure.unflatten([leaf[at] for leaf in leaves]),
                )
        finally:
            depth -= 1
        leaves_of_result, own_tree = jax.tree.flatten(as_arrays("from a function", result))
        _require_like_init(line, tree, first, own_tree, leaves_of_result)
        results[at] = tree.unflatten(leaves_of_result)
        waiting.remove(at)

    if not n:
        return none_of(use, lambda: init)
    for i in range(n):
        if i not in results:
            waiting.append(i)
        while waiting:
            with contextlib.suppress(_TooDeep):
                compute(waiting[-1])
    return stack([results[i] for i in range(n)])


def _require_integer(j: Any) -> None:
    if jnp.shape(j) != () or not jnp.issubdtype(
        jnp.result_type(j),
        jnp.integer,
    ):
        fix = "Give an integer that follows from the instance."
        raise GraphError(user_line(), "the number of an element", shape_text(type_of(j)), fix)


def _require_like_init(
    line: str,
    tree: Any,
    first: Sequence[Any],
    returned: Any,
    results: Sequence[Any],
) -> None:
    require_structure(
        line, "a result as `init` is built, {}", tree, returned, "Return what `recur` is to give."
    )
    require_same(
        line,
        "a result of the types of `init`",
        [type_of(x) for x in first],
        [type_of(x) for x in results],
    )
