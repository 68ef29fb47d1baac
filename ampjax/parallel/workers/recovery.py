"""Recovers a runner that has lost processes: starts new ones, restores the last checkpoint, and repeats the steps since then.

The batches since then are kept, so the model ends with the bits of an undisturbed run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from ampjax.devices.random_keys import copy_leaf
from ampjax.errors import HostError, ServerError

Tree = Any
_MOST = 3
"""How often processes may be lost, without a new step in between, before that is an error."""


@dataclass(frozen=True)
class Recovery:
    """A loss of processes from which training has recovered.

    Args:
      step: The step that was about to be taken, or had just been taken.
      restored: The step of the checkpoint that was restored.
      error: The error that had occurred.
      noticed: The time at which it was noticed, in seconds since 1970.
      seconds: How long it took until all lost steps had been repeated.
    """

    step: int
    restored: int
    error: str
    noticed: float
    seconds: float


@dataclass
class Recoverer:
    """The last checkpoint and the batches since then, for a recovery.

    Args:
      restore: Restores a checkpoint, and returns its step.
      reset: Sets parameters, with a new optimizer state, at step 0.
      again: Takes a step with the replicas' parts of a batch.
      assign: Assigns leaves of the optimizer's state.
    """

    restore: Callable[[Path], int]
    reset: Callable[[Tree], None]
    again: Callable[[Sequence[Tree]], None]
    assign: Callable[[Mapping[str, Any]], None]
    recoveries: list[Recovery] = field(default_factory=list)
    _base: Any = None
    _events: list[Callable[[], None]] = field(default_factory=list)  # what has happened since then
    _n_in_a_row: int = 0

    def begin_at(self, base: Path | Tree) -> None:
        """Notes the state from which all further steps are kept.

        Args:
          base: A checkpoint, or the parameters at step 0.
        """
        self._base = base
        self._events = []

    def note_step(self, parts: Sequence[Tree]) -> None:
        """Keeps the batch of a step that has been taken.

        Args:
          parts: By replica its part; copied.
        """
        copies = [jax.tree.map(copy_leaf, part) for part in parts]
        self._events.append(lambda: self.again(copies))
        self._n_in_a_row = 0

    def note_state(self, leaves: Mapping[str, Any]) -> None:
        """Keeps the user's assignments to the optimizer's state between steps.

        Args:
          leaves: By path, arrays; nobody writes into them any more.
        """
        copy = dict(leaves)
        self._events.append(lambda: self.assign(copy))

    def note(self, event: Callable[[], None]) -> None:
        """Keeps anything else that has happened between steps.

        Args:
          event: Lets it happen again.
        """
        self._events.append(event)

    def recover(self, error: HostError | ServerError, step: int) -> None:
        """Starts processes and takes all steps since the last checkpoint again.

        Args:
          error: Why there are none any more.
          step: The step that was to be taken.

        Raises:
          HostError, ServerError: If processes are lost again and again.
        """
        noticed = time.time()
        start = time.monotonic()
        text = str(error)
        while True:
            self._n_in_a_row += 1
            if self._n_in_a_row > _MOST:
                error.add_note(
                    f"That was time {self._n_in_a_row} without a new step, so it was not tried again."
                )
                raise error
            warnings.warn(
                f"ampjax: {error} Others are started, and go on from the last checkpoint.",
                RuntimeWarning,
                stacklevel=5,
            )
            try:
                restored = self._take_again()
                break
            except (
                HostError,
                ServerError,
            ) as another:  # one of those that were started just now was lost, too
                text = f"{text} Then {another}"
                error = another
        self.recoveries.append(
            Recovery(
                step,
                restored,
                text,
                noticed,
                time.monotonic() - start,
            )
        )

    def _take_again(self) -> int:
        """Goes back to the checkpoint, and repeats all steps since then. Returns the step at which the repetition began."""
        restored = 0
        if isinstance(self._base, Path):
            restored = self.restore(self._base)
        else:
            self.reset(self._base)
        for event in self._events:
            event()
        return restored
