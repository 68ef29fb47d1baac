"""Verification is about gradients: what a graph or a schedule says of updates does not matter to it."""

import pytest
from support import graphs

from ampjax.settings import Settings
from ampjax.testing.verify import SCHEDULES, verify


@pytest.mark.parametrize(
    ("interval", "schedules"),
    [(1, SCHEDULES[1:2]), (None, [Settings()]), (None, [Settings(mode="sync")])],
    ids=["a node's own interval", "updates after every row", "the controller's updates"],
)
def test_nothing_updates_while_gradients_are_compared(interval, schedules):
    found = verify(graphs.chain(1, min_update_interval=interval), graphs.chain_data(3), schedules=schedules)
    assert found, found
