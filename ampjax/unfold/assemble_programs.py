"""From columns in the order of unfolding to programs: sorted by instance, numbered within each, and indexed in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampjax.ir.state import HANDLE
from ampjax.plan.planner import Plan
from ampjax.unfold.programs import Programs
from ampjax.unfold.rules.arrival_ranks import ArrivalRanks
from ampjax.unfold.rules.invocation_chunks import Chunk
from ampjax.unfold.rules.message_columns import MessageTable, resolve, spread
from ampjax.unfold.rules.row_counts import Topologies, edge_counts

DIGIT_BITS = 16
"""Bits by which NumPy sorts in one go: it sorts numbers of 16 bits by counting them."""


def assemble(
    ranks: ArrivalRanks,
    ids: np.ndarray,
    chunks: Sequence[Chunk],
    table: MessageTable,
    held: np.ndarray,
    maps: Topologies,
) -> Programs:
    """Makes programs.

    Args:
      ranks: The order in which messages reach ports.
      ids: The instances' numbers.
      chunks: All invocations, in the order in which they were unfolded.
      table: All messages.
      held: The messages that wait for others.
      maps: Topologies of the instances.

    Returns:
      The programs.
    """
    plan = ranks.plan
    k = len(ids)
    by_instance = _ByInstance(plan, chunks, k)
    first = by_instance.first
    place = by_instance.place
    stage = by_instance.stage
    # Inputs: who made each, and its rows, counted within the instance.
    entries, fan_in, ports = by_instance.inputs()
    consumer = np.repeat(np.arange(len(stage)), fan_in)
    owner = by_instance.new[table.owner[entries]]
    in_row, picks, pick_first = by_instance.input_rows(table, entries, place[consumer])
    # Consumptions are the same pairs, sorted by producer and then by rank.
    rank = ranks.of(stage[owner], stage[consumer], ports)
    by_owner = stable_order(owner * (int(rank.max(initial=0)) + 1) + rank)
    consumed = np.bincount(owner, minlength=len(stage))
    local = first[place]  # numbers count within each instance
    asking = [s.number for s in plan.stages if s.route_by is not None]
    return Programs(
        ids=ids,
        first=first,
        pick_first=pick_first,
        n_rows=_small(by_instance.n_rows),
        stage=_small(stage),
        states=by_instance.states,
        rows=by_instance.rows,
        row=_small(by_instance.row),
        size=by_instance.sizes,
        in_start=_small(starts(fan_in)),
        in_from=_small(owner - local[consumer]),
        in_row=_small(in_row),
        in_size=_small(table.size[entries]),
        out_start=_small(starts(consumed)),
        out_to=_small((consumer - local[consumer])[by_owner]),
        out_rank=rank[by_owner],
        owed=_small(
            consumed + np.bincount(by_instance.new[table.owner[held]], minlength=len(stage))
        ),
        asks=np.isin(stage, asking)
        if asking
        else np.zeros(
            len(stage),
            bool,
        ),
        picks=_small(picks),
        edges={s.number: edge_counts(s, maps, k) for s in plan.stages if s.chain is not None},
    )


class _ByInstance:
    """All invocations in the order of instances.

    Attributes:
      first: `[k + 1]`: where each instance's invocations begin.
      new: `[n]`: the line of each invocation, by its number in the unfolding.
      place: `[n]`: the instance of each line.
      stage, states, rows, sizes: Columns of lines.
      row: `[n]`: the first row of each line within its instance.
      n_rows: `[k]`: rows of each instance.
    """

    def __init__(
        self,
        plan: Plan,
        chunks: Sequence[Chunk],
        k: int,
    ):
        columns = ChunkColumns(plan, chunks)
        self._columns = columns
        unsorted = columns.handles
        # Sorted by instance, and stable, so an instance's lines keep the order of unfolding.
        self._order = order = stable_order(unsorted)
        self.first = starts(np.bincount(unsorted, minlength=k))
        self.place = unsorted[order]
        # The inverse permutation: from the unfolding's numbers to lines.
        self.new = np.empty(len(order), np.int64)
        self.new[order] = np.arange(len(order))
        self.stage = columns.stage[order]
        self.states = columns.states.take(order, axis=0)
        self.rows = columns.rows[order]
        self.sizes = columns.sizes[order]
        # Rows in the new order, numbered within each instance.
        n_rows = (columns.outputs * columns.sizes)[order]
        old_row = columns.row[order]
        row = starts(n_rows)
        base = row[self.first]
        self.n_rows = np.diff(base)
        self.row = row[:-1] - base[self.place]
        # The new number of each row; a message without rows may stand behind the last one.
        self._number = np.zeros(
            int(n_rows.sum()) + 1,
            np.int64,
        )
        self._number[spread(old_row, n_rows)] = spread(self.row, n_rows)

    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The input messages of all lines, one after the other, how many each line has `[n]`, and their ports."""
        return self._columns.inputs_of(self._order)

    def input_rows(
        self, table: MessageTable, entries: np.ndarray, place: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first row of each input within its instance, or `~i` for picks; the picks `[p]`; and where each instance's picks begin `[k + 1]`."""
        number = self._number
        k = len(self.first) - 1
        first = table.first[entries]
        picked = np.flatnonzero(first < 0)
        in_row = number[np.maximum(first, 0)]
        if not len(picked):
            return in_row, picked, np.zeros(k + 1, np.int64)
        sizes = table.size[entries[picked]]
        # Picks hold rows of the unfolding, too, and count within their instance from now on.
        picks = number[resolve(first[picked], sizes, table.picks)]
        pick_first = starts(
            np.bincount(
                place[picked],
                sizes,
                k,
            ).astype(np.int64)
        )
        in_row[picked] = ~(np.cumsum(sizes) - sizes - pick_first[place[picked]])
        return in_row, picks, pick_first


class ChunkColumns:
    """The columns of all chunks, one after the other: the fields of `Chunk`, and the outputs of each invocation."""

    def __init__(self, plan: Plan, chunks: Sequence[Chunk]):
        counts = [len(chunk.states) for chunk in chunks]
        n = sum(counts)
        n_inputs = sum(chunk.inputs.size for chunk in chunks)
        self.stage, self.row, self.fan_in = (np.empty(n, np.int64) for _ in range(3))
        states = np.concatenate(
            [chunk.states for chunk in chunks]
            or [
                np.zeros(
                    (0, plan.layout.width),
                    np.int64,
                )
            ]
        )
        self.states = states[:, 2:].astype(_width(states))
        self.handles = states[:, HANDLE]
        self.rows = np.ones(n, np.int32)
        self.sizes = np.ones(n, np.int32)
        self.inputs = np.empty(n_inputs, np.int64)
        self.ports = np.empty(n_inputs, np.int16)
        outputs = []
        for c in chunks:
            outputs.append(len(plan.stages[c.stage].outputs) if c.stage >= 0 else 1)
        self.outputs = np.repeat(
            np.array(outputs, np.int64),
            counts,
        )
        at = entry = 0
        for chunk, count in zip(chunks, counts, strict=True):
            end = entry + chunk.inputs.size
            self._fill(
                chunk,
                slice(at, at + count),
                slice(entry, end),
            )
            at = at + count
            entry = end

    def inputs_of(
        self,
        order: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gives the input messages of invocations.

        Args:
          order: `[n]`: the invocations, in the order that is wanted.

        Returns:
          `[e]`: the input messages, one invocation after the other; `[n]`: how many each has; `[e]`: their ports.
        """
        fan_in = self.fan_in[order]
        places = spread(
            (np.cumsum(self.fan_in) - self.fan_in)[order],
            fan_in,
        )
        return self.inputs[places], fan_in, self.ports[places]

    def _fill(self, chunk: Chunk, lines: slice, inputs: slice) -> None:
        """Writes a chunk's columns into their places."""
        self.stage[lines] = chunk.stage
        self.row[lines] = chunk.row
        self.fan_in[lines] = chunk.n_ports if chunk.fan_in is None else chunk.fan_in
        self.inputs[inputs] = chunk.inputs.reshape(-1)
        self.ports[inputs] = chunk.ports
        if chunk.rows is not None and chunk.sizes is not None:
            self.rows[lines] = chunk.rows
            self.sizes[lines] = chunk.sizes


def stable_order(keys: np.ndarray) -> np.ndarray:
    """Finds the order that sorts numbers, stably, digit by digit: ten times as fast as NumPy's stable sorts of large numbers.

    Args:
      keys: `[n]`: numbers of at least 0.

    Returns:
      `[n]`: their places, in order.
    """
    order = np.argsort(
        (keys & 0xFFFF).astype(np.uint16),
        kind="stable",
    )
    most = int(keys.max(initial=0))
    shift = DIGIT_BITS
    while most >> shift:
        digit = ((keys >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
        shift += DIGIT_BITS
    return order


def starts(counts: np.ndarray) -> np.ndarray:
    """Gives the beginning of each of some adjacent ranges, and the end of the last one.

    Args:
      counts: `[n]`: the lengths of the ranges.

    Returns:
      `[n + 1]` int64.

    >>> starts(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    begin = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=begin[1:])
    return begin


def _small(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int32)


def _width(states: np.ndarray) -> type[np.signedinteger[Any]]:
    """The narrower of two dtypes that hold all state fields."""
    small = np.iinfo(np.int32)
    if states.min(initial=0) >= small.min and states.max(initial=0) <= small.max:
        return np.int32
    return np.int64
