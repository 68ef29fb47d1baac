"""Hosts as threads of this process: what tests of everything but processes use, and what one debugs."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ampjax.cluster import memory_pair
from ampjax.devices.allreduce import Device
from ampjax.hosts.connect import Running, connect
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.hosts.hosts import Place
from ampjax.hosts.make_host import BETWEEN_HOSTS, HostProgram
from ampjax.ir.host_tables import SentTable
from ampjax.plan.planner import Plan


def start_threads(
    program: HostProgram,
    plan: Plan,
    devices: Sequence[Device],
    tables: Mapping[str, SentTable] = MappingProxyType({}),
) -> HostedExecutor:
    """Starts a thread for each host.

    Args:
      program: What hosts are made from.
      plan: The plan, which they share.
      devices: The devices of hosts, in turn: all memory spaces of a host have one.
      tables: The tables of nodes whose parameters are one, which travel to their hosts.

    Returns:
      The executor that lets them carry launches out; they end when it is closed.
    """
    n = max(program.host_of_space) + 1

    def start() -> Running:
        drivers = [memory_pair("driver", f"host{number}") for number in range(n)]
        between = {(a, b): memory_pair(f"host{a}", f"host{b}", BETWEEN_HOSTS) for a in range(n) for b in range(a)}
        threads = []
        for a in range(n):
            peers = {b: between[a, b][0] for b in range(a)} | {b: between[b, a][1] for b in range(a + 1, n)}
            arguments = a, drivers[a][1], peers, plan, [devices[a % len(devices)]]
            threads.append(threading.Thread(target=program.serve, args=arguments, name=f"ampjax host {a}", daemon=True))
            threads[-1].start()

        def end() -> None:
            for thread in threads:
                thread.join()

        places = [Place(f"thread {number} of this process", os.getpid()) for number in range(n)]
        return Running([channel for channel, _ in drivers], places, [thread.is_alive for thread in threads], end)

    return connect(program, plan, start, tables)
