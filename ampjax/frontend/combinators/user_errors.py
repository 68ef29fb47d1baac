"""Errors about parts of a model that can't be traced: JAX's errors in ampjax's words, with the user's line and an alternative."""

from __future__ import annotations

import linecache
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from jax.core import Tracer

from ampjax.errors import GraphError
from ampjax.frontend.combinators.tracing import COMBINATOR, bodies
from ampjax.jaxprs.primitives import is_library_file, source_line

BATCHES_TAKE_IT = "`amp.vmap` takes it as it is, and so does `amp.compile(..., messages=False)`, for `mode='batch'`."
"""Advice where messages refuse what a batch can do."""

BATCHES_TAKE_MOST = "`amp.vmap` takes most such operations, and so does a trainer by batches: `amp.compile(..., messages=False)`."
"""The same of operations on whole sequences, of which a batch refuses some."""

FIRST_ROWS = "For as many of a table's first rows as a sequence has elements, read them by number: `table[jnp.arange(xs.shape[0])]`."
"""Advice about `table[:n]`, which JAX takes for a sequence of another length, as the table may have fewer rows."""

_SORT = "Sort: `jnp.sort(xs)`, `jnp.argsort(xs)`."
_LARGEST = "Use `jax.lax.top_k`, which is exact; or `jnp.sort(xs)[::-1][:k]`, a sequence, which is shorter where there are fewer elements."
_COMPUTED = "How many elements that gives is computed. Keep all elements, with `jnp.where(mask, xs, 0)` for those that do not count; or sort those that do to the front."
_DRAWN = "Sort by numbers that are drawn for each element: `xs[jnp.argsort(draws)]`, of draws from `amp.map` with `jax.random.fold_in(key, i)`."
_DIAGONAL = "A batch takes it of a matrix of as many rows as columns: `jnp.diagonal(a, offset=1)`; read other entries by numbers, `a[i, j]`."
_EVENLY = "A batch takes `jnp.linspace(0, 1, xs.shape[0])`, without `retstep` and `axis`; the same is `jnp.arange(xs.shape[0]) / jnp.maximum(amp.length(xs) - 1, 1)`."
_CHANGED = "A batch takes it along the first axis, at one number of Python: `jnp.insert(xs, 1, x, axis=0)`, `jnp.delete(xs, 1, axis=0)`; else read what is left by numbers, `xs[numbers]`."
_PADDED = "Put what is mirrored before: `jnp.concatenate([xs[1:3][::-1], xs])`. An array of a fixed size is `jnp.zeros((16, d)).at[: xs.shape[0]].set(xs)`; a matrix of pairs is padded along its second axis, so `jnp.pad(a.T, ((0, 0), (1, 0))).T` pads the first."
_MATRIX = "A matrix to be decomposed has a fixed size: one that each element has, `amp.map(jnp.linalg.inv, xs)`, a product that sums over the elements, such as `xs.T @ xs`, or a leaf of fixed size in the spec."
_WINDOW = "A batch takes a sequence of numbers and a kernel of a fixed size, `jnp.convolve(xs, kernel)`; else compute on each element and its neighbours: `amp.map(f, amp.window(xs, 3))`."
_RUNNING = "Running results are `jax.lax.cummax(xs)`, `jax.lax.cummin(xs)`, `jnp.cumsum(xs, axis=0)` and `jnp.cumprod(xs, axis=0)`; others come from `amp.scan`."
OF_WHOLE: dict[str, str] = {
    **dict.fromkeys(["approx_max_k", "approx_min_k", "approx_top_k"], _LARGEST),
    **dict.fromkeys(["partition", "argpartition"], _SORT),
    **dict.fromkeys(["unique", "nonzero", "flatnonzero", "argwhere", "compress"], _COMPUTED),
    **dict.fromkeys(["permutation", "shuffle", "choice"], _DRAWN),
    **dict.fromkeys(["diagonal", "diag"], _DIAGONAL),
    **dict.fromkeys(["det", "slogdet", "inv", "pinv", "solve", "lstsq"], _MATRIX),
    **dict.fromkeys(["cholesky", "eigh", "eigvalsh", "svd", "qr", "expm"], _MATRIX),
    **dict.fromkeys(["convolve", "correlate"], _WINDOW),
    "linspace": _EVENLY,
    **dict.fromkeys(["insert", "delete"], _CHANGED),
    "take": "Take an element by the remainder: `amp.take(xs, i % amp.length(xs))`; of several numbers in `amp.map`.",
    "pad": _PADDED,
    "digitize": "Of edges of a fixed size, for each element: `amp.map(lambda x: jnp.digitize(x, edges), xs)`. Of edges that are a sequence count those that are no larger: `jnp.sum(edges <= x)`.",
    "accumulate": _RUNNING,
    "searchsorted": "Count the elements that are smaller: `jnp.sum(xs < x)`; in an array of a fixed size `amp.map(lambda x: jnp.searchsorted(array, x), xs)`.",
    "split": "Cut it: `xs[:2]` and `xs[2:]`.",
    "gradient": "Subtract neighbours: `jnp.diff(xs, axis=0)`, or `(xs[2:] - xs[:-2]) / 2`.",
    "trapezoid": "Sum what lies between neighbours: `jnp.sum((xs[1:] + xs[:-1]) / 2, axis=0)`.",
    "interp": "Read both neighbours by number: `i = jnp.sum(places <= x)`, then `xs[i - 1]` and `xs[i]`.",
    "squeeze": "Name the axis: `jnp.squeeze(xs, axis=1)`.",
    "associative_scan": "A batch takes it by its full name, `jax.lax.associative_scan(f, xs)`; else use `amp.scan`, or `jnp.cumsum` and the like.",
}
"""What to write in place of a function of JAX on a whole sequence, by the function's name."""

