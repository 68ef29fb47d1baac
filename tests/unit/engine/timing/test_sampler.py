"""What timing costs, with a host and a device whose times are known."""

import numpy as np
import pytest

from ampjax.engine.kernels.launch import Launch
from ampjax.engine.timing import sampler
from ampjax.engine.timing.sampler import APART, CREDIT_NS, EACH, LATEST_WIDTH, SHARE, Sampler


class Machine:
    """Stands for the clock and the device of one worker."""

    def __init__(self, is_busy=False, n_to_compile=0):
        self.ns = 0
        self.is_busy = is_busy
        self.n_waits = 0
        self.n_to_compile = n_to_compile
        self.compilations = 0

    def clock(self):
        return self.ns

    def run(self):
        self.ns += 50_000
        if self.compilations < self.n_to_compile:
            self.ns += 500_000_000
            self.compilations += 1

    def change(self):
        self.ns += 1_000

    def is_idle(self, worker):
        self.ns += 40_000
        return not self.is_busy

    def wait_for(self, worker):
        self.n_waits += 1
        self.ns += 150_000

    def pass_(self, sampler, n):
        """Decides on launches and issues them, one after the other; gives how many were wanted first."""
        pack = np.zeros(3 * 8, np.int32)
        wanted = 0
        for number in range(1, n + 1):
            launch = Launch(number, 0, 0, "forward", 8, 8, pack=pack)
            self.ns += 50_000
            wanted += sampler.wants(launch, self.ns)
            sampler.before_kernels([launch])
            self.run()
            sampler.after_kernels([launch])
            self.change()
            sampler.after_changes([launch])
        assert len(sampler.take()) == LATEST_WIDTH * n
        return wanted


@pytest.mark.parametrize("is_busy", [False, True])
def test_timing_takes_no_more_of_a_run_than_its_share(is_busy):
    """All of what it takes is counted: the question whether a device is idle, and the waiting."""
    machine = Machine(is_busy)
    timer = Sampler(machine, machine.clock, every=64)
    wanted = machine.pass_(timer, 40_000)
    without = 40_000 * 101_000
    assert machine.n_waits > 0
    assert 0 < machine.ns - without <= 1.3 * SHARE * machine.ns + CREDIT_NS
    assert wanted < 40_000 / APART, "batches are cut short by few"


def test_a_run_that_is_short_has_its_kinds_timed():
    machine = Machine()
    timer = Sampler(machine, machine.clock, every=64)
    machine.pass_(timer, 10)
    assert machine.n_waits == EACH, "an idle device is not waited for before"


def test_what_is_compiled_in_a_timed_dispatch_is_no_loss_and_it_is_timed_again(monkeypatch):
    machine = Machine(n_to_compile=3)
    monkeypatch.setattr(sampler, "compilations", lambda: machine.compilations)
    timer = Sampler(machine, machine.clock, every=64)
    machine.pass_(timer, 400)
    assert machine.n_waits >= 3 + EACH
    assert machine.n_waits * 150_000 <= 1.3 * SHARE * 400 * 101_000 + CREDIT_NS


@pytest.mark.parametrize("is_busy", [False, True])
def test_all_are_timed_where_that_is_wanted(is_busy):
    machine = Machine(is_busy)
    assert (
        machine.pass_(
            Sampler(machine, machine.clock, every=1),
            500,
        )
        == 500
    )
    assert machine.n_waits == 500 * (1 + is_busy)
