"""Hosts as processes, on this machine or where a launcher starts processes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import jax

from ampjax.cluster.hosts.host_context import HostContext
from ampjax.cluster.hosts.spawn_hosts import HostOptions, spawn
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.hosts.hosted_groups import NOTHING, Together
from ampjax.hosts.hosts import HostPlace, Hosts
from ampjax.hosts.starting.connect import Running, connect
from ampjax.hosts.starting.make_host import BETWEEN_HOSTS, HostProgram
from ampjax.ir.host_tables import SentTable
from ampjax.plan.planner import Plan

ONE_DEVICE = {"JAX_NUM_CPU_DEVICES": "1"}
"""A host has one device of its CPU, as memory spaces of one host need none of their own."""


def start_processes(
    program: HostProgram,
    plan: Plan,
    hosts: Hosts,
    tables: Mapping[str, SentTable] = MappingProxyType({}),
    together: Together = NOTHING,
) -> HostedExecutor:
    """Starts a process for each host.

    Args:
      program: What hosts are made from.
      plan: The plan.
      hosts: Which there are.
      tables: The tables of nodes whose parameters are one, which travel to their hosts.
      together: What is updated together, by the driver.

    Returns:
      The executor that lets them carry launches out; they end when it is closed.

    Raises:
      SettingsError: If something in the graph or an optimizer can't travel.
      HostError: If a host does not start or can't be reached, has other versions or another plan, or not enough devices.
    """
    numbers = hosts.devices
    environment = {} if numbers else ONE_DEVICE
    options = HostOptions(
        hosts.names,
        tuple(max(of_host) + 1 for of_host in numbers) if numbers else 0,
        window=BETWEEN_HOSTS,
        environment=environment,
    )

    def main(context: HostContext) -> None:
        others = {}
        for number, name in enumerate(context.names):
            if number != context.number:
                others[number] = name
        peers = {number: context.peer(name) for number, name in others.items()}
        if numbers:
            devices = [jax.local_devices()[number] for number in numbers[context.number]]
        else:
            devices = None
        program.serve(context.number, context.driver, peers, devices=devices)

    def start() -> Running:
        started = spawn(hosts.n, main, options, hosts.make_launcher())
        places = [HostPlace(host.place, host.process) for host in started]
        alive = [lambda host=host: host.alive for host in started]
        return Running(
            hosts.names,
            [host.channel for host in started],
            places,
            alive,
            started.close,
        )

    return connect(program, plan, start, tables, together)
