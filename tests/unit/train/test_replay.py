"""Recorded training runs, done again: bit for bit, or with a word on where and how they differ."""

import asyncio
import functools
import random

import jax
import numpy as np
import optax
import pytest
from support import graphs
from support.transforms import adam

import ampjax as amp
import ampjax.graphs as ag
from ampjax.drivers.cost import FlopsCost
from ampjax.errors import DeadlockError, ReplayError, SettingsError
from ampjax.ir.instances import InstanceList
from ampjax.trace.journal import FINISHED, Done
from ampjax.trace.recording import Recorder, Recording
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.by_hand.tree_lstm_graph import tree_lstm
from experiments.data import list_reduction, sst
from experiments.models.tree_lstm import Cells

pytestmark = pytest.mark.slow

QUIET = {"progress": False}
CHAIN = graphs.chain(2)
DATA = graphs.chain_data(12)


def moody(queues, now):
    """A policy that nobody can foresee, as a busy machine's interleaving."""
    return random.choice(queues)


def trainer(graph=CHAIN, tx=None, **options):
    options = {
        "max_active_keys": 4,
        "max_dispatch_size": 2,
        "min_update_interval": 3,
        "workers": 2,
    } | options
    return amp.Trainer(
        graph,
        tx or adam(0.01),
        **{"policy": moody} | options,
    )


def assert_same_bits(a, b):
    assert all(
        jax.tree.leaves(
            jax.tree.map(
                np.array_equal,
                a.params,
                b.params,
            )
        )
    )


def metrics(history):
    result = []
    for epoch in history.epochs:
        result.append((epoch.train, epoch.valid, epoch.updates, epoch.staleness_max))
    return result


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.trace"


# Bit for bit


def assert_replays(path, make, train, valid, epochs=2):
    first = make()
    again = make()
    history = first.fit(
        train,
        valid,
        epochs=epochs,
        record=path,
        **QUIET,
    )
    repeated = amp.replay(path, again, train, valid, **QUIET)
    assert_same_bits(first, again)
    assert metrics(repeated) == metrics(history) and len(history) == epochs
    return first, again


@pytest.mark.nightly
def test_a_loop(path):
    make = functools.partial(
        trainer,
        graphs.rnn(),
        max_dispatch_size=1,
        weights="stashed",
    )
    assert_replays(
        path,
        make,
        graphs.rnn_data([3, 1, 4, 2, 3]),
        None,
    )


@functools.cache
def replicated():
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.replicate(
            ag.ppt("f", graphs.times, params=graphs.one()),
            2,
        )(x)
        ag.loss("loss", graphs.square)(y, label)
    return g


@pytest.mark.nightly
def test_replicas(path):
    """Averages are where they were between the updates, and at the end of each epoch."""
    assert_replays(
        path,
        functools.partial(trainer, replicated(), replica_sync=("message", 1)),
        DATA,
        DATA[:4],
    )


@pytest.mark.nightly
def test_a_trainer_goes_on_as_the_recorded_one(path):
    """Optimizer states, gradients that wait, and the order of instances in the epochs to come are the same too."""
    first, again = assert_replays(path, trainer, DATA, None)
    for each in (first, again):
        each.fit(
            DATA,
            epochs=2,
            **QUIET | {"record": path if each is first else None},
        )
    assert Recording(path).header["epochs"] == 2


class Shuffled(InstanceList):
    """A data set that is another in each epoch."""

    def reshuffle(self, rng):
        return Shuffled([DATA[i] for i in rng.integers(0, len(DATA), len(DATA))])


def test_a_data_set_that_is_reshuffled(path):
    assert_replays(path, trainer, Shuffled(DATA), None)


def test_updates_of_the_controller(path):
    """The last round is not full: its updates follow from the end of the data."""
    assert_replays(
        path,
        functools.partial(trainer, mode="pipeline"),
        DATA[:6],
        DATA[:3],
    )


def controller(example):
    """A loop that pumps an instance's messages one by one."""
    for name, value in example.items():
        yield {name: value}


def test_a_controllers_loop(path):
    assert_replays(path, functools.partial(trainer, controller=controller), DATA, None)


SHARED = {
    "fused": {},
    "stashed": {"weights": "stashed", "fuse": False},
    "estimated": {"weights": "estimated"},
}


@pytest.mark.nightly
@pytest.mark.parametrize("options", SHARED.values(), ids=SHARED)
def test_shared_parameters(path, options):
    assert_replays(
        path,
        functools.partial(trainer, graphs.tied(), **options),
        graphs.tied_data([2, 1, 3, 1, 2]),
        None,
    )


def test_a_run_in_virtual_time(path):
    cost = functools.partial(FlopsCost, flops=1e9, latency_ns=500)
    assert_replays(path, functools.partial(trainer, cost=cost), DATA, None)


