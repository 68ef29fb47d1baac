"""Hosts that are processes of this machine: the same bits as in this process, and what happens when one dies or hangs."""

import os
import shutil
import signal
import threading
import time

import jax
import numpy as np
import optax
import pytest
from support.hosted import assert_same
from support.models import model
from support.processes import is_there
from support.traces import assert_agree

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import HostError, SettingsError

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_a_recorded_run_gives_the_same_bits_on_two_processes_and_a_dead_host_is_noticed(tmp_path):
    graph, data = model("sequences in replicas")
    options = {
        "max_active_keys": 4,
        "min_update_interval": 6,
        "arena_rows": 256,
        "workers": 2,
        "replica_sync": ("message", 2),
    }
    here = amp.Trainer(
        graph,
        optax.adam(0.01),
        devices=jax.devices()[:1] * 2,
        **options,
    )
    history = here.fit(
        data,
        data,
        epochs=2,
        progress=False,
        record=tmp_path / "run.trace",
    )
    file = tmp_path / "resources.yaml"
    file.write_text(
        "machines: [{host: left, address: localhost, devices: [1]}, {host: right, address: localhost, devices: [0]}]"
    )
    there = amp.Trainer(
        graph,
        optax.adam(0.01),
        hosts=file,
        **options,
    )
    processes = [state.process for state in there.hosts]
    again = amp.replay(tmp_path / "run.trace", there, data, data, progress=False)
    assert_same(there.params, here.params)
    assert [(e.train, e.valid) for e in again.epochs] == [
        (e.train, e.valid) for e in history.epochs
    ]
    assert [
        (state.name, bool(state.bytes_sent and state.bytes_received)) for state in there.hosts
    ] == [
        ("left", True),
        ("right", True),
    ]
    trace = amp.Trace()
    there.fit(
        data,
        epochs=1,
        progress=False,
        trace=trace,
        record=tmp_path / "traced",
    )
    assert_agree(trace, tmp_path / "traced", there.plan)
    names = "driver", "left", "right"
    assert set(trace.traffic) == {(one, other) for one in names for other in names if one != other}

    os.kill(processes[1], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(HostError, match="right"):
        there.fit(data, epochs=100, progress=False)
    assert time.monotonic() - began < 2.0  # the promise to users
    assert [state.state for state in there.hosts] == ["running", "ended"]
    there.close()
    assert not any(map(is_there, processes))


def test_a_graph_that_can_not_travel():
    lock = threading.Lock()

    def body(p, x):
        assert lock
        return p * x

    with ag.Graph() as g:
        x = ag.pump("x", shape=())
        ag.sink(
            "y",
            ag.ppt(
                "double",
                body,
                params=lambda key: np.float32(2.0),
            )(x),
        )
    with pytest.raises(
        SettingsError, match=r"something that can travel to another process, got(?s:.*)lock"
    ):
        amp.Trainer(g, hosts=2)


@pytest.mark.nightly
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_fit_with_snapshots_goes_on_with_the_same_bits_when_a_host_dies_or_hangs(
    sign, tmp_path, monkeypatch
):
    monkeypatch.setenv("AMPJAX_HOST_SILENCE_S", "2")
    graph, data = model("sequences")
    options = {"mode": "pipeline", "max_active_keys": 4, "arena_rows": 256, "workers": 2}
    options["affinity"] = {
        name: int(name != "linear1") for name in amp.Trainer(graph, **options).plan.worker_of
    }
    here = amp.Trainer(
        graph,
        optax.adam(0.01),
        hosts=amp.Hosts(2, "threads"),
        **options,
    )
    history = here.fit(
        data,
        epochs=4,
        progress=False,
        update_log=tmp_path / "here",
    )
    there = amp.Trainer(
        graph,
        optax.adam(0.01),
        hosts=2,
        snapshot=tmp_path / "snapshots",
        **options,
    )
    first = [state.process for state in there.hosts]

    def lose_a_host(trainer, epoch):
        if epoch.epoch == 2 and trainer.hosts[1].process == first[1]:
            os.kill(first[1], sign)

    again = there.fit(
        data,
        epochs=4,
        progress=False,
        callbacks=[lose_a_host],
        update_log=tmp_path / "there",
    )
    assert_same(there.params, here.params)
    assert [e.train for e in again.epochs] == [e.train for e in history.epochs]
    assert len(again.resumed) == 1
    assert again.resumed[0]["epoch"] in (2, 3)
    assert (tmp_path / "there").read_text() == (tmp_path / "here").read_text(), (
        "no update twice, and none left out"
    )
    assert (
        not any(
            map(
                is_there,
                first,
            )
        )
        and [state.state for state in there.hosts] == ["running"] * 2
    )
    there.close()
    here.close()


@pytest.mark.nightly
def test_a_recorded_fit_goes_on_when_a_host_dies_and_its_recording_replays_to_the_same_bits(
    tmp_path,
):
    graph, data = model("sequences in replicas")
    options = {"max_active_keys": 4, "min_update_interval": 6, "arena_rows": 256, "workers": 2}
    there = amp.Trainer(
        graph,
        optax.adam(0.01),
        hosts=2,
        snapshot=tmp_path / "snapshots",
        **options,
    )
    first = [state.process for state in there.hosts]

    def lose_a_host(trainer, epoch):
        if epoch.epoch == 2 and trainer.hosts[0].process == first[0]:
            os.kill(first[0], signal.SIGKILL)

    path = tmp_path / "run.trace"
    history = there.fit(
        data,
        data,
        epochs=4,
        progress=False,
        record=path,
        callbacks=[lose_a_host],
    )
    params = there.params
    there.close()
    shutil.rmtree(tmp_path / "snapshots")
    with pytest.raises(HostError):  # its user has ended them: none is started again
        there.fit(data, epochs=1, progress=False)
    assert not any(state.state == "running" for state in there.hosts)
    assert len(history) == 4 and len(history.resumed) == 1
    here = amp.Trainer(
        graph,
        optax.adam(0.01),
        devices=jax.devices()[:1] * 2,
        **options,
    )
    again = amp.replay(path, here, data, data, progress=False)
    assert_same(here.params, params)
    assert [(e.train, e.valid) for e in again.epochs] == [
        (e.train, e.valid) for e in history.epochs
    ]
