"""Combinators over sequences: plain JAX in a Python loop on a concrete instance, one equation each in a traced model."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Tracer

from ampjax.errors import DataError, GraphError
from ampjax.frontend.combinators.draw_places import EACH, Use
from ampjax.frontend.combinators.empty_sequences import blank, learns_types, none_of
from ampjax.frontend.combinators.running_models import as_specified
from ampjax.frontend.combinators.structures import (
    Ragged,
    as_sequence,
    has_values,
    is_rows,
    stack,
    transpose_structures,
)
from ampjax.frontend.combinators.tracing import (
    Call,
    Combinator,
    along,
    as_array,
    as_arrays,
    bind,
    call_user,
    concrete_number,
    dimensions,
    require_carry,
    structure_text,
    trace,
    type_of,
    user_line,
)
from ampjax.jaxprs.primitives import shape_text

SCAN = Combinator("scan", turn=0, on_host="with operands")
"""`scan` and `map`: a function of each element, with a carry or without."""

COUNT = Combinator("count", on_host="always", by_example=False)
"""The numbers below a number: the rounds of a `fori_loop`."""

NUMBERS = Combinator("numbers", on_host="with operands", by_example=False)
"""The number of each element of a sequence."""

LENGTH = Combinator(
    "length",
    on_host="always",
    reads_values=False,
    by_example=True,
    in_ragged=True,
    row_by_row=True,
)
TAKE = Combinator("take", on_host="with operands")
SUM = Combinator("sum", on_host="with operands", reduces=True)
MAX = Combinator("max", on_host="with operands", reduces=True)
LOGSUMEXP = Combinator("logsumexp", on_host="with operands", reduces=True)


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    *others: Any,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`jax.lax.scan` over sequences whose length is the instance's, 0 included.

    When it runs: `f` is traced once. Then it runs on the device, in the sequence's order: as messages once for each element, as a batch
    once for each position, of all examples that have an element there.

    Args:
      f: `f(carry, x) -> (carry, y)`, for one element.
      init: The first carry, a pytree of arrays; for `amp.vmap` also of sequences, which keep their lengths.
      xs: A pytree of sequences of one length.
      *others: None: several sequences are one pytree, `(xs, ys)`.
      reverse: Whether to go from the last element to the first; the `y`s stay in the elements' order.

    Returns:
      The last carry, and the sequence of all `y`s.

    Raises:
      GraphError: If the sequences have different lengths, `f` returns no pair, or the carry changes its shape or dtype.
    """
    _refuse_several(others)
    leaves, structure = sequences_of("scan", xs)
    init = as_arrays("to begin with", init)
    use = Use()
    if not is_symbolic(leaves):
        n = length_of("scan", leaves)
        rows = []
        for i in range(n):
            rows.append(structure.unflatten([leaf[i] for leaf in leaves]))
        carry = init
        ys = [None] * n
        for i in reversed(range(n)) if reverse else range(n):
            with use.inside(0, i):
                result = f(carry, rows[i])
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise _no_pair(
                    user_line(),
                    [type_of(leaf) for leaf in jax.tree.leaves(result)],
                )
            carry, ys[i] = result
        return carry, stack(ys) if n else none_of(
            use, lambda: f(init, _blank(leaves, structure))[1]
        )
    line = user_line()
    dimension = dimension_of("scan", leaves)
    # The carry's structure (a dictionary, a tuple, ...) ends here: rules of messages and of batches see `n_carry` leaves, in the order of `jax.tree.flatten`.
    carry_leaves, carry_structure = jax.tree.flatten(init)
    step, closed, results = trace(
        f,
        jax.tree.map(type_of, init),
        structure.unflatten([row_type(x) for x in leaves]),
        inside=use.inside(0, EACH),
    )
    outer = step.results.children()
    if len(outer) != 2:
        raise _no_pair(line, results)
    if outer[0] != carry_structure:
        raise GraphError(
            line,
            f"scan's function to return (carry, y), with a carry like `init`, {structure_text(carry_structure)}",
            structure_text(step.results),
            "Return the carry as `init` is built.",
        )
    k = len(carry_leaves)
    require_carry(line, [type_of(x) for x in carry_leaves], results[:k])
    types = [
        *results[:k],
        *(along(dimension, y) for y in results[k:]),
    ]
    call = Call(
        SCAN,
        types,
        (step,),
        (len(closed),),
        line,
        {"n_carry": k, "reverse": reverse},
    )
    out = bind(call, [*closed, *carry_leaves, *leaves])
    return carry_structure.unflatten(out[:k]), outer[1].unflatten(out[k:])


