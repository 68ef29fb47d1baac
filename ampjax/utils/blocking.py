"""Runs a coroutine to its end from plain code, also where an event loop already runs, as in a notebook."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

STANDING_STILL: ContextVar[frozenset[asyncio.AbstractEventLoop]] = ContextVar(
    "standing_still", default=frozenset()
)
"""The event loops that stand still until who asks has ended, since `blocking` was called in them."""


def blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end; in a thread with a new event loop where a loop already runs. Ctrl-C cancels the coroutine.

    Returns:
      What it returns.

    Raises:
      Exception: What it raises.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    context = copy_context()
    context.run(lambda: STANDING_STILL.set(STANDING_STILL.get() | {loop}))
    return _Elsewhere(coroutine, context).result()


class _Elsewhere:
    """A coroutine in a thread of its own."""

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        context: Context,
    ):
        self._coroutine = coroutine
        self._context = context
        self._results: list[Any] = []
        self._errors: list[BaseException] = []
        self._started = threading.Event()
        self._ended = threading.Event()

    def result(self) -> Any:
        """Waits for the coroutine, and returns its result or raises its error.

        It waits for an event and not for the thread, since CPython 3.11 takes a thread for ended once its `join` has been interrupted.
        """
        try:
            threading.Thread(
                target=self._context.run,
                args=[self._run],
                name="ampjax",
            ).start()
            self._ended.wait()
        except KeyboardInterrupt:
            self._started.wait()
            self._cancel()
            self._ended.wait()
            if self._errors and isinstance(self._errors[0], asyncio.CancelledError):
                raise  # as `asyncio.run` does in a script
        if self._errors:
            raise self._errors[0]
        return self._results[0]

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._ended.set()

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel) if task is not None else None
        self._started.set()
        self._results.append(await self._coroutine)
