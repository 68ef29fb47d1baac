"""Hosts as threads of this process: what tests of everything but processes use, and what one debugs."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ampjax.cluster import memory_pair
from ampjax.devices.allreduce import Device
from ampjax.hosts.connect import connect
from ampjax.hosts.host_program import BETWEEN_HOSTS, HostProgram
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.plan.planner import Plan


def start_threads(program: HostProgram, plan: Plan, devices: Sequence[Device]) -> HostedExecutor:
    """Starts a thread for each host.

    Args:
      program: What hosts are made from.
      plan: The plan, which they share.
      devices: The devices of hosts, in turn: all memory spaces of a host have one.

    Returns:
      The executor that lets them carry launches out; they end when it is closed.
    """
    n = max(program.host_of_space) + 1
    drivers = [memory_pair("driver", f"host{number}") for number in range(n)]
    between = {(a, b): memory_pair(f"host{a}", f"host{b}", BETWEEN_HOSTS) for a in range(n) for b in range(a)}
    threads = []
    for number in range(n):
        peers = {b: between[number, b][0] for b in range(number)} | {
            a: between[a, number][1] for a in range(number + 1, n)
        }
        arguments = number, drivers[number][1], peers, plan, [devices[number % len(devices)]]
        threads.append(
            threading.Thread(target=program.serve, args=arguments, name=f"ampjax host {number}", daemon=True)
        )
        threads[-1].start()
    channels = [channel for channel, _ in drivers]

    def ended() -> None:
        for thread in threads:
            thread.join()

    places = [f"thread {number} of this process" for number in range(n)]
    return connect(program, plan, channels, places, [t.is_alive for t in threads], ended)
