"""Turns: coroutines hold a resource one after the other, in whatever threads and event loops they run."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

from ampjax.errors import SettingsError
from ampjax.utils.blocking import STANDING_STILL


class Turns:
    """A lock, first come, first served. An `asyncio.Lock` belongs to one event loop, but a notebook's cells and `blocking` use several.

    Args:
      held: What is held, for errors.
    """

    def __init__(self, held: str):
        self._held = held
        self._lock = threading.Lock()
        self._holder: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, Future[None]]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits until the resource is free, and acquires it.

        Raises:
          SettingsError: If that would be for ever: a holder's event loop stands still until who asks has ended.
        """
        await self._come()
        try:
            yield
        finally:
            self._leave()

    async def _come(self) -> None:
        loop = asyncio.get_running_loop()
        future = Future[None]()
        with self._lock:
            if self._holder is None:
                self._holder = loop
                return
            if not STANDING_STILL.get().isdisjoint(
                [self._holder, *(other for other, _ in self._waiting)]
            ):
                raise SettingsError(
                    self._held,
                    "one run at a time",
                    "a call that holds up the event loop in which another run of it is under way",
                    "Await the call's twin (`fit_async`, `evaluate_async`, `predict_async`), or call it when that run has ended, as in a callback of `fit`.",
                )
            self._waiting.append((loop, future))
        try:
            await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel():  # its turn came at that very moment
                self._leave()
            raise

    def _leave(self) -> None:
        """Passes the resource to the waiter that has waited longest and has not been cancelled."""
        with self._lock:
            self._holder = None
            while self._waiting and self._holder is None:
                loop, future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    self._holder = loop
                    future.set_result(None)
