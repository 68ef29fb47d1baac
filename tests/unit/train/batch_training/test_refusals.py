"""Making a trainer fails for everything that training by batches can't have."""

import jax
import numpy as np
import optax
import pytest
from support.batch_mode import compiled, examples, params, trainer

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.simulation import FlopsCost
from ampjax.sparse import Table
from ampjax.tuning.search_space import candidates

OPTIONS = {
    "min_admission": 2,
    "min_update_interval": 5,
    "max_staleness": 1,
    "drop_staler_than": 1,
    "exact_staleness": 1,
    "workers": 2,
    "affinity": "paper",
    "policy": "largest",
    "max_dispatch_size": 8,
    "weights": "stashed",
    "replica_sync": "none",
    "memory_limit": 1 << 20,
    "check": True,
}


@pytest.mark.parametrize("name", OPTIONS)
def test_settings_of_messages(name):
    with pytest.raises(
        SettingsError, match=f"mode='batch', setting `{name}`: expected its default: there are no"
    ):
        trainer(**{name: OPTIONS[name]})


def test_what_drives_messages():
    parts = {
        "hosts": 2,
        "cost": FlopsCost,
        "controller": lambda example: iter(()),
    }
    for name, part in parts.items():
        with pytest.raises(SettingsError, match=f"mode='batch', `{name}`: expected none, got"):
            trainer(**{name: part})
    with pytest.raises(SettingsError, match="mode='batch', `devices`: expected one"):
        trainer(devices=jax.devices()[:2])


def test_graphs_that_are_no_function():
    with ag.Graph() as graph:
        x = ag.pump("x", shape=(2,))
        h = ag.ppt(
            "f",
            amp.nn.Linear(2, 1),
        )(x)
        ag.loss("loss", lambda h: h[0] ** 2)(h)
    with pytest.raises(
        SettingsError, match=r"made by `amp.compile`, got one that was built by hand"
    ):
        amp.Trainer(graph, mode="batch")


def test_tables_in_host_memory_and_copies():
    spec = {"word": "int32[]"}
    table = Table(
        np.ones((4, 2), np.float32),
        optax.sgd(0.1),
    )
    rows = amp.compile(
        lambda p, s: amp.look_up(p["table"], s["word"]).sum() * p["w"],
        {"table": table, "w": np.float32(1)},
        spec,
    )
    with pytest.raises(SettingsError, match="node `table`: expected parameters in arrays, got a"):
        amp.Trainer(rows.graph, mode="batch")
    twice = amp.compile(
        lambda p, s: p["w"] * s["word"],
        {"w": np.float32(1)},
        spec,
        copies=2,
    )
    with pytest.raises(SettingsError, match="node `w`: expected one copy, got several"):
        amp.Trainer(twice.graph, mode="batch")


def test_what_fit_tells_of_messages(tmp_path):
    one = trainer()
    data = compiled().data(examples())
    for name in ("trace", "record", "update_log"):
        value = amp.Trace() if name == "trace" else tmp_path / "file"
        with pytest.raises(SettingsError, match=f"`{name}`: expected nothing that tells of mess"):
            one.fit(
                data,
                progress=False,
                **{name: value},
            )
    with pytest.raises(SettingsError, match="`accumulate`: expected nothing that tells of"):
        one.accumulate(data)
    assert not list(tmp_path.iterdir())


def test_simulations_and_tuning_are_of_messages():
    graph = compiled().graph
    data = compiled().data(examples())
    with pytest.raises(SettingsError, match=r"simulate, setting `mode`: expected one of .*`batch`"):
        amp.simulate(graph, data, mode="batch")
    with pytest.raises(SettingsError, match=r"tune, setting `mode`: expected one of .*`batch`"):
        candidates({"workers": [1]}, {"mode": "batch"})


def test_examples_that_are_not_the_models():
    pumped = [{"words": 3}]
    with pytest.raises(SettingsError, match=r"compiled\.data"):
        trainer().fit(pumped, progress=False)
    with pytest.raises(SettingsError, match=r"one of .*'batch'"):
        trainer("batches")
    assert params().keys() == {"embed", "linear", "spare"}
