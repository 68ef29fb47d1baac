"""Hosts that a resource file names, and nodes that are pinned to them."""

import jax
import numpy as np
import optax
import pytest
from support.hosted import assert_same, pipeline
from support.traces import assert_agree

import ampjax as amp
import ampjax.graphs as ag
import ampjax.parallel as px
from ampjax.cluster.hosts.local_launcher import LocalLauncher
from ampjax.errors import HostError, SettingsError
from ampjax.hosts.hosts import Hosts, hosts_from

DATA = [{"x": np.float32(i)} for i in range(6)]
HERE = {
    "machines": [
        {
            "host": "left",
            "devices": [2, 0],
        },
        {"host": "right", "devices": [1]},
    ]
}
THERE = {
    "machines": [
        {"host": "a", "address": "localhost", "devices": [1]},
        {"address": "localhost", "devices": [0, 2]},
    ]
}


def test_a_host_on_each_machine_with_a_space_for_each_device(tmp_path):
    hosts = Hosts.from_resources(THERE)
    assert hosts.n == 2
    assert hosts.kind == "processes"
    assert hosts.names == ("a", "machine-1")
    assert hosts.host_of_space == (0, 1, 1)
    assert hosts.devices == ((1,), (0, 2))
    assert hosts.workers_of_names(6) == {
        "a": [0, 1],
        "machine-1": [2, 3, 4, 5],
    }
    here = Hosts.from_resources(HERE)
    assert here.kind == "threads"
    assert here.host_of_space == (0, 0, 1)
    assert here.devices == (
        (jax.devices()[2], jax.devices()[0]),
        (jax.devices()[1],),
    )
    path = tmp_path / "resources.yaml"
    path.write_text("machines: [{host: left, devices: [2, 0]}, {host: right, devices: [1]}]")
    forms = (
        hosts_from(path),
        hosts_from(str(path)),
        hosts_from(px.Resources(here.resources.machines)),
        hosts_from(here),
    )
    assert all(form == here for form in forms)
    assert hosts_from(2) == amp.Hosts(2)


@pytest.mark.nightly
@pytest.mark.slow
def test_nodes_are_where_their_hosts_names_say_and_traces_name_these(tmp_path):
    """The numbers are those of one process, and the recording is one that a trainer without hosts follows."""
    options = {"fuse": False, "min_update_interval": 2, "max_active_keys": 2}
    affinity = {"a": "right", "b": "left", "loss": "left:1"}
    there = amp.Trainer(
        pipeline(),
        optax.sgd(0.1),
        hosts=HERE,
        affinity=affinity,
        **options,
    )
    trace = amp.Trace()
    assert there.settings.workers == 3 and dict(there.plan.worker_of) == {"a": 2, "b": 0, "loss": 1}
    assert {host.name: host.nodes for host in there.hosts} == {"left": ("b",), "right": ("a",)}
    there.fit(
        DATA,
        epochs=2,
        progress=False,
        trace=trace,
        record=tmp_path / "recording",
    )
    assert_agree(trace, tmp_path / "recording", there.plan)
    assert {name: host.workers for name, host in trace.hosts.items()} == {
        "left": (0, 1),
        "right": (2,),
    }
    numbers = {"a": 2, "b": 0, "loss": 1}
    here = amp.Trainer(
        pipeline(),
        optax.sgd(0.1),
        workers=3,
        devices=jax.devices()[:3],
        affinity=numbers,
        **options,
    )
    amp.replay(tmp_path / "recording", here, DATA, progress=False)
    assert_same(there.params, here.params)
    there.close()


def test_a_nodes_own_worker_may_be_a_host():
    with ag.Graph() as g:
        y = ag.ppt(
            "a",
            lambda p, v: p * v,
            params=lambda key: np.float32(1.0),
            worker="host1",
        )(ag.pump("x", shape=()))
        ag.loss("loss", lambda v: v, worker="host0")(y)
    there = amp.Trainer(
        g,
        optax.sgd(0.1),
        hosts=amp.Hosts(2, "threads"),
    )
    assert dict(there.plan.worker_of) == {"a": 1, "loss": 0}
    there.close()


@pytest.mark.parametrize(
    ("affinity", "message"),
    [
        (
            {"a": "gpu7"},
            r"affinity map, node `a`: expected one of the hosts \['left', 'right'\], got 'gpu7'\. Choose one of these, or add",
        ),
        (
            {"a": "left:2"},
            r"expected `left:0` to `left:1`, its workers, got 'left:2'\. Choose one of these, or `left`",
        ),
        ({"a": "right:x"}, r"expected `right:0` to `right:0`, its workers, got 'right:x'"),
    ],
)
def test_a_node_pinned_to_a_host_that_is_not_there(affinity, message):
    with pytest.raises(SettingsError, match=message):
        amp.Trainer(
            pipeline(),
            hosts=HERE,
            affinity={"b": 0, "loss": 0} | affinity,
        )


def test_a_node_pinned_to_a_host_where_there_are_none():
    with pytest.raises(
        SettingsError,
        match=r"a worker in \[0, 1\), as there are no hosts, got 'left'\. .*`Trainer\(hosts=\.\.\.\)`",
    ):
        amp.Trainer(
            pipeline(),
            affinity={"a": "left", "b": 0, "loss": 0},
        )


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (
            {
                "machines": [
                    {
                        "host": "a",
                        "devices": [0],
                    },
                    {"host": "a", "devices": [1]},
                ]
            },
            "each host once, got `a` twice",
        ),
        (
            {"machines": [{"devices": [0], "gpus": 3}]},
            "resource_info, machine 0: expected `devices`, and of .* nothing else",
        ),
        ({"machines": [{"devices": [7]}]}, "numbers from 0 to 3, this process's devices, got 7"),
        ("nowhere.yaml", "resource file `nowhere.yaml`: expected a file that can be read"),
        (
            {"machines": [{"host": "driver", "devices": [0]}]},
            "names other than `driver`, the trainer's own process, got `driver`",
        ),
    ],
)
def test_mistakes_in_resources(hosts, message):
    with pytest.raises(SettingsError, match=message):
        amp.Trainer(pipeline(), hosts=hosts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((3, "threads"), "hosts: expected 2, one on each machine, got 3"),
        ((2, "processes"), "hosts, kind: expected `threads`, as of the resources, got `processes`"),
        ((2, "threads"), "hosts, spaces: expected 3, one for each device, got None"),
        ((2, "threads", 4), "hosts, spaces: expected 3, one for each device, got 4"),
    ],
)
def test_hosts_that_differ_from_their_resources(options, message):
    resources = Hosts.from_resources(HERE).resources
    with pytest.raises(SettingsError, match=rf"{message}\. Write `Hosts.from_resources"):
        Hosts(*options, resources=resources)


def test_resources_say_who_starts_processes():
    resources = Hosts.from_resources(THERE).resources
    with pytest.raises(
        SettingsError, match="launcher: expected None: addresses say who starts processes, got one"
    ):
        Hosts(2, spaces=3, launcher=LocalLauncher(), resources=resources)


def test_a_machine_that_can_not_be_reached():
    with pytest.raises(HostError, match=r"Ray: expected (its package|a cluster at 'auto')"):
        amp.Trainer(
            pipeline(),
            hosts={"machines": [{"address": "192.0.2.1", "devices": [0]}]},
        )
