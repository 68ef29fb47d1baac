"""Hosts as threads of this process, for tests of everything but processes, and for debugging."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ampjax.cluster.wire.memory_channel import memory_pair
from ampjax.devices.allreduce import Device
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.hosts.hosted_groups import NOTHING, Together
from ampjax.hosts.hosts import DRIVER, HostPlace, Hosts
from ampjax.hosts.starting.connect import Running, connect
from ampjax.hosts.starting.make_host import BETWEEN_HOSTS, HostProgram
from ampjax.ir.host_tables import SentTable
from ampjax.plan.planner import Plan


def start_threads(
    program: HostProgram,
    plan: Plan,
    hosts: Hosts,
    devices: Sequence[Device],
    tables: Mapping[str, SentTable] = MappingProxyType({}),
    together: Together = NOTHING,
) -> HostedExecutor:
    """Starts a thread for each host.

    Args:
      program: What hosts are made from.
      plan: The plan, which they share.
      hosts: Which there are.
      devices: The devices of hosts, in turn, unless `hosts` says which: all memory spaces of a host have one.
      tables: The tables of nodes whose parameters are one, which travel to their hosts.
      together: What is updated together, by the driver.

    Returns:
      The executor that lets them carry launches out; they end when it is closed.
    """
    n = hosts.n
    names = hosts.names
    of_hosts = hosts.devices or [[devices[number % len(devices)]] for number in range(n)]

    def start() -> Running:
        drivers = [memory_pair(DRIVER, name) for name in names]
        between = {}
        for a in range(n):
            for b in range(a):
                between[(a, b)] = memory_pair(
                    names[a],
                    names[b],
                    BETWEEN_HOSTS,
                )
        threads = []
        for a in range(n):
            peers = {b: between[a, b][0] for b in range(a)} | {
                b: between[b, a][1] for b in range(a + 1, n)
            }
            arguments = a, drivers[a][1], peers, plan, of_hosts[a]
            threads.append(
                threading.Thread(
                    target=program.serve, args=arguments, name=f"ampjax host {a}", daemon=True
                )
            )
            threads[-1].start()

        def end() -> None:
            for thread in threads:
                thread.join()

        places = [HostPlace(f"thread {number} of this process", os.getpid()) for number in range(n)]
        return Running(
            names,
            [channel for channel, _ in drivers],
            places,
            [thread.is_alive for thread in threads],
            end,
        )

    return connect(program, plan, start, tables, together)