_AS_DOCUMENTED = "Pass arguments of the types that the function's documentation names."
_TRACED = "operations of JAX on values that are traced"
_LENGTH = "a length to stay each instance's own"
_LOOP = (
    _LENGTH,
    "a comparison, a loop or `int()` that needs a number",
    "Use `amp.length` for the number, and `amp.map`, `amp.scan` or `amp.fori_loop` to go through elements.",
)
_INTEGERS = (
    "integers as indices",
    "floats",
    "Give them an integer type in the spec, such as `int32[t]`, or cast them with `astype`.",
)
_SLICES = (
    "slices whose ends are lengths of sequences, or numbers of Python",
    "a traced number",
    "Read by number: `table[jnp.arange(ys.shape[0])]`.",
)
_HELP: dict[str, tuple[str, str, str]] = {
    "TracerBoolConversionError": (
        _TRACED,
        "`if`, `while`, `and`, `not` or `bool()` of one",
        "Use `amp.cond` or `amp.while_loop`, with `amp.read` where parameters decide; or `jnp.where`.",
    ),
    "TracerIntegerConversionError": (
        _TRACED,
        "`range()` of one, or one as the index of a list",
        "Use `amp.fori_loop` to count, and `amp.switch` to choose.",
    ),
    "TracerArrayConversionError": (
        _TRACED,
        "NumPy's on one",
        "Use the function of `jnp` or `jax` of the same name.",
    ),
    "ConcretizationTypeError": (
        _TRACED,
        "`int()`, `float()` or another use of one as a number of Python",
        "Leave it an array; use `amp.fori_loop`, `amp.switch` or `amp.take` where it counts or chooses.",
    ),
    "InconclusiveDimensionOperation": _LOOP,
    "process_primitive": _LOOP,  # what JAX 0.12 says of a `for` over a sequence
    "_DimExpr": (
        _LENGTH,
        "`len()` or another use of it as a number of Python",
        "Use `amp.length` for the number, and `amp.map`, `amp.scan` or `amp.fori_loop` to go through elements.",
    ),
    "TraceContextError": (
        "layers without a state of their own",
        "one of flax.nnx that changes while it runs, such as `Dropout` or `BatchNorm`",
        "Call `amp.dropout` on its result; normalise with `LayerNorm`, or give statistics to the model as a part of the example.",
    ),
    "InvalidRngError": (
        "layers that draw no random numbers by themselves",
        "one of flax that asks for a key, such as `Dropout`",
        "Make it deterministic, and call `amp.dropout` on its result; or give `apply` a key that `amp.stochastic` gives.",
    ),
    "ModifyScopeVariableError": (
        "layers without a state of their own",
        "one of flax that changes its variables while it runs, such as `BatchNorm`",
        "Pass `mutable=[...]` to `apply` and leave the new variables, or normalise with `LayerNorm`.",
    ),
    "Indexer must have integer": _INTEGERS,
    "<class 'numpy.integer'>": _INTEGERS,
    "must be of integer type": _INTEGERS,
    "must have an integer type": _INTEGERS,
    "are valid indices": (
        "integers as indices",
        "a length, or an expression of lengths",
        "Write it with `amp.length`: `amp.take(xs, amp.length(xs) - 1)`; in a batch also `xs[-1]` and `xs.at[amp.length(xs) // 2].set(x)`.",
    ),
    "Slice entries must be static": _SLICES,
    "must have static start": _SLICES,
    "arrays are immutable": (
        "arrays that stay as they are",
        "an entry that is assigned",
        "Use `x.at[i].set(value)`, which gives another array.",
    ),
    "unsupported format string": (
        _TRACED,
        "one in a text with a format",
        "Print while the model runs without being compiled; inside, `jax.debug.print` shows numbers.",
    ),
    "NonConcreteBooleanIndexError": ("indices that are numbers", "a mask", _COMPUTED),
    "combinator": (
        "combinators inside combinators only",
        "one inside a transformation of JAX, such as `jax.vmap` or `jax.grad`",
        "Use `amp.map` instead of `jax.vmap`; the graph is differentiated for you.",
    ),
}
"""By the name of JAX's error, or by a word in it: what was expected, what came, what to do."""


