"""The trace of combinators: each use is one equation of the model's jaxpr, which holds the jaxprs of its functions.

Lengths that differ from instance to instance are JAX's symbolic dimensions, so that nothing can be baked in that is one example's.
"""

from __future__ import annotations

import contextvars
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Generic, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend import core as jex

from ampjax.errors import GraphError
from ampjax.frontend.combinators.draw_places import DrawPlace, counting
from ampjax.frontend.combinators.variable_names import assigned_name
from ampjax.jaxprs.content import HasContent, OpenJaxpr
from ampjax.jaxprs.primitives import inner, is_library_file, line_text, shape_text
from ampjax.utils.counted import count_of

COMBINATOR = jex.Primitive("combinator")
"""The primitive that every combinator binds; its parameter `call` says which one it is."""

COMBINATOR.multiple_results = True
COMBINATOR.def_abstract_eval(lambda *_, call: list(call.results))

_Rule = TypeVar("_Rule")

_SAME_TYPES = (
    "Give both the same shapes and dtypes, with `astype` or `jnp.broadcast_to` where need be."
)

_DIMENSIONS: contextvars.ContextVar[Dimensions | None] = contextvars.ContextVar(
    "ampjax_dimensions", default=None
)


class Dimensions:
    """The symbolic dimensions of a model that is being traced, by name."""

    def __init__(self) -> None:
        self._scope = export.SymbolicScope()
        self._known: dict[str, Any] = {}
        self._generated = 0

    def get(self, name: str) -> Any:
        """The dimension of this name; made at first use."""
        if name not in self._known:
            self._known[name] = export.symbolic_shape(name, scope=self._scope)[0]
        return self._known[name]

    def fresh(self, prefix: str) -> str:
        """A name that no dimension has."""
        while True:
            self._generated += 1
            if (name := f"{prefix}{self._generated}") not in self._known:
                return name


@dataclass(frozen=True, eq=False)
class Traced(HasContent):
    """A function that a combinator was given, traced.

    Args:
      jaxpr: Its open jaxpr. Its first variables are what it closed over, the others its arguments' leaves.
      results: The structure of its result.
      line: The user's line that gave it to the combinator.
      called: The user's name for what it gives: the variable for what the combinator gives, else its own; empty if it has none.
    """

    jaxpr: Any
    results: Any
    line: str
    called: str = ""

    def content(self) -> Any:
        """The content of the function: its jaxpr on closed-over values and arguments."""
        return OpenJaxpr(self.jaxpr)

    @property
    def variables(self) -> list[Any]:
        """The inputs: closed-over values, then the arguments' leaves."""
        return [*self.jaxpr.constvars, *self.jaxpr.invars]

    @property
    def used(self) -> set[Any]:
        """The variables whose values an equation or a result reads; a sequence of which only the length is asked is not among them."""
        read = [atom for equation in self.jaxpr.eqns for atom in _read_by(equation)] + list(
            self.jaxpr.outvars
        )
        return {atom for atom in read if not isinstance(atom, jex.Literal)}


def _read_by(equation: Any) -> list[Any]:
    """Lists the operands whose values an equation reads; an operand for a combinator's function only if that function reads its values."""
    if equation.primitive is not COMBINATOR:
        return list(equation.invars)
    call = equation.params["call"]
    start = 0
    if not call.kind.reads_values:
        return []
    atoms: list[Any] = []
    for function, n in zip(call.functions, call.n_closed, strict=True):
        used = function.used
        inner_atoms = zip(
            equation.invars[start : start + n],
            function.jaxpr.constvars,
            strict=True,
        )
        atoms += [atom for atom, inside in inner_atoms if inside in used]
        start += n
    return atoms + list(equation.invars[start:])


