"""Counts of compilations in this process, and of their seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

_counts = {"compilations": 0, "registered": 0}
_EVENT = "/jax/core/compile/backend_compile_duration"
_PARTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    _EVENT,
)
_spent = {"seconds": 0.0}
_latest: deque[tuple[float, float]] = deque(maxlen=256)
_listeners: list[Callable[[], object]] = []


def compilations() -> int:
    """XLA compilations in this process since the first call, loads from the persistent cache included."""
    if not _counts["registered"]:
        _counts["registered"] = 1
        jax.monitoring.register_event_duration_secs_listener(_count)
    return _counts["compilations"]


def compiling_s() -> float:
    """Seconds that this process has spent on compilations since the first call: tracing, XLA, and loads from the persistent cache."""
    compilations()
    return _spent["seconds"]


def _spend(seconds: float) -> None:
    """Counts a part of a compilation that has just ended. Parts within this part, as of a function that another one calls, were counted before and belong to this one."""
    end = time.perf_counter()
    # What ended within this part is taken off, since this part's time holds it already.
    while _latest and _latest[-1][0] >= end - seconds:
        _spent["seconds"] -= _latest.pop()[1]
    _latest.append((end - seconds, seconds))
    _spent["seconds"] += seconds


def _count(
    event: str,
    duration_secs: float,
    **kwargs: str | int,
) -> None:
    if event in _PARTS:
        _spend(duration_secs)
    if event == _EVENT:
        _counts["compilations"] += 1
        for listener in tuple(_listeners):
            listener()


@contextmanager
def watch_compilations(listener: Callable[[], object]) -> Iterator[None]:
    """Calls a function after each XLA compilation of this process, as long as this is open; loads from the persistent cache count, too."""
    compilations()
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