_WORDS = (
    "_DimExpr",
    "'combinator'",
    "process_primitive",
    "Indexer must have integer",
    "<class 'numpy.integer'>",
    "must be of integer type",
    "must have an integer type",
    "are valid indices",
    "Slice entries must be static",
    "must have static start",
    "arrays are immutable",
    "unsupported format string",
)
"""Words in errors of JAX's whose kind does not tell enough."""


_OF_LENGTHS = ("InconclusiveDimensionOperation", "ConcretizationTypeError")
"""Kinds of JAX's errors about lengths that are each instance's own."""

_OF_WHOLE = ("_DimExpr", "non-constant size", "hape polymorphism")
"""Words in others."""

_SHAPES = ("ncompatible shapes", "the same shape", "contracting dimension", "for broadcasting")
"""Words in JAX's errors about shapes that do not fit each other."""

_PACKAGE = Path(__file__).parents[2]


@contextmanager
def in_users_words(keys: str) -> Iterator[None]:
    """Raises JAX's errors about traces as ours, without JAX's frames; likewise Python's about missing keys and about a combinator's arguments.

    Raises:
      GraphError: In place of such an error; other errors pass.
    """
    try:
        yield
    except GraphError:
        raise
    except Exception as error:
        _refuse_whole(error)
        names = [cls.__name__ for cls in type(error).__mro__]
        if isinstance(error, KeyError) and isinstance(error.args[0], str):
            fix = "Add it, or mend its name. A model takes the parameters first, then the example."
            raise GraphError(
                _line(error.__traceback__), f"one of the keys ({keys})", f"{error}", fix
            ) from None
        words = [word for word in _WORDS if word in str(error)]
        kind = next(
            (
                name
                for name in [*names, *words, *(word.strip("'") for word in words)]
                if name in _HELP
            ),
            None,
        )
        if kind is None and "FlaxError" in names:
            message = str(error).partition(" (https:")[0].rstrip(".")
            raise GraphError(
                _line(error.__traceback__), "a call that flax accepts", message, _AS_DOCUMENTED
            ) from None
        if (
            kind is None
            and isinstance(error, TypeError | AttributeError)
            and _is_ours(error.__traceback__)
        ):
            got = f"{type(error).__name__}: {error}".rstrip(".")
            where = _line(error.__traceback__)
            raise GraphError(
                where, "arguments that a combinator takes", got, _AS_DOCUMENTED
            ) from None
        if kind is None:
            raise
        raise GraphError(_line(error.__traceback__), *_HELP[kind]) from None


def _refuse_whole(error: Exception) -> None:
    """Raises errors about lengths, of a function of JAX that has no form for whole sequences, or of operands whose shapes do not fit, as ours.

    Raises:
      GraphError: In place of such an error.
    """
    text = str(error)
    kinds = {cls.__name__ for cls in type(error).__mro__}
    called = _find_callee(error.__traceback__)
    is_about_lengths = not kinds.isdisjoint(_OF_LENGTHS) or any(word in text for word in _OF_WHOLE)
    if called in OF_WHOLE and is_about_lengths:
        got = f"`{called}` on a whole sequence, whose length is each instance's own"
        raise GraphError(
            _line(error.__traceback__), "operations on one element", got, OF_WHOLE[called]
        ) from None
    if isinstance(error, TypeError | ValueError) and any(word in text for word in _SHAPES):
        shape_texts = re.findall(r"\(((?:[^()]|\([^()]*\))+)\)", text)
        shapes = [shape for shape in shape_texts if re.search(r"\d|,", shape)]
        lengths = _lengths(shapes)
        if len(shapes) > 1 and lengths:
            raise GraphError(
                _line(error.__traceback__),
                "shapes that fit each other",
                " and ".join(f"({shape})" for shape in dict.fromkeys(shapes)),
                _fitting(lengths),
            ) from None


def _lengths(shapes: Sequence[str]) -> set[str]:
    """The lengths in some shapes that are each example's own."""
    names = set()
    for shape in shapes:
        for length in re.split(r",(?![^()]*\))", shape):
            if re.search(r"[A-Za-z_]", length):
                names.add(length.strip())
    return names