@functools.cache
def deciding():
    """A loss that each instance reaches by the way that its payload says."""
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.ppt(
            "first",
            graphs.times,
            params=graphs.one(),
        )(x)
        way = ag.npt(
            "way",
            lambda x: (x > 8).astype("int32"),
        )(y)
        a, b = ag.cond(
            ag.route_by(y, way, "way"),
            lambda s: s.way,
            2,
            name="ways",
        )
        z = ag.phi(
            "join",
            ag.isu(
                ag.ppt(
                    "a",
                    graphs.times,
                    params=graphs.one(),
                )(a),
                *BACK,
            ),
            ag.isu(b, *BACK),
        )
        ag.loss("loss", graphs.square, join=("instance",))(
            z,
            label,
        )
    return g


BACK = (
    lambda s: s.replace(way=s.way),
    lambda s: s.replace(way=s.way),
)


@pytest.mark.nightly
def test_readings_that_route(path):
    assert_replays(path, functools.partial(trainer, deciding()), DATA, None)
    assert any(isinstance(d, Done) and d.choices for d in Recording(path).decisions())


def test_from_the_graph_alone(path):
    first = trainer(policy="balanced", replica_sync=("every_k", 2))
    history = first.fit(DATA, epochs=2, record=path, **QUIET)
    assert metrics(
        amp.replay(
            path,
            CHAIN,
            DATA,
            tx=optax.adam(0.01),
            **QUIET,
        )
    ) == metrics(history)


def test_where_a_loop_runs(path):
    async def cell():
        first = trainer()
        again = trainer()
        await first.fit_async(DATA, record=path, **QUIET)
        amp.replay(path, again, DATA, **QUIET)
        assert_same_bits(first, again)
        amp.replay(path, trainer(), DATA, **QUIET)

    asyncio.run(cell())


def list_reduction_run():
    train, valid = (
        list_reduction.Sequences(data, hidden=64) for data in list_reduction.splits(6500, 200)
    )
    return list_reduction_rnn(64, None, 2), train, valid, {"max_dispatch_size": 4}


def sentiment_run():
    trees = sst.synthetic(6000, 50)
    graph = tree_lstm(
        len(trees[0].vocabulary),
        Cells("tai", 64, 64, 0.5),
        1000,
    )
    return graph, *map(sst.TreeInstances, trees), {"max_dispatch_size": 8, "gradient": "sum"}


@pytest.mark.long
@pytest.mark.parametrize("run", [list_reduction_run, sentiment_run])
def test_half_a_million_decisions_on_the_clock(path, run):
    graph, train, valid, options = run()
    options |= {
        "policy": "backward_first",
        "max_active_keys": 16,
        "min_update_interval": 50,
        "run_ahead": 32,
    }
    assert_replays(path, functools.partial(trainer, graph, **options), train, valid)
    assert sum(1 for _ in Recording(path).decisions()) > 500_000


# Runs that did not end


def test_an_interrupted_run(path):
    class Stopping(InstanceList):
        def gather(self, ids):
            if len(ids) and ids[0] == stop[0]:
                self.task.cancel()
            return super().gather(ids)

    first = trainer()
    again = trainer()
    stop = [7]

    async def cell():
        data = Stopping(DATA * 5)
        data.task = asyncio.create_task(first.fit_async(data, epochs=3, record=path, **QUIET))
        return await data.task

    assert asyncio.run(cell()).interrupted
    history = amp.replay(path, again, DATA * 5, **QUIET)
    assert history.interrupted and repr(Recording(path)).endswith("decisions)")
    assert_same_bits(first, again)


def test_a_run_that_was_killed(path):
    """Its recording ends anywhere; what there is can be replayed."""
    first = trainer()
    first.fit(DATA, epochs=2, record=path, **QUIET)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(
        ReplayError, match=r"one that was cut off after \d+ bytes: the run was killed"
    ):
        amp.replay(path, trainer(), DATA, **QUIET)
    history = amp.replay(
        path,
        trainer(),
        DATA,
        partial=True,
        **QUIET,
    )
    assert history.interrupted and len(history) == 1


def test_a_run_that_failed_fails_again(path):
    bad = [*DATA, {"x": np.float32(1)}]
    with pytest.raises(DeadlockError) as first:
        trainer(min_admission=1).fit(bad, record=path, **QUIET)
    with pytest.raises(DeadlockError) as again:
        amp.replay(path, trainer(), bad, **QUIET)
    assert str(again.value) == str(first.value)


def test_a_callback_that_ends_the_training(path):
    first = trainer()
    again = trainer()
    first.fit(
        DATA,
        epochs=5,
        callbacks=[lambda t, e: e.epoch == 2],
        record=path,
        **QUIET,
    )
    assert len(amp.replay(path, again, DATA, **QUIET)) == 2
    assert_same_bits(first, again)