def _refuse_several(others: Sequence[Any]) -> None:
    if not others:
        return
    raise GraphError(
        user_line(),
        "one pytree of sequences for `scan`, as in `jax.lax.scan`",
        f"{1 + len(others)} arguments behind the carry",
        "Put them into a tuple: `amp.scan(f, init, (xs, ys))`, of which `f(carry, pair)` gets `x, y = pair`. `amp.map(f, xs, ys)` takes several.",
    )


def _no_pair(line: str, results: Sequence[Any]) -> GraphError:
    got = ", ".join(shape_text(result) for result in results) or "nothing"
    fix = "Return `(h, None)` where there is nothing to collect."
    return GraphError(line, "scan's function to return a pair (carry, y)", got, fix)


def map(f: Callable[..., Any], *xs: Any) -> Any:
    """`f` of each element of a sequence, or of the elements of several sequences of one length.

    When it runs: `f` is traced once. Then it runs on the device: as messages once for each element, as a batch once for the elements of all
    examples.

    Args:
      f: The function of one element of each.
      xs: Pytrees of sequences.

    Returns:
      The sequence of results, a pytree as `f` returns.

    Raises:
      GraphError: If the sequences have different lengths.
    """
    leaves, structure = sequences_of("map", xs)
    use = Use()
    if not is_symbolic(leaves):
        n = length_of("map", leaves)
        results = []
        if not n:
            return none_of(use, lambda: f(*_blank(leaves, structure)))
        for i in range(n):
            with use.inside(0, i):
                results.append(f(*structure.unflatten([leaf[i] for leaf in leaves])))
        return stack(results)
    line = user_line()
    dimension = dimension_of("map", leaves)
    each, closed, results = trace(
        f,
        *structure.unflatten([row_type(x) for x in leaves]),
        inside=use.inside(0, EACH),
    )
    types = [along(dimension, y) for y in results]
    call = Call(
        SCAN,
        types,
        (each,),
        (len(closed),),
        line,
        {"n_carry": 0, "reverse": False},
    )
    return each.results.unflatten(bind(call, [*closed, *leaves]))


def fori_loop(
    n: Any,
    body: Callable[[Any, Any], Any],
    init: Any,
) -> Any:
    """`body` so many times, a number that the instance says.

    When it runs: `n` is computed on the host, and `body` is traced once. Then `body` runs on the device, in order: as messages once for
    each round of each example, as a batch once for each round, of all examples that have so many.

    Args:
      n: How often: an integer that follows from the instance alone; below 0 counts as 0.
      body: `body(i, carry) -> carry`, with `i` from 0 to `n - 1`.
      init: The first carry, as for `scan`.

    Returns:
      The last carry.

    Raises:
      GraphError: If `n` depends on parameters, or the carry changes its shape or dtype.
    """
    steps = count(n)
    return scan(lambda carry, i: (call_user(body, i, carry), ()), init, steps)[0]


def count(n: Any) -> Any:
    """The sequence 0, 1, ..., n - 1.

    Args:
      n: Its length: an integer that follows from the instance alone; below 0 counts as 0.

    Returns:
      An int32 sequence `[n]`.
    """
    known = dimensions()
    if known is None:
        return np.arange(
            builtins.max(concrete_number("fori_loop", n), 0),
            dtype=np.int32,
        )
    if jnp.shape(n) != () or not jnp.issubdtype(
        jnp.result_type(n),
        jnp.integer,
    ):
        raise GraphError(
            user_line(),
            "a number of steps: one integer",
            shape_text(type_of(n)),
            "Give one of the instance's integers.",
        )
    name = known.fresh("step")
    result = along(
        known.get(name),
        ShapedArray((), jnp.int32),
    )
    return bind(
        Call(
            COUNT,
            [result],
            line=user_line(),
            options={"dimension": name},
        ),
        [jnp.asarray(n)],
    )[0]


def length(xs: Any) -> Any:
    """Counts the elements of a sequence: an int32, which follows from the instance alone.

    When it runs: on the host, once for each example: when `compiled.data` is given it, or when a batch is packed.

    Args:
      xs: A sequence, or a pytree of sequences of one length.

    Returns:
      An int32 number.
    """
    leaves, _ = sequences_of("length", xs)
    if not is_symbolic(leaves):
        return np.int32(length_of("length", leaves))
    options = {"dimension": str(dimension_of("length", leaves))}
    return bind(
        Call(
            LENGTH,
            [ShapedArray((), jnp.int32)],
            line=user_line(),
            options=options,
        ),
        leaves[:1],
    )[0]


