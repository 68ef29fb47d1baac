"""Asynchronous steps: each replica pulls, computes and pushes by itself, and its gradients are applied on arrival.

Replicas take turns. A bound on staleness is a bound on how many gradients are under way: if j others are under way at the pull, the
gradients are applied j updates later. With a bound of 0 it is ordinary training, one replica's batch after the other's.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from ampjax.errors import AmpError, HostError, ServerError
from ampjax.parallel.steps.synchronous_steps import Dropped, HomedStep, StepOutcome

Tree = Any


class Share(Protocol):
    """One replica's computation: gradients of its part of a batch, at the parameters of its start."""

    @property
    def loss(self) -> Any:
        """A scalar, which may not have been computed yet."""
        ...

    @property
    def aux(self) -> Tree:
        """The loss function's second result; None if there is none."""
        ...

    @property
    def alpha(self) -> Mapping[str, float]:
        """By table the share of its rows that the replica touches."""
        ...


class Replicas(Protocol):
    """Replicas that compute at the same time, in whatever process."""

    def begin(self, replica: int, part: Tree) -> Any:
        """Lets a replica that computes nothing begin with its part of a batch.

        Returns:
          Its `Share`.
        """
        ...

    def apply(self, number: int, share: Any, staleness: int) -> None:
        """Makes the update by a replica's gradients, after a wait for them.

        Args:
          number: The number of the step in which it began, for messages.
          share: What `begin` gave.
          staleness: How many updates have been made since.

        Raises:
          AmpError: If they can't be applied; then nothing has changed.
        """
        ...

    def rest(self, share: Any) -> None:
        """Waits until a replica has computed its gradients; for a lost replica there is no wait.

        Args:
          share: What `begin` gave.
        """
        ...

    def forget(self) -> None:
        """Forgets all computations under way."""
        ...


@dataclass(frozen=True)
class ShareInFlight:
    """Gradients that have not been applied.

    Args:
      number: The step's number.
      replica: Who computes them.
      version: How many updates its parameters had seen.
      share: What it computes.
      part: Of what part of a batch.
    """

    number: int
    replica: int
    version: int
    share: Share
    part: Tree


@dataclass
class AsyncStep(HomedStep):
    """Steps without a barrier; all variables live at servers.

    Args:
      replicas: What computes.
      max_staleness: Updates between a pull and its push at most.
      version: Updates so far.
    """

    replicas: Replicas
    max_staleness: int
    version: int = 0
    _underway: collections.deque[ShareInFlight] = field(default_factory=collections.deque)

    def __call__(
        self,
        number: int,
        parts: Sequence[Tree],
        keep: bool,
    ) -> StepOutcome:
        """Lets every replica begin with its part, and applies gradients as the bound demands. Gradients that can't be applied are dropped.

        Args:
          number: The step's, for messages.
          parts: By replica its batch.
          keep: Whether gradients will be asked for; there are no aggregated ones.

        Returns:
          The losses and the staleness of each update that was made; and why gradients were dropped, if some were.
        """
        del keep
        staleness = []
        shares = []
        alpha = collections.Counter()
        dropped = []
        for replica, part in enumerate(parts):
            staleness += self._make_room(replica, dropped)
            share: Share = self.replicas.begin(replica, part)
            self._underway.append(ShareInFlight(number, replica, self.version, share, part))
            shares.append(share)
            alpha.update({path: value / len(parts) for path, value in share.alpha.items()})
        aux = jax.tree.map(
            lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]),
            *[s.aux for s in shares],
        )
        return StepOutcome(
            [share.loss for share in shares],
            aux,
            dict(alpha),
            dict,
            staleness,
            dropped,
        )

    def write(self, params: Tree, state: Tree, tables: Any) -> None:
        """Replaces all variables and the optimizer's state. Gradients of the old ones are dropped.

        Args:
          params: Dense parameters, None in place of tables.
          state: The optimizer's shared state.
          tables: By path, the copies of its table.
        """
        super().write(params, state, tables)
        self._underway.clear()
        self.replicas.forget()

    def rest(self) -> None:
        """Waits until no replica computes. Precedes a replacement of tables: a replica elsewhere may still pull and push."""
        for work in self._underway:
            self.replicas.rest(work.share)

    def finish(self) -> None:
        """Applies all that is under way.

        Raises:
          ParameterError: If a dense gradient is not finite. It alone is dropped.
          TableError: If a row's gradient is not; likewise.
        """
        dropped: list[Dropped] = []
        while self._underway:
            self._apply_oldest(dropped)
        if dropped:
            raise dropped[0].error

    def _make_room(
        self,
        replica: int,
        dropped: list[Dropped],
    ) -> list[int]:
        """Applies the oldest gradients until one more may be under way, and the replica has none."""
        staleness = []
        while len(self._underway) > self.max_staleness or any(
            work.replica == replica for work in self._underway
        ):
            staleness += self._apply_oldest(dropped)
        return staleness

    def _apply_oldest(self, dropped: list[Dropped]) -> list[int]:
        """Applies the oldest gradients and returns their staleness; or drops the gradients and keeps the error.

        They may be an earlier step's. So an error does not stop the present step, half of which could not be repeated.
        """
        work = self._underway.popleft()
        staleness = self.version - work.version
        try:
            self.replicas.apply(work.number, work.share, staleness)
        except (HostError, ServerError):
            raise  # more is lost than these gradients
        except AmpError as error:
            fix = f"The gradients of replica {work.replica} in step {work.number} were dropped, and nothing else."
            dropped.append(
                Dropped(
                    type(error)(error.where, error.expected, error.got, fix),
                    work.part,
                )
            )
            return []
        self.version += 1
        return [staleness]
