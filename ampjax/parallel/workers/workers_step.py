"""Steps over workers: the runner deals out the batch, and makes the update when all have pushed their gradients.

If the next batch is known by then, it is dealt out while this one is computed, and its rows are asked for. Servers answer as soon as the rows have
been updated, and at once for many rows that the present step does not change. So the bits are the same as without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ampjax.cluster.hosts.resources import Resources
from ampjax.devices.random_keys import data_of, on_host
from ampjax.errors import HostError
from ampjax.parallel.homes.assigned_rows import AssignedRows
from ampjax.parallel.homes.dense_homes import DenseAtServers
from ampjax.parallel.steps import batch_rows
from ampjax.parallel.steps.step_outcome import require_finite
from ampjax.parallel.steps.synchronous_steps import HomedStep, StepOutcome
from ampjax.parallel.workers.deals import Deal, Dealer
from ampjax.parallel.workers.dense_at_workers import DenseAtWorkers
from ampjax.parallel.workers.process_group import ProcessGroup
from ampjax.parallel.workers.worker_messages import Ahead, Go, StepDone

Tree = Any


@dataclass
class WorkersStep(HomedStep):
    """Steps of a model whose replicas are processes.

    Args:
      group: The processes.
      resources: The machines.
      check_finite: Whether gradients that are not finite stop a step.
    """

    group: ProcessGroup
    resources: Resources
    check_finite: bool
    _dealer: Dealer = field(init=False)
    _following: Sequence[Tree] | None = field(default=None, init=False)
    _ahead: Deal | None = field(default=None, init=False)

    def __post_init__(self):
        self._dealer = Dealer(
            self.loss,
            self.homes,
            self.readings,
            self.group,
            self.resources,
        )
        self.group.start()

    def write(self, params: Tree, state: Tree, tables: Any) -> None:
        """Implements `HomedStep.write`. New workers must hear the places of rows again."""
        self.group.start()
        super().write(params, state, tables)
        self._dealer.forget()
        self._following = self._ahead = None

    def assign_rows(self, new: AssignedRows) -> None:
        """Implements `HomedStep.assign_rows`. Workers that have the next batch may have read rows before this: that batch is dealt out again."""
        super().assign_rows(new)
        self._ahead = None

    def announce(self, parts: Sequence[Tree]) -> None:
        """Notes the batch of the step after the one that is taken next.

        Args:
          parts: By replica its part. If that step gets another batch, nothing is lost but time.
        """
        self._following = parts

    def __call__(
        self,
        number: int,
        parts: Sequence[Tree],
        keep: bool,
    ) -> StepOutcome:
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
        deal, is_known = self._deal(parts)
        done = self._done(deal, is_known)
        for replica, of_replica in enumerate(done):
            self._dealer.note_traffic(replica, of_replica)
        self._dealer.note_gathered(deal)
        if self.check_finite:
            if self._at_servers:
                losses = [result.loss for result in done]
            else:
                losses = done[0].loss
            require_finite(
                number,
                lambda: losses,
                np.stack([answer.finite for answer in done]),
                self.like()[0],
            )
        for replica, of_replica in enumerate(done):
            self._dealer.note_pushes(replica, deal, of_replica)
        if errors := [own.error for own in done if own.error is not None]:
            raise errors[0]
        grads = self._dense_gradients(done)
        self.homes.update(grads, deal.updates)
        return StepOutcome(
            [own.loss for own in done] if self._at_servers else [done[0].loss],
            aux_of(self, parts[0], done),
            batch_rows.alphas(self.loss, deal.rows),
            lambda: self.homes.gradients(grads, deal.updates),
        )

    def _deal(self, parts: Sequence[Tree]) -> tuple[Deal, bool]:
        """Makes the deal for a batch, and tells whether workers know the deal by now."""
        ahead = self._ahead
        self._ahead = None
        part_of = dict(enumerate(parts))
        if ahead is not None and self._dealer.is_of(ahead, part_of):
            return ahead, True
        self._dealer.tell_places()
        return self._dealer.deal(part_of), False

    def _done(self, deal: Deal, is_known: bool) -> list[StepDone]:
        """Lets workers take the step, and meanwhile deals out the next one."""
        following = self._following
        self._following = None
        at_workers = self._at_workers
        replicas = range(len(deal.works))
        params = [self._params_for(replica) for replica in replicas]
        with self.group.exchange():
            adopts = at_workers is not None and at_workers.take_adoption()
            works = [None if is_known else deal.works[replica] for replica in replicas]
            goes = []
            for r in replicas:
                goes.append(
                    Go(
                        deal.number,
                        works[r],
                        adopts,
                        params[r],
                        following is not None,
                    )
                )
            self.group.tell_each(goes)
            if following is not None:
                self._deal_ahead(following, deal)
            return self.group.answers(deal.number, replicas)

    def _deal_ahead(self, parts: Sequence[Tree], after: Deal) -> None:
        """Tells workers, which wait for the message, about the next step, or that there is none."""
        try:
            self._ahead = self._dealer.deal(dict(enumerate(parts)), after)
        except HostError:
            raise
        except Exception:  # whatever is wrong with that batch: its own step will say so
            self._ahead = None
        if self._ahead is None:
            works = [None] * len(parts)
        else:
            works = self._ahead.works.values()
        self.group.tell_each([Ahead(work) for work in works])

    @property
    def _at_workers(self) -> DenseAtWorkers | None:
        dense: Any = self.homes.dense
        return dense if isinstance(dense, DenseAtWorkers) else None

    @property
    def _at_servers(self) -> DenseAtServers | None:
        dense: Any = self.homes.dense
        return dense if isinstance(dense, DenseAtServers) else None

    def _params_for(self, replica: int) -> list[np.ndarray] | None:
        """Sends dense variables to a replica; None where the replica has them."""
        home = self._at_servers
        if home is None:
            return None
        return pull_leaves(home, self.resources.homes[replica])

    def _dense_gradients(self, done: Sequence[StepDone]) -> Any:
        """Converts the reduced gradients to the form of their home."""
        if (home := self._at_servers) is not None:
            structure = jax.tree.structure(self.like()[0])
            trees = [jax.tree.unflatten(structure, result.grads) for result in done]
            return home.sum_of(list(zip(self.resources.homes, trees, strict=True)))
        assert self._at_workers is not None
        self._at_workers.note_step(done[0].shared)
        return done[0].number


def pull_leaves(home: DenseAtServers, machine: int) -> list[np.ndarray]:
    """Sends dense variables to a machine.

    Returns:
      The leaves, of keys their integers.
    """
    result = []
    for leaf in jax.tree.leaves(home.pull_for(machine)):
        result.append(data_of(leaf))
    return result


def aux_of(
    step: Any,
    part: Tree,
    done: Sequence[StepDone],
) -> Tree:
    """The second results of some replicas.

    Args:
      step: What has their loss function, `loss` and `has_aux`.
      part: A part of a batch.
      done: What the replicas have said.

    Returns:
      A pytree with a leading axis of replicas; None if there is none.
    """
    if not step.has_aux:
        return None
    _, aux = step.loss.split_loss(part).traced.out_tree.children()
    leaves = [np.stack(each) for each in zip(*(of_replica.aux for of_replica in done), strict=True)]
    return jax.tree.unflatten(aux, leaves)
