"""The last dispatches, which stories and diagnoses are told from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar


class Counted(Protocol):
    """A dispatch, as far as it tells how large it is."""

    @property
    def n_messages(self) -> int:
        """Messages in it."""
        ...


T = TypeVar("T", bound=Counted)

MESSAGES = 1 << 15
"""Messages that are remembered at most, some megabytes of columns. Were it many more, every dispatch would be written to memory that is in no cache."""


class Past(Generic[T]):
    """The last dispatches, oldest first: so many, or as many as hold `messages` messages together, if those are fewer.

    Args:
      n: Dispatches at most.
      messages: Messages at most; the last dispatch is remembered however many it holds.
    """

    def __init__(self, n: int, messages: int = MESSAGES):
        self._n, self._most, self._messages = n, messages, 0
        self._dispatches: deque[T] = deque()

    def append(self, dispatch: T) -> None:
        """Remembers a dispatch, and forgets the oldest ones."""
        self.extend((dispatch,))

    def extend(self, dispatches: Iterable[T]) -> None:
        """Remembers dispatches, and forgets the oldest ones."""
        past = self._dispatches
        for dispatch in dispatches:
            past.append(dispatch)
            self._messages += dispatch.n_messages
        while len(past) > self._n or (self._messages > self._most and len(past) > 1):
            self._messages -= past.popleft().n_messages

    def __len__(self) -> int:
        return len(self._dispatches)

    def __iter__(self) -> Iterator[T]:
        return iter(self._dispatches)
