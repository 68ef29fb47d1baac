"""The findings while a jaxpr is followed: the origins of a value, the place of an equation, the rows that are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from ampjax.jaxprs import primitives
from ampjax.jaxprs.primitives import Path
from ampjax.sparse.detection.table_views import TableView


@dataclasses.dataclass(frozen=True)
class Cause:
    """Something other than a parameter that keeps row ids from being known before the step.

    Args:
      text: Completes "row ids depend on ...".
      path: Where it stands.
    """

    text: str
    path: Path


Origin = int | Cause
"""What a value depends on: a float parameter leaf, or a cause."""

Deps = frozenset[Origin]
Value = TableView | Deps
NOTHING: Deps = frozenset()


@dataclasses.dataclass(frozen=True)
class Read:
    """One equation that reads whole rows of a table.

    Args:
      leaf: The table.
      deps: What its ids depend on, and whether it takes place at all.
      mode: JAX's rule for ids outside the table.
      primitive: The primitive's name.
      line: The user's source line, or empty.
      view: What is read.
    """

    leaf: int
    deps: Deps
    mode: str
    primitive: str
    line: str
    view: TableView


@dataclasses.dataclass(frozen=True)
class Draw:
    """One equation that draws random numbers.

    Args:
      deps: What its key depends on.
      shape: The shape of what is drawn.
      line: The user's source line, or empty.
    """

    deps: Deps
    shape: tuple[int, ...]
    line: str


@dataclasses.dataclass(frozen=True)
class EquationPlace:
    """The place of an equation or a jaxpr.

    Args:
      path: Its path.
      control: What decides whether it runs.
      line: The user's line around it, for equations in a library's function, which have none of their own.
      is_in_rule: Whether it stands in a function's own derivative.
    """

    path: Path = ()
    control: Deps = NOTHING
    line: str = ""
    is_in_rule: bool = False

    def __truediv__(self, number: int) -> EquationPlace:
        return dataclasses.replace(self, path=(*self.path, number))

    def line_of(self, eqn: Any) -> str:
        """The user's source line behind an equation in this place."""
        return primitives.source_line(eqn) or self.line


def union(values: Iterable[Any]) -> Deps:
    """Everything that some values depend on.

    Args:
      values: What each of them depends on.
    """
    return NOTHING.union(*values)


def origins_of_rows(view: TableView) -> Deps:
    """Collects the origins of a view's rows: the tables, and the origins of arrays among them."""
    arrays = (s.value for s in view.segments if s.leaf is None)
    return union(
        [
            view.leaves,
            *arrays,
            *(write.values for write in view.writes),
        ]
    )


def origins_of_choice(view: TableView) -> Deps:
    """Collects the origins of the choice which rows of a view are read: overwritten rows need no read."""
    return union(write.rows for write in view.writes)
