"""Replicas of asynchronous steps that are processes.

Each has a program of its own and waits for no other. The runner makes an update when its gradients have come, in the order in which the replicas
began. So the training is that of replicas in this process, bit for bit, and can be repeated. A server makes no update before it has
answered the pulls of all who began before: they are to see the rows as they were.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ampjax.cluster.hosts.resources import Resources
from ampjax.devices.random_keys import on_host
from ampjax.errors import HostError
from ampjax.parallel.homes.all_homes import VariableHomes
from ampjax.parallel.homes.column_reads import Readings
from ampjax.parallel.homes.dense_homes import DenseAtServers
from ampjax.parallel.steps import batch_rows
from ampjax.parallel.steps.step_outcome import require_finite
from ampjax.parallel.workers.deals import Deal, Dealer
from ampjax.parallel.workers.process_group import ProcessGroup
from ampjax.parallel.workers.worker_messages import Go, StepDone
from ampjax.parallel.workers.workers_step import aux_of, pull_leaves
from ampjax.sparse.rewrite.pulled_step import SparseProgram

Tree = Any


class Later:
    """A loss whose read waits for the worker.

    Args:
      hear: Waits until the worker has said it, and calls `tell`.
    """

    def __init__(self, hear: Callable[[], Any]):
        self._hear: Callable[[], Any] | None = hear
        self._value = np.zeros(())

    def tell(self, value: np.ndarray) -> None:
        """Sets the loss, and lets go of all else."""
        self._hear = None
        self._value = value

    def __array__(
        self,
        dtype: Any = None,
        copy: Any = None,
    ) -> np.ndarray:
        del copy
        if self._hear is not None:
            self._hear()
        return np.asarray(self._value, dtype)


@dataclass
class ShareThere:
    """A worker's computation in its own process (a `Share`).

    Args:
      replica: Its number.
      alpha: By table the share of its rows that it touches.
      deal: What it was dealt.
      part: Its part of the batch.
      there: The replicas.
    """

    replica: int
    alpha: Mapping[str, float]
    deal: Deal
    part: Tree
    there: ReplicasAtWorkers
    loss: Later = field(init=False)
    _done: StepDone | None = None

    def __post_init__(self):
        self.loss = Later(self.wait)

    def wait(self) -> StepDone:
        """Waits for the worker's report.

        Returns:
          What it says.

        Raises:
          HostError: If a process has ended.
        """
        if self._done is None:
            self._done = self.there.hear(self.replica, self.deal)
            self.loss.tell(self._done.loss)
        return self._done

    @property
    def aux(self) -> Tree:
        """The second result; a read waits for the worker."""
        if not self.there.has_aux:
            return None
        return jax.tree.map(
            lambda leaf: leaf[0],
            aux_of(self.there, self.part, [self.wait()]),
        )


@dataclass
class ReplicasAtWorkers:
    """The replicas.

    Args:
      loss: The rewritten loss.
      has_aux: Whether it gives a pair.
      homes: Where variables live.
      readings: Which part of rows has to travel.
      group: The processes.
      resources: The machines.
      check_finite: Whether gradients that are not finite are dropped.
    """

    loss: SparseProgram
    has_aux: bool
    homes: VariableHomes
    readings: Readings
    group: ProcessGroup
    resources: Resources
    check_finite: bool
    _dealer: Dealer = field(init=False)
    _pulls: collections.defaultdict[Any, collections.Counter[int]] = field(init=False)

    def __post_init__(self):
        self._dealer = Dealer(
            self.loss,
            self.homes,
            self.readings,
            self.group,
            self.resources,
            copies=True,
        )
        self._pulls = collections.defaultdict(
            collections.Counter
        )  # by split and server, how many were announced
        self.group.start()

    def begin(self, replica: int, part: Tree) -> ShareThere:
        """Sends a worker its part of a batch, with the dense variables.

        Returns:
          What it computes.

        Raises:
          HostError: If a process has ended.
        """
        part = jax.tree.map(on_host, part)
        self._dealer.tell_places()
        deal = self._dealer.deal({replica: part})
        params = pull_leaves(self._dense, self.resources.homes[replica])
        with self.group.exchange():
            self.group.tell_one(
                replica,
                Go(deal.number, deal.works[replica], params=params),
            )
            self._announce(deal)
        return ShareThere(
            replica,
            batch_rows.alphas(self.loss, deal.rows),
            deal,
            part,
            self,
        )

    def hear(self, replica: int, deal: Deal) -> StepDone:
        """Waits for a worker's report.

        Returns:
          What it says.

        Raises:
          HostError: If a process has ended.
        """
        with self.group.exchange():
            (done,) = self.group.answers(deal.number, [replica])
        self._dealer.note_traffic(replica, done)
        return done

    def apply(self, number: int, share: ShareThere, staleness: int) -> None:
        """Makes the update by a worker's gradients, after a wait for them.

        Args:
          number: The number of the step in which the worker began.
          share: What it has computed.
          staleness: Updates since then.

        Raises:
          ParameterError: If a dense gradient is not finite.
          TableError: If a row's gradient is not.
          HostError: If a process has ended.
        """
        done = share.wait()
        home = self._dense
        like, _ = home.like()
        if self.check_finite:
            require_finite(number, lambda: done.loss, done.finite, like)
        self._dealer.note_pushes(share.replica, share.deal, done)
        if done.error is not None:
            raise done.error
        for path, updates in share.deal.updates.items():
            for update, table in zip(updates, self.homes.rows[path].tables, strict=True):
                update.wait_for_pulls(self._pulls[table.place.key])
        grads = jax.tree.unflatten(
            jax.tree.structure(like),
            done.grads,
        )
        grads = home.push_from(self.resources.homes[share.replica], grads)
        home.tell(staleness)
        self.homes.update(grads, share.deal.updates)

    def rest(self, share: ShareThere) -> None:
        """Waits until a worker has pushed its gradients; returns at once for a lost worker.

        Args:
          share: What `begin` gave.
        """
        with contextlib.suppress(HostError):  # others are started
            share.wait()

    def forget(self) -> None:
        """Forgets all announcements, and all notes of workers that know where rows are: the workers may be new."""
        self.group.start()
        self._dealer.forget()
        self._pulls.clear()

    def _announce(self, deal: Deal) -> None:
        """Counts the pulls of which a worker has been told."""
        for path, (unique,) in deal.rows.items():
            place = self.homes.rows[path].table.place
            partitions = np.unique(unique.ids % place.layout.n_partitions)
            self._pulls[place.key].update({place.placement[p] for p in partitions})

    @property
    def _dense(self) -> DenseAtServers:
        assert isinstance(self.homes.dense, DenseAtServers)
        return self.homes.dense
