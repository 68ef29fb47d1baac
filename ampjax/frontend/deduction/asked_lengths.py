"""Questions about the length of a sequence, of a model to Python, such as `max(n, 1)`: JAX answers as if no sequence were empty.

JAX itself asks whether what is read fits into a sequence; the steps of such reads find that out for each example.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax import export

from ampjax.errors import DataError
from ampjax.frontend.combinators.tracing import user_line
from ampjax.frontend.draft.index_spaces import Column
from ampjax.jaxprs.primitives import is_library_file

_QUESTIONS = ("eq", "ne", "lt", "le", "gt", "ge")

_INSTEAD = (
    "Write `jnp.maximum(n, 1)` in place of `max(n, 1)`, and `jnp.where` or `amp.cond` in place of `if`; "
    "or leave out such instances."
)

_COMPARE_ARRAYS = "Compare `amp.length(xs)` with `amp.length(ys)`, which are arrays, in `jnp.where` or `amp.cond` in place of `if`."

_COMPARED = {
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}


_FITTING = (
    "_slice_shape_rule",
    "_gather_shape_rule",
    "_dynamic_slice_shape_rule",
    "_dynamic_update_slice_shape_rule",
    "_scatter_shape_rule",
    "_top_k_abstract_eval",
    "_top_k_shape_rule",
    "_reduction",
    "_argminmax_shape_rule",
)
"""Functions of JAX that ask whether a part is no larger than the whole, or whether there is anything. The steps of these operations check each example, and read nothing where nothing is."""


@dataclass(frozen=True, eq=False)
class AskedLength:
    """A comparison of a length with a number or with another length, in the user's own code.

    Args:
      dimension: The length, as JAX writes it; less the other one.
      compare: The comparison.
      number: The number; 0 for another length.
      answer: What JAX answered.
      line: The user's line.
    """

    dimension: str
    compare: Callable[[Any, Any], Any]
    number: int
    answer: bool
    line: str


_ASKED: ContextVar[list[AskedLength] | None] = ContextVar("asked_lengths", default=None)


@contextmanager
def noting_asked_lengths() -> Iterator[list[AskedLength]]:
    """Notes the comparisons of lengths with numbers inside.

    Returns:
      A context that gives the comparisons, a list that grows.
    """
    _watch()
    questions: list[AskedLength] = []
    token = _ASKED.set(questions)
    try:
        yield questions
    finally:
        _ASKED.reset(token)


@functools.cache
def _watch() -> None:
    """Lets lengths of JAX note comparisons, for as long as a list for these exists."""
    kind: Any = type(export.symbolic_shape("n")[0])
    for name in _QUESTIONS:
        method = f"__{name}__"
        compare = getattr(operator, name)
        setattr(kind, method, _noting(getattr(kind, method), compare))
    # lengths of JAX have no truth value of their own: Python takes each for true
    unlike_zero = _noting(lambda length, zero: True, operator.ne)
    kind.__bool__ = functools.partialmethod(unlike_zero, 0)
    kind.min = _without_least(kind.min)
    kind.rmin = _as_many(_without_least(kind.rmin))


def _as_many(least: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """The smaller of an array's size and a length where JAX cuts the array, as in `table[:n]`: the length, with a check where the elements are read."""

    @functools.wraps(least)
    def smaller(self: Any, size: int) -> Any:
        is_cut = sys._getframe(2).f_code.co_name == "clamp_index"
        if _ASKED.get() is not None and is_cut:
            return self
        return least(self, size)

    return smaller


