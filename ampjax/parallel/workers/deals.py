"""The runner's deals to workers: a batch's parts, and the places of their rows. Workers' reports are recorded here, too.

It finds the rows of all replicas itself, since their programs are one, and so must be the padded number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ampjax.cluster.hosts.resources import Resources
from ampjax.devices.random_keys import data_of, on_host
from ampjax.parallel.homes.all_homes import VariableHomes
from ampjax.parallel.homes.column_reads import Readings
from ampjax.parallel.homes.row_copies import RowsOnEveryMachine
from ampjax.parallel.homes.row_homes import WHOLE, RowHome, row_bytes
from ampjax.parallel.steps import batch_rows
from ampjax.parallel.workers.process_group import ProcessGroup
from ampjax.parallel.workers.worker_messages import Places, RowWork, StepDone, StepWork
from ampjax.sparse.rewrite.pulled_step import SparseProgram
from ampjax.sparse.rewrite.unique_ids import UniqueRows
from ampjax.sparse.table.pending_update import PendingUpdate
from ampjax.sparse.table.row_client import SplitPlace

EARLY_BYTES = 1 << 22
"""Of rows that a replica could pull before the update that precedes its step. With fewer, two pulls in place of one cost more than they hide."""

Tree = Any
Versions = list[tuple[Any, int]]
"""For each copy of each table how it is split, and how many updates it has seen."""


@dataclass(frozen=True)
class Deal:
    """A joint task of some replicas.

    Args:
      number: Its number, for this run of processes.
      parts: By replica the leaves of its batch.
      rows: By table, the rows that each of them reads, in their order.
      updates: By table the update to which they push, one entry for each copy of the table.
      works: By replica its share.
      versions: Those of the tables that it wants.
    """

    number: int
    parts: Mapping[int, list[np.ndarray]]
    rows: batch_rows.ReplicaRows
    updates: Mapping[str, list[PendingUpdate]]
    works: Mapping[int, StepWork]
    versions: Versions


class Dealer:
    """Deals out work.

    Args:
      loss: The loss on pulled rows.
      homes: Where variables live.
      readings: Which part of rows has to travel.
      group: The processes.
      resources: The machines.
      copies: Whether batches are copied, as they must be if nobody waits until they have been sent.
    """

    def __init__(
        self,
        loss: SparseProgram,
        homes: VariableHomes,
        readings: Readings,
        group: ProcessGroup,
        resources: Resources,
        copies: bool = False,
    ):
        self._loss = loss
        self._homes = homes
        self._readings = readings
        self._group = group
        self._resources = resources
        self._copies = copies
        self._find = batch_rows.RowFinder(loss)
        self._sizes = batch_rows.PaddedSizes()
        self._told: dict[str, list[SplitPlace]] = {}

    def forget(self) -> None:
        """Notes that workers may be new, and need the places of rows again."""
        self._told.clear()

    @property
    def versions(self) -> Versions:
        """The present versions of the tables."""
        result = []
        for home in self._homes.rows.values():
            for table in home.tables:
                result.append((table.place.key, table.n_updates))
        return result

    def deal(
        self,
        parts: Mapping[int, Tree],
        after: Deal | None = None,
    ) -> Deal:
        """Makes the shares of some replicas.

        Args:
          parts: By replica its part of a batch; copied if it is of a later step.
          after: A deal under way, whose update will be made before; None if the last update has been made.

        Returns:
          The shares, which have not been sent.

        Raises:
          AmpError: If the batch does not fit the program.
        """
        share_of = {}
        for replica, part in parts.items():
            share_of[replica] = jax.tree.map(on_host, part)
        leaves = {replica: _leaves(part) for replica, part in share_of.items()}
        if (
            self._copies or after is not None
        ):  # the user may write to a batch before it has been sent
            leaves = {replica: [leaf.copy() for leaf in each] for replica, each in leaves.items()}
        rows = self._find(list(share_of.values()))
        first = next(iter(share_of.values()))
        readings = self._readings.for_batch(first)
        updates = {}
        for path in rows:
            updates[path] = [table.expect() for table in self._homes.rows[path].tables]
        tables: dict[int, dict[str, RowWork]] = {replica: {} for replica in share_of}
        for path, each in rows.items():
            by_table = dict(zip(share_of, each, strict=True))
            of_table = self._row_work(path, by_table, readings, updates[path], after)
            for replica, work in of_table.items():
                tables[replica][path] = work
        number = self._group.next_number()
        works = {}
        for replica in share_of:
            works[replica] = StepWork(number, leaves[replica], tables[replica])
        versions = []
        for key, n in self.versions:
            versions.append((key, n + (after is not None)))
        return Deal(number, leaves, rows, updates, works, versions)

    def _row_work(
        self,
        path: str,
        rows: Mapping[int, UniqueRows],
        readings: Mapping[str, Any],
        updates: Sequence[PendingUpdate],
        after: Deal | None,
    ) -> dict[int, RowWork]:
        """Makes the work of each replica on the rows of one table.

        Args:
          path: The variable.
          rows: By replica the rows of its part.
          readings: By path which part of rows has to travel.
          updates: The updates of the copies of the table.
          after: The deal under way, if there is one.
        """
        home = self._homes.rows[path]
        size = self._sizes.at_least(
            path,
            max(len(unique.ids) for unique in rows.values()),
        )
        if after is None:
            touched = None
        else:
            touched = _find_touched_rows(home, after.rows[path])
        reading = readings[path] if home.is_served else WHOLE
        works = {}
        for replica, unique in rows.items():
            update, seen = self._target(replica, home, updates)
            works[replica] = RowWork(
                unique,
                size,
                reading,
                update,
                seen + (after is not None),
                _early_rows(home, unique, touched),
            )
        return works

    def _target(
        self, replica: int, home: RowHome, updates: Sequence[PendingUpdate]
    ) -> tuple[int | None, int]:
        """Finds the update to which a replica pushes, or None, and the number of updates that its table has seen."""
        machine = self._resources.homes[replica]
        copy = home.copy_of(machine)
        # What was gathered is the same at all replicas of a machine: the first one pushes it.
        pushes = home.is_served or replica == self._resources.replicas_of(machine)[0]
        return (updates[copy].number if pushes else None), home.tables[copy].n_updates

    def is_of(
        self,
        deal: Deal,
        parts: Mapping[int, Tree],
    ) -> bool:
        """Tells whether an earlier deal fits the present batch.

        Args:
          deal: The deal.
          parts: By replica its part of the batch.
        """
        leaves = {}
        for replica, part in parts.items():
            leaves[replica] = _leaves(jax.tree.map(on_host, part))
        return self.versions == deal.versions and all(
            len(leaves[r]) == len(old) and all(map(_is_same, leaves[r], old))
            for r, old in deal.parts.items()
        )

    def tell_places(self) -> None:
        """Tells workers which tables have been split anew, or are new.

        Raises:
          HostError: If a process has ended.
        """
        places = {}
        for path, home in self._homes.rows.items():
            places[path] = [table.place for table in home.tables]
        if new := {path: own for path, own in places.items() if self._told.get(path) != own}:
            copies = []
            for m in self._resources.homes:
                copies.append({path: self._homes.rows[path].copy_of(m) for path in new})
            self._group.tell_each(
                [Places({path: new[path][i] for path, i in own.items()}) for own in copies]
            )
            self._told.update(new)

    def note_traffic(self, replica: int, done: StepDone) -> None:
        """Records a replica's pulls and pushes."""
        for path, counts in done.traffic.items():
            self._homes.rows[path].note_traffic(replica, counts)

    def note_gathered(self, deal: Deal) -> None:
        """Records the gathers among replicas."""
        for path in deal.rows:
            if isinstance(home := self._homes.rows[path], RowsOnEveryMachine):
                home.note_gathered(next(iter(deal.works.values())).tables[path].size)

    def note_pushes(self, replica: int, deal: Deal, done: StepDone) -> None:
        """Lets the updates of a deal wait for a replica's pushes."""
        for path, clients in done.pushes.items():
            copy = self._homes.rows[path].copy_of(self._resources.homes[replica])
            deal.updates[path][copy].note_pushes(clients)


def _find_touched_rows(
    home: RowHome,
    rows: Sequence[UniqueRows],
) -> np.ndarray | None:
    """The rows that an update will change; None for all."""
    if home.table.untouched_rows_stay:
        return np.concatenate([unique.ids for unique in rows])
    return None


def _early_rows(
    home: RowHome,
    unique: UniqueRows,
    touched: np.ndarray | None,
) -> np.ndarray | None:
    """Selects the rows that a replica may pull before the update; None if an early pull does not pay."""
    nbytes = row_bytes(home.table)
    if touched is None or len(unique.ids) * nbytes < EARLY_BYTES:
        return None
    early = np.isin(unique.ids, touched, invert=True)
    return early if early.any() and early.sum() * nbytes >= EARLY_BYTES else None


def _leaves(tree: Tree) -> list[np.ndarray]:
    return [data_of(leaf) for leaf in jax.tree.leaves(tree)]


def _is_same(first: np.ndarray, second: np.ndarray) -> bool:
    """Tells whether two arrays have the same bits."""
    like = first.shape == second.shape and first.dtype == second.dtype
    return like and first.tobytes() == second.tobytes()
