"""Errors about parts of a model that can't be traced: JAX's errors in ampjax's words, with the user's line and an alternative."""

from __future__ import annotations

from collections.abc import Iterator
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
    "arrays are immutable",
    "unsupported format string",
)
"""Words in errors of JAX's whose kind does not tell enough."""


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
                _line(error.__traceback__), "a call that flax accepts", message, "Mend the call."
            ) from None
        if (
            kind is None
            and isinstance(error, TypeError | AttributeError)
            and _is_ours(error.__traceback__)
        ):
            got = f"{type(error).__name__}: {error}".rstrip(".")
            where = _line(error.__traceback__)
            raise GraphError(
                where, "arguments that a combinator takes", got, "Mend the call."
            ) from None
        if kind is None:
            raise
        raise GraphError(_line(error.__traceback__), *_HELP[kind]) from None


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
