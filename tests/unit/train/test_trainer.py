"""The trainer: modes against plain optax (law 6), replicas, loops, limits, interrupts."""

import asyncio
import functools
import io
import itertools
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console
from support import graphs
from support.graphs import labelled_data as mlp_data
from support.transforms import adam, sgd

import ampjax as amp
import ampjax.graphs as ag
from ampjax.drivers.cost import FlopsCost
from ampjax.errors import LimitError, MessageError, ParameterError
from ampjax.ir.instances import InstanceList, Subset
from ampjax.optim import scale_by_staleness
from ampjax.trace.trace import Trace
from ampjax.train.history import Epoch, History

pytestmark = pytest.mark.slow

NEVER = 1 << 40
QUIET = {"progress": False}


# A perceptron and the paper's RNN, and the same as plain functions


@functools.cache
def mlp():
    with ag.Graph() as g:
        x = ag.pump("x", (4,))
        label = ag.pump("label", dtype="int32")
        h = ag.npt("tanh", jnp.tanh)(
            ag.ppt(
                "linear1",
                amp.nn.Linear(4, 4),
            )(x)
        )
        y = ag.ppt(
            "linear2",
            amp.nn.Linear(4, 3),
        )(h)
        ag.sink("logits", y)
        ag.loss("xent", graphs.xent)(y, label)
    return g


def linear(p, x):
    return x @ p["w"] + p["b"]


def mlp_loss(params, instance):
    logits = linear(
        params["linear2"],
        jnp.tanh(linear(params["linear1"], instance["x"])),
    )
    return graphs.xent(logits, instance["label"])[0]


def rnn_loss(params, instance):
    h = jnp.zeros(4)
    for token in instance["tokens"].payload:
        h = jnp.tanh(
            linear(
                params["linear1"],
                jnp.concatenate([params["embed"][token], h]),
            )
        )
    return graphs.xent(
        linear(params["linear2"], h),
        instance["label"],
    )[0]


def close(got, wanted, rtol=2e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=2e-6),
        got,
        wanted,
    )


class Plain:
    """Training in one piece: `jax.grad` of the composed function, and one optax transform for all parameters."""

    def __init__(self, loss, params, tx):
        self.loss = loss
        self.params = params
        self.tx = tx
        self.state = tx.init(params)

    def step(self, instances, divisor=1):
        """An update from the summed gradient of some instances over a divisor."""
        total = jax.tree.map(jnp.zeros_like, self.params)
        for instance in instances:
            total = jax.tree.map(
                jnp.add,
                total,
                jax.grad(self.loss)(self.params, instance),
            )
        grads = jax.tree.map(lambda g: g / divisor, total)
        updates, self.state = self.tx.update(
            grads,
            self.state,
            self.params,
        )
        self.params = optax.apply_updates(self.params, updates)


# Law 6


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("tx", "gradient"),
    [
        (sgd(0.1), "sum"),
        (sgd(0.1, momentum=0.9), "mean"),
        (adam(0.01), "sum"),
        (adam(0.01), "mean"),
    ],
    ids=["sgd, sum", "momentum, mean", "adam, sum", "adam, mean"],
)
def test_synchronous_training_is_optax_step_by_step(tx, gradient):
    trainer = amp.Trainer(
        graphs.rnn(),
        tx,
        mode="sync",
        gradient=gradient,
    )
    plain = Plain(rnn_loss, trainer.params, tx)
    for instance in graphs.rnn_data([1, 3, 2]):
        trainer.accumulate([instance])
        plain.step([instance])
        close(trainer.params, plain.params)


@pytest.mark.first_case
@pytest.mark.parametrize("gradient", ["sum", "mean"])
def test_pipeline_training_is_optax_on_m_instances(gradient):
    tx = adam(0.01)
    data = mlp_data(10)
    trainer = amp.Trainer(
        mlp(),
        tx,
        mode="pipeline",
        max_active_keys=4,
        gradient=gradient,
    )
    plain = Plain(mlp_loss, trainer.params, tx)
    for part in (data[:4], data[4:8], data[8:]):  # the last round is not full
        plain.step(part, len(part) if gradient == "mean" else 1)
    trainer.accumulate(data)
    assert trainer.statistics.updates == 6
    close(trainer.params, plain.params)


def test_statistics_are_those_of_the_last_training_run_and_name_it():
    trainer = amp.Trainer(
        graphs.chain(1),
        sgd(1e-2),
        min_update_interval=2,
    )
    data = graphs.chain_data(4)
    assert trainer.statistics.run == "" and not trainer.statistics.dispatches
    trainer.evaluate(data[:1])
    assert trainer.statistics.run == "evaluate"
    trainer.fit(data, data[:1], epochs=2, **QUIET)
    trained = trainer.statistics
    assert (trained.run, trained.instances) == ("epoch 2", 4)
    assert trained.updates > 0
    assert repr(trained).startswith("epoch 2: 4 instances")
    assert all("histogram" not in repr(node) for node in trained.nodes.values()), (
        "128 numbers are no line"
    )
    assert (trainer.inference_statistics.run, trainer.inference_statistics.instances) == (
        "validate",
        1,
    )
    trainer.accumulate(data[:3])
    assert (trainer.statistics.run, trainer.statistics.instances) == ("train", 3)


def test_asynchronous_training_with_a_high_interval_accumulates_the_gradient():
    data = graphs.rnn_data([3, 1, 2, 2, 3])
    trainer = amp.Trainer(
        graphs.rnn(),
        sgd(1.0),
        min_update_interval=NEVER,
    )
    metrics = trainer.accumulate(data)
    loss, grads = jax.value_and_grad(lambda p: sum(rnn_loss(p, i) for i in data))(trainer.params)
    close(
        {node: tree for node, (tree, _) in trainer.gradients.items()},
        grads,
    )
    assert metrics["loss_sum"] == pytest.approx(float(loss), rel=1e-5)
    assert metrics["loss"] == pytest.approx(float(loss) / 5, rel=1e-5)
    assert {node: n for node, (_, n) in trainer.gradients.items()} == {
        "embed": 11,
        "linear1": 11,
        "linear2": 5,
    }


# Weights at the adjoint: an example by hand


def forward_first(queues, now):
    """Every instance goes forward before the first comes back, so that staleness is as large as it can be."""
    return min(queues, key=lambda queue: (queue.backward, queue.born))


