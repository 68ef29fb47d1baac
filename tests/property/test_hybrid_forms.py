"""Law 9 for tables that are no plain `[rows, row]`: a data-parallel step equals the single-device step under dense optax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import DataError, TableError

pytestmark = pytest.mark.users

F = 3
V = 40
D = 4
EXAMPLES = 8
SHAPES = {
    "stack": (F, V, D),
    "wide": (F, V),
    "columns": (D, V),
    "words": (V, D),
    "rare": (12, D),
    "w": (D, 2),
}
TABLES = {
    "stack": (F * V, 1, D),
    "wide": (F * V, 1),
    "columns": (V, D),
    "words": (V, D),
    "rare": (12, D),
}
OPTIMIZERS = {
    # An optimizer that goes by the number of axes, as masks of weight decay do; decay would reach rows that no step touches.
    "adam": optax.chain(
        optax.clip_by_global_norm(0.2),
        optax.masked(
            optax.scale(2.0),
            lambda p: jax.tree.map(lambda leaf: leaf.ndim > 1, p),
        ),
        optax.adam(0.05, eps=1e-3),
    ),
    "adagrad": optax.adagrad(0.2),
}
CASES = {
    "hybrid": ("adam", (2, 2), {"table_mode": "faithful", "partitions": 5}),
    "ar": ("adagrad", (1, 1), {"run_option": "ar"}),
}


def loss(params, batch):
    """A stack read by pairs and under vmap, numbers by pairs, columns, a padding row, two tables read as one."""
    ids = batch["ids"]
    fields = jnp.arange(F)
    x = params["stack"][fields, ids].sum(1) + jax.vmap(lambda t, i: t[i], (0, 1), 1)(
        params["stack"], ids // 2
    ).mean(1)
    x += params["columns"].T.astype(jnp.float32)[ids[:, 0]] * params["columns"][:, ids[:, 1]].T
    x += jnp.concatenate([params["words"].at[0].set(0.0), params["rare"]])[batch["word"]]
    y = jnp.tanh(x @ params["w"]) + params["wide"][fields, ids].sum(1, keepdims=True)
    return jnp.mean((y - batch["y"]) ** 2)


def first_params(rng):
    result = {}
    for name, shape in SHAPES.items():
        result[name] = 0.5 * rng.normal(size=shape).astype(np.float32)
    return result


def a_batch(rng):
    word = rng.integers(0, V + 12, EXAMPLES)
    word[:2] = 0  # the padding row
    y = rng.uniform(2, 3, (EXAMPLES, 2)).astype(np.float32)
    return {
        "ids": rng.integers(
            0,
            rng.integers(2, V),
            (EXAMPLES, F),
        ),
        "word": word,
        "y": y,
    }


@functools.cache
def plain_step(name):
    tx = OPTIMIZERS[name]

    @jax.jit
    def step(params, state, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value, optax.tree.norm(grads)

    return step


def new_runner(case, tx=None):
    name, sizes, options = CASES[case]
    devices = iter(jax.local_devices())
    machines = Resources(
        tuple(Machine(f"m{i}", tuple(next(devices) for _ in range(n))) for i, n in enumerate(sizes))
    )
    config = px.ParallaxConfig(alpha_threshold=2.0, **options)
    return px.get_runner(
        loss,
        first_params(np.random.default_rng(0)),
        tx or OPTIMIZERS[name],
        machines,
        config,
    )


@functools.cache
def a_runner(case):
    return new_runner(case).build(a_batch(np.random.default_rng(0)))


@pytest.mark.parametrize("case", CASES)
@given(
    partitions=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=examples(4))
def test_a_step_equals_the_single_device_step(case, partitions, seed):
    name = CASES[case][0]
    runner = a_runner(case)
    rng = np.random.default_rng(seed)
    params = first_params(rng)
    state = OPTIMIZERS[name].init(params)
    runner.reset(params)
    runner.resplit(partitions)
    for _ in range(3):
        batch = a_batch(rng)
        params, state, value, norm = plain_step(name)(params, state, batch)
        metrics = runner.run(batch, fetch="global_norm")
        assert metrics.loss == pytest.approx(float(value), rel=1e-5)
        assert metrics.fetched["global_norm"] == pytest.approx(float(norm), rel=1e-5)
    close(runner.params, params)
    close(runner.opt_state, state)
    assert np.array_equal(
        runner.params["words"][0],
        params["words"][0],
    )


def close(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(
        jax.tree.leaves(ours),
        jax.tree.leaves(theirs),
        strict=True,
    ):
        assert np.shape(a) == np.shape(b)
        assert np.abs(np.asarray(a) - np.asarray(b)).max() <= 1e-5 * max(
            np.abs(np.asarray(b)).max(), 1e-30
        )


def test_what_is_told_of_them_and_how_they_are_held():
    runner = a_runner("hybrid")
    held = {}
    for path, tables in runner.step.tables.items():
        held[path] = tables[0].shape
    assert held == {f"['{name}']": shape for name, shape in TABLES.items()}
    explained = runner.explain(compiled=False)
    reasons = {v.path: v.reason for v in explained.variables}
    assert "rows of a stack of 3 tables of 40 rows, read by pairs" in reasons["stack"]
    assert "rows of a stack of 3 tables of 40 numbers, read by pairs" in reasons["wide"]
    assert "columns read as rows: the table is [40, 4]" in reasons["columns"]
    assert (
        "joined with `['rare']`; some rows are overwritten first, and get no gradient"
        in reasons["words"]
    )
    assert {v.path: v.shape for v in explained.variables} == SHAPES


def test_gradients_are_of_the_tables_rows():
    batch = a_batch(np.random.default_rng(3))
    runner = a_runner("hybrid")
    whole = jax.jit(jax.grad(loss))(runner.params, batch)
    found = runner.run(batch, fetch="gradients").fetched["gradients"]
    dense = np.zeros((F * V, 1, D), np.float32)
    dense[found["stack"].ids] = found["stack"].values
    np.testing.assert_allclose(
        dense.reshape(F, V, D),
        whole["stack"],
        rtol=1e-4,
        atol=1e-6,
    )
    assert 0 not in found["words"].ids  # nothing reads the padding row


def test_a_checkpoint_before_and_after_the_first_batch(tmp_path):
    rng = np.random.default_rng(4)
    runner = a_runner("hybrid")
    runner.run(a_batch(rng))
    runner.save(tmp_path / "saved")
    params = runner.params
    state = runner.opt_state
    batch = a_batch(rng)
    fresh = new_runner("hybrid")
    fresh.restore(tmp_path / "saved")
    close(fresh.params, params)
    close(fresh.opt_state, state)
    after = runner.run(batch).loss
    runner.restore(tmp_path / "saved")
    assert (runner.params["columns"] == params["columns"]).all() and runner.run(batch).loss == after


def test_a_checkpoint_of_rows_along_other_axes(tmp_path):
    def by(read):
        table = {"T": np.ones((V, V), np.float32)}
        config = px.ParallaxConfig(alpha_threshold=2.0)
        machine = Resources(
            (
                Machine(
                    "m",
                    (jax.local_devices()[0],),
                ),
            )
        )
        return px.get_runner(
            lambda p, i: jnp.sum(read(p["T"], i) ** 2),
            table,
            optax.sgd(0.1),
            machine,
            config,
        )

    ids = np.arange(4)
    by(lambda t, i: t[i]).build(ids).save(tmp_path / "rows")
    with pytest.raises(DataError, match=r"axes of rows: expected \[\('T', \[1\]\)\], got \[\]"):
        by(lambda t, i: t[:, i]).build(ids).restore(tmp_path / "rows")


def test_an_optimizer_that_goes_by_axes_is_refused_where_the_axes_are_others():
    def update(grads, state, params=None):
        return jax.tree.map(
            lambda g: g / (1 + jnp.abs(g).sum(-1, keepdims=True)),
            grads,
        ), state

    tx = optax.GradientTransformation(lambda params: optax.EmptyState(), update)
    with pytest.raises(
        TableError, match=r"`reduce_sum`, which goes by axes, where the parameter has others"
    ):
        new_runner("hybrid", tx).build(a_batch(np.random.default_rng(0)))
