"""An id that is outside of its table is told once, with the leaf; the training stays that of one device."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import IdWarning
from ampjax.sparse.rewrite.outside_ids import OutsideIds

pytestmark = pytest.mark.slow

ROWS = 30
PARAMS = {
    "t": np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32),
    "stack": np.ones((2, ROWS, 3), np.float32),
    "w": np.ones(3, np.float32),
}


def make(loss, n=2, **options):
    machines = Resources(
        tuple(Machine(f"m{i}", (device,)) for i, device in enumerate(jax.local_devices()[:n]))
    )
    config = px.ParallaxConfig(**{"alpha_threshold": 2.0} | options)
    return px.get_runner(loss, PARAMS, optax.sgd(0.1), machines, config)


def a_batch(*last):
    return {
        "ids": np.array([*range(8 - len(last)), *last]),
        "size": np.arange(8) * 100,
    }


def told(runner, *batches):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for batch in batches:
            runner.run(batch)
    assert all(w.category is IdWarning and w.filename == __file__ for w in heard)
    return [str(w.message) for w in heard]


def indexed(params, batch):
    return jnp.mean((params["t"][batch["ids"]] @ params["w"]) ** 2)


def clipped(params, batch):
    return jnp.mean((jnp.take(params["t"], batch["ids"], axis=0, mode="clip") @ params["w"]) ** 2)


def by_pairs(params, batch):
    return jnp.mean((params["stack"][batch["ids"] % 2, batch["ids"]] @ params["w"]) ** 2)


def in_loops(params, batch):
    def one(i):
        rows = jax.lax.map(
            lambda j: params["t"][j],
            jnp.stack([i, i + 1]),
        )
        return jax.lax.cond(
            i > 2,
            lambda: rows.sum(),
            lambda: params["w"].sum(),
        )

    return jnp.mean(jax.vmap(one)(batch["ids"]))


READS = {
    "indexed": (
        indexed,
        40,
        "id 40 of leaf `ids` is outside of `t`, which has 30 rows .*no row gets a gradient",
    ),
    "from the end": (indexed, -31, "id -31 of leaf `ids` is outside of `t`"),
    "clipped": (
        clipped,
        40,
        "id 40 of leaf `ids` is outside of `t`.*nearest row is read .* and gets the gradient",
    ),
    "by pairs": (by_pairs, 40, "id 40 of leaf `ids` is outside of `stack`, which has 30 rows"),
    "in loops": (
        in_loops,
        30,
        r"id 3[01] .*is outside of `t`, which has 30 rows \(test_id_watch.py:\d+\)",
    ),
}


CASES = [
    *((kind, ()) for kind in READS),
    ("indexed", ("t", "stack")),
    ("by pairs", ("t", "stack")),
]


@pytest.mark.first_case
@pytest.mark.parametrize(("kind", "kept"), CASES, ids=str)
def test_an_id_outside_is_told_once(kind, kept):
    loss, number, text = READS[kind]
    runner = make(loss, keep_dense=kept)
    assert told(runner, a_batch(), a_batch(5)) == []
    batch = a_batch(number)
    (message,) = told(runner, batch, a_batch(number - 5, number))
    assert re.search(text, message), message


def test_the_leaf_is_the_one_from_which_the_id_follows():
    """Other leaves may hold the same number, as ids of a longer table or as it is counted from the end."""

    def loss(params, batch):
        return (
            jnp.mean(params["t"][batch["ids"]] @ params["w"])
            + 0 * batch["a"].sum()
            + 0 * batch["size"].sum()
        )

    unsigned = np.array(
        [
            0,
            1,
            2,
            3,
            4,
            5,
            6,
            2**31 + 5,
        ],
        np.uint32,
    )
    for ids, number in (
        (a_batch(40)["ids"], 40),
        (a_batch(-31)["ids"], -31),
        (unsigned, 2**31 + 5),
    ):
        (message,) = told(
            make(loss),
            {
                "ids": ids,
                "a": np.r_[40, 10, -31, -1, 0, 0, 0, 0],
                "size": np.arange(8),
            },
        )
        assert f"id {number} of leaf `ids` is outside of `t`" in message


@pytest.mark.parametrize("call", ["evaluate", "gradients"])
def test_without_a_step_an_id_is_told_too(call):
    runner = make(indexed)
    runner.run(a_batch())
    with pytest.warns(IdWarning, match="id 40 of leaf `ids` is outside of `t`") as heard:
        getattr(runner, call)(
            {
                "ids": np.r_[0, 40, 3],
                "size": np.arange(3),
            }
        )
    assert heard[0].filename == __file__


def test_the_training_is_that_of_one_device():
    runner = make(indexed)
    with pytest.warns(IdWarning):
        found = runner.run(a_batch(40, 29))
    value, grads = jax.jit(jax.value_and_grad(indexed))(
        PARAMS,
        a_batch(40, 29),
    )
    assert found.loss == pytest.approx(float(value), rel=1e-6)
    np.testing.assert_allclose(
        runner.params["t"],
        PARAMS["t"] - 0.1 * grads["t"],
        rtol=1e-5,
        atol=1e-6,
    )


def test_ids_that_a_program_fills_or_wraps_are_right():
    def filled(params, batch):
        rows = (
            params["t"]
            .at[batch["ids"]]
            .get(
                mode="fill",
                fill_value=0.0,
            )
        )
        return jnp.mean((rows + params["t"][batch["size"] % ROWS] + params["t"][-1]) @ params["w"])

    assert (
        told(
            make(filled),
            a_batch(40),
            a_batch(-30),
        )
        == []
    )


def test_batches_without_news_are_not_looked_at(monkeypatch):
    looked = []
    look = OutsideIds.__call__
    monkeypatch.setattr(
        OutsideIds,
        "__call__",
        lambda self, inputs: looked.append(1) or look(self, inputs),
    )
    runner = make(indexed, n=1)
    for _ in range(3):
        runner.run(a_batch())
    assert looked == [1]  # the sizes could be ids
    runner.run(a_batch() | {"size": np.arange(8) * 1000})
    assert looked == [1, 1]