@pytest.mark.parametrize("weights", ["current", "stashed"])
def test_the_adjoint_uses_current_or_stashed_weights(weights):
    """y = w1 w0 x, loss (y - t)². Both instances go forward before any update; then instance 0 and after it 1 come back."""
    rate = 0.1
    w0 = 1.5
    w1 = 1.5
    t = 0.5
    x = [0.3, 0.7]
    g = [2 * (w1 * w0 * v - t) for v in x]  # of the loss, from the forward pass of each
    new_w1 = w1 - rate * g[0] * w0 * x[0]
    expected_w0 = w0 - rate * g[0] * w1 * x[0]
    expected_w0 -= rate * g[1] * (new_w1 if weights == "current" else w1) * x[1]
    expected_w1 = new_w1 - rate * g[1] * w0 * x[1]
    options = {"policy": forward_first, "max_dispatch_size": 1, "fuse": False, "max_active_keys": 2}
    trainer = amp.Trainer(
        graphs.chain(2),
        sgd(rate),
        weights=weights,
        **options,
    )
    trainer.accumulate([{"x": np.float32(v), "label": np.float32(t)} for v in x])
    close(
        trainer.params,
        {"f0": np.float32(expected_w0), "f1": np.float32(expected_w1)},
    )
    assert (
        trainer.statistics.nodes["f0"].staleness_sum
        == trainer.statistics.nodes["f1"].staleness_sum
        == 1
    )


def test_weights_can_be_stashed_at_one_node_only():
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.ppt(
            "a",
            graphs.times,
            params=graphs.one(),
            weights="stashed",
        )(x)
        ag.loss("loss", graphs.square)(
            ag.ppt(
                "b",
                graphs.times,
                params=graphs.one(),
            )(y),
            label,
        )
    trainer = amp.Trainer(
        g,
        sgd(0.01),
        policy="backward_first",
        max_dispatch_size=1,
    )
    trainer.fit(graphs.chain_data(6), **QUIET)
    assert np.isfinite(trainer.params["a"])
    assert np.isfinite(trainer.params["b"])


# Settings of one node


def sums(**options):
    """A loss that is the sum of `a·x` and `b·x`, so every gradient row is x."""
    with ag.Graph() as g:
        x = ag.pump("x")
        a = ag.ppt(
            "a",
            graphs.times,
            params=np.float32(0),
            **options,
        )(x)
        b = ag.ppt(
            "b",
            graphs.times,
            params=np.float32(0),
        )(x)
        ag.loss("loss", lambda a, b: a + b)(a, b)
    return g


ONES = [{"x": np.float32(1)}] * 12


def test_a_node_can_have_its_own_transform_and_interval():
    graph = sums(tx=sgd(1.0), min_update_interval=4, gradient="sum")
    trainer = amp.Trainer(
        graph,
        sgd(0.5),
        min_update_interval=2,
        max_dispatch_size=1,
        fuse=False,
    )
    trainer.accumulate(ONES)
    nodes = trainer.statistics.nodes
    assert (
        nodes["a"].updates,
        nodes["b"].updates,
    ) == (3, 6)
    assert trainer.params == {
        "a": -1.0 * 4 * 3,
        "b": -0.5 * 1 * 6,
    }


def test_a_learning_rate_schedule_counts_the_nodes_own_updates():
    tx = sgd(lambda count: 10.0**-count)
    graph = sums(min_update_interval=4)
    trainer = amp.Trainer(
        graph,
        tx,
        min_update_interval=6,
        max_dispatch_size=1,
        fuse=False,
    )
    trainer.accumulate(ONES)
    close(
        trainer.params,
        {
            "a": np.float32(-1.11),
            "b": np.float32(-1.1),
        },
    )


def test_staleness_reaches_the_transform():
    tx = optax.chain(sgd(1.0), scale_by_staleness())
    options = {"policy": forward_first, "max_dispatch_size": 1, "fuse": False, "max_active_keys": 4}
    with ag.Graph() as g:
        y = ag.ppt(
            "a",
            graphs.times,
            params=np.float32(0),
        )(ag.pump("x"))
        ag.loss("loss", lambda a: a)(y)
    trainer = amp.Trainer(g, tx, **options)
    trainer.accumulate(ONES[:4])
    close(
        trainer.params,
        {"a": np.float32(-(1 + 1 / 2 + 1 / 3 + 1 / 4))},
    )


# Replicas


def replicated(n=2, route="round_robin"):
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.replicate(
            ag.ppt("f", graphs.times, params=graphs.one()),
            n,
            route,
        )(x)
        ag.loss("loss", graphs.square)(y, label)
    return g


def test_replicas_are_averaged_at_the_end_of_an_epoch():
    ends = {}
    for rule in ("epoch", "none"):
        trainer = amp.Trainer(
            replicated(),
            sgd(0.01),
            replica_sync=rule,
            workers=2,
        )
        trainer.fit(graphs.chain_data(6), **QUIET)
        ends[rule] = [float(trainer.params[f"f/{i}"]) for i in range(2)]
    assert ends["none"][0] != ends["none"][1]
    assert ends["epoch"] == pytest.approx([np.mean(ends["none"])] * 2)


@pytest.mark.parametrize(
    "rule",
    [("every_k", 1), ("every_k", 2), ("message", 1), ("message", 2)],
)
def test_replicas_meet_within_an_epoch(rule):
    """Without learning, a round of the protocol leaves every replica at the mean."""
    params = {
        "f/0": np.float32(1),
        "f/1": np.float32(3),
    }
    trainer = amp.Trainer(
        replicated(),
        sgd(0.0),
        params=params,
        replica_sync=rule,
        max_dispatch_size=1,
        workers=2,
    )
    trainer.accumulate(graphs.chain_data(8))
    assert [float(p) for p in trainer.params.values()] == [2.0, 2.0]


@pytest.mark.first_case
@pytest.mark.parametrize(
    "rule",
    [("every_k", 1), ("message", 1)],
)
@pytest.mark.parametrize("mode", ["sync", "pipeline"])
def test_instances_wait_until_replicas_have_met(mode, rule):
    """The worker that makes the changes of all replicas is asked last: without waiting, the others would go forth with parameters of before."""
    options = {
        "mode": mode,
        "replica_sync": rule,
        "max_active_keys": 2,
        "max_dispatch_size": 1,
        "cost": FlopsCost,
    }
    places = {"f/0": 2, "f/1": 1, "f/2": 0, "loss": 1}
    ends = []
    for more in ({}, {"workers": 3, "affinity": places}):
        trainer = amp.Trainer(
            replicated(3),
            sgd(0.01),
            **options,
            **more,
        )
        trainer.fit(graphs.chain_data(9), **QUIET)
        ends.append(trainer.params)
    close(*ends, rtol=1e-6)


def test_replicas_start_equal_and_take_the_instances_that_the_route_says():
    trainer = amp.Trainer(
        replicated(3, route=lambda s: s.instance % 2),
        sgd(0.01),
        min_update_interval=NEVER,
    )
    trainer.accumulate(graphs.chain_data(5))
    assert [n for _, n in trainer.gradients.values()] == [3, 2, 0]
    with ag.Graph() as g:
        x = ag.pump("x", (4,))
        ag.sink(
            "y",
            ag.replicate(
                ag.ppt("f", amp.nn.Linear(4, 4)),
                2,
            )(x),
        )
    params = amp.Trainer(g).params
    close(params["f/0"], params["f/1"], rtol=0)


