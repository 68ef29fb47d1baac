"""Waiting for what does not answer."""

import asyncio
import threading
import warnings

import pytest

from ampjax.utils.wait_with_warning import wait_with_warning


def test_a_device_that_does_not_answer_is_told_of_until_it_does(monkeypatch):
    answer, said = threading.Event(), []

    def warn(text, kind, stacklevel):
        said.append(text)
        if len(said) == 3:
            answer.set()

    monkeypatch.setattr(warnings, "warn", warn)
    asyncio.run(wait_with_warning(answer.wait, "Dispatch 7 on worker 1", 1e-9))
    assert said[0] == "ampjax: Dispatch 7 on worker 1 has not ended after 1e-09 s more; still waiting"
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
