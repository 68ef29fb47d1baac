"""Losses of asynchronous steps that are read after a loss of processes: the steps are repeated, and then the losses are there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ampjax.errors import HostError, ServerError


class RecoveredLoss:
    """A loss that may not have been computed yet.

    Args:
      loss: The loss, which may wait for a process.
      recover: Repeats the steps since the last checkpoint, with new processes, or raises the error that it gets.
    """

    def __init__(
        self,
        loss: Any,
        recover: Callable[[HostError | ServerError], None],
    ):
        self.loss = loss
        self._recover = recover

    def __array__(
        self,
        dtype: Any = None,
        copy: Any = None,
    ) -> np.ndarray:
        del copy
        while True:
            try:
                return np.asarray(self.loss, dtype)
            except (HostError, ServerError) as error:
                self._recover(error)


class RecoveredLosses:
    """The losses that somebody may still read.

    Args:
      recover: See `RecoveredLoss`.
    """

    def __init__(self, recover: Callable[[HostError | ServerError], None]):
        self._recover = recover
        self._losses: weakref.WeakValueDictionary[tuple[int, int], RecoveredLoss] = (
            weakref.WeakValueDictionary()
        )

    def of(
        self,
        step: int,
        losses: Sequence[Any],
    ) -> list[RecoveredLoss]:
        """Makes losses that outlive their processes.

        Args:
          step: The step's number.
          losses: By replica.

        Returns:
          By replica.
        """
        result = [RecoveredLoss(loss, self._recover) for loss in losses]
        self._losses.update({(step, replica): loss for replica, loss in enumerate(result)})
        return result

    def replace(self, step: int, losses: Sequence[Any]) -> None:
        """Notes that a step has been repeated.

        Args:
          step: Its number.
          losses: By replica.
        """
        for replica, loss in enumerate(losses):
            if (known := self._losses.get((step, replica))) is not None:
                known.loss = loss
