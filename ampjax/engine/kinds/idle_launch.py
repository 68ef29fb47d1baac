"""Launches that read and write the trash slot only, run to compile kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ampjax.engine.kernels.launch import Launch
from ampjax.plan.ladders import is_padded, ladder_for, segment_ladder, segment_sizes
from ampjax.plan.stages import ArenaKey, Stage
from ampjax.sched.decisions import packs
from ampjax.unfold.rules.edges import DispatchEdges


def idle_launches(
    stage: Stage,
    direction: str,
    rows: int,
    messages: int,
    capacity: Callable[[ArenaKey], int],
) -> Iterator[Launch]:
    """Launches of a stage that do nothing, one of each size up to the size of the largest dispatch: running each once compiles the kernels.

    Args:
      stage: The stage.
      direction: `forward`, `backward` or `infer`.
      rows: The rows of the largest dispatch.
      messages: The messages of the largest dispatch.
      capacity: The rows that an arena has.
    """
    if stage.chain is not None:
        yield from _without_edges(stage, len(stage.chain.edge_types), direction, rows, capacity)
    elif stage.kind.sums_segments:
        yield from _into_last_segment(stage, direction, rows, messages, capacity)
    else:
        for n in steps(ladder_for(stage), rows):
            yield idle_launch(stage, direction, n, n, capacity)


def _without_edges(
    stage: Stage,
    n_types: int,
    direction: str,
    rows: int,
    capacity: Callable[[ArenaKey], int],
) -> Iterator[Launch]:
    """Launches without edges. Graphs with more edges than usual take the next step of the ladder, so there is one more."""
    nothing = np.zeros(0, np.int32)
    for n in steps(ladder_for(stage), rows, more=1):
        launch = idle_launch(stage, direction, n, n, capacity)
        edges = DispatchEdges(
            nothing,
            nothing,
            np.zeros((n, n_types), np.int64),
            np.ones(n, np.int64),
        )
        yield launch._replace(
            edges=edges,
            seeds=[
                *launch.seeds,
                *([nothing.astype(np.uint32)] * n_types),
            ],
        )


def _into_last_segment(
    stage: Stage,
    direction: str,
    rows: int,
    messages: int,
    capacity: Callable[[ArenaKey], int],
) -> Iterator[Launch]:
    """Launches that sum all rows into the last segment."""
    for n, m in sizes_to_compile(rows, messages if stage.kind.reduces else rows):
        launch = idle_launch(stage, direction, n, m, capacity)
        if stage.kind.reduces:
            yield launch._replace(
                sizes=np.append(
                    np.zeros(m - 1, np.int64),
                    n,
                )
            )
        else:
            yield launch._replace(scatter=[np.zeros(n, np.int64)] * len(stage.ports))


def idle_launch(
    stage: Stage,
    direction: str,
    n_in: int,
    n_out: int,
    capacity: Callable[[ArenaKey], int],
) -> Launch:
    """A launch of `n_in` rows at each port and `n_out` of each output, all in the trash slot; one message for each input row.

    Args:
      stage: The stage.
      direction: `forward`, `backward` or `infer`.
      n_in: Input rows.
      n_out: Output rows.
      capacity: The rows that an arena has.
    """
    rows = np.zeros(n_in, np.int64)
    out = np.zeros(n_out, np.int64)
    size = n_in if is_padded(stage) else 0
    if size:
        pack = packs.make_padded(
            [rows] * len(stage.ports), [out] * len(stage.outputs), size
        ).ravel()
    else:
        pack = packs.make_unpadded([rows] * len(stage.ports) + [out] * len(stage.outputs))
    return Launch(
        number=0,
        worker=stage.worker,
        stage=stage.number,
        direction=direction,
        n_messages=n_in if size else 0,
        n_rows=n_in,
        n_ports=len(stage.ports),
        n_outputs=len(stage.outputs),
        pack=pack,
        size=size,
        capacities=[capacity(key) for key in stage.arenas],
        sizes=np.ones(n_in, np.int64) if stage.ragged else None,
        seeds=[np.zeros(n_in, np.uint32)],
    )


def steps(
    sizes: Callable[[int], int],
    most: int,
    more: int = 0,
) -> list[int]:
    """The steps of a ladder up to the first that holds `most`, and `more` steps behind that one.

    >>> steps(lambda n: 4 * -(-n // 4), 9, more=1)
    [4, 8, 12, 16]
    """
    result = [sizes(1)]
    while result[-1] < most:
        result.append(sizes(result[-1] + 1))
    for _ in range(more):
        result.append(sizes(result[-1] + 1))
    return result


def sizes_to_compile(
    rows: int,
    segments: int,
) -> list[tuple[int, int]]:
    """The padded sizes that dispatches can have.

    Args:
      rows: Rows, at most.
      segments: Segments, at most.

    Returns:
      Pairs of rows and segments.
    """
    sizes = steps(segment_ladder, max(rows, segments))
    return list(
        dict.fromkeys(segment_sizes(n, m) for n in sizes for m in (n // 4, min(n, segments)))
    )
