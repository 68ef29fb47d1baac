"""Makes the executor of a driver whose hosts have been started: hears their hello, and checks that they are of the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ampjax.cluster import Channel, Message
from ampjax.errors import HostError
from ampjax.hosts.fleet import Fleet
from ampjax.hosts.host_link import HostLink
from ampjax.hosts.host_program import HostProgram
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.hosts.hosted_store import HostedStore
from ampjax.hosts.layout import HostLayout
from ampjax.hosts.operations import Names
from ampjax.plan.planner import Plan

START_S = 120.0
"""How long a host may take to start: it imports JAX, and makes its plan and its parameters."""


def connect(
    program: HostProgram,
    plan: Plan,
    channels: Sequence[Channel],
    places: Sequence[str],
    alive: Sequence[Callable[[], bool]],
    ended: Callable[[], None],
) -> HostedExecutor:
    """Makes the executor.

    Args:
      program: What the hosts are made from.
      plan: The plan.
      channels: The channel to each host.
      places: Where each is.
      alive: Whether each is there.
      ended: Called when hosts have been told that it is over.

    Raises:
      HostError: If a host does not start, or has another plan.
    """
    can_update: list[int] = []
    names = [f"host{number}" for number in range(len(channels))]
    for channel, name, is_alive in zip(channels, names, alive, strict=True):
        hello = _hello(channel, name, is_alive)
        if hello.text != repr(plan):
            fix = "Make the graph of data alone, and run the same version of ampjax on every host."
            raise HostError(f"host `{name}`", "the driver's plan", f"another:\n{hello.text}", fix)
        can_update += hello.numbers
    links = [
        HostLink(name, place, channel, Names.of(plan), is_alive)
        for name, place, channel, is_alive in zip(names, places, channels, alive, strict=True)
    ]
    fleet = Fleet(plan, HostLayout(plan, program.host_of_space), links, ended)
    return HostedExecutor(plan, fleet, HostedStore(fleet, program.params, program.training), can_update)


def _hello(channel: Channel, name: str, is_alive: Callable[[], bool]) -> Message:
    for _ in range(int(START_S)):
        message = channel.receive(1.0)
        if message is not None:
            return message
        if not is_alive():
            raise HostError(f"host `{name}`", "a start", "an end", "See what it has printed.")
    raise HostError(f"host `{name}`", f"a start within {START_S:.0f} s", "none", "See what it has printed.")
