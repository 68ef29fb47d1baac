"""The position of a fit in its data: the epoch, the order, the number of instances; and where an epoch may be cut.

An order is drawn from the generator's state at the beginning of the fit, epoch by epoch, so that state and two numbers tell the place. To
come back there the same draws are made again: a data set that is reshuffled for each epoch may depend on all that came before.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ampjax.errors import DataError
from ampjax.train.checkpoints.position import Position
from ampjax.train.grouping import Orders
from ampjax.train.training_data import AnyInstances


@dataclass
class FitPlace:
    """The position of a fit.

    Args:
      began: Epochs that the trainer had begun before this fit.
      rng: The state of its generator then.
      completed: Epochs of this fit that are complete.
      done: Instances of the next one that have ended.
      since: Instances since the last cut.
      order: A checksum of the order that was drawn last; 0 before the first.
      spent_s: Seconds that the epoch has taken so far.
      stopped: Whether a callback has ended the fit.
    """

    began: int = 0
    rng: Mapping[str, Any] = field(default_factory=dict)
    completed: int = 0
    done: int = 0
    since: int = 0
    order: int = 0
    spent_s: float = 0.0
    stopped: bool = False

    @classmethod
    def start(cls, position: Position) -> FitPlace:
        """The place of a fit that begins.

        Args:
          position: How far training has come.
        """
        return cls(position.epochs, position.rng.bit_generator.state)

    def come_back(self, data: AnyInstances, orders: Orders, position: Position) -> AnyInstances:
        """Makes the draws of the completed epochs again.

        Args:
          data: The training instances as they were passed to the fit.
          orders: Draws orders.
          position: Gets the generator's state and the number of epochs.

        Returns:
          The training instances of the last completed epoch.

        Raises:
          DataError: If another order comes.
        """
        position.rng.bit_generator.state = self.rng
        order = self.order
        position.epochs = self.began + self.completed
        for _ in range(self.completed):
            data = reshuffled(data, position.rng)
            order = checksum(orders.training_order(data, position.rng))
        if not self.done:
            self._compare(order)
        return data

    def enter(self, order: np.ndarray) -> None:
        """Notes the order of the next epoch, or compares the order with the one that was being followed.

        Args:
          order: `[n]`: the instances.

        Raises:
          DataError: If another one was.
        """
        if self.done:
            self._compare(checksum(order))
        self.order = checksum(order)

    def leave(self) -> None:
        """Notes that the epoch is complete."""
        self.completed = self.completed + 1
        self.done = 0
        self.spent_s = 0.0

    def _compare(self, order: int) -> None:
        if order != self.order:
            raise DataError(
                "resume, training data",
                f"instances in the order with checksum {self.order:08x}",
                f"{order:08x}",
                "Pass the data that the run began with: as many, with the same sizes.",
            )


@dataclass(frozen=True)
class Cuts:
    """The cuts in the order of an epoch, with nothing in flight at each.

    Args:
      every: Training instances between two cuts, at least; None cuts nowhere.
      round_size: Instances between two updates by the controller: a cut within them would be an update.
    """

    every: int | None = None
    round_size: int = 1

    def next(self, place: FitPlace, n: int) -> int:
        """Finds the next cut after a place.

        Args:
          place: Where they begin.
          n: Instances of the epoch.

        Returns:
          The end of the piece that begins there; `n` if it is the last one.
        """
        if self.every is None:
            return n
        return min(
            n,
            round_up(
                place.done + max(self.every - place.since, 1),
                self.round_size,
            ),
        )

    def is_due(self, place: FitPlace) -> bool:
        """Tells whether enough instances have ended since the last cut.

        Args:
          place: Where a fit stands.
        """
        return self.every is not None and place.since >= self.every


def round_up(n: int, multiple: int) -> int:
    """Gives the next multiple.

    Args:
      n: The number.
      multiple: Of what.
    """
    return -(-n // multiple) * multiple


def checksum(order: np.ndarray) -> int:
    """Computes a number that differs where orders do.

    Args:
      order: `[n]`: the instances.
    """
    return zlib.crc32(order.astype(np.int64, copy=False).tobytes())


def reshuffled(data: Any, rng: np.random.Generator) -> Any:
    """Gives a data set for the next epoch.

    Args:
      data: The data set.
      rng: Draws.

    Returns:
      What its `reshuffle` gives; itself if it has none.
    """
    return data.reshuffle(rng) if hasattr(data, "reshuffle") else data