def test_copies_start_equal_even_where_each_makes_values_of_its_own():
    rng = np.random.default_rng(0)

    def part(x):
        return ag.ppt(
            "a",
            graphs.times,
            params=rng.normal(size=()).astype(np.float32),
        )(x)

    with ag.Graph() as g:
        ag.loss("loss", graphs.square)(
            ag.replicate(part, 2)(ag.pump("x")),
            ag.pump("label"),
        )
    trainer = amp.Trainer(g, sgd(0.01), replica_sync="none")
    assert trainer.params["a/0"] == trainer.params["a/1"]
    trainer.fit(graphs.chain_data(5), **QUIET)
    assert trainer.params["a/0"] != trainer.params["a/1"]


# Parameters


def test_parameters_round_trip():
    trainer = amp.Trainer(mlp(), sgd(0.1), seed=1)
    before = trainer.params
    changed = jax.tree.map(lambda x: x + 1, before)
    trainer.set_params(changed)
    close(trainer.params, changed, rtol=0)
    close(
        amp.Trainer(mlp(), params=changed).params,
        changed,
        rtol=0,
    )
    trainer.set_params({"linear1": before["linear1"]})
    close(
        trainer.params,
        {"linear1": before["linear1"], "linear2": changed["linear2"]},
        rtol=0,
    )


def test_parameters_that_were_read_are_copies():
    trainer = amp.Trainer(mlp(), sgd(0.1))
    read = trainer.params
    read["linear1"]["w"][:] = 7
    assert not (trainer.params["linear1"]["w"] == 7).any()


def test_refused_parameters_change_nothing():
    trainer = amp.Trainer(mlp())
    before = trainer.params
    good = jax.tree.map(np.zeros_like, before["linear1"])
    bad = {
        "w": np.zeros((4, 3)),
        "b": np.full(3, np.nan),
    }
    with pytest.raises(
        ParameterError,
        match=r"parameters of `linear2`, leaf \['b'\]: expected finite values, got NaN or infinity",
    ):
        trainer.set_params({"linear1": good, "linear2": bad})
    close(trainer.params, before, rtol=0)


def test_equal_seeds_give_equal_parameters():
    a, b, c = (amp.Trainer(mlp(), seed=s).params for s in (3, 3, 4))
    close(a, b, rtol=0)
    assert not np.array_equal(
        a["linear1"]["w"],
        c["linear1"]["w"],
    )


def test_a_flax_module_and_a_plain_function_are_bodies():
    from flax import nnx

    with ag.Graph() as g:
        x = ag.pump("x", (4,))
        label = ag.pump("label", dtype="int32")
        h = ag.ppt(
            "module",
            nnx.Linear(4, 4, rngs=nnx.Rngs(0)),
        )(x)
        y = ag.ppt(
            "plain",
            lambda p, h: h @ p["w"],
            params={"w": np.eye(4, 3, dtype=np.float32)},
        )(h)
        ag.loss("xent", graphs.xent)(y, label)
    trainer = amp.Trainer(g, sgd(0.1), max_active_keys=4)
    history = trainer.fit(mlp_data(12), epochs=5, **QUIET)
    assert history[-1].train["loss"] < history[0].train["loss"]
    assert set(trainer.params["module"]) == {"kernel", "bias"}


# fit, evaluate, predict


def test_fit_learns_and_keeps_a_record():
    trainer = amp.Trainer(mlp(), adam(0.05), max_active_keys=4)
    history = trainer.fit(
        mlp_data(20),
        mlp_data(6, seed=1),
        epochs=4,
        label={"experiment": "test"},
        **QUIET,
    )
    losses = [epoch.train["loss"] for epoch in history.epochs]
    assert losses[-1] < losses[0]
    assert [e.epoch for e in history.epochs] == [1, 2, 3, 4]
    assert not history.interrupted
    assert set(history[0].train) == set(history[0].valid) == {"loss", "accuracy"}
    assert history[0].messages >= history[0].dispatches > 0
    assert history[0].updates > 0


def test_evaluate_is_the_mean_over_instances_and_trains_nothing():
    trainer = amp.Trainer(mlp(), sgd(1.0))
    data = mlp_data(7)
    before = trainer.params
    metrics = trainer.evaluate(data)
    assert metrics["loss"] == pytest.approx(
        np.mean([float(mlp_loss(before, i)) for i in data]),
        rel=1e-5,
    )
    assert trainer.evaluate(data) == metrics
    close(trainer.params, before, rtol=0)


def test_predict_needs_no_label_and_keeps_the_order():
    trainer = amp.Trainer(mlp(), max_active_keys=3, max_dispatch_size=2)
    data = mlp_data(7)
    for _ in range(2):
        found = trainer.predict([{"x": i["x"]} for i in data])["logits"]
        assert found.instance.tolist() == list(range(7))
        assert len(found) == 7
        assert found.fields == {}
        p = trainer.params
        wanted = []
        for i in data:
            wanted.append(
                linear(
                    p["linear2"],
                    np.tanh(linear(p["linear1"], i["x"])),
                )
            )
        np.testing.assert_allclose(found.payload, wanted, rtol=1e-5)
    assert repr(found) == "Predictions(7 messages of 7 instances, fields [])"


def test_predictions_of_several_messages_per_instance():
    with ag.Graph() as g:
        rows = ag.pump("rows", ragged=True)
        ag.sink(
            "whole",
            ag.npt("double", lambda x: 2 * x)(rows),
        )
        ag.sink("single", ag.ungroup(rows, "i"))
    data = []
    for n in (2, 0, 3):
        data.append({"rows": np.arange(n, dtype=np.float32)})
    found = amp.Trainer(g).predict(data)
    assert [rows.tolist() for rows in found["whole"].payload] == [[0, 2], [], [0, 2, 4]]
    assert found["single"].instance.tolist() == [0, 0, 2, 2, 2]
    assert (
        found["single"].fields["i"].tolist() == [0, 1, 0, 1, 2] == found["single"].payload.tolist()
    )


@pytest.mark.nightly
def test_predictions_are_those_of_the_layers_that_a_loss_has_fused():
    """They are computed by a stage of their own, with the parameters that the loss's has trained."""
    rng = np.random.default_rng(0)
    data = []
    for i in range(5):
        data.append(
            {
                "x": rng.normal(size=2).astype(np.float32),
                "label": np.float32(i),
            }
        )
    trainer = amp.Trainer(
        graphs.with_sinks(),
        adam(0.1),
        max_active_keys=2,
    )
    before = trainer.predict(data)["see y"]
    trainer.fit(data, epochs=2, progress=False)
    found = trainer.predict([{"x": one["x"]} for one in data])
    p = trainer.params
    xs = np.stack([one["x"] for one in data])
    wanted = np.tanh(xs @ p["inner"]["w"] + p["inner"]["b"])
    np.testing.assert_allclose(found["see hidden"].payload, wanted, rtol=1e-5)
    np.testing.assert_allclose(
        found["see y"].payload,
        wanted @ p["outer"]["w"] + p["outer"]["b"],
        rtol=1e-5,
    )
    assert not np.allclose(found["see y"].payload, before.payload)
    loss = trainer.evaluate(data)["loss"]
    assert loss == pytest.approx(
        np.mean([(y[0] - i) ** 2 for i, y in enumerate(found["see y"].payload)]),
        rel=1e-5,
    )


