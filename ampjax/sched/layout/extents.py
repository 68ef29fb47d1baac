"""Extents: parts of a long table that are taken and given back, of any length."""

from __future__ import annotations

from bisect import bisect_left


class Extents:
    """The free lines of a table: the first free part that is long enough is taken; neighbouring free parts become one.

    Attributes:
      top: Lines up to the last one that is taken, or was.

    >>> e = Extents()
    >>> e.take(5), e.take(3)
    (0, 5)
    >>> e.give(0, 5)
    >>> e.take(2), e.take(4), e.top
    (0, 8, 12)
    """

    def __init__(self) -> None:
        self.top = 0
        self._starts: list[int] = []
        self._ends: list[int] = []

    def take(self, n: int) -> int:
        """Takes lines.

        Returns:
          Where they begin.
        """
        for k, start in enumerate(self._starts):
            if self._ends[k] - start >= n:
                self._starts[k] += n
                if self._starts[k] == self._ends[k]:
                    del self._starts[k], self._ends[k]
                return start
        self.top += n
        return self.top - n

    def give(self, start: int, n: int) -> None:
        """Gives lines back."""
        if not n:
            return
        k = bisect_left(self._starts, start)
        end = start + n
        if k < len(self._starts) and self._starts[k] == end:
            end = self._ends.pop(k)
            del self._starts[k]
        if k and self._ends[k - 1] == start:
            k -= 1
            start = self._starts.pop(k)
            del self._ends[k]
        if end == self.top:
            self.top = start
            return
        self._starts.insert(k, start)
        self._ends.insert(k, end)
