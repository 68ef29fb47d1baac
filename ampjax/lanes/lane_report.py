"""A report of the cost of a function's loops in lanes and under `jax.vmap`, counted in rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ampjax.utils.text_tables import html_table, text_table

_HEADERS = ("form", "rows computed", "of these useful")


@dataclass(frozen=True, eq=False)
class LaneReport:
    """Trips of loops by element, and the rows that each form computes for all trips; prints as a table, in notebooks too.

    A row is one trip of one loop of one element. `jax.vmap` computes a row for every element until the last one's loop has ended.

    Args:
      name: The function's name.
      trips: Trips of loops that each element makes, all its loops together, `[n]`.
      lanes: The number of lanes.
      rows_of_vmap: Rows that `jax.vmap` computes.
      rows_of_lanes: Rows that lanes compute.
      lane: The lane that had each element, `[n]`.
      start: How many trips each lane had computed, for its element or for none, when the element's lane took it, `[n]`.
      end: The same when the element's results were handed in, `[n]`.
    """

    name: str
    trips: np.ndarray
    lanes: int
    rows_of_vmap: int
    rows_of_lanes: int
    lane: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __repr__(self) -> str:
        return f"{self._title()}\n{text_table(_HEADERS, self._rows())}"

    def _repr_html_(self) -> str:
        return html_table(_HEADERS, self._rows(), self._title())

    def _title(self) -> str:
        trips = self.trips
        spread = f"{trips.min():,} to {trips.max():,}, {trips.mean():,.1f} on average"
        return f"{self.name}: {len(trips):,} elements, trips of loops {spread}"

    def _rows(self) -> Sequence[Sequence[str]]:
        useful = int(self.trips.sum())
        rows = []
        for form, n in (
            ("one after another", useful),
            ("jax.vmap", self.rows_of_vmap),
            (f"{self.lanes:,} lanes", self.rows_of_lanes),
        ):
            rows.append((form, f"{n:,}", f"{useful / max(n, 1):.0%}"))
        return rows
