"""Programs: all that will happen to some instances, as arrays of integers.

An *invocation* is one run of a stage on the messages that belong together there, one message that is pumped, or one group that is complete. It has
input messages and makes output rows. An instance's invocations, rows and picks are numbered from 0, in an order that does not depend on the other instances
that it was unfolded with, nor on what is pumped or chosen later: a program only ever grows at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True, eq=False, kw_only=True)
class Programs:
    """The programs of `k` instances side by side: `n` invocations, `e` inputs, `c` consumptions. What has no dtype here is int32.

    It has more than twelve fields: each is a column, and they are of four lengths.

    Invocation `i` of instance `j` is in line `first[j] + i`. Within `stage`, a pump `p` is `-1 - p`. Rows of invocation `i`'s output `o` are
    `row[i] + o * size[i]` and the `size[i] - 1` after it. Of an input, `in_row` is the first row, or `~i` where its rows are picks, from place `i`
    of its instance's on. Inputs stand in the order of ports; those of a group are its members in row order, then its opener.

    Args:
      ids: `[k]` int64: the instances' numbers.
      first: `[k + 1]` int64: where each instance's invocations begin.
      pick_first: `[k + 1]` int64: where each instance's picks begin.
      n_rows: `[k]`: output rows of each instance, over all of its invocations and outputs.
      stage: `[n]`: what is run.
      states: `[n, fields]`, int64 if int32 does not hold them: the state fields, in the layout's order.
      rows: `[n]`: input rows of port 0, which count towards dispatch sizes and update intervals; of a pumped message its rows.
      row: `[n]`: the first output row.
      size: `[n]`: rows of each output.
      in_start: `[n + 1]`: where an invocation's inputs begin.
      in_from: `[e]`: the invocation whose rows an input holds.
      in_row: `[e]`: its first row.
      in_size: `[e]`: its rows.
      out_start: `[n + 1]`: where an invocation's consumptions begin.
      out_to: `[c]`: the invocations that consume its rows, once for each input.
      out_rank: `[c]` int16: among what a dispatch's messages reach, those of lower rank are reached first.
      owed: `[n]`: gradients that come back: consumptions, and messages that wait for others that never come.
      asks: `[n]` truth values: whether a payload decides what its messages do; nothing is known beyond until it has been told.
      picks: Rows of messages that do not follow one another.
      edges: For each stage that is a chain `[k, edge types]`: the edges of each type, once for each of its invocations.
    """

    ids: np.ndarray
    first: np.ndarray
    pick_first: np.ndarray
    n_rows: np.ndarray
    stage: np.ndarray
    states: np.ndarray
    rows: np.ndarray
    row: np.ndarray
    size: np.ndarray
    in_start: np.ndarray
    in_from: np.ndarray
    in_row: np.ndarray
    in_size: np.ndarray
    out_start: np.ndarray
    out_to: np.ndarray
    out_rank: np.ndarray
    owed: np.ndarray
    asks: np.ndarray
    picks: np.ndarray
    edges: Mapping[int, np.ndarray]

    @property
    def n_instances(self) -> int:
        """Instances."""
        return len(self.ids)

    @property
    def n_invocations(self) -> int:
        """Invocations of all instances together."""
        return len(self.stage)

    @property
    def instance_of(self) -> np.ndarray:
        """`[n]`: the place of each invocation's instance."""
        return np.repeat(
            np.arange(len(self.ids)),
            np.diff(self.first),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = []
        for f in fields(self):
            if f.name != "edges":
                arrays.append(getattr(self, f.name))
        return sum(array.nbytes for array in (*arrays, *self.edges.values()))

    def input_rows(self, i: int) -> list[np.ndarray]:
        """Gives the rows of each input of an invocation.

        Returns:
          For each input its rows `[in_size]`, by their numbers within the instance.
        """
        picks = self.picks[self.pick_first[np.searchsorted(self.first, i, side="right") - 1] :]
        entries = range(self.in_start[i], self.in_start[i + 1])
        inputs = []
        for e in entries:
            inputs.append((int(self.in_row[e]), int(self.in_size[e])))
        result = []
        for r, n in inputs:
            result.append(
                np.arange(
                    r,
                    r + n,
                )
                if r >= 0
                else picks[~r : ~r + n]
            )
        return result

    def __repr__(self) -> str:
        per = self.nbytes / max(1, self.n_invocations)
        return f"Programs({self.n_instances} instances, {self.n_invocations} invocations, {per:.0f} bytes each)"
