"""The executor: forward rows bit for bit at any dispatch size, transfers, parameters, payload checks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import graphs
from support.control import columns
from support.engines import engine, spread

import ampjax as amp
import ampjax.graphs as ag
from ampjax.engine.compilation import ladders
from ampjax.engine.kernels.launch import CHANGES_ONLY, Launch
from ampjax.engine.make_launches import Launches
from ampjax.errors import MessageError
from ampjax.sched.decisions.parameter_changes import Average, Contribute, Merge, ReplicaSync, Update
from ampjax.sched.dry_run import dry_run

pytestmark = pytest.mark.slow


def mlp(n_in=6, width=16):
    with ag.Graph() as g:
        x = ag.pump("x", (n_in,))
        h = ag.npt("tanh", jnp.tanh)(
            ag.ppt(
                "linear1",
                amp.nn.Linear(n_in, width),
            )(x)
        )
        ag.sink(
            "y",
            ag.ppt(
                "linear2",
                amp.nn.Linear(width, width),
            )(h),
        )
    return g


def elementwise(features):
    with ag.Graph() as g:
        y = ag.ppt(
            "f",
            lambda p, x: jnp.exp(p * x) / (1 + x * x),
            params=graphs.one(),
        )(ag.pump("x", (features,)))
        ag.sink(
            "y",
            ag.npt(
                "g",
                lambda x: jnp.sqrt(1 + jnp.sin(x) ** 2),
            )(y),
        )
    return g


ROWS = {
    "dense": (mlp(16, 64), 16, 0),
    "elementwise": (elementwise(16), 16, 0),
    "narrow": (elementwise(3), 3, 2),
}


@pytest.mark.users
@pytest.mark.parametrize(
    ("graph", "features", "ulp"),
    ROWS.values(),
    ids=ROWS,
)
def test_forward_rows_are_the_same_bits_at_any_dispatch_size(graph, features, ulp):
    """Rows that fill vector registers, that is: XLA computes what is left over by another loop, which rounds otherwise (up to two units in the last place).

    Its matrix product keeps the bits for rows of 64 features on all that it knows of vector units; with AVX-512 not for 16 or 32.
    """
    rng = np.random.default_rng(0)
    data = []
    for _ in range(9):
        data.append({"x": rng.normal(size=features).astype(np.float32)})
    seen = []
    for size in (1, 2, 64):
        e = engine(graph, fuse=False, max_dispatch_size=size)
        e.virtual(data, train=False)
        seen.append(e.outputs())
    for outputs in seen:
        assert outputs.keys() == seen[0].keys()
        assert len(outputs) == 9
        for key, row in outputs.items():
            np.testing.assert_array_max_ulp(row, seen[0][key], ulp)


GRAPHS = {
    "group": (
        graphs.grouping(),
        [graphs.grouping_instance(n) for n in (2, 0, 3)],
    ),
    "molecule": (
        graphs.molecule(),
        [
            graphs.molecule_instance(
                3,
                [(0, 1, 0), (1, 2, 1)],
            ),
            graphs.molecule_instance(1, []),
        ],
    ),
}


@pytest.mark.first_case
@pytest.mark.parametrize("name", GRAPHS)
def test_workers_on_several_devices_give_the_same_gradients(name):
    graph, data = GRAPHS[name]
    one = engine(graph, fuse=False)
    many = engine(
        graph,
        spread(graph, 2),
        (0, 1),
        fuse=False,
    )
    one.virtual(data)
    many.virtual(data)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        many.gradients,
        one.gradients,
    )
    assert many.metrics() == pytest.approx(one.metrics(), rel=1e-5)
    for node, params in many.executor.store.params.items():
        assert jax.tree.leaves(params)[0].devices() == {jax.devices()[many.plan.worker_of[node]]}


def test_nothing_keeps_a_host_view_of_an_arena():
    """What a sink hands out, and what the host arena gave, are copies."""
    with ag.Graph() as g:
        ag.sink("y", ag.pump("x"))
    e = engine(g)
    e.virtual(
        [{"x": np.float32(1)}],
        train=False,
    )
    e.virtual(
        [{"x": np.float32(2)}],
        train=False,
    )
    assert [float(arrival.rows[0]) for arrival in e.arrived] == [1.0, 2.0]


# Parameters


def test_an_update_is_an_optax_step_on_what_was_accumulated():
    e = engine(
        graphs.chain(1),
        interval=2,
        gradient="mean",
        tx=optax.sgd(0.5),
    )
    e.virtual(graphs.chain_data(2))
    # loss (1.5 x - 0.5)^2 at x = 0 and 1: dW = 2 x (1.5 x - 0.5)
    assert float(e.executor.store.params["f0"]) == pytest.approx(1.5 - 0.5 * (0 + 2 * 1.0) / 2)
    assert float(e.gradients["f0"]) == 0


def test_a_transform_may_keep_the_parameters_in_its_state():
    tx = optax.contrib.prodigy()
    e = engine(graphs.chain(1), interval=1, tx=tx)
    params = e.executor.store.params["f0"].copy()
    state = tx.init(params)
    for example in graphs.chain_data(3):
        e.virtual([example])
        grad = jax.grad(lambda p, x, label: graphs.square(p * x, label))(
            params,
            **example,
        )
        updates, state = tx.update(grad, state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(
            e.executor.store.params["f0"],
            params,
            rtol=1e-6,
        )


def test_what_was_handed_in_stays_the_callers():
    mine = {"f0": jnp.float32(1.5)}
    e = engine(graphs.chain(1), params=mine, interval=1)
    e.virtual(graphs.chain_data(3))
    assert float(mine["f0"]) == 1.5
    assert float(e.executor.store.params["f0"]) != 1.5


def change(e, *changes):
    e.executor.issue([Launch(0, 0, CHANGES_ONLY, "update", changes=changes)])


def replicas(*values):
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.replicate(
            ag.ppt("f", graphs.times, params=graphs.one()),
            len(values),
        )(x)
        ag.loss("loss", graphs.square)(y, label)
    params = {}
    for i, v in enumerate(values):
        params[f"f/{i}"] = np.float32(v)
    names = tuple(params)
    return engine(
        g,
        {n: i for i, n in enumerate(names)},
        tuple(range(len(values))),
        params=params,
    ), names


def test_averaging_replicas_on_their_devices():
    e, names = replicas(1.0, 2.0, 6.0)
    change(e, Average("f", names))
    assert [float(e.executor.store.params[n]) for n in names] == [3.0] * 3
    assert [e.executor.store.params[n].devices() for n in names] == [{d} for d in jax.devices()[:3]]


def test_the_message_protocol_takes_the_mean_plus_what_was_learnt_since():
    e, names = replicas(1.0, 2.0)
    change(e, Contribute("f", "f/0"))
    e.executor.store.set_params("f/0", np.float32(1.25))  # f/0 goes on learning
    change(e, Contribute("f", "f/1"), Merge("f", names))
    assert [float(e.executor.store.params[n]) for n in names] == [1.75, 1.5]


def test_stashed_parameters_are_kept_until_no_message_needs_them():
    e = engine(
        graphs.chain(1),
        interval=1,
        fuse=False,
        stashed=("f0",),
        max_dispatch_size=1,
        tx=optax.sgd(0.1),
    )
    dispatches = []
    e.virtual(graphs.chain_data(4), on_dispatch=dispatches.append)
    kept = [d.versions for d in dispatches if d.direction == "forward" and d.versions]
    dropped = []
    for d in dispatches:
        for versions in d.drop:
            dropped.append(versions)
    assert sorted(set(kept)) == sorted(dropped)


def test_an_unknown_version_is_not_mixed_up_after_an_interrupt():
    """What was stashed for messages that were abandoned must not be used for others of the same version."""

    def run(interrupt):
        e = engine(
            graphs.chain(2),
            fuse=False,
            stashed=("f0", "f1"),
        )
        if interrupt:
            source = e.sources(graphs.chain_data(3))[0]
            source.admit(e.executor.feed)
            for _ in range(2):
                dispatch = e.scheduler.next(0)
                e.executor.issue([Launches(e.scheduler, e.seeds)(dispatch)])
                e.scheduler.done(dispatch)
            e.scheduler.abandon()
            e.executor.abandon()
        for node in ("f0", "f1"):
            e.executor.store.set_params(node, np.float32(7.0))
        e.virtual(graphs.chain_data(3))
        return e.gradients

    assert run(True) == run(False)


def test_averaging_makes_a_new_version_of_stashed_parameters():
    """Messages before and after an average have different parameters, so they may not share what is stashed."""
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.replicate(
            ag.ppt("f", graphs.times, params=graphs.one()),
            2,
        )(ag.npt("g", jnp.sin)(x))
        ag.loss("loss", graphs.square)(y, label)
    options = {
        "interval": 1,
        "max_dispatch_size": 1,
        "policy": lambda queues, now: queues[7 * now % len(queues)],
    }
    e = engine(
        g,
        fuse=False,
        stashed=("f/0", "f/1"),
        sync=ReplicaSync("every_k", 1),
        **options,
    )
    seen = {}

    def note(dispatch):
        if dispatch.versions and dispatch.direction == "forward":
            key = (dispatch.stage.name, dispatch.versions)
            now = float(e.executor.store.params[dispatch.stage.name])
            assert seen.setdefault(key, now) == now

    data = []
    for i in range(12):
        data.append(
            {
                "x": np.float32(i),
                "label": np.float32(i % 3),
            }
        )
    e.virtual(data, on_dispatch=note)
    assert len(seen) > 4


@pytest.mark.nightly
def test_warming_up_leaves_no_trace():
    e = engine(graphs.two_outputs(), fuse=False)
    seen = dry_run(
        e.plan,
        [columns(e.graph, graphs.two_outputs_data(2))],
        [0, 2],
    ).stages
    before = jax.tree.map(
        np.asarray,
        (e.executor.store.params, e.executor.store.accumulators),
    )
    for ladder in ladders(
        e.executor,
        e.scheduler,
        seen,
        ["forward", "backward", "infer"],
    ):
        for compile_kernel in ladder.compilations:
            compile_kernel()
    after = jax.tree.map(
        np.asarray,
        (e.executor.store.params, e.executor.store.accumulators),
    )
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert e.executor.readings == {}
    assert e.metrics(True) == e.metrics(False) == {}


def test_a_warm_up_that_fails_leaves_no_trace_either():
    fails = []

    def body(p, x):
        if fails:
            raise KeyboardInterrupt
        return p * x

    with ag.Graph() as g:
        ag.loss("loss", lambda x: x**2)(
            ag.ppt(
                "f",
                body,
                params=graphs.one(),
            )(ag.pump("x"))
        )
    e = engine(g)
    seen = dry_run(
        e.plan,
        [columns(g, [{"x": np.float32(1)}])],
        range(1),
    ).stages
    before = e.executor.store.accumulators["f"]
    fails.append(True)
    with pytest.raises(KeyboardInterrupt):
        next(ladders(e.executor, e.scheduler, seen, ["forward"])).compilations[0]()
    assert e.executor.store.accumulators["f"] is before
    assert e.metrics() == {}


# Payloads


def test_no_rows_at_all_fit_any_type():
    with ag.Graph() as g:
        tokens = ag.pump("tokens", dtype="int32", ragged=True)
        ag.sink(
            "n",
            ag.reduce("count", jax.ops.segment_sum, tokens),
        )
    e = engine(g)
    e.virtual([{"tokens": []}], train=False)
    assert [np.asarray(arrival.rows)[0] for arrival in e.arrived] == [0]


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (
            np.zeros((2, 2), np.float32),
            r"pump `x`, payload: expected rows of shape \(6,\), as the pump was declared, one for each message, got \(2, 2\) in one message\. Give payloads of the pump's shape\.",
        ),
        (
            np.zeros(5, np.float32),
            r"pump `x`, payload: expected rows of shape \(6,\), as the pump was declared, one for each message, got \(5,\) in one message\. Give payloads of the pump's shape\.",
        ),
        (
            np.zeros(5, jnp.bfloat16),
            r"pump `x`, payload: expected rows of shape \(6,\), as the pump was declared, one for each message, got \(5,\) in one message\.",
        ),
        (
            np.zeros(6, complex),
            r"pump `x`, payload: expected float32, got complex128\. Convert the payload to float32, or declare the pump with its dtype\.",
        ),
        (
            np.array(["a"] * 6),
            r"pump `x`, payload: expected float32, got <U1\. Convert the payload to float32, or declare the pump with its dtype\.",
        ),
    ],
)
def test_payloads_that_do_not_fit(payload, text):
    with pytest.raises(MessageError, match=text):
        engine(mlp()).virtual(
            [{"x": payload}],
            train=False,
        )


def test_a_float_for_an_integer_pump():
    with ag.Graph() as g:
        ag.sink("y", ag.pump("x", dtype="int32"))
    text = r"pump `x`, payload: expected int32, got float64\. Convert the payload to int32, or declare the pump with its dtype\."
    with pytest.raises(MessageError, match=text):
        engine(g).virtual([{"x": 1.5}], train=False)


@pytest.mark.parametrize(
    "value",
    [1, 1.0, np.float64(1), np.int8(1), True],
)
def test_payloads_that_can_be_cast(value):
    with ag.Graph() as g:
        ag.sink("y", ag.pump("x"))
    e = engine(g)
    e.virtual([{"x": value}], train=False)
    assert list(e.outputs().values()) == [1.0]


# Metrics


def test_the_loss_is_a_mean_over_instances_and_metrics_are_pooled_over_losses():
    with ag.Graph() as g:
        x = ag.pump("x", fields=("t",))
        a, b = ag.cond(
            ag.npt("f", lambda x: x)(x),
            lambda s: s.t == 0,
        )
        ag.loss(
            "a",
            lambda x: (
                x,
                {
                    "big": (x > 2).astype(jnp.float32),
                    "ratio": (x, 2.0 * jnp.ones(())),
                },
            ),
        )(a)
        ag.loss(
            "b",
            lambda x: (
                10 * x,
                {"big": (x > 2).astype(jnp.float32)},
            ),
        )(b)
    e = engine(g)
    e.virtual([{"x": ag.messages(np.float32([i + 1]), t=i // 4)} for i in range(6)])
    assert e.metrics() == pytest.approx(
        {
            "loss": (10 + 110) / 6,
            "big": 4 / 6,
            "ratio": 10 / 8,
        }
    )
    assert e.metrics() == {}


def test_training_and_inference_metrics_are_kept_apart():
    e = engine(graphs.chain(1))
    e.virtual(
        [
            {
                "x": np.float32(0),
                "label": np.float32(1),
            }
        ]
    )
    e.virtual(
        [
            {
                "x": np.float32(0),
                "label": np.float32(3),
            }
        ],
        train=False,
    )
    assert e.metrics(False) == {"loss": 9.0}
    assert e.metrics(True) == {"loss": 1.0}


def test_updates_keep_their_order_after_a_dispatch():
    e = engine(graphs.chain(2), interval=1)
    seen = []
    e.virtual(graphs.chain_data(1), on_dispatch=seen.append)
    assert [c for d in seen for c in d.changes] == [Update("f0", 1), Update("f1", 1)]