def test_evaluating_keeps_nothing_for_predict():
    trainer = amp.Trainer(mlp(), sgd(0.1))
    trainer.fit(mlp_data(4), mlp_data(4), **QUIET)
    trainer.evaluate(mlp_data(4))
    assert len(trainer.predict(mlp_data(3))["logits"]) == 3


def test_everything_works_where_a_loop_runs_already():
    """As in a notebook: the twins are awaited, the plain ones work too."""
    data = mlp_data(4)

    async def cell():
        trainer = amp.Trainer(mlp(), sgd(0.1))
        first = await trainer.fit_async(data, data, **QUIET)
        second = trainer.fit(data, **QUIET)
        assert len(first) == len(second) == 1
        assert second[0].epoch == 2
        assert await trainer.evaluate_async(data) == pytest.approx(trainer.evaluate(data))
        a = await trainer.predict_async(data)
        b = trainer.predict(data)
        np.testing.assert_array_equal(a["logits"].payload, b["logits"].payload)

    asyncio.run(cell())


def test_errors_come_out_of_a_fit_inside_a_running_loop():
    async def cell():
        with pytest.raises(ValueError, match="pump `y`"):
            amp.Trainer(mlp()).fit(
                [{"y": 1.0}],
                **QUIET,
            )

    asyncio.run(cell())


def test_runs_are_reproducible():
    ends = []
    for _ in range(2):
        trainer = amp.Trainer(
            mlp(),
            adam(0.01),
            max_active_keys=3,
            workers=2,
            seed=5,
        )
        trainer.fit(mlp_data(6), epochs=2, **QUIET)
        ends.append(trainer.params)
    close(*ends, rtol=0)


# The history


def test_the_history_as_json_lines(tmp_path):
    history = amp.Trainer(mlp(), sgd(0.1)).fit(
        mlp_data(3),
        mlp_data(2),
        epochs=2,
        label={"seed": 7},
        **QUIET,
    )
    path = tmp_path / "runs" / "log.jsonl"
    history.to_jsonl(path)
    records = []
    for line in path.read_text().splitlines():
        records.append(json.loads(line))
    assert records == history.records()
    assert [r["epoch"] for r in records] == [1, 2]
    wanted = {
        "seed",
        "epoch",
        "train_loss",
        "train_accuracy",
        "valid_loss",
        "valid_accuracy",
        "train_per_s",
        "valid_per_s",
    }
    assert wanted | {
        "staleness_mean",
        "staleness_max",
        "messages",
        "compilations",
        "seconds",
    } <= set(records[0])
    assert history.best("loss") == min(e.valid["loss"] for e in history.epochs)
    assert "History(2 epochs; last: train_loss=" in repr(history)


def test_the_table_of_a_history_fits_into_80_columns():
    metrics = {"loss": 1.2345, "accuracy": 0.9876}
    epoch = Epoch(
        12,
        metrics,
        metrics,
        123_456.7,
        123_456.7,
        12_345.6,
        12.3,
        127,
        10**7,
        10**6,
        10**5,
        0,
    )
    console = Console(width=80, file=io.StringIO())
    console.print(History([epoch]).table())
    assert "…" not in console.file.getvalue()
    assert "0.9876" in console.file.getvalue()


def test_a_history_goes_on():
    trainer = amp.Trainer(mlp(), sgd(0.1))
    history = trainer.fit(mlp_data(3), **QUIET)
    assert trainer.fit(mlp_data(3), history=history, **QUIET) is history
    assert [e.epoch for e in history.epochs] == [1, 2]
    assert history[1].seconds >= history[0].seconds


@pytest.mark.nightly
def test_seconds_are_those_of_training_and_validation(monkeypatch):
    async def slow(*_, **__):
        await asyncio.sleep(0.5)

    trainer = amp.Trainer(mlp(), sgd(0.1))
    trainer.warm_up(mlp_data(3), mlp_data(2), progress=False)
    for name in ("prepare", "finish"):
        monkeypatch.setattr(trainer.session.preparation, name, slow)
    callbacks = [lambda *_: time.sleep(0.5)]
    history = trainer.fit(
        mlp_data(3),
        mlp_data(2),
        epochs=2,
        callbacks=callbacks,
        **QUIET,
    )
    own = [3 / e.train_per_s + 2 / e.valid_per_s for e in history]
    assert [e.seconds for e in history] == pytest.approx(np.cumsum(own), abs=0.4), (
        "neither compiled nor called back"
    )


# Stopping


def test_a_callback_stops_the_training():
    seen = []

    def callback(trainer, epoch):
        seen.append((epoch.epoch, set(trainer.params)))
        return epoch.epoch == 2

    history = amp.Trainer(mlp(), sgd(0.1)).fit(
        mlp_data(3),
        epochs=9,
        callbacks=[callback],
        **QUIET,
    )
    assert seen == [(1, {"linear1", "linear2"}), (2, {"linear1", "linear2"})]
    assert len(history) == 2
    assert not history.interrupted


@pytest.mark.parametrize(
    "inside",
    [False, True],
    ids=["script", "notebook"],
)
def test_ctrl_c_ends_cleanly_with_the_history_so_far(inside):
    def interrupt(trainer, epoch):
        if epoch.epoch == 2:
            raise KeyboardInterrupt

    trainer = amp.Trainer(mlp(), sgd(0.1))

    def run():
        return trainer.fit(
            mlp_data(4),
            epochs=9,
            callbacks=[interrupt],
            **QUIET,
        )

    async def cell():
        return run()

    history = asyncio.run(cell()) if inside else run()
    assert history.interrupted and len(history) == 2 and "interrupted" in repr(history)
    again = trainer.fit(mlp_data(4), history=history, **QUIET)
    assert len(again) == 3 and not again.interrupted


def test_cancelling_in_the_middle_of_an_epoch():
    data = mlp_data(400)
    trainer = amp.Trainer(
        mlp(),
        sgd(0.01),
        max_dispatch_size=1,
        max_active_keys=4,
    )
    trainer.fit(data[:4], **QUIET)

    class Stopping(InstanceList):
        def gather(self, ids):
            self.asked = getattr(self, "asked", 0) + len(ids)
            if self.asked > 100:
                self.task.cancel()
            return super().gather(ids)

    async def cell():
        stopping = Stopping(data)
        stopping.task = asyncio.create_task(trainer.fit_async(stopping, epochs=3, **QUIET))
        return await stopping.task

    history = asyncio.run(cell())
    assert history.interrupted and len(history) == 0
    fresh = amp.Trainer(mlp(), params=trainer.params).evaluate(data[:9])
    assert trainer.evaluate(data[:9]) == pytest.approx(
        fresh
    )  # no sums of the interrupted run are left
    assert len(trainer.fit(data[:4], **QUIET)) == 1


