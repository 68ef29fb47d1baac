"""Lengths that are expressions, such as `t - 1`: their values for each row, and the index spaces of sequences of such lengths.

JAX writes a symbolic dimension as text that is read here: `max(0, t - 2)`, `floordiv(t + 1, 2)`, `4*t^2`. Two sequences of one expression, of the same
sequences, have one space, so that they can be gone through together; where the expression is a name again, that is the named sequence's own.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.values import Constant, Elements

if TYPE_CHECKING:
    from ampjax.frontend.batches.row_lowering import RowLowering

Sized = tuple[IndexSpace, str]
"""A sequence's space, and its dimension as JAX writes it."""

_OPERATORS: Mapping[
    type[ast.AST],
    Callable[
        [
            Any,
            Any,
        ],
        Any,
    ],
] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}


def _floordiv(x: Any, y: Any) -> Any:
    return np.where(
        y == 0,
        0,
        x // np.where(y == 0, 1, y),
    )


def _mod(x: Any, y: Any) -> Any:
    return np.where(
        y == 0,
        0,
        x % np.where(y == 0, 1, y),
    )


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "max": lambda *values: reduce(np.maximum, values),
    "min": lambda *values: reduce(np.minimum, values),
    "floordiv": _floordiv,
    "mod": _mod,
}


def dimension_value(
    dimension: str,
    sizes: Mapping[str, Any],
) -> Any:
    """The value of a dimension; a quotient by a length of 0, which no such sequence has, is 0.

    Args:
      dimension: The dimension, as JAX writes it.
      sizes: The value of each name in it: a number, or `[rows]`.

    >>> dimension_value("max(0, 2*t^2 - floordiv(u, 2))", {"t": np.array([0, 1]), "u": 5}).tolist()
    [0, 0]
    """
    return _value(_parse(dimension), sizes)


def names_in(dimension: str) -> list[str]:
    """The names in a dimension, each once, in order.

    Args:
      dimension: The dimension, as JAX writes it.

    >>> names_in("max(0, u - t) + u")
    ['t', 'u']
    """
    nodes = [*ast.walk(_parse(dimension))]
    functions = [
        node.func
        for node in nodes
        if isinstance(
            node,
            ast.Call,
        )
    ]
    names = {
        node.id
        for node in nodes
        if isinstance(
            node,
            ast.Name,
        )
        and node not in functions
    }
    return sorted(names)


@lru_cache(maxsize=1024)
def _parse(dimension: str) -> ast.expr:
    """A dimension's expression, parsed once: each packed batch asks for its value."""
    return ast.parse(
        dimension.replace("^", "**"),
        mode="eval",
    ).body


def _value(
    node: ast.expr,
    sizes: Mapping[str, Any],
) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, sizes)
    if isinstance(node, ast.BinOp):
        operate = _OPERATORS[type(node.op)]
        return operate(
            _value(node.left, sizes),
            _value(node.right, sizes),
        )
    assert isinstance(
        node,
        ast.Call,
    ) and isinstance(node.func, ast.Name)
    return _FUNCTIONS[node.func.id](
        *[
            _value(
                arg,
                sizes,
            )
            for arg in node.args
        ]
    )


class SymbolicLengths:
    """The index spaces of sequences whose length is an expression.

    Args:
      low: The lowering.
    """

    def __init__(self, low: RowLowering):
        self._low = low
        self._named: dict[str, list[IndexSpace]] = {}
        self._bases: dict[IndexSpace, Mapping[str, IndexSpace]] = {}
        self._made: dict[Any, IndexSpace] = {}

    def note(self, space: IndexSpace, dimension: str) -> None:
        """Notes a sequence that there is, if its dimension has a name.

        Args:
          space: Its space.
          dimension: Its dimension.
        """
        if not dimension.isidentifier():
            return
        original = self._low.original(space)
        own = self._named.setdefault(dimension, [])
        if original not in own:
            own.append(original)

    def space(
        self,
        dimension: str,
        around: IndexSpace,
        sequences: Sequence[Sized],
        line: str,
    ) -> IndexSpace:
        """The space of a sequence that each row of a space has.

        Args:
          dimension: The sequence's dimension.
          around: The space.
          sequences: Sequences that it is made of.
          line: The user's line.

        Raises:
          GraphError: If a name means different lengths.
        """
        bases = self._bases_in(dimension, around, sequences, line)
        if dimension in bases:
            space = bases[dimension]
        else:
            space = self._space_of_expression(dimension, bases)
        return self._low.copied(
            Elements(space, Constant(0)),
            around,
        ).space

    def values(
        self,
        dimension: str,
        around: IndexSpace,
        sequences: Sequence[Sized],
        line: str,
    ) -> Column:
        """A dimension's value for each row of a space, which may be below 0; see `space`."""
        bases = self._bases_in(dimension, around, sequences, line)
        home = _home(bases)
        return self._low.host.same_column(
            ("dimension", dimension, *bases.values()),
            home,
            lambda data: _sizes(dimension, home, bases, data),
        )

    def _space_of_expression(
        self,
        dimension: str,
        bases: Mapping[str, IndexSpace],
    ) -> IndexSpace:
        """Makes the space of an expression's elements, in the innermost space that knows all names in the expression."""
        key = (dimension, *bases.values())
        if key not in self._made:
            home = _home(bases)
            sizes = Column(
                home,
                lambda data: _sizes(dimension, home, bases, data),
            )
            made = self._made[key] = IndexSpace(home, dimension, sizes)
            self._bases[made] = bases
        return self._made[key]

    def _bases_in(
        self,
        dimension: str,
        around: IndexSpace,
        sequences: Sequence[Sized],
        line: str,
    ) -> dict[str, IndexSpace]:
        """Finds the space of the sequences whose length a name is, for each name in a dimension."""
        given: dict[str, list[IndexSpace]] = {}
        for space, own in sequences:
            for name, base in self._bases_of(space, own).items():
                given.setdefault(name, []).append(base)
        result = {}
        spaces = around.around()
        for name in names_in(dimension):
            every = given.get(name) or self._named.get(
                name,
                [],
            )
            candidates = {base for base in every if base.parent in spaces}
            if len(candidates) != 1:
                fix = "Use `amp.length` of the sequence itself; or put together in `amp.map` what comes from several sequences of this dimension."
                got = f"`{name}`, which means {'several' if candidates else 'no'} lengths here"
                raise GraphError(line, "lengths that follow from one sequence", got, fix)
            (result[name],) = candidates
        return result

    def _bases_of(
        self,
        space: IndexSpace,
        dimension: str,
    ) -> Mapping[str, IndexSpace]:
        """The named sequences that a sequence has its length of."""
        original = self._low.original(space)
        if original in self._bases:
            return self._bases[original]
        return {dimension: original} if dimension.isidentifier() else {}


def _home(bases: Mapping[str, IndexSpace]) -> IndexSpace:
    """The innermost of the spaces around some sequences."""
    parents = []
    for base in bases.values():
        assert base.parent is not None
        parents.append(base.parent)
    return max(
        parents,
        key=lambda space: len(space.around()),
    )


def _sizes(
    dimension: str,
    home: IndexSpace,
    bases: Mapping[str, IndexSpace],
    data: Any,
) -> np.ndarray:
    """`[rows of home]`: a dimension's value."""
    sizes = {}
    for name, base in bases.items():
        assert base.parent is not None
        sizes[name] = home.rows_of(
            data,
            base.parent,
            base.lengths(data),
        ).astype(np.int64)
    return np.asarray(dimension_value(dimension, sizes))
