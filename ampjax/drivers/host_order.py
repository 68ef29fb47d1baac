"""The order in which a driver decides for hosts: as if dispatches took as long as a rough cost model says.

A driver that lets every dispatch travel on as soon as it is decided knows no delays, so it would decide on many dispatches of one host, then
on many of another that need them all, and the hosts would work one after the other. In expected order each host gets what it can do while
the others are busy. Nothing is measured, so the order is the same in every run. The times need only be right to a factor of a few: what
keeps hosts busy is that they are asked in turn, and that rows between them take a while.
"""

from __future__ import annotations

import os

from ampjax.drivers.cost import FlopsCost
from ampjax.drivers.run import Loop
from ampjax.plan.planner import Plan

OPERATIONS_PER_S, DISPATCH_NS = 5e10, 50_000
"""A core's."""

BETWEEN_HOSTS_NS, BETWEEN_HOSTS_PER_S = 500_000, 1e9
"""What rows take from one host to another, with the batch that brings the launch; bytes in a second."""


def decides_for_hosts(loop: Loop) -> bool:
    """Whether a run's dispatches are decided in expected order: there are several hosts, and control does not wait for payloads.

    Args:
      loop: The run.
    """
    return loop.executor is not None and loop.executor.n_hosts > 1 and loop.scheduler.admission.foresees


def expected_cost(plan: Plan) -> FlopsCost:
    """What dispatches of hosts are expected to take.

    Args:
      plan: The plan.
    """
    flops, other, lat, bw = map(float, os.environ["VCOST"].split(",")) if "VCOST" in os.environ else (OPERATIONS_PER_S, DISPATCH_NS, BETWEEN_HOSTS_NS, BETWEEN_HOSTS_PER_S)
    return FlopsCost(
        plan,
        flops,
        int(other),
        workers_per_host=1,
        host_latency_ns=int(lat),
        host_bytes_per_s=bw,
        goes_on=True,
    )
