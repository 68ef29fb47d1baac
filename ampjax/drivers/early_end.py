"""Ends a pass before all of its instances are admitted: soon after, nothing is in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ampjax.trace.instruments import Instrument


class Ends(Protocol):
    """A source of instances that can end early (`drivers.controller.InstanceSource`)."""

    @property
    def n_admitted(self) -> int:
        """As `InstanceSource.n_admitted`."""
        ...

    def end_early(self, multiple: int = 1) -> None:
        """As `InstanceSource.end_early`."""
        ...


class EarlyEnd(Instrument):
    """Ends a pass early, once that is due.

    Args:
      due: Whether it is; asked whenever instances have ended or been admitted.
      multiple: Of how many instances those that are admitted are to be a multiple.

    Attributes:
      source: What admits them; None before the pass begins.
    """

    def __init__(
        self,
        due: Callable[[], bool],
        multiple: int = 1,
    ):
        self._due = due
        self._multiple = multiple
        self.source: Ends | None = None

    def settled(
        self,
        ended: Sequence[tuple[int, bool]],
        admitted: int,
    ) -> None:
        """Instances have ended, others have been admitted.

        Args:
          ended: The number of each, and whether it was training.
          admitted: How many have been admitted.
        """
        if self.source is not None and self._due():
            self.source.end_early(self._multiple)