def sum(xs: Any) -> Any:
    """The sum of a sequence's elements; 0 for an empty one.

    When it runs: on the device, as messages once for each sequence, when its last element has come, as a batch once for all sequences.

    Args:
      xs: A sequence, or a pytree of sequences.

    Returns:
      What one element looks like: arrays of its shapes, `[...]` from `[n, ...]`, and of its dtypes; truth values and short integers are
      counted in int32.
    """
    return _reduce(
        SUM,
        xs,
        lambda x: jnp.sum(x, 0),
    )


def max(xs: Any) -> Any:
    """The largest of a sequence's elements, entry by entry; minus infinity for an empty one, of which most losses make NaN. Equal ones share the gradient.

    When it runs: on the device, as messages once for each sequence, when its last element has come, as a batch once for all sequences.

    Args:
      xs: A sequence, or a pytree of sequences.

    Returns:
      What one element looks like, of its dtypes; for an empty sequence of integers the least that there is.
    """
    return _reduce(
        MAX,
        xs,
        lambda x: jnp.max(
            x,
            0,
            initial=least(jnp.result_type(x)),
        ),
    )


def logsumexp(xs: Any) -> Any:
    """`log(sum(exp(x)))` over a sequence, entry by entry; minus infinity for an empty one.

    When it runs: on the device, as messages once for each sequence, when its last element has come, as a batch once for all sequences.

    Args:
      xs: A sequence, or a pytree of sequences.

    Returns:
      What one element looks like: of its float dtypes, float32 for integers.
    """
    return _reduce(
        LOGSUMEXP,
        xs,
        lambda x: (
            jax.nn.logsumexp(x, 0)
            if len(x)
            else jnp.full(x.shape[1:], -jnp.inf, jnp.promote_types(x.dtype, jnp.float16))
        ),
    )


def mean(xs: Any) -> Any:
    """The mean of a sequence's elements; 0 for an empty one.

    When it runs: on the device, as messages once for each sequence, when its last element has come, as a batch once for all sequences.

    Args:
      xs: A sequence, or a pytree of sequences.

    Returns:
      What one element looks like: of its float dtypes, float32 for integers.
    """
    n = jnp.maximum(
        jnp.asarray(length(xs), jnp.float32),
        1.0,
    )
    return jax.tree.map(lambda total: total / n, sum(xs))


def softmax(xs: Any) -> Any:
    """`exp(x - logsumexp(x))` over a sequence, entry by entry: `exp(x) / sum(exp(x))` with one reduction, and without overflow.

    When it runs: on the device: the reduction once its last element has come, then each element's quotient; as a batch both once for all
    sequences.

    Args:
      xs: A sequence of floats.

    Returns:
      A sequence of the same length.
    """
    total = logsumexp(xs)

    def weight(x: Any) -> jax.Array:
        return jnp.exp(x - total)

    return map(weight, xs)


