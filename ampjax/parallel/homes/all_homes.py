"""All variables' homes together: one update of everything, new splits of tables, and reads and writes of whole trees.

Knows homes, not devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from ampjax.errors import TableError
from ampjax.optim.row_rule import Values
from ampjax.optim.split_transform import Split
from ampjax.optim.split_update import prepare_update
from ampjax.parallel.config.leaf_paths import by_path, readable
from ampjax.parallel.homes.assigned_rows import AssignedRows
from ampjax.parallel.homes.dense_homes import DenseHome
from ampjax.parallel.homes.placement import place_variables
from ampjax.parallel.homes.row_homes import Grads, PulledRows, RowGrads, RowHome, row_bytes
from ampjax.parallel.homes.server_totals import ServerTotals
from ampjax.sparse.rewrite.stacks import Stack
from ampjax.sparse.rows.parallel_calls import all_of
from ampjax.sparse.table.pending_update import PendingUpdate
from ampjax.sparse.table.sharded_table import Table
from ampjax.sparse.table.table_parts import TablePart
from ampjax.utils.interrupts import uninterrupted

Tree = Any
Waiting = Mapping[str, Sequence[PendingUpdate]]
"""By table, its row gradients that wait for one update: one entry for each copy of the table."""


@dataclass(eq=False)
class VariableHomes:
    """The homes of all variables, and their updates.

    Args:
      split: The optimizer, cut into a shared part and rules for rows.
      dense: The home of dense variables.
      rows: By table its home.
      stacks: By table the variables whose rows it holds.
      server_totals: What servers exchange in an update.
      load: Bytes of dense variables at each server.

    Attributes:
      n_updates: Updates that have been made.
    """

    split: Split
    dense: DenseHome
    rows: Mapping[str, RowHome]
    stacks: Mapping[str, Stack]
    server_totals: ServerTotals
    load: Sequence[int]
    n_updates: int = field(default=0, init=False)

    def push_rows(
        self,
        pulled: Mapping[str, Sequence[PulledRows]],
        grads: Callable[[str], Grads],
    ) -> Waiting:
        """Pushes gradients of the rows that were pulled.

        Args:
          pulled: By table, what its home's `pull` gave.
          grads: For a table, what gives the gradients of each replica's rows.

        Returns:
          By table its row gradients, for `update`.

        Raises:
          TableError: If they are not finite.
        """

        def push(path: str) -> Sequence[PendingUpdate]:
            return naming_variable(
                path,
                lambda: self.rows[path].push(pulled[path], grads(path)),
            )

        nbytes = sum(rows.rows.nbytes for each in pulled.values() for rows in each)
        return dict(
            zip(
                self.rows,
                all_of([partial(push, path) for path in self.rows], nbytes),
                strict=True,
            )
        )

    def update(self, grads: Tree, waiting: Waiting) -> None:
        """Makes one update of everything: exactly once, triggered by the chief (Parallax §3.3).

        Args:
          grads: Aggregated dense gradients, as `dense.push` gave them.
          waiting: By table its row gradients, as the home's `push` gave them.

        Raises:
          TableError: If row gradients can't be applied; then nothing has changed.
        """
        rows = {}
        for path, home in self.rows.items():
            rows[path] = _HomeRows(path, home, waiting[path], self.server_totals)
        nbytes = sum(pending.nbytes for each in waiting.values() for pending in each)
        commit = prepare_update(
            self.split.n_rounds,
            self.dense,
            grads,
            rows,
            lambda calls: all_of(calls, nbytes),
        )
        with uninterrupted():
            commit()
            self.n_updates += 1

    @property
    def tables(self) -> dict[str, list[Table]]:
        """By name a table, or every machine's."""
        return {path: home.tables for path, home in self.rows.items()}

    def parts(self) -> dict[str, TablePart]:
        """By variable its rows in its table, in the order of the parameters."""
        result = {}
        states = self.split.state
        for name, stack in self.stacks.items():
            table = self.rows[name].table
            for path, (first, end) in stack.spans.items():
                names = [states.names[place] for place in states.places(path)]
                state = []
                for of_rule, state_name in zip(table.rule.state, names, strict=True):
                    state.append(replace(of_rule, name=state_name))
                result[path] = TablePart(table, first, end, tuple(state))
        results = {}
        for path in self.split.params.names:
            if path in result:
                results[path] = result[path]
        return results

    def write(
        self,
        params: Tree,
        state: Tree,
        tables: Mapping[str, list[Table]],
    ) -> None:
        """Replaces all variables and the optimizer's state.

        Args:
          params: Dense parameters, None in place of tables.
          state: The optimizer's shared state.
          tables: By name, the copies of a table.
        """
        self.dense.write(params, state)
        for path, home in self.rows.items():
            home.tables = tables[path]

    def write_state(self, leaves: Mapping[str, Any]) -> None:
        """Replaces some leaves of the optimizer's state.

        Args:
          leaves: By path, arrays like the leaves; of rows, tables.
        """
        params, state = self.dense.read()
        shared = self.name_shared(state)
        if shared.keys() & leaves.keys():
            self.dense.write(
                params,
                self.split.state.fill([leaves.get(name, old) for name, old in shared.items()]),
            )
        for path, part in self.parts().items():
            values = [leaves.get(state.name) for state in part.state]
            if any(new is not None for new in values):
                states = []
                for old, new in zip(part.arrays()[1:], values, strict=True):
                    states.append(old if new is None else new)
                for table in self.rows[self._table_of(path)].tables:
                    table.set_state(part.first, states)

    def name_shared(self, state: Tree) -> dict[str, Any]:
        """Names the leaves of shared state.

        Args:
          state: The optimizer's shared state.

        Returns:
          By path in the optimizer's whole state the leaves.
        """
        names = self.split.state
        shared = [names.names[place] for place in names.places(None)]
        return dict(zip(shared, jax.tree.leaves(state), strict=True))

    def assign_rows(self, new: AssignedRows) -> None:
        """Gives some rows of a variable in a table new values and fresh optimizer state.

        Args:
          new: The rows, by their numbers within the variable.
        """
        name = self._table_of(new.path)
        first, _ = self.stacks[name].spans[new.path]
        for table in self.rows[name].tables:
            table.assign(new.ids + first, new.values)

    def _table_of(self, path: str) -> str:
        return next(name for name, stack in self.stacks.items() if path in stack.paths)

    def is_split(self, counts: Mapping[str, int]) -> bool:
        """Tells whether some tables have these numbers of partitions already.

        Args:
          counts: By table its number of partitions.
        """
        return all(self.rows[path].table.n_partitions == count for path, count in counts.items())

    def resplit(self, counts: Mapping[str, int]) -> None:
        """Deals the rows of some tables out anew. Partitions of all tables are placed together, so other tables may move, too.

        Args:
          counts: By table its number of partitions.
        """
        counts = {path: home.table.n_partitions for path, home in self.rows.items()} | dict(counts)
        sizes = {}
        for path, home in self.rows.items():
            sizes[path] = (home.table.n_rows, row_bytes(home.table))
        servers = place_variables(sizes, counts, len(self.load), self.load)
        for path, home in self.rows.items():
            is_placed = home.table.placement == servers[path] or not home.is_served
            if home.table.n_partitions != counts[path] or not is_placed:
                home.resplit(counts[path], servers[path])

    def gradients(
        self,
        grads: Tree,
        waiting: Waiting,
    ) -> dict[str, Any]:
        """Reads aggregated gradients.

        Args:
          grads: Dense gradients, as `dense.push` gave them.
          waiting: By table its row gradients.

        Returns:
          By path an array, or `RowGrads` for a variable in a table.
        """
        result: dict[str, Any] = by_path(self.dense.fetch(grads))
        for name, home in self.rows.items():
            result |= {
                path: RowGrads(*of_one)
                for path, *of_one in self.stacks[name].parts(*home.fetch(waiting[name]))
            }
        return result


