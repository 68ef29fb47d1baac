"""Losses, gradients, predictions and rows without a step: as the single-device program gives them, and nothing changes."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.optimizers import worst

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import DataError, SettingsError
from ampjax.parallel.evaluation import Evaluation
from ampjax.parallel.homes.row_homes import RowGrads
from ampjax.sparse.table.shards import Shards

NAMES = [f"t{k}" for k in range(5)]
RNG = np.random.default_rng(0)
PARAMS = {name: RNG.normal(size=(9 + k, 3)).astype(np.float32) for k, name in enumerate(NAMES)} | {
    "words": RNG.normal(size=(12, 4)).astype(np.float32),
    "columns": RNG.normal(size=(4, 10)).astype(np.float32),
    "w": RNG.normal(size=(15, 4)).astype(np.float32),
}
OPTIONS = {
    "hybrid": {},
    "dense": {"keep_dense": ("*",)},
    "asynchronous": {"sync": False},
    "on every machine": {"run_option": "ar"},
}


def hidden(params, batch):
    rows = jnp.concatenate(
        [params[name][batch["ids"][:, k]] for k, name in enumerate(NAMES)],
        1,
    )
    return jnp.tanh(rows @ params["w"]) + params["columns"][:, batch["ids"][:, 0]].T


def loss(params, batch):
    scores = (hidden(params, batch) * params["words"][batch["word"]]).sum(1)
    total = (batch["weight"] * (scores - 3) ** 2).sum()
    weight = batch["weight"].sum()
    return px.Weighted(total, weight), {"scores": scores}


def plain(params, batch):
    out, aux = loss(params, batch)
    return out.total / out.weight, aux


def batch(n, seed=0):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 12, n)
    return {
        "ids": rng.integers(0, 9, (n, 5)),
        "word": words,
        "weight": rng.random(n).astype(np.float32),
    }


def make(**options):
    devices = jax.local_devices()
    machines = Resources(
        (
            Machine(
                "a",
                (devices[0],),
            ),
            Machine("b", (devices[1],)),
        )
    )
    config = px.ParallaxConfig(alpha_threshold=2.0, check_equivalence="off", **options)
    return px.get_runner(loss, PARAMS, optax.adam(0.1), machines, config)


@pytest.fixture(scope="module", params=OPTIONS)
def runner(request):
    runner = make(**OPTIONS[request.param])
    [runner.run(batch(4, seed)) for seed in range(2)]
    return runner


def state(runner):
    return jax.tree.map(
        np.array,
        (runner.params, runner.opt_state, runner.steps),
    )


@pytest.mark.first_case
@pytest.mark.parametrize("n", [4, 3])
def test_losses_and_gradients_are_the_programs(runner, n):
    before = state(runner)
    own = batch(n, 7)
    (value, aux), grads = jax.value_and_grad(plain, has_aux=True)(
        runner.params,
        own,
    )
    got = runner.evaluate(own)
    assert isinstance(got, Evaluation)
    np.testing.assert_allclose(got.loss, value, rtol=1e-5)
    np.testing.assert_allclose(
        got.aux["scores"],
        aux["scores"],
        rtol=1e-5,
        atol=1e-5,
    )
    found = runner.gradients(own)
    assert [*found] == sorted(PARAMS)
    for name, grad in found.items():
        whole = np.asarray(grads[name])
        if isinstance(grad, RowGrads):
            rows = whole.T if name == "columns" else whole
            assert not np.any(np.delete(rows, grad.ids, 0))
            whole = rows[grad.ids]
            grad = grad.values
        np.testing.assert_allclose(grad, whole, rtol=1e-4, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, state(runner), before)


FUNCTIONS = {
    "hidden": hidden,  # reads no words
    "a pytree": lambda p, b: {
        "rows": p["t1"][b["ids"][:, 1]],
        "n": len(b["ids"]),
    },
    "all words": lambda p, b: hidden(p, b) @ p["words"].T,
    "found words": lambda p, b: p["words"][jnp.argmax(hidden(p, b) @ p["words"].T, 1)],
    "no parameters": lambda p, b: b["ids"].sum(),
    "no batch": lambda p, b: p["t0"].mean() + p["w"].sum(),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", FUNCTIONS)
def test_predictions_are_the_functions(runner, name):
    own = batch(3, 5)
    got = runner.apply(FUNCTIONS[name], own)
    wanted = FUNCTIONS[name](runner.params, own)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        got,
        wanted,
    )


@pytest.mark.first_case
def test_rows_are_read_without_the_table(runner, monkeypatch):
    params = runner.params
    for forbidden in ("arrays", "blocks"):
        monkeypatch.setattr(Shards, forbidden, None)
    ids = np.array([[3, 0, 3], [8, 1, 3]])
    for name in ("t1", "words", "w"):
        np.testing.assert_array_equal(
            runner.rows(name, ids),
            params[name][ids],
        )
    assert runner.rows("t1", []).shape == (0, 3)
    assert runner.rows("t4", 12).tolist() == params["t4"][12].tolist()


def test_rows_along_another_axis():
    runner = make().build(batch(4))
    np.testing.assert_array_equal(
        runner.rows("columns", [3, 9]),
        PARAMS["columns"][:, [3, 9]].T,
    )


def test_parts_are_evaluated_as_the_joined_batch(runner):
    whole = batch(4, 2)
    parts = px.shard(batch(4, 2), count=2)
    np.testing.assert_allclose(
        runner.evaluate(parts).loss,
        runner.evaluate(whole).loss,
        rtol=1e-5,
    )


@pytest.mark.nightly
def test_evaluation_between_steps_changes_nothing():
    runners = [make(), make()]
    for seed in range(3):
        [runner.run(batch(4, seed)) for runner in runners]
        runners[0].evaluate(batch(5, seed))
        runners[0].gradients(batch(4, seed))
        runners[0].apply(hidden, batch(2, seed))
        runners[0].rows("t1", [0, 7])
    assert worst(*((runner.params, runner.opt_state) for runner in runners)) == 0
    assert (
        runners[0].explain(compiled=False)["t1"].measured
        == runners[1].explain(compiled=False)["t1"].measured
    )


def test_one_function_is_compiled_once():
    runner = make().build(batch(4))
    calls = []

    def counted(params, batch):
        calls.append(1)
        return hidden(params, batch)

    for seed in range(3):
        runner.apply(counted, batch(3, seed))
    assert len(calls) == 1  # it is traced once


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda r: r.rows("t9", [0]), SettingsError, "rows, variable: expected one of columns, t0, t1, t2, t3, t4, w, words, got 't9'."),
        (lambda r: r.rows("t1", [0, 10]), DataError, "rows of `t1`, ids: expected ids in [0, 10), got 10."),
        (lambda r: r.rows("t1", [-1]), DataError, "rows of `t1`, ids: expected ids in [0, 10), got -1. A negative id does not count from the end."),
        (lambda r: r.rows("t1", [0.5]), DataError, "rows of `t1`, ids: expected integers, got float64."),
        (lambda r: r.evaluate({}), DataError, "batch: expected a pytree of arrays"),
        (lambda r: r.evaluate(px.Parts(({"a": 1}, {"a": 2}))), DataError, "batch, leaf `a`: expected the same value in all parts, got others."),
    ],
)  # fmt: skip
def test_mistakes(runner, call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call(runner)


def test_a_batch_must_have_come_before():
    with pytest.raises(
        SettingsError,
        match=r"expected a batch first, got none yet. Call `run`, or `build` with a batch.",
    ):
        make().evaluate(batch(4))
