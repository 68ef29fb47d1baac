"""Delays Ctrl-C until an operation that must not be cut in two has ended: an update, or the exchange of a message and its answer."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


class _Handler:
    """Python's handler of interrupts while something here must not be interrupted.

    Attributes:
      n_users: How many blocks want it in place.
      depth: How many blocks are not to be interrupted now, one inside another.
    """

    def __init__(self) -> None:
        self.n_users = 0
        self.depth = 0
        self._outer: Callable[..., Any] | None = None
        self._kept: list[tuple[int, Any]] = []

    def __call__(self, number: int, frame: Any) -> None:
        if self.depth and not self._kept:
            self._kept.append((number, frame))
        elif self._outer is not None:
            self._outer(number, frame)

    def put(self) -> None:
        """Takes the place of the handler that is there, for the first user."""
        self.n_users += 1
        if self.n_users > 1:
            return
        outer = signal.getsignal(signal.SIGINT)
        # whoever put another handler in between may have put this one back since: then the one around is still known
        if callable(outer) and outer is not self:
            self._outer = outer
            signal.signal(signal.SIGINT, self)

    def remove(self) -> None:
        """Gives the place back after the last user, unless another handler has been put there meanwhile."""
        self.n_users -= 1
        if self.n_users or self._outer is None:
            return
        if signal.getsignal(signal.SIGINT) is self:
            signal.signal(signal.SIGINT, self._outer)

    def pass_on(self) -> None:
        """Hands the interrupt over that was kept."""
        kept = self._kept
        self._kept = []
        if kept and self._outer is not None:
            self._outer(*kept[0])


_HANDLER = _Handler()


@contextlib.contextmanager
def interrupts_handled() -> Iterator[None]:
    """Puts the handler in place once for all `uninterrupted` in the block: to do so takes as long as a small step of training."""
    if not _is_main():
        yield
        return
    _HANDLER.put()
    try:
        yield
    finally:
        _HANDLER.remove()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Keeps the first interrupt until the block has ended; a second one comes through.

    Only the main thread is ever interrupted; in others, where interrupts are not Python's, and inside another such block, this does
    nothing.
    """
    if not _is_main():
        yield
        return
    with interrupts_handled():
        _HANDLER.depth += 1
        try:
            yield
        finally:
            _HANDLER.depth -= 1
            if not _HANDLER.depth:
                _HANDLER.pass_on()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
