"""Steps over workers: the runner deals out the batch, and makes the update when all have pushed their gradients.

It finds the rows of all replicas itself, since their programs are one, and so must be the padded number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ampjax.devices.random_keys import data_of, on_host
from ampjax.parallel.homes.dense_homes import DenseAtServers
from ampjax.parallel.homes.row_homes import RowsAtServers
from ampjax.parallel.steps import batch_rows
from ampjax.parallel.steps.step_outcome import require_finite
from ampjax.parallel.steps.synchronous_steps import HomedStep, StepOutcome
from ampjax.parallel.workers.dense_at_workers import DenseAtWorkers
from ampjax.parallel.workers.process_group import ProcessGroup
from ampjax.parallel.workers.worker_messages import Places, RowWork, StepDone, StepWork
from ampjax.sparse.table.pending_update import PendingUpdate
from ampjax.sparse.table.row_client import SplitPlace

Tree = Any


@dataclass
class WorkersStep(HomedStep):
    """Steps of a model whose replicas are processes.

    Args:
      group: The processes.
      machines: Each replica's.
      check_finite: Whether gradients that are not finite stop a step.
    """

    group: ProcessGroup
    machines: Sequence[int]
    check_finite: bool
    _finder: batch_rows.RowFinder = field(init=False)
    _sizes: batch_rows.PaddedSizes = field(default_factory=batch_rows.PaddedSizes)
    _told: dict[str, SplitPlace] = field(default_factory=dict)

    def __post_init__(self):
        self._finder = batch_rows.RowFinder(self.loss)
        self.group.start()

    def write(self, params: Tree, state: Tree, tables: Any) -> None:
        """See `HomedStep.write`. Workers may be new, so they are told again where rows are."""
        self.group.start()
        super().write(params, state, tables)
        self._told.clear()

    def __call__(self, number: int, parts: Sequence[Tree], keep: bool) -> StepOutcome:
        """One step.

        Args:
          number: The step's, for messages.
          parts: By replica its batch.
          keep: Whether gradients will be asked for: they always can be.

        Returns:
          The step's losses, aux and gradients.

        Raises:
          ParameterError: If a dense gradient is not finite; nothing has changed.
          TableError: If a row's gradient is not; nothing has changed.
          HostError: If a process has ended, or an error was raised there.
        """
        del keep
        parts = [jax.tree.map(on_host, part) for part in parts]
        rows = self._finder(parts)
        self._tell_places()
        updates = {path: self._home(path).table.expect() for path in rows}
        done = self._done(parts, rows, updates)
        self._note_traffic(done)
        if self.check_finite:
            losses = [own.loss for own in done] if self._at_servers else done[0].loss
            require_finite(number, lambda: losses, np.stack([own.finite for own in done]), self.like()[0])
        for path, update in updates.items():
            for of_replica in done:
                nbytes = sum(count.pushed for count in of_replica.traffic[path].values())
                servers = [server for server, count in of_replica.traffic[path].items() if count.pushed]
                update.note_push(servers, nbytes, has_come=False)
        self._require_rows(done)
        waiting = {path: [update] for path, update in updates.items()}
        grads = self._dense_gradients(done)
        self.homes.update(grads, waiting)
        return StepOutcome(
            [own.loss for own in done] if self._at_servers else [done[0].loss],
            self._aux(parts, done),
            batch_rows.alphas(self.loss, rows),
            lambda: self.homes.gradients(grads, waiting),
        )

    def _done(
        self, parts: Sequence[Tree], rows: batch_rows.ReplicaRows, updates: dict[str, PendingUpdate]
    ) -> list[StepDone]:
        number, readings = self.group.next_number(), self.readings.for_batch(parts[0])
        sizes = {path: self._sizes.at_least(path, max(len(own.ids) for own in each)) for path, each in rows.items()}
        works, at_workers = [], self._at_workers
        for replica, part in enumerate(parts):
            tables = {
                path: RowWork(
                    each[replica], sizes[path], readings[path], updates[path].number, self._home(path).table.n_updates
                )
                for path, each in rows.items()
            }
            works.append(StepWork(number, _leaves(part), tables, params=self._params_for(replica)))
        with self.group.exchange():
            adopts = at_workers is not None and at_workers.take_adoption()
            self.group.tell_each([work._replace(adopts=adopts) for work in works])
            return self.group.answers(number, len(parts))

    @property
    def _at_workers(self) -> DenseAtWorkers | None:
        dense: Any = self.homes.dense
        return dense if isinstance(dense, DenseAtWorkers) else None

    @property
    def _at_servers(self) -> DenseAtServers | None:
        dense: Any = self.homes.dense
        return dense if isinstance(dense, DenseAtServers) else None

    def _params_for(self, replica: int) -> list[np.ndarray] | None:
        """Dense variables as they arrive at a replica; None where it has them."""
        home = self._at_servers
        return None if home is None else _leaves(home.pull_for(self.machines[replica]))

    def _dense_gradients(self, done: Sequence[StepDone]) -> Any:
        """The reduced gradients in the form in which their home keeps them."""
        if (home := self._at_servers) is not None:
            structure = jax.tree.structure(self.like()[0])
            trees = [jax.tree.unflatten(structure, own.grads) for own in done]
            return home.sum_of(list(zip(self.machines, trees, strict=True)))
        assert self._at_workers is not None
        self._at_workers.note_step(done[0].shared)
        return done[0].number

    def _home(self, path: str) -> RowsAtServers:
        home: Any = self.homes.rows[path]
        return home

    def _tell_places(self) -> None:
        """Tells workers which tables have been split anew, or are new."""
        places = {path: home.table.place for path, home in self.homes.rows.items()}
        if new := {path: place for path, place in places.items() if self._told.get(path) != place}:
            self.group.tell(Places(new))
            self._told.update(new)

    def _note_traffic(self, done: Sequence[StepDone]) -> None:
        for replica, of_replica in enumerate(done):
            for path, counts in of_replica.traffic.items():
                self._home(path).note_traffic(replica, counts)

    def _require_rows(self, done: Sequence[StepDone]) -> None:
        """Raises the first worker's error of those whose row gradients can't be applied."""
        for of_replica in done:
            if (error := of_replica.error) is not None:
                raise error

    def _aux(self, parts: Sequence[Tree], done: Sequence[StepDone]) -> Tree:
        if not self.has_aux:
            return None
        leaves = [np.stack(each) for each in zip(*(of_replica.aux for of_replica in done), strict=True)]
        return jax.tree.unflatten(self._aux_tree(parts), leaves)

    def _aux_tree(self, parts: Sequence[Tree]) -> Any:
        _, aux = self.loss.split_loss(parts[0]).traced.out_tree.children()
        return aux


def _leaves(tree: Tree) -> list[np.ndarray]:
    return [data_of(leaf) for leaf in jax.tree.leaves(tree)]
