"""Delays Ctrl-C until an operation that must not be cut in two has ended: an update, or the exchange of a message and its answer."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Keeps the first interrupt until the block has ended; a second one comes through.

    Only the main thread is ever interrupted; in others, where interrupts are not Python's, and inside another such block, this does
    nothing.
    """
    outer = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(outer) or getattr(outer, "keeps", False):
        yield
        return
    interrupts: list[tuple[int, Any]] = []

    def keep(number: int, frame: Any) -> None:
        if interrupts:
            outer(number, frame)
        interrupts.append((number, frame))

    keep.keeps = True
    signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, outer)
        if interrupts:
            outer(*interrupts[0])
