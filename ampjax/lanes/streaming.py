"""Streams: results of elements that are read block by block, in the order of the stream or of the finish."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.lanes.block_advance import FinishedElements, KeptLanes
from ampjax.lanes.element_blocks import ElementBlock

ALL = math.inf
"""A number above that of each element."""

_HIGHEST = np.iinfo(np.int32).max
_LOWEST = np.iinfo(np.int32).min


class StreamResult(NamedTuple):
    """The results of an element.

    Args:
      number: Its place in the stream, from 0.
      leaves: Flat results, in NumPy where it can hold them.
      has_ended: Whether it came to its end.
    """

    number: int
    leaves: list[Any]
    has_ended: bool


class StreamWork(Protocol):
    """A computation that takes blocks, and gives results some time later."""

    def give(
        self,
        block: ElementBlock | None,
        until: float,
    ) -> None:
        """Starts to compute a block.

        Args:
          block: It; None for no further elements.
          until: All elements with numbers below this one are then finished, too.
        """
        ...

    def collect(self) -> list[StreamResult]:
        """Waits for the last block that was given, and returns the elements finished since."""
        ...


class LaneWork:
    """Blocks that go through lanes, where elements may stay while the next block comes.

    Args:
      advance: `block_advance.advance` with its program and pace.
      lanes: What it begins with.
    """

    def __init__(
        self,
        advance: Callable[..., Any],
        lanes: KeptLanes,
    ):
        self._advance = advance
        self._lanes = lanes
        self._last: ElementBlock | None = None
        self._found: FinishedElements | None = None
        self._begin = 0
        self._n_of_last = 0

    def give(
        self,
        block: ElementBlock | None,
        until: float,
    ) -> None:
        """Starts to compute a block; without a block lanes finish their elements.

        Args:
          block: The block.
          until: As in `StreamWork`.
        """
        self._last = self._last if block is None else block
        assert self._last is not None
        n = 0 if block is None else block.n
        # numbers of elements are counted from the block's first one: so a stream may be endless
        self._begin += self._n_of_last
        here = max(until - self._begin, _LOWEST)
        self._lanes, self._found = self._advance(
            self._lanes,
            self._last.leaves,
            np.int32(n),
            np.int32(self._n_of_last),
            np.int32(min(here, _HIGHEST)),
        )
        self._n_of_last = n

    def collect(self) -> list[StreamResult]:
        """Waits for the last block, and returns the elements finished since, in the order of the finish."""
        collected = self._found
        self._found = None
        if collected is None:
            return []
        n = int(collected.n)
        numbers = np.asarray(collected.numbers)[:n] + self._begin
        has_ended = ~np.asarray(collected.is_cut)[:n]
        columns = (
            numbers.tolist(),
            rows_of(collected.results, n),
            has_ended.tolist(),
        )
        return [StreamResult(*each) for each in zip(*columns, strict=True)]


class CallWork:
    """Blocks each of which is a call of its own, where lanes would take longer.

    Args:
      compute: From flat arguments to flat results.
      is_mapped: By argument, whether each element has its own.
      pads: Whether the last block may be padded, with its last element.
    """

    def __init__(
        self,
        compute: Callable[[list[Any]], list[Any]],
        is_mapped: Sequence[bool],
        pads: bool,
    ):
        self._compute = compute
        self._is_mapped = is_mapped
        self._pads = pads
        self._found: list[Any] | None = None
        self._begin = 0
        self._n = 0

    def give(
        self,
        block: ElementBlock | None,
        until: float,
    ) -> None:
        """Starts to compute a block.

        Args:
          block: The block.
          until: All elements end with their blocks.
        """
        if block is None:
            return
        self._begin += self._n
        self._n = block.n
        # what is compiled for full blocks serves for the last one, too
        if self._pads and self._begin > 0:
            leaves = block.pad_with_last(self._is_mapped)
        else:
            leaves = block.only(self._is_mapped)
        self._found = self._compute(leaves)

    def collect(self) -> list[StreamResult]:
        """Waits for the last block, and gives its elements."""
        collected = self._found
        self._found = None
        if collected is None:
            return []
        results = []
        for i, row in enumerate(rows_of(collected, self._n)):
            results.append(StreamResult(self._begin + i, row, True))
        return results


def rows_of(
    arrays: list[Any],
    n: int,
) -> list[list[Any]]:
    """Rows of some arrays as arrays of their own, so that a kept row does not keep all.

    Args:
      arrays: `[at least n, ...]` each.
      n: How many rows.
    """
    rows: list[list[Any]] = [[] for _ in range(n)]
    for array in arrays:
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            column = [array[i] for i in range(n)]
        else:
            column = [row.copy() for row in np.asarray(array)[:n]]
        for row, value in zip(rows, column, strict=True):
            row.append(value)
    return rows


def in_turn(
    work: StreamWork,
    blocks: Iterable[ElementBlock],
    most_waiting: int | None,
) -> Iterator[StreamResult]:
    """Gives blocks to a computation, and yields its results.

    While a block is computed the next one is read, and results of the one before are given out.

    Args:
      work: The computation.
      blocks: The blocks.
      most_waiting: Results come in the order of the stream; if more than so many wait for one before them, no further element is begun. None for any order.
    """
    waiting = _WaitingResults(most_waiting is not None)
    for block in blocks:
        waiting.add(work.collect())
        while most_waiting is not None and waiting.n_early > most_waiting:
            yield from waiting.ready()
            work.give(None, waiting.next + 1)
            waiting.add(work.collect())
        work.give(block, 0)
        yield from waiting.ready()
    waiting.add(work.collect())
    yield from waiting.ready()
    work.give(None, ALL)
    waiting.add(work.collect())
    yield from waiting.ready()


class _WaitingResults:
    """Results that are finished and not yet given out.

    Args:
      is_ordered: Whether they are given out in the order of the stream.

    Attributes:
      next: The number of the result that is the next in order.
    """

    def __init__(self, is_ordered: bool):
        self._is_ordered = is_ordered
        self._early: dict[int, StreamResult] = {}
        self._ready: list[StreamResult] = []
        self.next = 0

    @property
    def n_early(self) -> int:
        """The number of results that wait for an earlier one."""
        return len(self._early)

    def add(self, results: Iterable[StreamResult]) -> None:
        """Takes results that are finished.

        Args:
          results: The results.
        """
        if not self._is_ordered:
            self._ready.extend(results)
            return
        for result in results:
            self._early[result.number] = result
        while self.next in self._early:
            self._ready.append(self._early.pop(self.next))
            self.next += 1

    def ready(self) -> Iterator[StreamResult]:
        """Yields the results that are next."""
        ready = self._ready
        self._ready = []
        ready.reverse()
        while ready:
            yield ready.pop()