@dataclass(frozen=True)
class _HomeRows:
    """One variable's row gradients in an update (a `split_update.PendingRows`); counts the servers' exchange for the update.

    Args:
      path: The variable.
      home: Its home.
      pending: The gradients, for each copy of its table.
      server_totals: What servers exchange.
    """

    path: str
    home: RowHome
    pending: Sequence[PendingUpdate]
    server_totals: ServerTotals

    def partials(
        self,
        turn: int,
        shared: Values,
    ) -> list[np.ndarray]:
        def totals() -> list[np.ndarray]:
            return self.server_totals.totals(
                turn,
                self.path,
                self.home,
                self.pending[0],
                shared,
            )

        return naming_variable(self.path, totals)

    def prepare(self, shared: Values) -> Callable[[], None]:
        self.server_totals.announce(self.home, shared)
        writes = naming_variable(
            self.path, lambda: [pending.prepare(shared) for pending in self.pending]
        )

        def commit() -> None:
            for write in writes:
                write()

        return commit


def naming_variable(path: str, call: Any) -> Any:
    """Calls a function of a table; an error names the variable of the table.

    Args:
      path: The variable.
      call: The function, without arguments.

    Returns:
      What the function returns.

    Raises:
      TableError: The function's, with the variable's path.
    """
    try:
        return call()
    except TableError as error:
        raise TableError(
            f"variable `{readable(path)}`, {error.where}",
            error.expected,
            readable(error.got),
            error.fix,
        ) from error