def _without_least(least: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The smaller of a length and a number `k` as `n - max(n - k, 0)`, with which JAX sees that `xs[2:]` is as long as `xs[:-2]`."""

    @functools.wraps(least)
    def smaller(self: Any, size: Any) -> Any:
        smallest = least(self, size)
        is_asked = isinstance(smallest, type(self)) and smallest is not self
        if _ASKED.get() is None or not is_asked or not isinstance(size, int):
            return smallest
        return self - (self - size).rmax(0)

    return smaller


def _noting(
    answered: Callable[[Any, Any], Any],
    compare: Callable[[Any, Any], Any],
) -> Callable[[Any, Any], Any]:
    """A comparison of JAX's lengths that notes each use."""

    @functools.wraps(answered)
    def note_question(self: Any, other: Any) -> Any:
        questions = _ASKED.get()
        try:
            answer = answered(self, other)
        except jax.errors.InconclusiveDimensionOperation:
            name = _asking(sys._getframe(1))
            answer = compare in (operator.ge, operator.le)
            if questions is None or name not in _FITTING:
                raise
            return answer
        if questions is None or isinstance(other, bool):
            return answer
        length = self
        number = other
        # JAX itself compares lengths of this model with those of models before it, in its caches
        if isinstance(other, type(self)) and self.scope is other.scope:
            length = self - other
            number = 0
        if isinstance(length, int) or not isinstance(number, int | np.integer):
            return answer
        if isinstance(answer, bool) and _is_users(
            _frame_of_comparison(sys._getframe(1)).f_code.co_filename
        ):
            questions.append(
                AskedLength(
                    str(length),
                    compare,
                    int(number),
                    answer,
                    user_line(),
                )
            )
        return answer

    return note_question


def _frame_of_comparison(frame: FrameType) -> FrameType:
    """The frame in which somebody has written a comparison: around the `__eq__` that Python makes for a data class, such as a key of JAX's caches."""
    while frame.f_code.co_name == "__eq__" and frame.f_code.co_filename == "<string>":
        if frame.f_back is None:
            break
        frame = frame.f_back
    return frame


def _asking(frame: FrameType) -> str:
    """The function of JAX that compares; empty for the user's."""
    asks = frame
    if asks.f_code.co_name == "<genexpr>" and asks.f_back is not None:
        asks = asks.f_back
    return "" if _is_users(asks.f_code.co_filename) else asks.f_code.co_name


@functools.lru_cache(maxsize=1024)
def _is_users(file: str) -> bool:
    """Tells whether a file is neither JAX's nor ours."""
    return not is_library_file(file)


def check_of_lengths(
    asked: Sequence[AskedLength],
    lengths: Mapping[str, Column],
    evaluated: Callable[[str, Mapping[str, Any]], Any],
    names_in: Callable[[str], Sequence[str]],
) -> Callable[[Any], None]:
    """Makes the check of data: each answer of JAX must be that for the length of each sequence.

    Args:
      asked: The comparisons.
      lengths: The length of each row's sequence, by the dimension's name.
      evaluated: From a dimension, and the value of each name in it, to its value.
      names_in: From a dimension to the names in it.
    """

    def check(data: Any) -> None:
        for each in asked:
            names = names_in(each.dimension)
            columns = [lengths[name] for name in names if name in lengths]
            spaces = {column.space for column in columns}
            if len(columns) < len(names) or len(spaces) != 1:
                continue
            (space,) = spaces
            sizes = {}
            for name, column in zip(names, columns, strict=True):
                sizes[name] = np.maximum(column.of(data), 0)
            values = evaluated(each.dimension, sizes)
            for row in np.flatnonzero(each.compare(values, each.number) != each.answer)[:1]:
                where = f"{each.line}, instance {space.instances(data)[row]}"
                raise _other_answer(
                    where,
                    each,
                    {name: own[row] for name, own in sizes.items()},
                )

    return check


def _other_answer(where: str, asked: AskedLength, sizes: Mapping[str, int]) -> DataError:
    """The error for an instance for which Python would answer otherwise.

    Args:
      where: The user's line, and the instance.
      asked: The comparison.
      sizes: The instance's lengths, by dimension.
    """
    got = ", ".join(f"{size} along `{name}`" for name, size in sizes.items())
    if len(sizes) > 1:
        question = f"`{asked.dimension} {_COMPARED[asked.compare]} 0`"
        expected = f"{question} to be {asked.answer}, as JAX answers once for all instances"
        return DataError(where, expected, got, _COMPARE_ARRAYS)
    ((name, size),) = sizes.items()
    other = "of another length" if size else "that is not empty"
    expected = (
        f"a sequence along `{name}` {other}, as Python compares its length with {asked.number}"
    )
    return DataError(where, expected, f"{size} elements", _INSTEAD)