def test_an_error_leaves_a_usable_trainer():
    trainer = amp.Trainer(mlp(), sgd(0.1), max_active_keys=2)
    good = mlp_data(6)
    bad = [
        *good[:4],
        {"x": good[0]["x"]},
    ]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="waits for the same key on port label"):
            trainer.fit(bad, **QUIET)
        assert len(trainer.fit(good, **QUIET)) == 1


@pytest.mark.parametrize("mode", ["sync", "pipeline"])
def test_an_update_that_was_due_when_a_run_ended_is_made(mode):
    """The last backward dispatch of a round lets the next instance in, whose payload is refused, before the update is issued."""
    good = {
        "x": np.float32(2),
        "label": np.float32(1),
    }
    bad = {
        "x": np.complex64(2),
        "label": np.float32(1),
    }
    trainer, plain = (
        amp.Trainer(graphs.chain(1), sgd(0.1), mode=mode, max_active_keys=1) for _ in range(2)
    )
    with pytest.raises(MessageError, match="expected float32, got complex64"):
        trainer.accumulate([good, bad])
    plain.accumulate([good])
    close(trainer.params, plain.params)
    close(
        {node: grads for node, (grads, _) in trainer.gradients.items()},
        {"f0": np.float32(0)},
    )


@pytest.mark.parametrize(
    "fails_at",
    [1, 2, 5, 12, 19],
)
def test_a_dispatch_that_fails_leaves_what_was_accumulated_before(fails_at, monkeypatch):
    """Dispatches that were decided on behind it are not carried out; nodes have counted what they have accumulated."""
    with ag.Graph() as g:
        ag.loss("loss", lambda y: y)(
            ag.ppt(
                "f",
                graphs.times,
                params=graphs.one(),
            )(ag.pump("x"))
        )
    options = {"max_active_keys": 2, "min_update_interval": 3, "gradient": "sum", "fuse": False}
    trainer = amp.Trainer(g, sgd(0.1), **options)
    data = [{"x": np.float32(1)}] * 30
    before = float(trainer.params["f"])
    run = trainer.session.executor.run
    n = 0
    rows = 0

    def fails(launches):
        nonlocal n, rows
        n += 1
        if n == fails_at:
            raise MemoryError
        made = run(launches)
        rows += sum(launch.n_rows for launch in launches if launch.direction == "backward")
        return made

    monkeypatch.setattr(trainer.session.executor, "run", fails)
    with pytest.raises(MemoryError):
        trainer.accumulate(data)
    for _ in range(2):
        held, count = trainer.gradients["f"]
        assert held == count
        np.testing.assert_allclose(
            trainer.params["f"],
            before - 0.1 * (rows - count),
            rtol=1e-5,
        )
        trainer.accumulate(data)
    assert rows > 30


@pytest.mark.nightly
def test_replicas_meet_again_after_a_dispatch_that_failed(monkeypatch):
    with ag.Graph() as g:
        wire = ag.replicate(
            ag.ppt("f", graphs.times, params=graphs.one()),
            2,
        )(ag.pump("x"))
        ag.loss("loss", graphs.square)(wire, ag.pump("label"))
    trainer = amp.Trainer(
        g,
        sgd(0.01),
        max_active_keys=3,
        replica_sync=("message", 3),
        max_dispatch_size=1,
    )
    run = trainer.session.executor.run
    for fails_at in range(2, 40):
        calls = itertools.count(1)

        def fails(launches, calls=calls, fails_at=fails_at):
            if next(calls) == fails_at:
                raise MemoryError
            return run(launches)

        monkeypatch.setattr(trainer.session.executor, "run", fails)
        with pytest.raises(MemoryError):
            trainer.accumulate(graphs.chain_data(20))
        monkeypatch.setattr(trainer.session.executor, "run", run)
        trainer.accumulate(graphs.chain_data(20))


# Found in review


def grouped(kind):
    """A message that a group holds and a loss consumes too, or that a group holds twice."""
    n = 2 if kind == "twice" else 1
    with ag.Graph() as g:
        a = ag.ppt(
            "a",
            amp.nn.Linear(2, 2),
        )(ag.pump("x", (2,)))
        if kind == "shared":
            ag.loss(
                "other",
                lambda h: (h**2).sum(),
            )(a)
        else:
            a = ag.flatmap(
                a,
                lambda s: 0 * s.instance + n,
                lambda s, i: s.replace(k=i),
            )
        rows = ag.group(
            a,
            by=("instance",),
            size=lambda s: 0 * s.instance + n,
        )
        total = ag.reduce(
            "total",
            jax.ops.segment_sum,
            ag.npt("tanh", jnp.tanh)(rows),
        )
        ag.loss(
            "loss",
            lambda h: (h**3).sum(),
        )(total)
    return g


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["shared", "twice"])
def test_gradients_of_a_groups_members_are_added(kind):
    """Rows of a group are its members': the node behind the group is not their only consumer."""
    trainer = amp.Trainer(grouped(kind), min_update_interval=NEVER)
    data = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    trainer.accumulate([{"x": row} for row in data])

    def direct(p):
        h = data @ p["w"] + p["b"]
        return ((h**2).sum() if kind == "shared" else 0) + (
            ((1 + (kind == "twice")) * jnp.tanh(h)) ** 3
        ).sum()

    close(
        trainer.gradients["a"][0],
        jax.grad(direct)(trainer.params["a"]),
        rtol=1e-5,
    )


def test_a_graph_of_one_stage_is_not_held_to_small_dispatches():
    trainer = amp.Trainer(
        graphs.chain(1),
        sgd(0.0),
        max_active_keys=32,
    )
    trainer.fit(graphs.chain_data(64), **QUIET)
    assert trainer.statistics.dispatches <= 4


@pytest.mark.nightly
def test_a_small_evaluation_does_not_make_later_dispatches_small():
    data = graphs.chain_data(64)
    trainer = amp.Trainer(
        graphs.chain(2),
        sgd(0.0),
        max_active_keys=32,
    )
    dispatches = []
    for _ in range(2):
        trainer.fit(data, **QUIET)
        dispatches.append(trainer.statistics.dispatches)
        trainer.evaluate(data[:1])
    trainer.evaluate(data)
    assert dispatches[0] == dispatches[1] and trainer.statistics.dispatches <= 4


@pytest.mark.nightly
def test_a_memory_limit_with_outputs_in_several_arenas():
    with ag.Graph() as g:
        x = ag.pump("x", (2,))
        parts = ag.npt(
            "parts",
            lambda x: (
                x,
                x + 1,
                jnp.concatenate([x, x[:1]]),
            ),
            outputs=3,
        )(x)
        for i, part in enumerate(parts):
            ag.loss(
                f"loss{i}",
                lambda h: (h**2).sum(),
            )(part)
    data = [{"x": np.ones(2, np.float32)}] * 4
    assert amp.Trainer(g, memory_limit=100).accumulate(data) == amp.Trainer(g).accumulate(data)


