"""Instruments watch a run: progress, journals, traces, tests. All share one protocol, as in trio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ampjax.sched.decisions.dispatch import Dispatch


class Instrument:
    """Watches a run: its methods are called when something happens. A method that is not overridden is not called, and costs nothing."""

    def decided(self, dispatch: Dispatch) -> bool | None:
        """Called when a worker got a dispatch of which nothing has been issued.

        Args:
          dispatch: The dispatch.

        Returns:
          True if it is to be issued by itself, once what was decided before has been issued.
        """

    def before_kernels(self, dispatches: Sequence[Dispatch]) -> None:
        """Called before the kernels of some dispatches are issued in one call; also where only control runs, without kernels.

        Args:
          dispatches: The dispatches.
        """

    def after_kernels(self, dispatches: Sequence[Dispatch]) -> None:
        """Called when the kernels of some dispatches have been issued, before the parameter changes of the last one.

        Args:
          dispatches: The dispatches.
        """

    def after_changes(self, dispatches: Sequence[Dispatch]) -> None:
        """The kernels and parameter changes of some dispatches have been issued.

        Args:
          dispatches: The dispatches.
        """

    def carried_out(self) -> None:
        """Called when all decided dispatches have been issued, or all but the latest."""

    def done(self, dispatch: Dispatch, choices: np.ndarray | None) -> None:
        """A dispatch's messages travel on.

        Args:
          dispatch: The dispatch.
          choices: What was read from their payloads, `[n, fields]` integers; None if nothing was.
        """

    def settled(
        self,
        ended: Sequence[tuple[int, bool]],
        admitted: int,
    ) -> None:
        """Instances have ended, and others have been admitted (or a controller's loops have pumped).

        Args:
          ended: The number of each instance that has ended, and whether it was training.
          admitted: How many have been admitted.
        """

    def data_ended(self) -> None:
        """The end of the data has led to updates."""

    def abandoned(self, dispatches: Sequence[Dispatch]) -> None:
        """A run was interrupted, and the parameter changes that were due have been made all the same.

        Args:
          dispatches: These, without messages.
        """

    def idle(self, worker: int) -> None:
        """A worker has asked for a dispatch and got none.

        Args:
          worker: Its number.
        """


HOOKS = [name for name in vars(Instrument) if not name.startswith("_")]
FOLLOW_DISPATCHES = (
    "decided",
    "before_kernels",
    "after_kernels",
    "after_changes",
    "carried_out",
    "done",
)
"""Hooks for which dispatches must be made, and issued one after the other."""


class Instruments:
    """The instruments of a run: for each hook, the methods that are there.

    Args:
      instruments: They are called in this order.

    Attributes:
      follow_dispatches: Whether any has one of the hooks `FOLLOW_DISPATCHES`.
    """

    decided: list[Callable[[Dispatch], bool | None]]
    before_kernels: list[Callable[[Sequence[Dispatch]], Any]]
    after_kernels: list[Callable[[Sequence[Dispatch]], Any]]
    after_changes: list[Callable[[Sequence[Dispatch]], Any]]
    carried_out: list[Callable[[], Any]]
    done: list[Callable[[Dispatch, np.ndarray | None], Any]]
    settled: list[Callable[[Sequence[tuple[int, bool]], int], Any]]
    data_ended: list[Callable[[], Any]]
    abandoned: list[Callable[[Sequence[Dispatch]], Any]]
    idle: list[Callable[[int], Any]]

    def __init__(self, instruments: Iterable[Instrument] = ()):
        self._all = list(instruments)
        self._collect()

    def add(self, instrument: Instrument) -> None:
        """Adds an instrument, which is called from now on."""
        self._all.append(instrument)
        self._collect()

    def remove(self, instrument: Instrument) -> None:
        """Removes an instrument, which is not called any more."""
        self._all.remove(instrument)
        self._collect()

    def _collect(self) -> None:
        for hook in HOOKS:
            listening = []
            for instrument in self._all:
                if getattr(type(instrument), hook) is not getattr(Instrument, hook):
                    listening.append(instrument)
            setattr(self, hook, [getattr(instrument, hook) for instrument in listening])
        self.follow_dispatches = any(getattr(self, hook) for hook in FOLLOW_DISPATCHES)


class Ended(Instrument):
    """Counts the instances that have ended.

    Args:
      advance: `advance(n)` is called when `n` more have ended.
    """

    def __init__(self, advance: Callable[[int], Any]):
        self._advance = advance

    def settled(
        self,
        ended: Sequence[tuple[int, bool]],
        admitted: int,
    ) -> None:
        """Instances have ended.

        Args:
          ended: The number of each, and whether it was training.
          admitted: How many have been admitted.
        """
        self._advance(len(ended))
