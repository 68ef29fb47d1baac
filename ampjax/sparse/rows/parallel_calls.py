"""Calls at the same time, in threads: NumPy and XLA let go of the interpreter, so threads help where there is much to do."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from ampjax.utils.interrupts import uninterrupted

T = TypeVar("T")

PARALLEL_BYTES = 1 << 20
"""Rows to read, or gradients of an update, in bytes, from which on threads share the work; below, they cost more than they gain."""


def n_threads() -> int:
    """Threads that can work at the same time here."""
    return os.cpu_count() or 1


def all_of(
    calls: Sequence[Callable[[], T]],
    nbytes: int,
) -> list[T]:
    """Makes some calls that do not depend on each other: the first in this thread, the others in others, if there is much to do.

    The calls themselves must not use it: they might wait for threads that wait for them.

    Args:
      calls: Functions without arguments.
      nbytes: The bytes of rows that they work on together.

    Returns:
      What they return, in their order.

    Raises:
      Exception: That of the first call that has raised one; all have ended by then.
    """
    if len(calls) < 2 or nbytes < PARALLEL_BYTES:
        return [call() for call in calls]
    others: list[Future[T]] = []
    try:
        for call in calls[1:]:
            others.append(_threads().submit(call))
        first = calls[0]()
    finally:
        with uninterrupted():
            wait(others)
    return [first, *(other.result() for other in others)]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads(), thread_name_prefix="all tables")