# Runs that are not the recorded one


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "run.trace"
    trainer().fit(
        DATA,
        DATA[:4],
        record=path,
        **QUIET,
    )
    return path


def refused(
    path,
    text,
    make=trainer,
    train=DATA,
    valid=DATA[:4],
    **options,
):
    with pytest.raises(ReplayError) as caught:
        amp.replay(path, make(), train, valid, **QUIET, **options)
    assert text in str(caught.value)
    assert str(caught.value).startswith(f"recording `{path}`")


def test_another_setting(recorded):
    fix = ". Give the trainer the settings of the recorded run."
    refused(
        recorded,
        ", settings, max_active_keys: expected 4, got 5" + fix,
        lambda: trainer(max_active_keys=5),
    )
    sync = functools.partial(trainer, replica_sync=("every_k", 2))
    refused(recorded, ", settings, replica_sync: expected 'epoch', got ['every_k', 2]" + fix, sync)


def test_settings_that_a_replay_may_choose(recorded):
    amp.replay(
        recorded,
        trainer(check=True, run_ahead=7, policy="largest"),
        DATA,
        DATA[:4],
        **QUIET,
    )


def test_another_graph(recorded):
    fix = "Build the graph, and place it on workers and devices, as it was."
    refused(recorded, fix, lambda: trainer(graphs.chain(3)))
    refused(
        recorded,
        fix,
        lambda: trainer(devices=jax.devices()[:1]),
    )


def test_another_start(recorded):
    fix = "Start from a trainer like the recorded one: the same seed, `params` and `tx`, and as many runs before."

    def used():
        t = trainer()
        t.fit(DATA, **QUIET)
        return t

    def with_params():
        return trainer(params={"f0": np.float32(2)})

    refused(recorded, ", start, parameters: expected ", with_params)
    refused(recorded, fix, used)
    refused(recorded, ", start, optimizer states: expected ", lambda: trainer(tx=optax.sgd(0.1)))


def test_other_data(recorded):
    refused(
        recorded, "decision 1: expected a pass of training over 12 instance(s)", train=DATA[:11]
    )
    refused(recorded, "got the end of the run. Replay with the graph, data", valid=None)
    other = []
    for d in DATA:
        other.append({**d, "label": np.float32(0)})
    refused(recorded, "expected the end of the pass, with parameters ", train=other)


def test_another_learning_rate(recorded):
    refused(
        recorded, "got the end of the pass, with parameters ", lambda: trainer(tx=optax.adam(0.02))
    )


def test_other_versions_are_told_where_a_replay_departs(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr("ampjax.train.provenance._version", lambda package: "0.0")
    text = f"versions of the recorded run. It was recorded with jax {jax.__version__} and now 0.0, jaxlib "
    refused(recorded, text, train=DATA[:11])
    amp.replay(
        recorded,
        trainer(),
        DATA,
        DATA[:4],
        **QUIET,
    )


def test_a_trainer_can_be_used_after_a_replay_that_departed(recorded):
    t = trainer()
    with pytest.raises(ReplayError):
        amp.replay(
            recorded,
            t,
            [{**d, "label": np.float32(0)} for d in DATA],
            **QUIET,
        )
    assert len(t.fit(DATA, **QUIET)) == 1


def test_options_beside_a_trainer(recorded):
    text = r"replay, option `tx`: expected none beside a trainer, got 1\. Give it to the trainer, or pass the graph instead\."
    with pytest.raises(SettingsError, match=text):
        amp.replay(recorded, trainer(), DATA, tx=1)


def test_a_recording_that_can_not_be_written(tmp_path):
    with pytest.raises(OSError):
        trainer().fit(DATA, record=tmp_path, **QUIET)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"settings": None}, "settings: expected values by name, got None"),
        ({"epochs": "2"}, "epochs: expected a number, got '2'"),
        ({"start": []}, "start: expected values by name"),
        ({"made on": 1}, "made on: expected values by name"),
        ({"settings": {"colour": 1}}, "settings: expected those of a trainer, got .*colour"),
        (
            {"settings": {"max_active_keys": "many"}},
            "settings: expected those of a trainer, got .*'many'",
        ),
    ],
    ids=str,
)
def test_a_header_that_no_run_wrote(tmp_path, changes, match):
    header = {
        "epochs": 2,
        "graph": "",
        "settings": {},
        "start": {},
        "made with": {},
        "made on": {},
        **changes,
    }
    Recorder(tmp_path / "run.trace", header).close(FINISHED)
    with pytest.raises(ReplayError, match=match):
        amp.replay(
            tmp_path / "run.trace",
            CHAIN,
            DATA,
            tx=optax.sgd(0.1),
        )
