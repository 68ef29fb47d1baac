"""Batches that are written line by line have what they have where launches are made of dispatches."""

from collections import deque
from dataclasses import fields

import numpy as np
import pytest
from support import graphs
from support.engines import engine, spread
from support.models import model

from ampjax.cluster.wire.message import Message
from ampjax.drivers import issue_queue
from ampjax.drivers.host_order import in_expected_order
from ampjax.drivers.run import DECIDED_FOR_HOSTS, DriverLoop
from ampjax.engine.make_launches import Launches
from ampjax.hosts.fleet import Fleet, Ready
from ampjax.hosts.host_link import HostLink
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.hosts.hosts import HostPlace
from ampjax.hosts.layout import HostLayout
from ampjax.hosts.operations import FEED, LAUNCH, PUT, TAKE, Names, operations
from ampjax.sched.decisions.packs import PackMemory
from ampjax.trace.instruments import Instrument
from ampjax.unfold.rules.edges import DispatchEdges


class Host:
    """Keeps the batches that it gets, and says at once that it has done them."""

    bytes_sent = bytes_received = 0

    def __init__(self):
        self.said = deque()
        self.got = []

    def send(self, message):
        self.got.append([np.array(array) for array in message.arrays])
        self.said.append(Message("done", message.numbers))

    def receive(self, timeout_s=None):
        return self.said.popleft() if self.said else None


class Follows(Instrument):
    """Wants to be told of each dispatch."""

    def after_kernels(self, dispatches):
        pass


def hosted(graph, data, settings, instruments=()):
    """A run over two hosts that has not begun: its loop, the hosts, and what their numbers stand for."""
    e = engine(
        graph,
        spread(graph, 2),
        (0, 1),
        check=False,
        **settings,
    )
    hosts = [Host(), Host()]
    names = Names.of(e.plan)
    links = [
        HostLink(f"host{i}", HostPlace("here", i), host, names, lambda: True)
        for i, host in enumerate(hosts)
    ]
    fleet = Fleet(
        e.plan,
        HostLayout(e.plan, (0, 1)),
        lambda: Ready(links, frozenset(), lambda: None),
    )
    return (
        DriverLoop(
            e.scheduler,
            HostedExecutor(e.plan, fleet, None),
            e.sources(data),
            instruments,
        ),
        hosts,
        names,
    )


def run(graph, data, settings, is_followed):
    """The operations that each host has got, and the number of the last dispatch that went there as a line; -1 if none did."""
    loop, hosts, names = hosted(
        graph,
        data,
        settings,
        [Follows()] if is_followed else [],
    )
    for _ in in_expected_order(loop):
        pass
    assert loop.scheduler.idle
    loop.executor.fleet.send([0, 1])
    found = []
    for host in hosts:
        found.append(
            [told(op) for batch in host.got for op in operations(batch, names, PackMemory())]
        )
    return found, loop.executor.latest_line


def told(operation):
    """An operation as plain data, but for where a pack lies in what was received."""
    what = operation.what
    if isinstance(what, tuple):
        named = what._asdict()
    else:
        named = {}
        for f in fields(what):
            named[f.name] = getattr(what, f.name)
    return (
        operation.code,
        operation.peer,
        operation.number,
        {k: plain(v) for k, v in named.items() if k != "place"},
    )


def plain(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, DispatchEdges):
        result = {}
        for name, each in vars(value).items():
            result[name] = plain(each)
        return result
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


FEW = {"max_dispatch_size": 4, "max_active_keys": 6}


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("interval", [1, 3, 1000])
def test_hosts_get_the_same_operations_without_objects(interval, fuse, monkeypatch):
    how = graphs.chain(4), graphs.chain_data(40), FEW | {"interval": interval, "fuse": fuse}
    launches, latest = run(*how, is_followed=True)
    assert latest == -1
    monkeypatch.setattr(Launches, "__call__", None)  # nobody makes one
    lines, latest = run(*how, is_followed=False)
    assert lines == launches and latest > 0
    assert {code for host in lines for code, *_ in host} == {FEED, LAUNCH, TAKE, PUT}
    updates = []
    for host in lines:
        for code, _, _, what in host:
            if code == LAUNCH and what["changes"]:
                updates.append(what)
    assert bool(updates) == any(what["brings_updates"] for what in updates) == (interval < 1000)


