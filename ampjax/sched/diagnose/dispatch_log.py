"""A log of the last dispatches, for stories and diagnoses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Generic, Protocol, TypeVar


class HasMessages(Protocol):
    """A dispatch, as far as its size matters."""

    @property
    def n_messages(self) -> int:
        """Messages in the dispatch."""
        ...


T = TypeVar("T", bound=HasMessages)
T_co = TypeVar("T_co", covariant=True)


class DecidedTogether(Protocol[T_co]):
    """Dispatches that come together, perhaps with the number of their messages, `n_messages`."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T_co]: ...


MOST_MESSAGES = 1 << 15
"""Messages that are remembered at most, some megabytes of columns. Were it many more, every dispatch would be written to memory that is in no cache."""


class DispatchLog(Generic[T]):
    """The last dispatches, oldest first: a fixed number, or fewer that hold `messages` messages together.

    Args:
      n: Dispatches at most.
      messages: Messages at most; the last dispatch is remembered however many it holds.
    """

    def __init__(self, n: int, messages: int = MOST_MESSAGES):
        self._n = n
        self._most = messages
        self._messages = 0
        self._dispatches = 0
        self._chunks: deque[tuple[int, DecidedTogether[T]]] = (
            deque()
        )  # what came together goes together: a step for each chunk, not for each dispatch

    def append(self, dispatch: T) -> None:
        """Remembers a dispatch, and forgets the oldest ones."""
        self._add(dispatch.n_messages, (dispatch,))

    def extend(self, dispatches: DecidedTogether[T]) -> None:
        """Remembers dispatches, and forgets the oldest ones; no dispatch may be changed afterwards.

        Args:
          dispatches: The dispatches, in order.
        """
        if len(dispatches):
            messages = getattr(dispatches, "n_messages", None)
            self._add(
                sum([d.n_messages for d in dispatches]) if messages is None else messages,
                dispatches,
            )

    def _add(self, messages: int, dispatches: DecidedTogether[T]) -> None:
        chunks = self._chunks
        chunks.append((messages, dispatches))
        self._messages += messages
        self._dispatches += len(dispatches)
        while len(chunks) > 1 and (
            self._dispatches - len(chunks[0][1]) >= self._n or self._messages > self._most
        ):
            messages, oldest = chunks.popleft()
            self._messages -= messages
            self._dispatches -= len(oldest)

    def __len__(self) -> int:
        return min(self._dispatches, self._n)

    def __iter__(self) -> Iterator[T]:
        everything = chain.from_iterable(dispatches for _, dispatches in self._chunks)
        return islice(everything, self._dispatches - len(self), None)