def _fitting(lengths: Collection[str]) -> str:
    """Advice about shapes that do not fit each other."""
    if len(lengths) == 1:
        return "A sequence meets another one of the same length, or an array that is the same for all elements: without their axis, or with 1 there."
    if all(length.isidentifier() for length in lengths):
        return "Give dimensions that are always equal one name in the spec; for all pairs of elements write `amp.map(lambda x: amp.map(lambda y: x + y, ys), xs)`."
    return "Cut the sequences to one length, such as `xs[1:]` and `xs[:-1]`; put before others, cut what both give: `jnp.concatenate([first, xs])[: xs.shape[0]]`."


def refuse_leaks(jaxpr: Any, constants: list[Any]) -> None:
    """Checks that a model reads no traced value of a function that has ended, or of one around it.

    Raises:
      GraphError: If it does; names the line that reads it.
    """
    for variable, value in zip(jaxpr.constvars, constants, strict=True):
        if isinstance(value, Tracer):
            raise GraphError(
                _reader(jaxpr, variable) or "the model",
                "values of this function, and of those around it",
                f"one of another function, {value.aval.str_short()}, which was kept when that was traced",
                "Return it from there: `amp.scan` and `amp.map` give the sequence of all elements' values.",
            )


def refuse_callbacks(jaxpr: Any, line: str) -> None:
    """Checks that functions of the host's that a model calls can be called for many messages together.

    Args:
      jaxpr: The model's open jaxpr, or one in it.
      line: The user's line, where no other is known.

    Raises:
      GraphError: If one can't; names the line.
    """
    for equation in jaxpr.eqns:
        here = source_line(equation) or line
        if (
            equation.primitive.name == "pure_callback"
            and equation.params.get("vmap_method") is None
        ):
            fix = 'Say how: `jax.pure_callback(..., vmap_method="sequential")`.'
            raise GraphError(
                here,
                "a callback that takes many messages together",
                "one without `vmap_method`",
                fix,
            )
        if equation.primitive.name == "io_callback" and equation.params.get("ordered"):
            fix = "Leave `ordered=True` out."
            raise GraphError(
                here, "a callback that takes many messages together", "one in an order", fix
            )
        for body in bodies(equation):
            refuse_callbacks(body, here)


def _reader(jaxpr: Any, variable: Any) -> str:
    """The line of the first equation that reads a variable; in a function that a combinator was given, the line in there."""
    for equation in jaxpr.eqns:
        if not any(atom is variable for atom in equation.invars):
            continue
        if equation.primitive is not COMBINATOR:
            return source_line(equation)
        call = equation.params["call"]
        start = 0
        for function, n in zip(call.functions, call.n_closed, strict=True):
            for atom, inside in zip(
                equation.invars[start : start + n], function.jaxpr.constvars, strict=True
            ):
                if atom is variable and (line := _reader(function.jaxpr, inside)):
                    return line
            start += n
        return call.line
    return ""


def _is_ours(traceback: TracebackType | None) -> bool:
    """Tells whether the user's last call in a traceback is one of ampjax's functions."""
    ours = False
    while traceback is not None:
        file = Path(traceback.tb_frame.f_code.co_filename)
        if not is_library_file(str(file)) and "site-packages" not in file.parts:
            after = traceback.tb_next
            ours = after is not None and _PACKAGE in Path(after.tb_frame.f_code.co_filename).parents
        traceback = traceback.tb_next
    return ours


def _find_callee(traceback: TracebackType | None) -> str:
    """The name of the function that the user's last line in a traceback calls; empty where its source is not known."""
    last = None
    while traceback is not None:
        file = Path(traceback.tb_frame.f_code.co_filename)
        if not is_library_file(str(file)) and "site-packages" not in file.parts:
            last = traceback
        traceback = traceback.tb_next
    if last is None:
        return ""
    code = last.tb_frame.f_code
    places = [*code.co_positions()]
    first, _, column, _ = places[last.tb_lasti // 2]
    source = linecache.getline(code.co_filename, first or 0)
    # columns count bytes
    rest = source.encode()[column or 0 :].decode(errors="replace")
    called = re.match(r"[\w.]*?(\w+)\(", rest)
    return "" if called is None else called[1]


def _line(traceback: TracebackType | None) -> str:
    """The last line of the user's code in a traceback."""
    line = "the model"
    while traceback is not None:
        code = traceback.tb_frame.f_code
        file = Path(traceback.tb_frame.f_code.co_filename)
        if not is_library_file(str(file)) and "site-packages" not in file.parts:
            line = f"{file.name}:{traceback.tb_lineno}, `{code.co_name}`"
        traceback = traceback.tb_next
    return line
