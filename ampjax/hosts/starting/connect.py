"""Makes the executor of a driver whose hosts have been started: hears their hello, and checks that all are of the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ampjax.cluster.wire.channel import Channel
from ampjax.cluster.wire.message import Message
from ampjax.errors import HostError
from ampjax.hosts.fleet import Fleet, Ready
from ampjax.hosts.host_link import HostLink
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.hosts.hosted_groups import Together
from ampjax.hosts.hosted_store import HostedStore
from ampjax.hosts.hosts import HostPlace
from ampjax.hosts.layout import HostLayout
from ampjax.hosts.operations import Names
from ampjax.hosts.starting.make_host import HostProgram
from ampjax.ir.host_tables import SentTable
from ampjax.plan.planner import Plan

START_S = 120.0
"""How long a host may take to start: it imports JAX, and makes its plan and its parameters."""
_READ = "Read what that host has printed on its standard output and error."


class Running(NamedTuple):
    """Hosts that have been started.

    Args:
      names: What each is called.
      channels: The channel to each.
      places: Where each is.
      alive: Whether each is there.
      end: Ends them, once they have been told that it is over.
    """

    names: Sequence[str]
    channels: Sequence[Channel]
    places: Sequence[HostPlace]
    alive: Sequence[Callable[[], bool]]
    end: Callable[[], None]


def connect(
    program: HostProgram,
    plan: Plan,
    start: Callable[[], Running],
    tables: Mapping[str, SentTable],
    together: Together,
) -> HostedExecutor:
    """Makes the executor.

    Args:
      program: What the hosts are made from.
      plan: The plan.
      start: Starts hosts: now, and again if one has died.
      tables: The tables of nodes whose parameters are one, which travel to their hosts.
      together: What is updated together, by the driver.

    Raises:
      HostError: If a host does not start, or has another plan.
    """
    fleet = Fleet(
        plan,
        HostLayout(plan, program.host_of_space),
        lambda: _hear_hellos(plan, start()),
    )
    store = HostedStore(fleet, program.params, program.training, tables, together)
    try:
        store.send_tables()
    except BaseException:
        fleet.close()
        raise
    return HostedExecutor(plan, fleet, store)


def _hear_hellos(plan: Plan, running: Running) -> Ready:
    """Hears the first message of each host, and checks that all have the same plan."""
    names = running.names
    try:
        hellos = [
            _hello(*of_host) for of_host in zip(running.channels, names, running.alive, strict=True)
        ]
        for name, hello in zip(names, hellos, strict=True):
            if hello.text != repr(plan):
                fix = "Make the graph of data alone, and run the same version of ampjax on every host."
                raise HostError(
                    f"host `{name}`", "the driver's plan", f"another:\n{hello.text}", fix
                )
    except BaseException:
        running.end()
        raise
    parts = zip(
        names,
        running.places,
        running.channels,
        running.alive,
        strict=True,
    )
    links = []
    for name, place, channel, is_alive in parts:
        links.append(HostLink(name, place, channel, Names.of(plan), is_alive))
    return Ready(
        links, frozenset(number for hello in hellos for number in hello.numbers), running.end
    )


def _hello(
    channel: Channel,
    name: str,
    is_alive: Callable[[], bool],
) -> Message:
    for _ in range(int(START_S)):
        message = channel.receive(1.0)
        if message is not None:
            return message
        if not is_alive():
            raise HostError(f"host `{name}`", "a start", "an end", _READ)
    raise HostError(
        f"host `{name}`",
        f"a start within {START_S:.0f} s",
        "none",
        _READ,
    )
