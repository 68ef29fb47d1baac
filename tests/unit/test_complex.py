"""Complex parameters: gradients and updates are those of `jax.grad` and optax, in a graph and over replicas."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
import ampjax.graphs as ag
import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import SettingsError, TableError
from ampjax.numerics.differences import compare
from ampjax.sparse import Table
from ampjax.testing.engine_run import outputs_apart
from ampjax.train.predictions import Predictions

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)


def numbers(*shape):
    return (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype(np.complex64)


FIRST = {
    "T": numbers(20, 3),
    "w": numbers(3, 2),
}
IDS = np.array([3, 5, 5, 1, 0, 3, 19, 7])
OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "adam": optax.adam(0.05),
    "adagrad": optax.adagrad(0.1),
}


def loss(params, ids):
    return jnp.mean(jnp.abs(jnp.tanh(params["T"][ids]) @ params["w"] - (1 + 2j)) ** 2)


def trained(tx, function, batch, n_steps=2):
    params = FIRST
    state = tx.init(FIRST)
    gradient = jax.jit(jax.grad(function))
    for _ in range(n_steps):
        updates, state = tx.update(gradient(params, batch), state, params)
        params = optax.apply_updates(params, updates)
    return params


def close(ours, theirs):
    for name in FIRST:
        assert ours[name].dtype == np.complex64
        np.testing.assert_allclose(
            ours[name],
            theirs[name],
            rtol=1e-5,
            atol=1e-6,
        )


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "run_option"),
    [("sgd", "hybrid"), ("adam", "hybrid"), ("adagrad", "ps")],
)
def test_replicas_train_complex_variables_as_optax_does(name, run_option):
    machines = Resources(
        tuple(Machine(f"m{i}", (device,)) for i, device in enumerate(jax.local_devices()[:2]))
    )
    runner = px.get_runner(
        loss, FIRST, OPTIMIZERS[name], machines, px.ParallaxConfig(run_option=run_option)
    )
    for _ in range(2):
        norms = runner.run(IDS, fetch="norms").fetched["norms"]
    close(runner.params, trained(OPTIMIZERS[name], loss, IDS))
    grads = jax.grad(loss)(
        trained(OPTIMIZERS[name], loss, IDS, 1),
        IDS,
    )
    assert norms["T"] == pytest.approx(
        float(np.linalg.norm(grads["T"])),
        rel=1e-5,
    )
    table = next(v for v in runner.explain(compiled=False).variables if v.path == "T")
    assert table.sparse and "tables hold no rows of complex64" in table.choice


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nodes_train_complex_parameters_as_optax_does(name):
    with ag.Graph() as g:
        i = ag.pump("i", shape=(), dtype="int32")
        h = ag.ppt(
            "T",
            lambda p, i: jnp.tanh(p["T"][i]),
            params={"T": FIRST["T"]},
        )(i)
        y = ag.ppt(
            "w",
            lambda p, h: h @ p["w"],
            params={"w": FIRST["w"]},
        )(h)
        ag.loss(
            "error",
            lambda y: jnp.mean(jnp.abs(y - (1 + 2j)) ** 2),
        )(y)
        ag.sink("found", y)
    data = [{"i": int(i)} for i in IDS]
    trainer = amp.Trainer(
        g,
        OPTIMIZERS[name],
        mode="pipeline",
        max_active_keys=len(data),
    )
    trainer.fit(data, epochs=2, progress=False)
    close(
        {
            "T": trainer.params["T"]["T"],
            "w": trainer.params["w"]["w"],
        },
        trained(OPTIMIZERS[name], loss, IDS),
    )
    if name == "sgd":
        assert "agrees" in str(amp.verify(g, data[:3], quick=True))


def test_a_difference_of_imaginary_parts_is_seen():
    ((_, _, difference),) = compare(
        {"a": np.array([1 + 1j])},
        {"a": np.array([1 + 0j])},
    )
    assert difference == 1.0
    got = Predictions(
        np.array([[1 + 1j]], np.complex64),
        np.array([0]),
        {},
    )
    assert (
        outputs_apart(
            got,
            [({"instance": 0}, np.array([1 + 0j]))],
        )
        == 1.0
    )
    assert (
        outputs_apart(
            got,
            [({"instance": 0}, np.array([1 + 1j]))],
        )
        == 0.0
    )


def test_what_can_not_be_complex():
    with pytest.raises(
        TableError,
        match=r"values: expected float32.*got complex64.*real and imaginary parts as two columns",
    ):
        Table(FIRST["T"], optax.sgd(0.1))
    with pytest.raises(
        SettingsError, match=r"expected a float scalar.*got complex64\[\].*its real part"
    ):
        px.get_runner(
            lambda p, i: p["T"][i].sum(),
            FIRST,
            optax.sgd(0.1),
        ).run(IDS)
