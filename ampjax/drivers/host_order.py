"""The order in which a driver decides for hosts: as if dispatches took as long as a rough cost model says.

A driver that lets every dispatch travel on as soon as it is decided knows no delays, so it would decide on many dispatches of one host, then
on many of another that need them all, and the hosts would work one after the other. In expected order each host gets what it can do while
the others are busy. Nothing is measured, so the order is the same in every run. The times need only be right to a factor of a few: what
keeps hosts busy is that they are asked in turn, and that rows between them take a while.
"""

from __future__ import annotations

from collections.abc import Iterator

from ampjax.drivers.cost import FlopsCost
from ampjax.drivers.run import DriverLoop
from ampjax.drivers.virtual_driver import VirtualDriver
from ampjax.plan.planner import Plan
from ampjax.sched.virtual_time import VirtualClock

OPERATIONS_PER_S = 5e10
DISPATCH_NS = 50_000
"""What a core does in a second, and what it takes for any dispatch."""

BETWEEN_HOSTS_NS = 500_000
BETWEEN_HOSTS_PER_S = 1e9
"""What rows take from one host to another, and bytes in a second; the host that they go to does something else meanwhile."""


def expected_cost(plan: Plan) -> FlopsCost:
    """The expected costs of hosts' dispatches."""
    return FlopsCost(
        plan,
        OPERATIONS_PER_S,
        DISPATCH_NS,
        workers_per_host=1,
        host_latency_ns=BETWEEN_HOSTS_NS,
        host_bytes_per_s=BETWEEN_HOSTS_PER_S,
        overlap=True,
    )


def has_expected_order(loop: DriverLoop) -> bool:
    """Whether a run's dispatches are decided in expected order: there are several hosts, and control waits for no payload."""
    return (
        loop.executor is not None
        and loop.executor.n_hosts > 1
        and loop.scheduler.admission.foresees
    )


def in_expected_order(loop: DriverLoop, one_by_one: bool = False) -> Iterator[None]:
    """Decides until everything has ended; stops now and then, so that others can do something, too.

    Args:
      loop: The run.
      one_by_one: Whether instruments are told of each dispatch before the next one is decided.

    Raises:
      DeadlockError: If nothing can move.
    """
    plan = loop.scheduler.plan
    cost = expected_cost(plan)
    if one_by_one or not loop.foresees:
        yield from VirtualDriver(loop, cost).steps(one_by_one=True)
        return
    loop.settle()
    time = VirtualClock(cost.rates(), plan.workers)
    while True:
        loop.take_changes()
        if not loop.advance(time):
            loop.queue.carry_out()
            if loop.is_finished():
                return
            time.ask_all()
        yield