@dataclass(frozen=True)
class Combinator:
    """A kind of equation: a name, and traits for passes that need not know the name.

    Args:
      name: Its name in errors and in the names of nodes.
      turn: Of a loop, the number of the function that runs in each turn, from a carry to the next carry and a result.
      keeps: How many of its operands it keeps, if it hands all others to its functions and returns the result of one of them; else None.
      on_host: Whether the host computes it before any message is planned: never, if all its operands follow from the instance, or always.
        A loop with a carry never is.
      reads_values: Whether it reads its operands; False if a length is all that it asks.
      by_example: Whether its results differ from example to example; None if they do where an operand does.
      reduces: Whether it reduces sequences, each of its operands by itself.
      inside_node: Whether it is a computation inside a node, as an operation of JAX is.
      draws: Whether it draws random numbers.
      reports: Whether it tells something beside its results.
      with_loss: Whether its operands may be computed where the loss is.
      in_ragged: Whether it can stand in what is computed for each node of a graph.
      row_by_row: Whether a loop in steps can have it in its body.
    """

    name: str
    turn: int | None = None
    keeps: int | None = None
    on_host: Literal["never", "with operands", "always"] = "never"
    reads_values: bool = True
    by_example: bool | None = None
    reduces: bool = False
    inside_node: bool = False
    draws: bool = False
    reports: bool = False
    with_loss: bool = False
    in_ragged: bool = False
    row_by_row: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def is_function(self) -> bool:
        """Tells whether a use is no more than a call of its function: the function's equations can stand in its place."""
        return self.keeps == 0

    @property
    def is_ordered(self) -> bool:
        """Tells whether uses are numbered in the order of the model's lines, and differ from turn to turn of a loop."""
        return self.draws or self.reports


class Rules(Generic[_Rule]):
    """The rules of a back end: a function for each known combinator, registered where the function is written."""

    def __init__(self) -> None:
        self._rules: dict[Combinator, _Rule] = {}

    def of(self, *combinators: Combinator) -> Callable[[_Rule], _Rule]:
        """A decorator that makes a function the rule of some combinators."""

        def register(rule: _Rule) -> _Rule:
            for combinator in combinators:
                self._rules[combinator] = rule
            return rule

        return register

    def load(self, folder: ModuleType) -> Mapping[Combinator, _Rule]:
        """Imports all modules of a folder, which register their rules, and gives the rules."""
        for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            importlib.import_module(module.name)
        return self._rules


@dataclass(frozen=True, eq=False)
class Call(HasContent):
    """One use of a combinator.

    Args:
      kind: Which combinator.
      results: Types of its results.
      functions: The functions that it was given.
      n_closed: For each function, how many values it closes over; they are the first operands.
      line: The user's line.
      options: What else it was given.
      place: Of a choice, and of what draws random numbers, where it is in the model.
    """

    kind: Combinator
    results: Sequence[Any]
    functions: Sequence[Traced] = ()
    n_closed: Sequence[int] = ()
    line: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    place: DrawPlace = field(default_factory=DrawPlace)

    def content(self) -> Any:
        """The content of the call, independent of source lines."""
        return self.kind.name, tuple(self.functions), tuple(self.n_closed), dict(self.options)

    @property
    def n_carry(self) -> int:
        """Of a loop, how many of the operands behind the closed-over values are the carry, and so the first results; else 0."""
        return self.options.get("n_carry", 0)

    def inputs(self, operands: Sequence[Any], shared: Sequence[Any]) -> list[list[Any]]:
        """Lists the variables of each function: closed-over values, then the arguments that all functions share."""
        result = []
        start = 0
        for n in self.n_closed:
            result.append([*operands[start : start + n], *shared])
            start += n
        return result


@contextmanager
def tracing() -> Iterator[Dimensions]:
    """Opens a trace: combinators inside bind equations and do not run."""
    dimensions = Dimensions()
    token = _DIMENSIONS.set(dimensions)
    try:
        with counting():
            yield dimensions
    finally:
        _DIMENSIONS.reset(token)


def dimensions() -> Dimensions | None:
    """Returns the dimensions of the model in the present trace; None in a model on concrete values."""
    return _DIMENSIONS.get()


