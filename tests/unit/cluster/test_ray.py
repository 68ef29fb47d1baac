"""Hosts that Ray places: the same as local ones. Slow, so only in a nightly run."""

import os
import signal
import sys
import time

import cloudpickle
import jax
import numpy as np
import optax
import pytest

import ampjax as amp
import ampjax.graphs as ag
from ampjax.cluster import RayLauncher
from ampjax.cluster.hosts.spawn_hosts import HostOptions, spawn
from ampjax.cluster.wire.message import Message
from ampjax.errors import HostDiedError, HostError

pytestmark = pytest.mark.nightly
ray = pytest.importorskip("ray")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # hosts can't import a test


def relay(context):
    """The first host sends what it gets to the second, which sends it back to the driver."""
    import os

    while True:
        if context.number == 0:
            context.peer("host-1").send(context.driver.receive())
        else:
            message = context.peer("host-0").receive()
            context.driver.send(
                Message(
                    "back",
                    (os.getpid(),),
                    os.environ["JAX_NUM_CPU_DEVICES"],
                    message.arrays,
                )
            )


def check_relay(hosts):
    array = np.arange(20, dtype=np.float32)
    hosts[0].channel.send(Message("go", arrays=(array,)))
    message = hosts[1].channel.receive(60)
    assert message.numbers == (hosts[1].process,)
    assert message.text == "2"
    assert (message.arrays[0] == array).all()
    os.kill(hosts[1].process, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(HostDiedError, match="channel to host-1: expected a host at the other end"):
        hosts[1].channel.receive(60)
    assert time.monotonic() - start < 2.5
    assert not hosts[1].alive
    assert hosts[0].alive


def test_a_local_ray():
    with spawn(
        2,
        relay,
        HostOptions(devices=2),
        RayLauncher(resources={"CPU": 0.5}),
    ) as hosts:
        check_relay(hosts)
    assert not ray.is_initialized()


def test_two_raylets():
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        launcher = RayLauncher(cluster.address, strategy="STRICT_SPREAD")
        assert len(ray.nodes()) == 2
        with spawn(2, relay, HostOptions(devices=2), launcher) as hosts:
            check_relay(hosts)
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.long
def test_no_cluster_is_an_error():
    with pytest.raises(HostError, match=r"Ray: expected a cluster at '127.0.0.1:1'"):
        RayLauncher("127.0.0.1:1")


def test_workers_of_a_trainer_on_hosts_that_ray_places():
    graph = ag.Graph()
    with graph:
        x = ag.pump("x", shape=(4,))
        label = ag.pump("label", shape=(4,))
        h = ag.ppt(
            "first",
            lambda w, v: w * v,
            params=lambda key: np.ones(4, np.float32),
        )(x)
        y = ag.ppt(
            "second",
            lambda w, v: w * v,
            params=lambda key: np.ones(4, np.float32),
        )(h)
        ag.loss(
            "error",
            lambda out, t: ((out - t) ** 2).sum(),
        )(
            y,
            label,
        )
    data = []
    for i in range(8):
        data.append(
            {
                "x": np.full(4, i / 8, np.float32),
                "label": np.ones(4, np.float32),
            }
        )
    options = {
        "workers": 2,
        "affinity": {"first": 0, "second": 1, "error": 1},
        "mode": "pipeline",
        "max_active_keys": 4,
    }
    here = amp.Trainer(graph, optax.sgd(0.1), **options)
    here.fit(data, epochs=2, progress=False)
    hosts = amp.Hosts(
        2,
        launcher=RayLauncher(resources={"CPU": 0.5}),
    )
    there = amp.Trainer(
        graph,
        optax.sgd(0.1),
        hosts=hosts,
        **options,
    )
    try:
        there.fit(data, epochs=2, progress=False)
        jax.tree.map(np.testing.assert_array_equal, there.params, here.params)
        assert [state.nodes for state in there.hosts] == [("first",), ("second",)]
    finally:
        there.close()


def test_servers_and_workers_of_a_runner_at_the_address_of_a_machine():
    from ray.cluster_utils import Cluster

    import ampjax.parallel as px

    def loss(params, batch):
        return ((params["table"][batch["ids"]] @ params["w"] - 1) ** 2).mean()

    params = {
        "table": np.ones((20, 3), np.float32),
        "w": np.full(3, 0.5, np.float32),
    }
    config = px.ParallaxConfig(alpha_threshold=1.0)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4})
    try:
        ray.init(address=cluster.address)
        (node,) = ray.nodes()
        listed = []
        for name in "ab":
            listed.append({"host": name, "address": node["NodeManagerAddress"], "devices": [0]})
        with px.get_runner(
            loss,
            params,
            optax.sgd(0.1),
            {"machines": listed},
            config,
        ) as runner:
            assert runner.run({"ids": np.arange(4)}).loss == 0.25
            assert {state.state for state in runner.hosts} == {"running"}
        listed[1]["address"] = "192.0.2.77"  # of documentation: nobody has it
        with (
            px.get_runner(
                loss,
                params,
                optax.sgd(0.1),
                {"machines": listed},
                config,
            ) as runner,
            pytest.raises(
                HostError, match=r"Ray: expected a machine at `192.0.2.77`, got those at \["
            ),
        ):
            runner.run({"ids": np.arange(4)})
    finally:
        ray.shutdown()
        cluster.shutdown()
