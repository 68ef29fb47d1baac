"""The last dispatches, which stories and diagnoses are told from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ampjax.sched.dispatch import Dispatch

MESSAGES = 1 << 15
"""Messages that are remembered at most, some megabytes of columns. Were it many more, every dispatch would be written to memory that is in no cache."""


class Past:
    """The last dispatches, oldest first: so many, or as many as hold `messages` messages together, if those are fewer.

    Args:
      n: Dispatches at most.
      messages: Messages at most; the last dispatch is remembered however many it holds.
    """

    def __init__(self, n: int, messages: int = MESSAGES):
        self._n, self._most, self._messages = n, messages, 0
        self._dispatches: deque[Dispatch] = deque()

    def append(self, dispatch: Dispatch) -> None:
        """Remembers a dispatch, and forgets the oldest ones."""
        past = self._dispatches
        past.append(dispatch)
        self._messages += len(dispatch.states)
        while len(past) > self._n or (self._messages > self._most and len(past) > 1):
            self._messages -= len(past.popleft().states)

    def __len__(self) -> int:
        return len(self._dispatches)

    def __iter__(self) -> Iterator[Dispatch]:
        return iter(self._dispatches)
