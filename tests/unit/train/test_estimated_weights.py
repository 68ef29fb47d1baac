"""`weights="estimated"`: the adjoint uses the parameters of now, less their velocity times the staleness (PipeMare's T2)."""

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from support import graphs
from support.models import model
from support.transforms import adam, sgd

import ampjax as amp
import ampjax.graphs as ag
from ampjax.drivers.cost import FlopsCost
from ampjax.errors import DataError, TableError
from ampjax.ir.nodes import WEIGHTS

RATE = 0.1
DECAY = 0.3
W = 1.5
T = 0.5
X = [0.3, 0.7, 0.5]


def forward_first(queues, now):
    """Every instance goes forward before the first comes back."""
    return min(queues, key=lambda queue: (queue.backward, queue.born))


def test_the_adjoint_uses_the_estimate():
    """y = w1 w0 x, loss (y - t)². All go forward at version 0; then each comes back after one update more than the one before."""
    w0 = w1 = W
    velocity = 0.0
    for late, x in enumerate(X):
        g = 2 * (W * W * x - T)
        estimate = w1 - late * velocity
        change = -RATE * g * W * x  # the gradient of w1 needs what came in, not w1
        kept = DECAY ** (1 / late) if late else 0
        w0 = w0 - RATE * g * estimate * x
        w1 = w1 + change
        velocity = kept * velocity + (1 - kept) * change
    options = {"policy": forward_first, "max_dispatch_size": 1, "fuse": False, "max_active_keys": 3}
    settings = {"weights": "estimated", "velocity_decay": DECAY}
    trainer = amp.Trainer(
        graphs.chain(2),
        sgd(RATE),
        **settings,
        **options,
    )
    trainer.accumulate([{"x": np.float32(x), "label": np.float32(T)} for x in X])
    np.testing.assert_allclose(
        [trainer.params["f0"], trainer.params["f1"]],
        [w0, w1],
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        trainer.session.executor.store.opt_state["f1"].velocity, velocity, rtol=1e-5
    )


def moving():
    """A node whose gradients are always 1, and one before it whose gradients are the parameters that the other one's adjoint uses."""
    with ag.Graph() as g:
        y = ag.ppt(
            "still",
            graphs.times,
            params=np.float32(1),
            tx=optax.sgd(0.0),
            min_update_interval=1 << 20,
        )(ag.pump("x"))
        ag.loss("loss", lambda y: y)(
            ag.ppt(
                "moving",
                graphs.times,
                params=np.float32(0),
            )(y)
        )
    return g


def cost(plan):
    """A machine on which a dispatch takes as long as its rows say."""
    return lambda dispatch: 100 + 7 * dispatch.n_rows


def flops(plan):
    """A machine whose times are added up where dispatches are decided."""
    return FlopsCost(plan, flops=1e9, latency_ns=500)


MODES = {
    "async": {},
    "dispatches of several": {"max_dispatch_size": 4},
    "workers": {"workers": 2, "affinity": "paper"},
    "many decided in one call": {
        "workers": 2,
        "affinity": "paper",
        "policy": "wavefront",
        "cost": flops,
    },
    "a budget": {"max_staleness": 2},
    "pipeline": {"mode": "pipeline"},
    "sync": {"mode": "sync"},
}


def gradient_before(weights, **options):
    options = {"max_dispatch_size": 1, "policy": forward_first, "cost": cost} | options
    settings = {"weights": weights, "velocity_decay": 0.0, "max_active_keys": 6, "fuse": False}
    trainer = amp.Trainer(
        moving(),
        sgd(0.125),
        **settings,
        **options,
    )
    trainer.fit(
        [{"x": np.float32(1)}] * 32,
        progress=False,
    )
    return float(trainer.gradients["still"][0]), trainer.statistics


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(mode, marks=pytest.mark.nightly) if mode in ("pipeline", "sync") else mode
        for mode in MODES
    ],
)
def test_at_a_constant_velocity_it_is_the_forward_passes_parameters(mode):
    """Where a dispatch holds messages of several versions, the sum of their gradients is that at the mean of their parameters."""
    found, statistics = gradient_before("estimated", **MODES[mode])
    current, _ = gradient_before("current", **MODES[mode])
    # Each update adds -1/8, so an estimate of `late` updates ago is greater by late / 8 than the parameters of now.
    assert found - current == pytest.approx(statistics.nodes["moving"].staleness_sum / 8, abs=1e-5)
    if (
        "max_dispatch_size" not in MODES[mode]
    ):  # stashed weights do not mix versions, which makes another schedule
        assert found == gradient_before("stashed", **MODES[mode])[0]
    assert (found == current) == (MODES[mode].get("mode") in ("sync", "pipeline"))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"mode": "sync"}, {"max_staleness": 0}],
)
def test_without_staleness_it_has_the_bits_of_current_weights(options):
    graph, data = model("sequences")
    trained = []
    for weights in ("current", "estimated"):
        options = {"max_active_keys": 4, "arena_rows": 256, "cost": cost} | options
        trainer = amp.Trainer(graph, adam(0.01), weights=weights, **options)
        trainer.fit(data, progress=False)
        assert trainer.statistics.staleness_max == 0
        trained.append(trainer.params)
    jax.tree.map(np.testing.assert_array_equal, *trained)


@pytest.mark.nightly
def test_one_node_may_have_it():
    trainers = []
    for weights in WEIGHTS:
        trainers.append(
            amp.Trainer(
                graphs.chain(2, weights=weights),
                sgd(0.01),
                policy=forward_first,
                max_dispatch_size=1,
            )
        )
    for trainer in trainers:
        trainer.fit(graphs.chain_data(12), progress=False)
    states = [trainer.session.executor.store.opt_state["f0"] for trainer in trainers]
    assert [hasattr(state, "velocity") for state in states] == [False, False, True]
    assert len({float(trainer.params["f0"]) for trainer in trainers}) == 3


def test_checkpoints_hold_velocities(tmp_path):
    def trainer(weights="estimated"):
        return amp.Trainer(
            graphs.chain(2),
            sgd(1e-4),
            weights=weights,
            cost=cost,
            seed=1,
        )

    straight = trainer()
    first = trainer()
    last = trainer()
    straight.fit(graphs.chain_data(20), epochs=2, progress=False)
    first.fit(graphs.chain_data(20), progress=False)
    first.save(tmp_path / "half")
    last.restore(tmp_path / "half")
    assert (
        last.session.executor.store.opt_state["f0"].velocity
        == first.session.executor.store.opt_state["f0"].velocity
        != 0
    )
    last.fit(graphs.chain_data(20), progress=False)
    jax.tree.map(np.testing.assert_array_equal, straight.params, last.params)
    # One without velocities is refused, as any with another optimizer is.
    with pytest.raises((DataError, TableError), match="VelocityState"):
        trainer("current").save(tmp_path / "without")
        trainer().restore(tmp_path / "without")


def test_memory_counts_the_velocity():
    room = {"device_memory": 8, "workers": 1}
    amp.Trainer(
        graphs.chain(1),
        optax.sgd(0.1),
        **room,
    )
    with pytest.raises(
        amp.errors.SettingsError, match="setting `device_memory`: expected at least 12 bytes"
    ):
        amp.Trainer(
            graphs.chain(1),
            optax.sgd(0.1),
            weights="estimated",
            **room,
        )
    settings = replace(
        amp.Trainer(graphs.chain(1)).settings,
        weights="estimated",
        device_memory=12,
    )
    amp.Trainer(
        graphs.chain(1),
        optax.sgd(0.1),
        settings=settings,
    )