def test_demand_is_counted_for_the_instances_that_come():
    """State functions may read the instance's number."""
    sizes = np.full(40, 8)
    sizes[0] = 1
    with ag.Graph() as g:
        copies = ag.flatmap(
            ag.pump("x"),
            lambda s: sizes[s.instance],
            lambda s, i: s.replace(k=i),
        )
        a = ag.ppt(
            "a",
            graphs.times,
            params=graphs.one(),
        )(copies)
        total = ag.reduce(
            "total",
            jax.ops.segment_sum,
            ag.group(
                a,
                by=("instance",),
                size=lambda s: sizes[s.instance],
            ),
        )
        ag.loss("loss", lambda h: h**2)(total)
    trainer = amp.Trainer(g, memory_limit=200, max_active_keys=16, max_dispatch_size=5)
    assert trainer.accumulate([{"x": np.float32(1)}] * 40)["loss"] > 0


@pytest.mark.nightly
def test_a_trace_of_replicas_that_average_by_messages():
    """Parameters change in the order of the scheduler's decisions, whoever is waited for."""
    with ag.Graph() as g:
        x = ag.pump("x", (2,), fields=("k",))
        a = ag.replicate(
            ag.ppt("a", amp.nn.Linear(2, 2)),
            2,
            route=lambda s: s.k,
        )(x)
        ag.loss(
            "loss",
            lambda h: (h**2).sum(),
            worker=2,
        )(a)
    data = []
    for i in range(20):
        data.append(
            {
                "x": ag.messages(
                    np.ones((1, 2), np.float32),
                    k=[i % 2],
                )
            }
        )
    homes = dict(
        zip(
            g.parameterised,
            range(2),
            strict=True,
        )
    ) | {"loss": 2}
    trainer = amp.Trainer(
        g,
        sgd(0.01),
        workers=3,
        affinity=homes,
        replica_sync=("message", 1),
        max_active_keys=8,
    )
    trace = Trace()
    assert trainer.accumulate(data, trace=trace)["loss"] > 0
    assert any(s.kind == "update" for s in trace)


# The controller


def one_by_one(example):
    """A user's loop for the RNN: token by token."""
    tokens, label = example
    length = len(tokens)
    yield {
        "label": np.int32(label),
        "h0": ag.messages(
            np.zeros((1, 4), np.float32),
            t=0,
            length=length,
        ),
    }
    for t, token in enumerate(tokens):
        yield {
            "tokens": ag.messages(
                np.array([token]),
                t=t,
                length=length,
            )
        }


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [1, 2])
def test_a_users_controller_loop_pumps_token_by_token(workers):
    data = graphs.rnn_data([3, 1, 2])
    examples = []
    for i in data:
        examples.append((i["tokens"].payload, i["label"]))
    plain = amp.Trainer(graphs.rnn(), min_update_interval=NEVER)
    looped = amp.Trainer(
        graphs.rnn(),
        min_update_interval=NEVER,
        controller=one_by_one,
        workers=workers,
        max_active_keys=2,
    )
    assert looped.accumulate(examples)["loss_sum"] == pytest.approx(
        plain.accumulate(data)["loss_sum"], rel=1e-5
    )
    for node, (grad, rows) in looped.gradients.items():
        assert rows == plain.gradients[node][1]
        close(grad, plain.gradients[node][0])
    assert looped.evaluate(examples) == pytest.approx(plain.evaluate(data), rel=1e-5)
    assert (
        len(
            looped.fit(
                examples,
                examples[:2],
                epochs=2,
                **QUIET,
            )
        )
        == 2
    )


@pytest.mark.nightly
def test_a_memory_limit_holds_controller_loops_back_and_nothing_is_compiled_late():
    data = graphs.rnn_data([6, 2, 6, 1, 4, 6])
    examples = []
    for i in data:
        examples.append((i["tokens"].payload, i["label"]))
    options = {"controller": one_by_one, "max_active_keys": 6, "check": True, "compile_ahead": True}
    tight = amp.Trainer(
        graphs.rnn(),
        optax.sgd(1e-2),
        memory_limit=smallest_limit(6),
        **options,
    )
    free = amp.Trainer(
        graphs.rnn(),
        optax.sgd(1e-2),
        **options,
    )
    assert [trainer.fit(examples, **QUIET)[0].compilations for trainer in (tight, free)] == [0, 0]
    assert tight.statistics.most_in_flight < free.statistics.most_in_flight == 6
    with pytest.raises(LimitError, match="instance 1"):
        amp.Trainer(
            graphs.rnn(),
            memory_limit=smallest_limit(2),
            **options,
        ).evaluate([examples[3], examples[0]])


def test_a_controller_loop_may_send_a_state_again():
    """Once the first pair has met, a second one of the same state is another pair."""

    def twice(example):
        for _ in range(2):
            yield {"x": example, "label": example}

    trainer = amp.Trainer(
        graphs.chain(2),
        sgd(0.0),
        controller=twice,
    )
    assert trainer.fit([np.float32(1)] * 3, **QUIET)[0].messages == 3 * 2 * (
        5 if not trainer.settings.fuse else 1
    )
    with pytest.raises(MessageError, match="instance 2: expected a dictionary"):
        amp.Trainer(
            graphs.chain(2),
            controller=lambda e: iter([e]),
        ).evaluate([{}, {}, 7])


