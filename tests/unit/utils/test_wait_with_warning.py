"""Waiting for what does not answer."""

import asyncio
import gc
import threading
import warnings

import pytest

from ampjax.utils.wait_with_warning import wait_with_warning


def test_a_device_that_does_not_answer_is_told_of_until_it_does(monkeypatch):
    answer = threading.Event()
    said = []

    def warn(text, kind, stacklevel):
        said.append(text)
        if len(said) == 3:
            answer.set()

    monkeypatch.setattr(warnings, "warn", warn)
    asyncio.run(wait_with_warning(answer.wait, "Dispatch 7 on worker 1", 1e-9))
    assert (
        said[0] == "ampjax: Dispatch 7 on worker 1 has not ended after 1e-09 s more; still waiting"
    )
    assert "after 4e-09 s more" in said[2]


def test_what_answers_is_not_told_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(wait_with_warning(lambda: None, "Dispatch 7"))


def test_an_error_comes_out():
    def fails():
        raise ZeroDivisionError("of the device")

    with pytest.raises(ZeroDivisionError, match="of the device"):
        asyncio.run(wait_with_warning(fails, "Dispatch 7"))


def test_what_fails_after_a_cancellation_is_nobodys():
    said = []
    goes_on = threading.Event()

    def fails():
        goes_on.wait()
        raise ZeroDivisionError("of the device")

    async def cancelled():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(context["message"]))
        waiting = asyncio.ensure_future(wait_with_warning(fails, "Dispatch 7"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        goes_on.set()
        await loop.shutdown_default_executor()
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(cancelled())
    assert not said
