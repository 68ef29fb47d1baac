"""Coroutines run from plain code, where no loop runs and where one does."""

import asyncio
import signal
import threading

import pytest

from ampjax.utils.blocking import blocking


@pytest.fixture
def ctrl_c():
    """Interrupts the main thread as Ctrl-C does, whatever the test runner makes of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def inside_a_loop(function):
    """Calls a function as a notebook's cell is run; unlike `asyncio.run`, that leaves Ctrl-C alone."""

    async def cell():
        return function()

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(cell())
    finally:
        loop.close()


@pytest.mark.parametrize(
    "run", [lambda function: function(), inside_a_loop], ids=["script", "notebook"]
)
def test_ctrl_c_cancels_and_is_a_keyboard_interrupt(run, ctrl_c):
    cancelled = []

    async def endless():
        ctrl_c()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with pytest.raises(KeyboardInterrupt):
        run(lambda: blocking(endless()))
    assert cancelled


@pytest.mark.parametrize(
    "run", [lambda function: function(), inside_a_loop], ids=["script", "notebook"]
)
def test_what_makes_the_best_of_ctrl_c_returns_as_ever(run, ctrl_c):
    async def endless():
        ctrl_c()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "so far"

    assert run(lambda: blocking(endless())) == "so far"
