"""Ctrl-C waits for the end of an operation, and Python's own handler is back afterwards."""

from __future__ import annotations

import contextlib
import signal

import pytest

from ampjax.utils.interrupts import interrupts_handled, uninterrupted


def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("is_handled_around", [False, True])
def test_first_interrupt_waits_and_second_comes_through(is_handled_around):
    before = signal.getsignal(signal.SIGINT)
    around = interrupts_handled() if is_handled_around else contextlib.nullcontext()
    reached = []
    with around:
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            with uninterrupted():
                _interrupt()
                reached.append("inner")
            reached.append("outer")
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            _interrupt()
            _interrupt()
            reached.append("after the second")
        with uninterrupted():
            reached.append("nothing is left over")
        with pytest.raises(KeyboardInterrupt):
            _interrupt()
    assert reached == ["inner", "outer", "nothing is left over"]
    assert signal.getsignal(signal.SIGINT) is before


def test_two_runs_at_once_leave_the_handler_as_it_was():
    before = signal.getsignal(signal.SIGINT)
    first = interrupts_handled()
    second = interrupts_handled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        _interrupt()
    assert signal.getsignal(signal.SIGINT) is not before
    second.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGINT) is before


def test_handler_that_was_put_meanwhile_stays():
    before = signal.getsignal(signal.SIGINT)
    got = []
    try:
        with interrupts_handled():
            signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
            with uninterrupted():
                _interrupt()
        _interrupt()
    finally:
        signal.signal(signal.SIGINT, before)
    assert got == [signal.SIGINT, signal.SIGINT]


def test_handler_that_comes_back_late_still_passes_interrupts_on():
    before = signal.getsignal(signal.SIGINT)
    try:
        with interrupts_handled():
            ours = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        # as someone does who put another handler there meanwhile
        signal.signal(signal.SIGINT, ours)
        with pytest.raises(KeyboardInterrupt):
            _interrupt()
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            _interrupt()
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, before)
