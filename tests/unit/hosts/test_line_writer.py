"""Batches that are written line by line have what they have where launches are made of dispatches."""

from collections import deque

import numpy as np
import pytest
from support import graphs
from support.engines import engine, spread

from ampjax.cluster import Message
from ampjax.drivers.host_order import in_expected_order
from ampjax.drivers.run import Loop
from ampjax.engine.make_launches import Launches
from ampjax.hosts.fleet import Fleet, Ready
from ampjax.hosts.host_link import HostLink
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.hosts.hosts import Place
from ampjax.hosts.layout import HostLayout
from ampjax.hosts.operations import LAUNCH, PUT, TAKE, Names, operations
from ampjax.sched.decisions.packs import PackMemory
from ampjax.trace.instruments import Instrument


class Host:
    """Keeps the batches that it gets, and says at once that it has done them."""

    bytes_sent = bytes_received = 0

    def __init__(self):
        self.said, self.got = deque(), []

    def send(self, message):
        self.got.append([np.array(array) for array in message.arrays])
        self.said.append(Message("done", message.numbers))

    def receive(self, timeout_s=None):
        return self.said.popleft() if self.said else None


class Follows(Instrument):
    """Wants to be told of each dispatch."""

    def after_kernels(self, dispatches):
        pass


def run(make_engine, data, n_hosts, is_followed):
    """The operations that each host has got."""
    e = make_engine()
    hosts, names = [Host() for _ in range(n_hosts)], Names.of(e.plan)
    links = [HostLink(f"host{i}", Place("here", i), host, names, lambda: True) for i, host in enumerate(hosts)]
    layout = HostLayout(e.plan, range(n_hosts))
    executor = HostedExecutor(e.plan, Fleet(e.plan, layout, lambda: Ready(links, frozenset(), lambda: None)), None)
    loop = Loop(e.scheduler, executor, e.sources(data), [Follows()] if is_followed else [])
    for _ in in_expected_order(loop):
        pass
    executor.fleet.send(range(n_hosts))
    assert e.scheduler.idle
    return [[op for batch in host.got for op in operations(batch, names, PackMemory())] for host in hosts]


def told(operation):
    """An operation as plain data."""
    what = operation.what._asdict() if operation.code in (LAUNCH, TAKE, PUT) else vars(operation.what)
    what.pop("place", None)  # where a pack lies in what the host has received
    return operation.code, operation.peer, operation.number, {key: plain(value) for key, value in what.items()}


def plain(value):
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("interval", [1, 3, 1000])
def test_hosts_get_the_same_operations(interval, monkeypatch):
    graph, data = graphs.chain(4), graphs.chain_data(40)
    how = {"fuse": False, "check": False, "max_dispatch_size": 4, "max_active_keys": 6, "interval": interval}

    def make_engine():
        return engine(graph, spread(graph, 2), (0, 1), **how)

    launches = run(make_engine, data, 2, is_followed=True)
    monkeypatch.setattr(Launches, "__call__", None)  # nobody makes one
    lines = run(make_engine, data, 2, is_followed=False)
    for by_line, by_launch in zip(lines, launches, strict=True):
        assert [told(operation) for operation in by_line] == [told(operation) for operation in by_launch]
        assert {operation.code for operation in by_line} >= {LAUNCH, TAKE, PUT}
    updates = [op.what for host in lines for op in host if op.code == LAUNCH and op.what.changes]
    assert bool(updates) == (interval < 1000)
    assert any(launch.brings_updates for launch in updates) == (interval < 1000)
