"""Runs on hosts: the same trainer in this process and on hosts that are threads of it."""

import threading
from contextlib import contextmanager

import jax
import numpy as np

import ampjax as amp
import ampjax.graphs as ag
from ampjax.engine.executor import Executor
from ampjax.engine.parameters import NodeTraining
from ampjax.hosts.hosts import Hosts
from ampjax.hosts.starting.in_threads import start_threads
from ampjax.hosts.starting.make_host import HostProgram


def trainer(graph, tx, n_hosts, spaces, **options):
    """A trainer on so many hosts, with `spaces` memory spaces; 0 hosts: in this process."""
    if n_hosts:
        return amp.Trainer(
            graph,
            tx,
            hosts=amp.Hosts(n_hosts, "threads", spaces),
            **{"workers": spaces} | options,
        )
    return amp.Trainer(
        graph,
        tx,
        devices=[jax.devices()[0]] * spaces,
        **{"workers": spaces} | options,
    )


@contextmanager
def on_hosts(engine, n_hosts, params, tx=None):
    """Lets a `laws.Engine` run on hosts as long as this is open; frozen without `tx`."""
    from support.laws import FROZEN

    s = engine.schedule.settings
    n_spaces = max(engine.plan.spaces) + 1
    training = dict.fromkeys(
        engine.graph.parameterised,
        NodeTraining(tx or FROZEN, s.gradient),
    )
    hosts = Hosts(min(n_hosts, n_spaces), "threads", n_spaces)
    placed = (
        engine.plan.worker_of,
        engine.plan.spaces,
        s.fuse,
        hosts.host_of_space,
    )
    values = jax.tree.map(np.asarray, params), training, engine.scheduler.settings.stashed
    program = HostProgram(engine.graph, *placed, *values)
    engine.executor = start_threads(
        program,
        engine.plan,
        hosts,
        jax.devices()[:1],
    )
    try:
        yield
    finally:
        engine.executor.fleet.close()


def assert_same(one, other):
    """Both have the same bits."""
    jax.tree.map(np.testing.assert_array_equal, one, other)


def pipeline():
    """Two nodes whose accumulated gradients count their rows."""
    with ag.Graph() as g:
        x = ag.pump("x", shape=())
        y = ag.ppt(
            "a",
            lambda p, v: p + v,
            params=lambda key: np.float32(0.0),
        )(x)
        ag.loss("loss", lambda v: v)(
            ag.ppt(
                "b",
                lambda p, v: p + v,
                params=lambda key: np.float32(0.0),
            )(y)
        )
    return g


def fails_once(monkeypatch, host, after):
    """Lets a host's executor fail, once, after so many calls."""
    run = Executor.run
    left = [after]

    def run_or_fail(self, launches):
        if threading.current_thread().name == f"ampjax host {host}":
            left[0] -= 1
            if left[0] == 0:
                raise ZeroDivisionError("a body's own mistake")
        return run(self, launches)

    monkeypatch.setattr(Executor, "run", run_or_fail)
