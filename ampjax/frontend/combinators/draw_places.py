"""The places where a model draws random numbers, traced or concrete: the use of a combinator, and the elements of the draw.

So a model that runs as it is can draw what the compiled one has drawn.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Path = tuple[int, ...]
"""Numbers that lead from the model to a use of a combinator: of a use, of the function that it was given, of a use in there, and so on."""

EACH = -1
"""The number of an element that stands for each, in a function that is traced once for all of them."""


@dataclass(frozen=True)
class DrawPlace:
    """A use of a combinator, and the elements around the use.

    Args:
      path: What leads to the use.
      elements: The numbers of the elements around it, the outermost first.
    """

    path: Path = ()
    elements: tuple[int, ...] = ()

    def of_use(self, depth: int, number: int) -> DrawPlace:
        """Moves the place to another use of a combinator on its path.

        Args:
          depth: How deep in the path the use is.
          number: The other one's number.
        """
        return DrawPlace(
            (
                *self.path[:depth],
                number,
                *self.path[depth + 1 :],
            ),
            self.elements,
        )

    def of_each(self, numbers: Iterable[int]) -> DrawPlace:
        """Narrows the place to some of its elements.

        Args:
          numbers: A number wherever it says `EACH`.
        """
        left = iter(numbers)
        return DrawPlace(
            self.path,
            tuple(next(left) if number == EACH else number for number in self.elements),
        )


KeyOf = Callable[[DrawPlace], Any]
"""From a use of `amp.stochastic` to a PRNG key."""


@dataclass
class _Here:
    """A function that runs.

    Args:
      path: What leads to it.
      elements: The numbers of the elements that it runs for, the outermost first.
      n_uses: How many combinators it has used so far.
    """

    path: Path = ()
    elements: tuple[int, ...] = ()
    n_uses: int = 0


_HERE: contextvars.ContextVar[_Here | None] = contextvars.ContextVar(
    "ampjax_here",
    default=None,
)
_KEY_OF: contextvars.ContextVar[KeyOf | None] = contextvars.ContextVar(
    "ampjax_key_of", default=None
)


class Use:
    """A use of a combinator, at the place where the calling function runs now.

    Attributes:
      place: Where that is; without what leads to it where nobody counts.
    """

    def __init__(self) -> None:
        self._around = here = _HERE.get()
        if here is None:
            self.place = DrawPlace()
        else:
            self.place = DrawPlace(
                (*here.path, here.n_uses),
                here.elements,
            )
        if here is not None:
            here.n_uses += 1

    @contextmanager
    def inside(
        self,
        function: int = 0,
        *elements: int,
    ) -> Iterator[None]:
        """Inside, a function runs that the combinator was given.

        Args:
          function: Its number among those.
          *elements: The number of the element that it runs for, if it runs for each.
        """
        if self._around is None:
            yield
            return
        token = _HERE.set(
            _Here(
                (*self.place.path, function),
                (*self.place.elements, *elements),
            )
        )
        try:
            yield
        finally:
            _HERE.reset(token)

    @property
    def key(self) -> Any:
        """The key that the compiled model has drawn with here; None where a model does not follow one."""
        key_of = _KEY_OF.get()
        return None if key_of is None else key_of(self.place)


@contextmanager
def counting(key_of: KeyOf | None = None) -> Iterator[None]:
    """Counts uses of combinators in a model that runs inside.

    Args:
      key_of: Gives the keys that it draws with, if it follows a compiled one.
    """
    tokens = _HERE.set(_Here()), _KEY_OF.set(key_of)
    try:
        yield
    finally:
        _HERE.reset(tokens[0])
        _KEY_OF.reset(tokens[1])


def follows() -> bool:
    """Tells whether a model follows a compiled one."""
    return _KEY_OF.get() is not None
