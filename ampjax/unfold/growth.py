"""New lines of programs that grow while in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ampjax.unfold.assemble_programs import ChunkColumns, stable_order, starts
from ampjax.unfold.rules.arrival_ranks import ArrivalRanks
from ampjax.unfold.rules.invocation_chunks import Chunk
from ampjax.unfold.rules.message_columns import IntColumn, MessageTable, spread


@dataclass(frozen=True, eq=False, kw_only=True)
class Growth:
    """New lines of some programs, instance by instance: `n` invocations, `e` inputs, `c` consumptions. Numbers count within instances, as in `Programs`.

    It has more than twelve fields: each is a column, and they are of five lengths.

    Args:
      place: `[n]`: each line's instance, by its place in the unfolding.
      number: `[n]`: its number within its program.
      stage, states, rows, row, size: As in `Programs`.
      fan_in: `[n]`: inputs of each line.
      in_from, in_row, in_size: `[e]`: as in `Programs`; picks count from the first of `picks`.
      picks: `[p]`: rows.
      owner_place, owner: `[c]`: whose rows are consumed, lines of now and of before.
      out_to, out_rank: `[c]`: as in `Programs`.
      owed_place, owed_number, owed_more: `[m]`: lines that are owed more gradients than before, and how many more.
    """

    place: np.ndarray
    number: np.ndarray
    stage: np.ndarray
    states: np.ndarray
    rows: np.ndarray
    row: np.ndarray
    size: np.ndarray
    fan_in: np.ndarray
    in_from: np.ndarray
    in_row: np.ndarray
    in_size: np.ndarray
    picks: np.ndarray
    owner_place: np.ndarray
    owner: np.ndarray
    out_to: np.ndarray
    out_rank: np.ndarray
    owed_place: np.ndarray
    owed_number: np.ndarray
    owed_more: np.ndarray


class KnownLines:
    """The lines of an unfolding's programs that have been given so far.

    Args:
      ranks: The order in which messages reach ports.

    Attributes:
      n_chunks: Chunks of these lines.
    """

    def __init__(self, ranks: ArrivalRanks):
        self._ranks = ranks
        self.n_chunks = 0
        self._stage, self._place, self._number, self._consumed, self._owed = (
            IntColumn() for _ in range(5)
        )
        self._row = IntColumn()
        self._asked = dict[tuple[int, int], int]()
        self._n_lines = np.zeros(0, np.int64)
        self._n_rows = np.zeros(0, np.int64)

    def n_rows(self, places: np.ndarray) -> np.ndarray:
        """Rows of the programs of instances so far.

        Args:
          places: `[n]`: their places in the unfolding.

        Returns:
          `[n]` int64.
        """
        return self._n_rows[places]

    def n_lines(self, places: np.ndarray) -> np.ndarray:
        """Lines of the programs of instances so far.

        Args:
          places: `[n]`: their places in the unfolding.

        Returns:
          `[n]` int64.
        """
        return self._n_lines[places]

    def invocation(self, place: int, number: int) -> int:
        """The unfolding's number of an instance's invocation, given its number within the instance.

        Returns:
          The number.
        """
        return self._asked[place, number]

    def add(
        self,
        chunks: Sequence[Chunk],
        table: MessageTable,
        held: np.ndarray,
        n_instances: int,
    ) -> Growth:
        """Adds new chunks to the known lines.

        Returns:
          The new lines.
        """
        self.n_chunks += len(chunks)
        new = ChunkColumns(self._ranks.plan, chunks)
        n = len(new.stage)
        before = len(self._stage)
        self._n_lines = np.append(
            self._n_lines,
            np.zeros(n_instances - len(self._n_lines), np.int64),
        )
        self._n_rows = np.append(
            self._n_rows,
            np.zeros(n_instances - len(self._n_rows), np.int64),
        )
        # Sorted by instance, and stable, so an instance's lines keep the order of unfolding.
        order = stable_order(new.handles)
        place = new.handles[order]
        n_rows = (new.outputs * new.sizes)[order]
        first = starts(np.bincount(place, minlength=n_instances))
        # Lines and rows are numbered within their instances, behind those that were given before.
        number = np.arange(n) - first[place] + self._n_lines[place]
        row_of = starts(n_rows)
        row = row_of[:-1] - row_of[first[place]] + self._n_rows[place]
        # The numbers are entered before inputs are looked up: new lines may consume each other's
        # rows.
        self._number_all(new, order, place, number)
        self._row.extend(int(n_rows.sum()), 0)
        self._row.values[spread(new.row[order], n_rows)] = spread(
            row,
            n_rows,
        )
        self._n_lines += np.bincount(place, minlength=n_instances)
        self._n_rows += np.bincount(place, n_rows, n_instances).astype(np.int64)
        # Inputs in the new order, then consumptions: the same pairs, sorted by producer and rank.
        entries, fan_in, ports = new.inputs_of(order)
        in_row, picks = self._input_rows(table, entries)
        owner = table.owner[entries]
        consumer = np.repeat(before + order, fan_in)
        rank = self._ranks.of(
            self._stage.values[owner],
            self._stage.values[consumer],
            ports,
        )
        by_owner = stable_order(owner * (int(rank.max(initial=0)) + 1) + rank)
        # Gradients owed: consumptions so far, and messages that still wait. Only what has grown is
        # reported.
        np.add.at(self._consumed.values, owner, 1)
        owed = self._consumed.values + np.bincount(table.owner[held], minlength=before + n)
        more = owed - self._owed.values
        changed = np.flatnonzero(more)
        self._owed.values[:] = owed
        locals_ = self._number.values
        places = self._place.values
        return Growth(
            place=place,
            number=number,
            stage=new.stage[order],
            states=new.states.take(order, axis=0),
            rows=new.rows[order],
            row=row,
            size=new.sizes[order],
            fan_in=fan_in,
            in_from=locals_[owner],
            in_row=in_row,
            in_size=table.size[entries],
            picks=picks,
            owner_place=places[owner][by_owner],
            owner=locals_[owner][by_owner],
            out_to=locals_[consumer][by_owner],
            out_rank=rank[by_owner],
            owed_place=places[changed],
            owed_number=locals_[changed],
            owed_more=more[changed],
        )

    def _number_all(
        self,
        new: ChunkColumns,
        order: np.ndarray,
        place: np.ndarray,
        number: np.ndarray,
    ) -> None:
        n = len(order)
        self._stage.extend(n, new.stage)
        self._consumed.extend(n, 0)
        self._owed.extend(n, 0)
        before = len(self._place)
        self._place.extend(n, 0)[order] = place
        self._number.extend(n, 0)[order] = number
        asks = np.array([stage.route_by is not None for stage in self._ranks.plan.stages])
        runs = np.flatnonzero(new.stage >= 0)  # the others are pumped
        for k in runs[asks[new.stage[runs]]].tolist():
            at = before + k
            self._asked[int(self._place.values[at]), int(self._number.values[at])] = at

    def _input_rows(
        self, table: MessageTable, entries: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The first row of each input, or `~i` for picks, and the picks."""
        first = table.first[entries]
        sizes = table.size[entries]
        picked = np.flatnonzero(first < 0)
        rows = self._row.values
        # Where no row follows, a message without rows may stand behind the last one.
        if len(rows):
            in_row = rows[np.clip(first, 0, len(rows) - 1)]
        else:
            in_row = np.zeros_like(first)
        sizes = sizes[picked]
        picks = rows[table.picks[spread(~first[picked], sizes)]]
        in_row[picked] = ~(np.cumsum(sizes) - sizes)
        return in_row, picks