LINES = {
    "loop": (
        graphs.rnn(),
        graphs.rnn_data([3, 5, 2, 4]),
        {"interval": 4},
    ),
    "shared parameters": (
        graphs.tied(),
        graphs.tied_data([3, 1, 4, 2]),
        {"interval": 2},
    ),
    "sinks": (
        graphs.with_sinks(),
        [
            {
                "x": np.ones(2, np.float32),
                "label": np.float32(0),
            }
        ]
        * 9,
        {"interval": 3},
    ),
    "budgets": (
        graphs.chain(4),
        graphs.chain_data(30),
        {"interval": 2, "budgets": {"f1": 0}},
    ),
    **{name: (*model(name), {"interval": 5}) for name in ("trees", "tagger")},
    "controller": (
        graphs.chain(4),
        graphs.chain_data(12),
        {"flush_every": 3},
    ),
}
"""Graphs, data and settings with which some dispatches at least go to hosts as lines."""

OBJECTS = {
    "ragged": (
        graphs.repeating(),
        [graphs.repeating_instance(n) for n in (2, 3, 4)],
        {"interval": 2},
    ),
    "stashed weights": (
        graphs.chain(4),
        graphs.chain_data(20),
        {"interval": 2, "stashed": ("f1",)},
    ),
    "estimated weights": (
        graphs.chain(4),
        graphs.chain_data(20),
        {"interval": 2, "estimated": ("f1",)},
    ),
    "dropped gradients": (
        graphs.chain(4),
        graphs.chain_data(20),
        {"interval": 2, "stalest": {"f0": 0}},
    ),
    "molecules": (*model("molecules"), {"interval": 5}),
}
"""Those with which none does."""


@pytest.mark.first_case
@pytest.mark.parametrize("name", [*LINES, *OBJECTS])
def test_hosts_get_the_same_operations(name):
    graph, data, settings = (LINES | OBJECTS)[name]
    by_line, latest = run(graph, data, FEW | settings, is_followed=False)
    assert (latest > 0) == (name in LINES)
    assert run(graph, data, FEW | settings, is_followed=True) == (by_line, -1)


def test_what_an_interrupt_leaves_unwritten_is_undone(monkeypatch):
    loop, *_ = hosted(
        graphs.chain(4),
        graphs.chain_data(40),
        FEW,
    )
    capacities_of = Launches.capacities_of
    left = [21]

    def interrupted(self, stage):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return capacities_of(self, stage)

    advance = loop.scheduler.advance
    decided = []
    monkeypatch.setattr(
        loop.scheduler,
        "advance",
        lambda *how: decided.append(advance(*how)) or decided[-1],
    )
    monkeypatch.setattr(Launches, "capacities_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in in_expected_order(loop):
            pass
    latest = loop.executor.latest_line
    undone = [dispatch.number for dispatch in loop.queue.undone]
    assert latest > 0 and undone == list(
        range(
            latest + 1,
            decided[-1].last + 1,
        )
    )


def test_what_hosts_have_done_is_forgotten_while_a_run_goes_on(monkeypatch):
    monkeypatch.setattr(issue_queue, "REMEMBERED", 40)
    loop, *_ = hosted(
        graphs.chain(4),
        graphs.chain_data(200),
        FEW,
    )
    most = 0
    for _ in in_expected_order(loop):
        loop.executor.fleet.send([0, 1])
        most = max(most, loop.queue.n_remembered)
    assert 0 < most < 40 + DECIDED_FOR_HOSTS
