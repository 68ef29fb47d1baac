"""The last dispatches: bounded in number, and in the messages that they hold."""

import numpy as np
import pytest

from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.diagnose.dispatch_log import DispatchLog


def dispatch(number, messages):
    return Dispatch(
        number,
        0,
        0,
        "forward",
        messages,
        messages,
        0,
        np.zeros(3 * messages, np.int32),
    )


def remembered(past, sizes):
    for number, messages in enumerate(sizes):
        past.append(dispatch(number, messages))
    return [d.number for d in past]


def test_the_last_dispatches_are_remembered():
    assert remembered(DispatchLog(3), [1] * 5) == [2, 3, 4]


def test_large_ones_are_fewer():
    past = DispatchLog(100, messages=10)
    assert remembered(past, [4, 4, 4, 2, 0]) == [1, 2, 3, 4]
    assert len(past) == 4


def test_the_last_one_is_remembered_however_large():
    assert remembered(
        DispatchLog(100, messages=10),
        [1, 50],
    ) == [1]
    assert remembered(
        DispatchLog(100, messages=10),
        [50, 1],
    ) == [1]


@pytest.mark.parametrize("together", [1, 3, 7])
def test_many_at_once_are_remembered_as_one_by_one(together):
    """As many as asked for; of what came together in large dispatches none is forgotten before all may be."""
    past = DispatchLog(5)
    told = [dispatch(number, 1) for number in range(21)]
    for start in range(0, 21, together):
        past.extend(told[start : start + together])
        past.extend([])
        expected = []
        for d in told[: start + together][-5:]:
            expected.append(d.number)
        assert [d.number for d in past] == expected
        assert len(past) == len(expected)
    large = DispatchLog(100, messages=10)
    for start in range(0, 21, together):
        large.extend(told[start : start + together])
    assert [d.number for d in large][-1] == 20
    assert max(1, 10 - together) <= len(large) <= max(10, together)