def whole_sequence_rnn():
    """Figure 2 of the paper with the whole sequence pumped, and ungrouped in the graph."""
    with ag.Graph() as g:
        sequence = ag.pump(
            "sequence",
            dtype="int32",
            fields=("length",),
            ragged=True,
        )
        h0 = ag.pump(
            "h0",
            (4,),
            fields=("t", "length"),
        )
        label = ag.pump("label", dtype="int32")
        tokens = ag.ungroup(sequence, "t")
        h = ag.phi("h")
        x = ag.ppt(
            "embed",
            amp.nn.Embed(5, 4),
        )(tokens)
        z = ag.npt("tanh", jnp.tanh)(
            ag.ppt(
                "linear1",
                amp.nn.Linear(8, 4),
            )(ag.concat(x, h))
        )
        z = ag.isu(
            z,
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        more, done = ag.cond(
            z,
            lambda s: s.t < s.length,
        )
        h.connect(h0, more)
        ag.loss("xent", graphs.xent, join=("instance",))(
            ag.ppt(
                "linear2",
                amp.nn.Linear(4, 3),
            )(done),
            label,
        )
    return g


def test_a_whole_sequence_ungrouped_is_the_same_as_token_by_token():
    data = graphs.rnn_data([3, 1, 4])
    whole = []
    for i in data:
        whole.append(
            {
                **i,
                "sequence": ag.messages(
                    i["tokens"].payload,
                    length=len(i["tokens"].payload),
                ),
            }
        )
    whole = [{k: v for k, v in i.items() if k != "tokens"} for i in whole]
    a = amp.Trainer(graphs.rnn(), min_update_interval=NEVER)
    b = amp.Trainer(whole_sequence_rnn(), min_update_interval=NEVER)
    assert a.accumulate(data) == pytest.approx(b.accumulate(whole), rel=1e-6)
    for node in a.gradients:
        close(a.gradients[node], b.gradients[node])


# Memory


def test_arenas_start_no_larger_than_the_instances_that_there_are():
    few, many = (
        amp.Trainer(graphs.chain(1), max_active_keys=n, fuse=False) for n in (64, 1_000_000)
    )
    for trainer in (few, many):
        trainer.accumulate(graphs.chain_data(3))
    assert many.device_bytes["arenas"] == few.device_bytes["arenas"] > 0


def test_device_bytes_count_recorded_activations_and_accumulators():
    """They were left out, though activations take more than the arenas beside which they lie."""
    trainer = amp.Trainer(graphs.rnn())
    trainer.accumulate(graphs.rnn_data([3, 1, 4]))
    executor = trainer.session.executor
    own = trainer.device_bytes
    row_bytes = executor.record_row_bytes().items()
    assert own["records"] == sum(n * executor.arenas.capacity[key] for key, n in row_bytes if n) > 0
    assert own["accumulators"] == own["params"] > 0  # float32, all of them


@pytest.mark.nightly
def test_arenas_that_grow_in_training_change_nothing():
    data = graphs.rnn_data([3, 1, 4, 2])
    ends = []
    for rows in (2, None):
        trainer = amp.Trainer(
            graphs.rnn(),
            sgd(0.1),
            arena_rows=rows,
            min_update_interval=3,
        )
        trainer.fit(data, epochs=2, **QUIET)
        ends.append(trainer.params)
    close(*ends, rtol=0)


@functools.cache
def smallest_limit(length):
    """A memory limit that an instance of this length just fits into, within a factor of 1.3."""
    limit = 32
    while True:
        try:
            amp.Trainer(graphs.rnn(), memory_limit=limit, max_active_keys=1).accumulate(
                graphs.rnn_data([length])
            )
            return limit
        except LimitError:
            limit = int(1.3 * limit)


@pytest.mark.nightly
def test_a_small_memory_limit_holds_instances_back_and_trains():
    data = graphs.rnn_data([6, 2, 6, 1, 4, 6])
    options = {"min_update_interval": NEVER, "max_active_keys": 6}
    tight = amp.Trainer(
        graphs.rnn(),
        memory_limit=smallest_limit(6),
        check=True,
        **options,
    )
    free = amp.Trainer(graphs.rnn(), **options)
    assert tight.accumulate(data) == pytest.approx(free.accumulate(data), rel=1e-6)
    assert tight.statistics.most_in_flight < free.statistics.most_in_flight == 6
    for node in free.gradients:
        close(tight.gradients[node], free.gradients[node])


def test_an_instance_that_can_not_fit_is_named():
    trainer = amp.Trainer(
        graphs.rnn(),
        memory_limit=smallest_limit(3),
        max_active_keys=8,
    )
    text = r"instance 2: expected at most \d rows of shape \(4,\) float32, which the memory limit allows, got 10 rows\. Raise `memory_limit`, or split the instance\."
    with pytest.raises(LimitError, match=text):
        trainer.accumulate(graphs.rnn_data([1, 2, 9, 2]))
    assert trainer.accumulate(graphs.rnn_data([1, 2]))["loss"] > 0


@pytest.mark.nightly
def test_instances_that_are_larger_than_the_sampled_ones_are_held_back_too():
    """Each fits, and all four at once do not: they must be held back, not block each other half-way."""
    trainer = amp.Trainer(
        graphs.rnn(),
        max_active_keys=4,
        memory_limit=int(2.5 * smallest_limit(30)),
    )
    assert trainer.accumulate(graphs.rnn_data([1] * 60 + [30] * 4))["loss"] > 0


class Sized(InstanceList):
    """Sequences that say how long they are."""

    def __init__(self, lengths):
        super().__init__(graphs.rnn_data(lengths))
        self.sizes = np.array(lengths)


def outside_of_samples(n, n_long):
    """Lengths: the long ones are those that a trainer with seed 0 would look at last."""
    lengths = np.ones(n, int)
    lengths[np.random.default_rng(0).permutation(n)[-n_long:]] = 16
    return lengths.tolist()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "parts",
    [
        [
            outside_of_samples(
                400,
                16,
            )
        ],
        [[1] * 64, [16] * 64],
    ],
    ids=["once", "later"],
)
def test_the_largest_instances_are_known_where_data_tell_sizes(parts):
    """None of the long ones is sampled, and sixteen at once do not fit; the guard counts from twice what they need on, not from 32 times."""
    options = {"max_active_keys": 16, "group_by_size": 16, "compile_ahead": False, "seed": 0}
    trainer = amp.Trainer(
        graphs.rnn(),
        optax.sgd(1e-3),
        memory_limit=12_000,
        **options,
    )
    for lengths in parts:
        trainer.fit(Sized(lengths), **QUIET)
    assert 1 < trainer.statistics.most_in_flight <= 16


@pytest.mark.nightly
def test_a_branch_that_no_sampled_instance_took_has_room_too():
    with ag.Graph() as g:
        common, rare = ag.cond(
            ag.pump("x", (2,)),
            lambda s: s.instance < 100,
        )
        for name, wire, width in (("common", common, 2), ("rare", rare, 3)):
            y = ag.npt(f"{name} tanh", jnp.tanh)(
                ag.ppt(
                    name,
                    amp.nn.Linear(2, width),
                )(wire)
            )
            ag.loss(
                f"{name} loss",
                lambda h: (h**2).sum(),
            )(y)
    data = InstanceList([{"x": np.ones(2, np.float32)}] * 120)
    trainer = amp.Trainer(g, memory_limit=2000, fuse=False, check=True)
    trainer.accumulate(Subset(data, np.arange(100)))
    trainer.accumulate(Subset(data, np.arange(120)))
    assert trainer.statistics.instances == 120


def test_evaluating_first_keeps_the_memory_limit():
    trainer = amp.Trainer(
        graphs.rnn(),
        memory_limit=smallest_limit(3),
        max_active_keys=8,
    )
    with pytest.raises(LimitError, match="instance 1"):
        trainer.evaluate(graphs.rnn_data([2, 9]))


def test_a_history_is_empty_before_training():
    assert repr(History()) == "History(0 epochs)"
    with pytest.raises(
        KeyError,
        match="no validation metric 'accuracy': no epoch was validated; pass validation data to `fit`",
    ):
        History().best()


def test_a_trainer_prints_what_it_is():
    assert repr(amp.Trainer(mlp(), workers=2, max_active_keys=3)) == (
        "Trainer(7 nodes, 5 stages on 2 workers, async, max_active_keys=3, min_update_interval=1)"
    )