def as_arrays(what: str, tree: Any) -> Any:
    """A pytree with arrays for leaves.

    Raises:
      GraphError: If a leaf is no array and no number.
    """

    def array(leaf: Any) -> Any:
        try:
            return jnp.asarray(leaf)
        except (TypeError, ValueError) as error:
            if isinstance(leaf, jax.Array):
                raise
            fix = "Texts and other objects of Python stay outside of the model."
            raise GraphError(
                user_line(), f"arrays or numbers {what}", f"{leaf!r}"[:60], fix
            ) from error

    return jax.tree.map(array, tree)


def as_array(what: str, value: Any) -> Any:
    """A single array.

    Args:
      what: What it is, for an error.
      value: An array or a number.

    Raises:
      GraphError: If it is anything else.
    """
    if not jax.tree_util.all_leaves([value]):
        fix = "Give each part by itself."
        raise GraphError(user_line(), f"one array {what}", f"{value!r}"[:60], fix)
    return as_arrays(what, value)


def call_user(
    function: Callable[..., Any],
    *args: Any,
    fix: str = "Mend its arguments.",
) -> Any:
    """Calls a user's function and returns its result.

    Args:
      function: The function.
      *args: What it is given.
      fix: What to do if it takes other arguments.

    Raises:
      GraphError: If it takes other arguments.
    """
    try:
        return function(*args)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # a mistake inside of it
        raise GraphError(
            user_line(), f"a function of {count_of(len(args), 'argument')}", str(error), fix
        ) from None


def trace(
    function: Callable[..., Any],
    *args: Any,
    inside: AbstractContextManager[Any] | None = None,
    fix: str = "Mend its arguments.",
) -> tuple[Traced, list[Any], list[Any]]:
    """Traces a function that a combinator was given.

    Args:
      function: The function; it may close over values of the model that is being traced.
      args: Pytrees of types.
      inside: Says which function of which combinator it is, while it runs.
      fix: What to do if it takes other arguments.

    Returns:
      The traced function, the values that it closes over, and the types of its results.

    Raises:
      GraphError: If it takes other arguments.
    """
    leaves, structure = jax.tree.flatten(args)
    result: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        with inside or nullcontext():
            returned = call_user(function, *structure.unflatten(values), fix=fix)
        out, tree = jax.tree.flatten(as_arrays("from a function", returned))
        result[:] = [tree]
        return out

    closed = jax.make_jaxpr(flat)(*leaves)
    return (
        Traced(closed.jaxpr, result[0], user_line(), _name_of(function)),
        list(closed.consts),
        list(closed.out_avals),
    )


def bind(call: Call, operands: Sequence[Any]) -> list[Any]:
    """Adds a combinator's equation to the model's jaxpr.

    Args:
      call: The combinator.
      operands: What its functions close over, then its own operands.

    Returns:
      Its results.
    """
    return COMBINATOR.bind(*operands, call=call)


def bodies(equation: Any) -> Iterator[Any]:
    """Yields the open jaxprs in an equation, also those of a combinator's functions."""
    if equation.primitive is COMBINATOR:
        yield from (function.jaxpr for function in equation.params["call"].functions)
    else:
        yield from inner(equation)


def has_primitive(jaxpr: Any, names: Sequence[str]) -> bool:
    """Tells whether an open jaxpr has an operation of some kinds, at any depth."""
    return any(
        equation.primitive.name in names
        or any(has_primitive(body, names) for body in bodies(equation))
        for equation in jaxpr.eqns
    )


def computed_dtypes(jaxpr: Any) -> set[np.dtype]:
    """The dtypes of all arrays that an open jaxpr takes and computes, at any depth, keys of random numbers aside."""
    seen_dtypes = set()
    for variable in jaxpr.invars:
        seen_dtypes.add(getattr(variable.aval, "dtype", None))
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            seen_dtypes.add(getattr(variable.aval, "dtype", None))
        for body in bodies(equation):
            seen_dtypes |= computed_dtypes(body)
    return {dtype for dtype in seen_dtypes if isinstance(dtype, np.dtype)}


def type_of(value: Any) -> jax.ShapeDtypeStruct:
    """An array's shape and dtype."""
    return jax.ShapeDtypeStruct(jnp.shape(value), jnp.result_type(value))


def along(dimension: Any, aval: Any) -> Any:
    """The type of a sequence of such values."""
    return aval.update(shape=(dimension, *aval.shape))