def take(xs: Any, at: Any) -> Any:
    """One element of a sequence.

    When it runs: the number is computed on the host. The element is read on the device: as messages once for each read, as a batch once for
    all of them.

    Args:
      xs: A sequence, or a pytree of sequences of one length.
      at: Its number, which follows from the instance alone; negative ones count from the end. It must be there. Of an array whose length is
        fixed it may be computed.

    Returns:
      The element: `[...]` from `[n, ...]`.

    Raises:
      GraphError: If the number depends on parameters.
      DataError: If there is no such element.
    """
    leaves, structure = sequences_of("take", xs)
    at = at if isinstance(at, int) else as_array("for the number of an element", at)
    if jnp.shape(at) != () or not jnp.issubdtype(
        jnp.result_type(at),
        jnp.integer,
    ):
        fix = "Give an integer, such as one that the spec calls `int32[]`; for several elements use `amp.map`."
        raise GraphError(
            user_line(), "one integer for the number of an element", shape_text(type_of(at)), fix
        )
    if not is_symbolic(leaves):
        n = length_of("take", leaves)
        if isinstance(at, Tracer) and not any(is_rows(leaf) for leaf in leaves):
            return structure.unflatten([jnp.asarray(leaf)[at] for leaf in leaves])
        if not -n <= int(at) < n:
            if learns_types():
                return _blank(leaves, structure)
            fix = "Take what is there; `amp.cond` of `amp.length` chooses what to do without."
            raise DataError(
                user_line(),
                "an element that the sequence has",
                f"number {int(at)} of {n} elements",
                fix,
            )
        return structure.unflatten([leaf[int(at)] for leaf in leaves])
    types = [ShapedArray(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    return structure.unflatten(
        bind(
            Call(TAKE, types, line=user_line()),
            [jnp.asarray(at), *leaves],
        )
    )


def window(
    xs: Any,
    size: int,
    fill: Any = 0,
) -> Any:
    """Each element of a sequence together with its neighbours: the input of a convolution over the sequence.

    A graph of messages reads each neighbour as `amp.take` does. Windows of what follows from the instance, such as words, need no messages.

    When it runs: on the device: as messages each neighbour is read once, as a batch all neighbours together. Windows of what follows from
    the instance are made on the host.

    Args:
      xs: A sequence, or a pytree of sequences of one length; of arrays, not of sequences.
      size: How many elements a window has: odd, so that its own element is in the middle.
      fill: The number that stands before the first element and after the last, where there is no neighbour; cast to the sequence's dtype.

    Returns:
      A sequence of the same length and dtype: `[n, size, ...]` from `[n, ...]`. Element `i` holds `xs[i - size // 2]` to `xs[i + size // 2]`.

    Raises:
      GraphError: If `size` is no odd number above 0, or the elements are sequences.
    """
    if not isinstance(size, int) or size < 1 or size % 2 == 0:
        raise GraphError(
            user_line(),
            "an odd number of elements for `window`",
            repr(size),
            "Give 3, 5 or so: as many neighbours on the left as on the right.",
        )
    leaves, structure = sequences_of("window", xs)
    if any(is_rows(leaf) or not all(isinstance(n, int) for n in leaf.shape[1:]) for leaf in leaves):
        fix = "Make windows of the inner sequences in a `map`."
        raise GraphError(
            user_line(), "a sequence of arrays for `window`", "a sequence of sequences", fix
        )
    half = size // 2
    if not is_symbolic(leaves):
        length_of("window", leaves)
        return structure.unflatten([_cut_out(leaf, half, fill) for leaf in leaves])
    n = length(leaves[0])
    every = tuple(leaves)  # a list would be taken for a sequence

    def neighbours(at: Any) -> list[Any]:
        is_there = (at >= 0) & (at < n)
        nearest = take(every, jnp.clip(at, 0, n - 1))
        return [jnp.where(is_there, x, jnp.asarray(fill, x.dtype)) for x in nearest]

    def around(i: Any, *at_element: Any) -> tuple[Any, ...]:
        before = [neighbours(i - k) for k in range(half, 0, -1)]
        after = [neighbours(i + k) for k in range(1, half + 1)]
        return tuple(jnp.stack(x) for x in zip(*before, at_element, *after, strict=True))

    return structure.unflatten(map(around, _numbers(leaves), *leaves))


def _cut_out(
    xs: Any,
    half: int,
    fill: Any,
) -> jax.Array:
    """The windows of an array's rows."""
    no_axis = [(0, 0)] * (jnp.ndim(xs) - 1)
    padded = jnp.pad(
        xs,
        [(half, half), *no_axis],
        constant_values=fill,
    )
    starts = np.arange(len(xs))
    return padded[starts[:, None] + np.arange(2 * half + 1)]


def _numbers(leaves: Sequence[Any]) -> Any:
    """The numbers of the elements of traced sequences, as a sequence of the same dimension."""
    dimension = dimension_of("window", leaves)
    numbers = along(dimension, ShapedArray((), jnp.int32))
    call = Call(
        NUMBERS,
        [numbers],
        line=user_line(),
        options={"word": "window"},
    )
    return bind(call, leaves[:1])[0]


def _reduce(
    kind: Combinator,
    xs: Any,
    eager: Callable[[Any], Any],
) -> Any:
    leaves, structure = sequences_of(kind.name, xs)
    for leaf in leaves:
        if isinstance(leaf, Ragged):
            fix = "Reduce the inner sequences in a `map` first."
            raise GraphError(
                user_line(), f"a sequence of arrays for `{kind}`", "a sequence of sequences", fix
            )
    if not is_symbolic(leaves):
        return structure.unflatten([eager(leaf) for leaf in leaves])
    one = []
    for leaf in leaves:
        one.append(
            jax.ShapeDtypeStruct(
                (1, *leaf.shape[1:]),
                leaf.dtype,
            )
        )
    types = []
    for leaf, each in zip(leaves, one, strict=True):
        types.append(
            ShapedArray(
                leaf.shape[1:],
                jax.eval_shape(eager, each).dtype,
            )
        )
    operands = [
        leaf if leaf.dtype == result.dtype else map(lambda x, to=result.dtype: x.astype(to), leaf)
        for leaf, result in zip(leaves, types, strict=True)
    ]
    return structure.unflatten(bind(Call(kind, types, line=user_line()), operands))


def most(dtype: Any) -> Any:
    """The largest number of a dtype: infinity, if the dtype has that."""
    return (
        np.inf
        if jnp.issubdtype(
            dtype,
            jnp.inexact,
        )
        else ~np.asarray(least(dtype), dtype)
    )


def least(dtype: Any) -> Any:
    """Finds the least number of a dtype: minus infinity, if the dtype has that.

    Args:
      dtype: The dtype.
    """
    if jnp.issubdtype(dtype, jnp.inexact):
        return -np.inf
    if jnp.issubdtype(dtype, jnp.bool_):
        return False
    return np.iinfo(dtype).min


def sequences_of(
    what: str,
    xs: Any,
) -> tuple[list[Any], Any]:
    """The sequences of pytrees, and the pytrees' structure.

    Raises:
      GraphError: If there is none, or a number is among them.
    """
    leaves, structure = jax.tree.flatten(
        jax.tree.map(_sequence, xs, is_leaf=is_rows), is_leaf=is_rows
    )
    for leaf in leaves:
        if not is_rows(leaf) and not jnp.ndim(leaf):
            fix = "Give arrays whose first axis counts elements."
            raise GraphError(user_line(), f"sequences for `{what}`", shape_text(type_of(leaf)), fix)
    if not leaves:
        raise GraphError(
            user_line(), f"at least one sequence for `{what}`", "none", "Give it what to run over."
        )
    return leaves, structure


def is_symbolic(leaves: Sequence[Any]) -> bool:
    """Tells whether sequences belong to a model in a trace."""
    return any(not is_rows(leaf) and not isinstance(jnp.shape(leaf)[0], int) for leaf in leaves)


def length_of(what: str, leaves: Sequence[Any]) -> int:
    """Counts the elements of concrete sequences.

    Raises:
      GraphError: If they have different lengths.
    """
    lengths = [len(leaf) for leaf in leaves]
    if len(set(lengths)) > 1:
        raise GraphError(
            user_line(),
            f"sequences of one length for `{what}`",
            f"lengths {lengths}",
            "Cut or pad them before.",
        )
    return lengths[0]


def dimension_of(what: str, leaves: Sequence[Any]) -> Any:
    """The dimension of sequences that are traced.

    Raises:
      GraphError: If they have different ones.
    """
    lengths = []
    for leaf in leaves:
        lengths.append(leaf.shape[0] if not is_rows(leaf) else len(leaf))
    if any(dimension != lengths[0] for dimension in lengths):
        raise GraphError(
            user_line(),
            f"sequences of one length for `{what}`",
            f"lengths {' and '.join(dict.fromkeys(str(each) for each in lengths))}",
            "Give dimensions that are always equal one name in the spec.",
        )
    return lengths[0]


def row_type(leaf: Any) -> Any:
    """The type of a traced sequence's element."""
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _sequence(part: Any) -> Any:
    """Converts a sequence to an array or a `Ragged`, an instance's with the spec's types; a list of structures to the structure of lists."""
    is_bare = isinstance(part, list) or (
        isinstance(part, Ragged | np.ndarray) and not has_values(part)
    )
    if is_bare and dimensions() is None and (specified := as_specified(part)) is not None:
        return specified
    if isinstance(part, list):
        return jax.tree.map(as_sequence, transpose_structures(part), is_leaf=is_rows)
    is_number = not isinstance(part, Ragged) and not jnp.ndim(part)
    # What stands for an element of an empty list may be a number where the model expects a sequence.
    if learns_types() and is_number:
        return np.zeros(0, jnp.result_type(part))
    return part


def _blank(leaves: Sequence[Any], structure: Any) -> Any:
    """An element of zeros, to learn the shapes of results where there is no element."""
    return structure.unflatten([blank(leaf) for leaf in leaves])
