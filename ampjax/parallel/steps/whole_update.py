"""One update of everything, dense variables and rows, from aggregated gradients (Parallax §3.3: exactly once, triggered by the chief).

Whatever can fail comes first; then tables and dense variables change. Knows homes, not devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ampjax.errors import TableError
from ampjax.optim.split_transform import Split
from ampjax.parallel.config.leaf_paths import by_path
from ampjax.parallel.homes.dense_homes import DenseHome
from ampjax.parallel.homes.placement import place_variables
from ampjax.parallel.homes.row_homes import RowHome, row_bytes
from ampjax.parallel.steps.server_totals import Boundary, Waiting
from ampjax.parallel.steps.step_outcome import RowGrads
from ampjax.sparse.table.sharded_table import Table
from ampjax.utils.interrupts import uninterrupted

Tree = Any


@dataclass(eq=False)
class Homes:
    """Where all variables live, and what updates them.

    Args:
      split: The optimizer, cut into a shared part and rules for rows.
      dense: The home of dense variables.
      rows: By table its home.
      boundary: What servers exchange in an update.
      load: Bytes of dense variables at each server.

    Attributes:
      n_updates: Updates that have been made.
    """

    split: Split
    dense: DenseHome
    rows: Mapping[str, RowHome]
    boundary: Boundary
    load: Sequence[int]
    n_updates: int = field(default=0, init=False)

    def update(self, grads: Tree, waiting: Waiting) -> None:
        """Makes the update.

        Args:
          grads: Aggregated dense gradients, as `dense.push` gave them.
          waiting: Rows' gradients, as the rows' `push` gave them.

        Raises:
          TableError: If rows' gradients can't be applied; then nothing has changed.
        """
        for path, home in self.rows.items():
            named(path, lambda home=home, path=path: home.check(waiting[path]))
        totals = []
        for turn in range(self.split.n_rounds):
            shared = self.dense.shared(turn, grads, totals)
            totals.append(self.boundary.totals(turn, self.rows, waiting, shared))
        proposal = self.dense.propose(grads, totals)
        self.boundary.announce(self.rows, proposal.shared)
        prepared = [home.prepare(waiting[path], proposal.shared[path]) for path, home in self.rows.items()]
        with uninterrupted():
            for write in itertools.chain(*prepared):
                write()
            self.dense.adopt(proposal)
            self.n_updates += 1

    @property
    def tables(self) -> dict[str, list[Table]]:
        """By path a variable's table, or every machine's."""
        return {path: home.tables for path, home in self.rows.items()}

    def write(self, params: Tree, state: Tree, tables: Mapping[str, list[Table]]) -> None:
        """Replaces all variables and the optimizer's state."""
        self.dense.write(params, state)
        for path, home in self.rows.items():
            home.tables = tables[path]

    def is_split(self, counts: Mapping[str, int]) -> bool:
        """Whether some tables have so many partitions already."""
        return all(self.rows[path].table.n_partitions == count for path, count in counts.items())

    def resplit(self, counts: Mapping[str, int]) -> None:
        """Deals the rows of some tables out anew; partitions of all tables are placed together, so others may move too.

        Args:
          counts: By table its number of partitions.
        """
        counts = {path: home.table.n_partitions for path, home in self.rows.items()} | dict(counts)
        sizes = {path: (home.table.n_rows, row_bytes(home.table)) for path, home in self.rows.items()}
        servers = place_variables(sizes, counts, len(self.load), self.load)
        for path, home in self.rows.items():
            is_placed = home.table.placement == servers[path] or not home.is_served
            if home.table.n_partitions != counts[path] or not is_placed:
                home.resplit(counts[path], servers[path])

    def gradients(self, grads: Tree, waiting: Waiting) -> dict[str, Any]:
        """Aggregated gradients by path, for whoever wants to read them."""
        return by_path(self.dense.fetch(grads)) | {
            path: RowGrads(*home.fetch(waiting[path])) for path, home in self.rows.items()
        }


def named(path: str, call: Any) -> Any:
    """What a call to a table gives; a mistake tells whose table it was.

    Raises:
      TableError: The call's, with the variable's path.
    """
    try:
        return call()
    except TableError as error:
        raise TableError(f"variable `{path}`, {error.where}", error.expected, error.got, error.fix) from error
