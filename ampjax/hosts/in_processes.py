"""Hosts as processes: on this machine, or wherever a launcher starts them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ampjax.cluster import HostContext, HostOptions, spawn
from ampjax.cluster.hosts.launcher import Launcher
from ampjax.hosts.connect import Running, connect
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.hosts.hosts import Place
from ampjax.hosts.make_host import BETWEEN_HOSTS, HostProgram
from ampjax.ir.host_tables import SentTable
from ampjax.plan.planner import Plan

ONE_DEVICE = {"JAX_NUM_CPU_DEVICES": "1"}
"""A host has one device of its CPU, as memory spaces of one host need none of their own."""


def start_processes(
    program: HostProgram,
    plan: Plan,
    launcher: Launcher | None = None,
    tables: Mapping[str, SentTable] = MappingProxyType({}),
) -> HostedExecutor:
    """Starts a process for each host.

    Args:
      program: What hosts are made from.
      plan: The plan.
      launcher: Who starts them; None for this machine.
      tables: The tables of nodes whose parameters are one, which travel to their hosts.

    Returns:
      The executor that lets them carry launches out; they end when it is closed.

    Raises:
      SettingsError: If something in the graph or an optimizer can't travel.
      HostError: If a host does not start, or has other versions or another plan.
    """
    n = max(program.host_of_space) + 1

    def main(context: HostContext) -> None:
        others = {number: name for number, name in enumerate(context.names) if number != context.number}
        peers = {number: context.peer(name) for number, name in others.items()}
        program.serve(context.number, context.driver, peers)

    def start() -> Running:
        names = tuple(f"host{number}" for number in range(n))
        hosts = spawn(n, main, HostOptions(names, window=BETWEEN_HOSTS, environment=ONE_DEVICE), launcher)
        places = [Place(host.place, host.process) for host in hosts]
        alive = [lambda host=host: host.alive for host in hosts]
        return Running([host.channel for host in hosts], places, alive, hosts.close)

    return connect(program, plan, start, tables)