def test_an_error_reaches_its_target_from_above_an_accuracy_from_below():
    rest = (
        0.0,
        0.0,
        0.0,
        0.0,
        0,
        0,
        0,
        0,
        0,
    )
    values = (
        (8.0, 0.5),
        (6.0, 0.9),
        (7.0, 0.8),
    )
    history = History(
        [Epoch(i, {}, {"error": e, "accuracy": a}, *rest) for i, (e, a) in enumerate(values, 1)]
    )
    assert history.best("error") == 6.0
    assert history.best() == 0.9
    assert history.first_to(6.4, "error") is history[1]
    assert history.first_to(0.9) is history[1]
    assert history.first_to(5.0, "error") is None and history.first_to(0.95) is None


# Virtual time


def virtual_history(**options):
    t = amp.Trainer(
        mlp(),
        sgd(0.1),
        cost=functools.partial(FlopsCost, flops=1e9),
        workers=2,
        **options,
    )
    history = t.fit(
        mlp_data(40),
        mlp_data(10, 1),
        epochs=2,
        **QUIET,
    )
    return history, t


@pytest.mark.nightly
def test_training_in_virtual_time_is_the_same_every_time():
    one, t1 = virtual_history(max_active_keys=4)
    two, t2 = virtual_history(max_active_keys=4)
    assert [e.record() | {"compilations": 0} for e in one.epochs] == [
        e.record() | {"compilations": 0} for e in two.epochs
    ]
    for a, b in zip(
        jax.tree.leaves(t1.params),
        jax.tree.leaves(t2.params),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "cost",
    [FlopsCost, None],
    ids=["virtual time", "wall-clock time"],
)
def test_other_tasks_run_beside_training_and_its_preparation(cost):
    """So a first Ctrl-C, which cancels the task, is heard soon."""
    trainer = amp.Trainer(
        graphs.chain(2),
        optax.sgd(0.1),
        cost=cost,
        max_dispatch_size=1,
        fuse=False,
        compile_ahead=True,
    )

    async def cell(started):
        task = asyncio.create_task(
            trainer.fit_async(
                graphs.chain_data(64),
                epochs=5,
                **QUIET,
            )
        )
        while not (started() or task.done()):
            await asyncio.sleep(0)
        task.cancel()
        return await task

    history = asyncio.run(cell(lambda: trainer.device_bytes["arenas"]))
    assert (
        history.interrupted and len(history) == 0 and trainer.statistics.dispatches == 0
    )  # in the preparation
    history = asyncio.run(cell(lambda: trainer.statistics.dispatches))
    assert history.interrupted and len(history) == 0 and trainer.left_over


@pytest.mark.parametrize("bad", [None, 7])
def test_a_loss_that_is_not_finite_is_told_once_with_what_was_lost_and_why(bad):
    data = mlp_data(12)
    if bad is not None:
        data[bad]["x"][2] = np.nan
    trainer = amp.Trainer(
        mlp(),
        sgd(0.1 if bad is not None else 3e38),
        min_update_interval=2,
        max_active_keys=2,
    )
    with pytest.warns(
        RuntimeWarning, match=r"epoch \d: expected a finite training loss, got (nan|inf)"
    ) as told:
        trainer.fit(data, epochs=4, **QUIET)
    (warning,) = told
    text = str(warning.message)
    assert "parameters of `linear1`, `linear2` are not finite any more" in text or bad is None
    assert ("Instance 7 pumps a value that is not finite to `x`." in text) == (bad is not None)


def test_virtual_time_is_that_of_the_simulator():
    history, _ = virtual_history(max_active_keys=4, max_dispatch_size=1, policy="backward_first")
    settings = {
        "workers": 2,
        "max_active_keys": 4,
        "max_dispatch_size": 1,
        "policy": "backward_first",
    }
    simulated = amp.simulate(
        mlp(),
        mlp_data(40),
        cost=functools.partial(FlopsCost, flops=1e9),
        **settings,
    )
    assert history.epochs[0].train_per_s == pytest.approx(simulated.per_s)
    assert history.epochs[1].seconds == pytest.approx(2 * history.epochs[0].seconds)


def test_a_run_that_takes_no_virtual_time_has_an_infinite_rate():
    history = amp.Trainer(
        mlp(),
        sgd(0.1),
        cost=lambda plan: lambda dispatch: 0,
    ).fit(mlp_data(4), **QUIET)
    assert history.epochs[0].train_per_s == np.inf
    assert history.epochs[0].seconds == 0


@pytest.mark.first_case
@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "tx": optax.chain(
                optax.clip_by_global_norm(1.0),
                optax.adam(0.1),
            ),
            "mode": "pipeline",
        },
        {"hosts": amp.Hosts(1, kind="threads")},
    ],
    ids=["async", "pipeline", "hosts"],
)
def test_parameters_with_random_keys_are_trained_read_set_and_saved(options, tmp_path):
    with ag.Graph() as graph:
        noisy = ag.ppt(
            "noisy",
            lambda p, x: p["w"] * x + jax.random.normal(p["key"]),
            params={
                "w": np.float32(1),
                "key": jax.random.key(1),
            },
        )
        ag.loss(
            "loss",
            lambda y: y**2,
        )(noisy(ag.pump("x")))
    data = InstanceList([{"x": np.float32(i)} for i in range(3)])
    trainer = amp.Trainer(
        graph,
        options.get("tx", optax.sgd(0.01)),
        **{k: v for k, v in options.items() if k != "tx"},
    )
    trainer.fit(data, epochs=1, progress=False)
    params = trainer.params
    assert params["noisy"]["w"] != 1
    assert params["noisy"]["key"] == jax.random.key(1)
    before = trainer.evaluate(data)
    noise = jax.random.normal(jax.random.key(1))
    expected = np.mean([(params["noisy"]["w"] * i + noise) ** 2 for i in range(3)])
    np.testing.assert_allclose(before["loss"], expected, rtol=1e-5)
    trainer.save(tmp_path / "saved")
    trainer.set_params(
        {
            "noisy": {
                "w": np.float32(5),
                "key": jax.random.key(2),
            }
        }
    )
    assert trainer.evaluate(data, params=params) == before
    assert trainer.params["noisy"]["key"] == jax.random.key(2)
    trainer.restore(tmp_path / "saved")
    assert trainer.evaluate(data) == before
    trainer.close()


def test_parameters_are_assigned():
    trainer = amp.Trainer(graphs.chain(2), optax.sgd(0.1))
    trainer.params = {
        "f0": jax.tree.map(
            lambda x: x + 1,
            trainer.params["f0"],
        )
    }
    before = amp.Trainer(
        graphs.chain(2),
        optax.sgd(0.1),
    ).params
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b + 1),
        trainer.params["f0"],
        before["f0"],
    )
    jax.tree.map(
        np.testing.assert_array_equal,
        trainer.params["f1"],
        before["f1"],
    )


def test_callbacks_of_a_generator_are_called_after_each_epoch():
    called = []
    trainer = amp.Trainer(graphs.chain(1), optax.sgd(0.1))
    notes = (lambda trainer, epoch, i=i: called.append(i) for i in range(2))
    trainer.fit(
        graphs.chain_data(2),
        epochs=2,
        callbacks=notes,
        progress=False,
    )
    assert called == [0, 1, 0, 1]
