"""The padded sizes of dispatches: the ladders that a stage's rows climb, so that few kernels are compiled and little is padded.

Each size costs a compilation of every kernel; what is padded costs work. The scheduler's loops write what a dispatch brings in its padded size. Knows stages; nothing of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ampjax.plan.stages import Stage


def ladder(n: int) -> int:
    """Pads to the next power of two.

    Returns:
      The padded size.

    >>> [ladder(n) for n in (0, 1, 3, 64, 65)]
    [1, 1, 4, 64, 128]
    """
    return 1 << max(0, n - 1).bit_length()


def fine_ladder(n: int) -> int:
    """Pads dispatches of very wide rows: to the next power of two or three quarters of one, so that less is wasted.

    Returns:
      The padded size.

    >>> [fine_ladder(n) for n in (0, 1, 3, 4, 5, 6, 7, 64, 65, 97)]
    [1, 1, 3, 4, 6, 6, 8, 64, 96, 128]
    """
    top = ladder(n)
    return 3 * top // 4 if top >= 4 and 4 * n <= 3 * top else top


def wide_ladder(n: int) -> int:
    """Pads dispatches of wide rows: to 1, 4, 16, then as `fine_ladder`.

    Small dispatches cost what their calls cost and what reading the weights does; each size costs a compilation of every kernel.

    Returns:
      The padded size.

    >>> [wide_ladder(n) for n in (0, 1, 2, 5, 17, 64, 65, 97)]
    [1, 1, 4, 16, 24, 64, 96, 128]
    """
    return fine_ladder(n) if n > 16 else segment_ladder(n)


def narrow_ladder(n: int) -> int:
    """Pads dispatches of narrow rows: to 1, 4, 16, then powers of two.

    Returns:
      The padded size.

    >>> [narrow_ladder(n) for n in (0, 1, 2, 5, 17, 64, 65, 97)]
    [1, 1, 4, 16, 32, 64, 128, 128]
    """
    return ladder(n) if n > 16 else segment_ladder(n)


def graph_ladder(n: int) -> int:
    """Pads dispatches of graphs: to 16, 64, then powers of two and, from 256 on, three steps between two powers.

    Small dispatches cost what their calls cost; large ones are most of the work, and what they pad is lost.

    Returns:
      The padded size.

    >>> [graph_ladder(n) for n in (0, 1, 17, 65, 257, 577, 1000)]
    [16, 16, 64, 128, 320, 640, 1024]
    """
    if n <= 64:
        return 16 if n <= 16 else 64
    step = max(64, ladder(n) // 8)
    return -(-n // step) * step


WIDE = 100
"""Elements of a row from which padding costs more than a few further compilations."""

MOST_DISPATCH_ROWS = 1 << 31
"""No dispatch has more."""

VERY_WIDE = 4096
"""Elements of a row, as of a batch that is one message, from which that holds for a few rows too."""


def ladder_for(stage: Stage) -> Callable[[int], int]:
    """Chooses the ladder of a stage's dispatch sizes.

    Returns:
      A function from the rows of a dispatch to its padded size.
    """
    if stage.chain is not None:
        return graph_ladder
    if stage.kind.sums_segments:
        return ladder  # their kernels have two sizes, which `segment_sizes` ties together
    rows = [
        *(port.type.shape for port in stage.ports),
        *(out.shape for out in stage.outputs),
    ]
    if stage.kind.runs_row_bodies:
        widest = max(map(math.prod, rows))
    else:
        widest = 0
    if widest >= VERY_WIDE:
        return fine_ladder
    if widest >= WIDE:
        return wide_ladder
    return narrow_ladder


def is_padded(stage: Stage) -> bool:
    """Tells whether dispatches of a stage are padded when decided: dispatches of messages of one row each.

    Returns:
      False if padding waits until a dispatch is issued. A chain's size follows from its edges too.
    """
    kind = stage.kind
    return not stage.ragged and (
        kind.runs_row_bodies or kind.is_transfer or kind.is_sink or kind.reads_table
    )


def padded_sizes(stage: Stage, n: int) -> list[int]:
    """Lists the sizes to which dispatches of a stage are padded when decided.

    Returns:
      The first `n` sizes, in rising order; zeros behind the largest, or if dispatches are not padded.
    """
    if not is_padded(stage):
        return [0] * n
    size_of = ladder_for(stage)
    sizes = [ladder_for(stage)(1)]
    while len(sizes) < n and sizes[-1] < MOST_DISPATCH_ROWS:
        sizes.append(size_of(sizes[-1] + 1))
    return sizes + [0] * (n - len(sizes))


def segment_ladder(n: int) -> int:
    """Pads to the next power of four.

    Returns:
      The padded size.

    >>> [segment_ladder(n) for n in (0, 1, 3, 4, 5, 64, 65)]
    [1, 1, 4, 4, 16, 64, 256]
    """
    size = 1
    while size < n:
        size *= 4
    return size


def segment_sizes(rows: int, segments: int) -> tuple[int, int]:
    """Pads dispatches of a `reduce` or `collect`: rows, and segments, which are as many or a quarter as many.

    Their kernels have two sizes. So tied to each other, they have two variants for each step of one ladder rather than a square of them.

    Returns:
      The padded rows and the padded segments.

    >>> [segment_sizes(*n) for n in ((0, 1), (3, 1), (3, 2), (60, 3), (60, 17), (2, 9))]
    [(1, 1), (4, 1), (4, 4), (64, 16), (64, 64), (16, 16)]
    """
    n = segment_ladder(max(rows, segments))
    return n, max(segment_ladder(segments), n // 4)
