"""Gradients that nodes have accumulated and not yet used: counted right, whatever comes between."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import graphs

import ampjax as amp


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("restored", [False, True])
def test_rows_that_were_accumulated_on_purpose_break_no_law(mode, restored, tmp_path):
    """They are more than the interval asks for, so the next gradient brings an update of all of them."""
    data = graphs.chain_data(6)
    options = {"mode": mode, "min_update_interval": 2, "max_dispatch_size": 1, "check": True}
    trainer = amp.Trainer(
        graphs.chain(1),
        optax.sgd(0.01),
        **options,
    )
    trainer.accumulate(data, update=False)
    (total, n) = trainer.gradients["f0"]
    assert n == 6
    if restored:
        trainer.save(tmp_path / "saved")
        trainer = amp.Trainer(
            graphs.chain(1),
            optax.sgd(0.01),
            **options,
        )
        trainer.restore(tmp_path / "saved")
    before = trainer.params["f0"]
    trainer.accumulate(data[:1])
    if mode == "async":
        assert trainer.statistics.nodes["f0"].updates == 1
        assert trainer.gradients["f0"][1] == 0
        one = amp.Trainer(
            graphs.chain(1),
            optax.sgd(0.01),
            min_update_interval=1 << 40,
        )
        one.accumulate(data[:1])
        mean = (total + one.gradients["f0"][0]) / 7
        np.testing.assert_allclose(
            trainer.params["f0"],
            before - 0.01 * mean,
            rtol=1e-6,
        )
    trainer.fit(data, epochs=1, progress=False)


def model(p, e):
    """Rows of a table, chains over edges, parameters that two nodes share, and a loss with parameters of its own: all products."""
    h = amp.map(
        lambda i: p["embed"][i],
        e["ids"],
    )
    h = amp.propagate(
        [lambda h: h @ p["send"]["w"] + p["send"]["b"]],
        e["edges"],
        h,
    )
    h = amp.map(
        lambda h: (h @ p["send"]["w"]) * p["scale"],
        h,
    )
    return amp.sum(
        amp.map(
            lambda h: (h @ p["out"]).astype(jnp.float32),
            h,
        )
    )


def powers_of_two(dtype):
    """Parameters with which each row's numbers have few digits, so that nothing is rounded but sums."""

    def draw(seed, *shape):
        return jnp.asarray(
            0.5 ** np.random.default_rng(seed).integers(0, 2, shape),
            dtype,
        )

    return {
        "embed": draw(0, 3, 2),
        "send": {
            "w": draw(1, 2, 2),
            "b": draw(2, 2),
        },
        "scale": draw(3, 2),
        "out": draw(4, 2),
    }


def nodes(seed, n):
    rng = np.random.default_rng(seed)
    edges = amp.Edges(
        np.arange(n),
        rng.permutation(n),
        np.zeros(n, np.int64),
    )
    return {
        "ids": rng.integers(0, 3, n).astype(np.int32),
        "edges": edges,
    }


@pytest.mark.first_case
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (jnp.bfloat16, {}),
        (jnp.bfloat16, {"fuse": False}),
        (jnp.float16, {"hosts": amp.Hosts(2, "threads", 2), "workers": 2}),
    ],
)
def test_gradients_of_half_precision_are_summed_in_float32(dtype, options):
    """A sum in bfloat16 stops to grow: 256 and a half are 256. Here not one bit is lost."""
    data = [nodes(i, 100) for i in range(24)]
    compiled = amp.compile(
        model,
        powers_of_two(dtype),
        {"ids": "int32[v]", "edges": amp.Edges("v", kinds=1)},
    )
    trainer = amp.Trainer(
        compiled.graph,
        optax.sgd(0.1),
        min_update_interval=1 << 40,
        **options,
    )
    trainer.accumulate(compiled.data(data), update=False)
    found = compiled.gradients(trainer.gradients)
    trainer.close()

    def whole(p):
        h = p["embed"][np.concatenate([e["ids"] for e in data])] @ p["send"]["w"] + p["send"]["b"]
        return jnp.sum((h @ p["send"]["w"]) * p["scale"] @ p["out"])

    wanted = jax.grad(whole)(powers_of_two(jnp.float32))
    for one, other in zip(
        *map(
            jax.tree.leaves,
            (found, wanted),
        ),
        strict=True,
    ):
        assert one.dtype == np.float32 and other.max() > 256
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n", [64, 65])
def test_the_optimizer_gets_gradients_of_the_parameters_precision(n):
    """As JAX would give them to optax. With the first number the kernel makes the update at once, without the accumulator."""
    seen = []

    def noting(updates, state, params=None):
        seen.append(jax.tree.leaves(updates)[0].dtype)
        return updates, state

    tx = optax.chain(
        optax.GradientTransformation(lambda params: (), noting),
        optax.sgd(0.5),
    )
    compiled = amp.compile(
        lambda p, s: (p["w"] * s).astype(jnp.float32),
        {"w": jnp.ones((), jnp.bfloat16)},
        "bfloat16[]",
    )
    trainer = amp.Trainer(
        compiled.graph, tx, min_update_interval=n, gradient="sum", max_active_keys=64
    )
    trainer.accumulate(compiled.data([jnp.bfloat16(0.01)] * 65))
    assert set(seen) == {jnp.dtype(jnp.bfloat16)}
    assert trainer.statistics.updates == 1
    step = 0.5 * jnp.asarray(
        n * float(jnp.bfloat16(0.01)),
        jnp.bfloat16,
    )
    assert compiled.params(trainer.params)["w"] == 1 - step