def structure_text(structure: Any) -> str:
    """A pytree's structure for people, with a star for each array.

    >>> structure_text(jax.tree.structure((1, {"h": 2}))), structure_text(jax.tree.structure(3))
    ("`(*, {'h': *})`", 'one array')
    """
    text = str(structure).removeprefix("PyTreeDef(").removesuffix(")")
    return "one array" if text == "*" else f"`{text}`"


def require_structure(
    line: str,
    what: str,
    wanted: Any,
    got: Any,
    fix: str,
    whose: str = "",
) -> None:
    """Checks that structures agree.

    Args:
      line: The user's line.
      what: What is asked for, with `{}` for the structure.
      wanted: The structure that it should have.
      got: The structure that it has.
      fix: What to do.
      whose: What has the other structure, after it in the error.

    Raises:
      GraphError: If they differ.
    """
    if got != wanted:
        raise GraphError(
            line, what.format(structure_text(wanted)), f"{structure_text(got)}{whose}", fix
        )


def require_same(
    line: str,
    what: str,
    wanted: Sequence[Any],
    got: Sequence[Any],
) -> None:
    """Checks that types agree.

    Args:
      line: The user's line.
      what: What should have the wanted types, and why.
      wanted: The types.
      got: What came.

    Raises:
      GraphError: If they differ.
    """
    _require_types(line, what, wanted, got, _SAME_TYPES)


def _require_types(
    line: str,
    what: str,
    wanted: Sequence[Any],
    got: Sequence[Any],
    fix: str,
) -> None:
    if [(a.shape, a.dtype) for a in wanted] != [(a.shape, a.dtype) for a in got]:
        raise GraphError(
            line,
            f"{what}: {', '.join(map(shape_text, wanted)) or 'nothing'}",
            ", ".join(map(shape_text, got)) or "nothing",
            fix,
        )


def require_carry(
    line: str,
    wanted: Sequence[Any],
    got: Sequence[Any],
) -> None:
    """Checks that the types of a carry stay the same in a turn of a loop.

    Args:
      line: The user's line.
      wanted: The types before the turn.
      got: The types after it.

    Raises:
      GraphError: If they differ, such as in the length of a sequence.
    """
    fix = _SAME_TYPES
    for before, after in zip(wanted, got, strict=False):
        is_long = bool(before.shape) and not isinstance(before.shape[0], int)
        if is_long and before.shape[:1] != after.shape[:1]:
            fix = "A loop can't change the length of a sequence that it carries: carry all elements, and how many of them count."
    _require_types(line, "a carry that keeps its types", wanted, got, fix)


def _name_of(function: Callable[..., Any]) -> str:
    frame = _user_frame()
    name = getattr(function, "__name__", "<none>")
    return (frame and assigned_name(frame)) or ("" if name.startswith("<") else name.strip("_"))


def concrete_number(word: str, value: Any, kind: Callable[[Any], Any] = int) -> Any:
    """Reads a number on which the course of a model depends, where the model is neither compiled nor a batch.

    Args:
      word: What it decides about.
      value: The number.
      kind: From the value to a number of Python.

    Raises:
      GraphError: If JAX traces it: under `jax.jit` or `jax.vmap`.
    """
    try:
        return kind(value)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError):
        fix = "Take the model out of `jax.jit` and `jax.vmap`; `amp.vmap(model, spec)` makes a function for these."
        raise GraphError(
            user_line(),
            f"a number for `{word}`, as the model runs without `amp.vmap` or `amp.compile`",
            "one that JAX traces",
            fix,
        ) from None


def user_line() -> str:
    """The line of the user's code that runs now, with its function: `file.py:12`; in a notebook the line itself."""
    frame = _user_frame()
    if frame is None:
        return "the model"
    return f"{line_text(Path(frame.f_code.co_filename), frame.f_lineno)}, `{frame.f_code.co_name}`"


def _user_frame() -> FrameType | None:
    """The frame of the user's code that runs now."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_library_file(name) and not name.endswith("contextlib.py"):
            return frame
        frame = frame.f_back
    return None
