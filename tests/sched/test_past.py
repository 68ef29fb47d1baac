"""The last dispatches: bounded in number, and in the messages that they hold."""

import numpy as np

from ampjax.sched.dispatch import Dispatch
from ampjax.sched.past import Past


def dispatch(number, messages):
    none = np.zeros(0, np.int64)
    return Dispatch(number, 0, None, "update", np.zeros((messages, 2), np.int64), none, none)


def remembered(past, sizes):
    for number, messages in enumerate(sizes):
        past.append(dispatch(number, messages))
    return [d.number for d in past]


def test_the_last_dispatches_are_remembered():
    assert remembered(Past(3), [1] * 5) == [2, 3, 4]


def test_large_ones_are_fewer():
    past = Past(100, messages=10)
    assert remembered(past, [4, 4, 4, 2, 0]) == [1, 2, 3, 4] and len(past) == 4


def test_the_last_one_is_remembered_however_large():
    assert remembered(Past(100, messages=10), [1, 50]) == [1]
    assert remembered(Past(100, messages=10), [50, 1]) == [1]
