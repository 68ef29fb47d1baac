"""A budget is kept: work is cancelled when it is spent."""

import asyncio

import pytest

from ampjax.errors import SettingsError
from ampjax.tuning.budget import Budget, OutOfTime


class FakeClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_it_counts_from_the_beginning():
    clock = FakeClock()
    budget = Budget(5.0, clock)
    clock.now_s += 3
    budget.check()
    assert (budget.spent_s, budget.left_s) == (3.0, 2.0)
    clock.now_s += 3
    assert budget.left_s == -1.0
    with pytest.raises(OutOfTime):
        budget.check()


def test_work_in_time_is_done():
    async def work():
        return 7

    for budget in (Budget(1000.0), Budget.unlimited()):
        assert asyncio.run(budget.within(work())) == 7


def test_work_is_cancelled_when_the_budget_is_spent():
    clock = FakeClock()
    seen = []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    budget = Budget(1.0, clock)
    clock.now_s += 0.999999
    with pytest.raises(OutOfTime):
        asyncio.run(budget.within(work()))
    assert seen == ["cancelled"]


def test_what_work_raises_comes_through():
    async def work():
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(Budget(1000.0).within(work()))


@pytest.mark.parametrize(
    "seconds",
    [0, -1.0, float("nan"), float("inf"), True, "60"],
)
def test_it_must_be_a_number_above_zero(seconds):
    match = r"tune, `budget_s`: expected a finite number above 0, got .*\. Give the seconds that tuning may take"
    with pytest.raises(SettingsError, match=match):
        Budget(seconds)
