"""Optimizers with one number of state a row in a runner: as plain optax on dense leaves, wherever rows are and however tables are split."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.optimizers import worst

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import TableError
from ampjax.optim import rowwise_adagrad, rowwise_adam, rowwise_rmsprop

pytestmark = pytest.mark.slow

STACKED = [f"t{k}" for k in range(4)]
RNG = np.random.default_rng(0)
PARAMS = {
    "tables": {name: RNG.normal(size=(20 + len(name), 3)).astype(np.float32) for name in STACKED},
    "lone": RNG.normal(size=24).astype(np.float32),
    "w": RNG.normal(size=(12, 2)).astype(np.float32),
    "b": np.zeros(2, np.float32),
}
# eps is large enough, and decays are sums of few powers of two, so that rounding is not amplified.
RULES = {
    "adam with a first moment": optax.chain(
        optax.clip_by_global_norm(0.5),
        rowwise_adam(0.05, b1=0.875, b2=0.9375, eps=1e-2),
    ),
    "adagrad": rowwise_adagrad(0.1, eps=1e-2),
    "adam": rowwise_adam(0.05, b2=0.9375, eps=1e-2),
    "rmsprop": rowwise_rmsprop(0.05, eps=1e-2),
}


def loss(params, batch):
    rows = []
    for k, name in enumerate(STACKED):
        rows.append(params["tables"][name][batch["ids"][:, k]])
    made = jnp.concatenate(rows, 1) @ params["w"] + params["b"]
    return jnp.mean((made + params["lone"][batch["ids"]].sum(1)[:, None] - batch["y"]) ** 2)


def batch(seed):
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(
            0,
            20,
            (4, len(STACKED)),
        ),
        "y": rng.normal(size=(4, 2)).astype(np.float32),
    }


def make(tx, loss_fn=loss, params=PARAMS, **options):
    devices = jax.local_devices()
    machines = Resources(tuple(Machine(f"m{i}", (devices[i],)) for i in range(2)))
    config = px.ParallaxConfig(alpha_threshold=2.0, **options)
    return px.get_runner(loss_fn, params, tx, machines, config)


def trained(tx, n, loss_fn=loss, params=PARAMS):
    state = tx.init(params)
    step = jax.jit(jax.grad(loss_fn))
    for seed in range(n):
        updates, state = tx.update(
            step(params, batch(seed)),
            state,
            params,
        )
        params = optax.apply_updates(params, updates)
    return params, state


@pytest.mark.nightly
def test_one_table_and_a_matrix():
    def read_one(params, batch):
        return jnp.mean((params["table"][batch["ids"][:, 0]] @ params["w"] - batch["y"]) ** 2)

    tx = RULES["adam with a first moment"]
    params = {
        "table": PARAMS["tables"]["t0"],
        "w": PARAMS["w"][:3],
    }
    runner = make(tx, read_one, params, partitions=3)
    for seed in range(3):
        runner.run(batch(seed))
    params, state = trained(tx, 3, read_one, params)
    assert worst(runner.params, params) < 1e-5
    assert worst(runner.opt_state, state) < 1e-5


@pytest.mark.nightly
def test_training_is_plain_optax():
    tx = RULES["adam with a first moment"]
    runner = make(tx, partitions=3)
    for seed in range(3):
        runner.run(batch(seed))
    assert {*runner.step.tables} == {"['tables']['t0'] and 3 others", "['lone']"}
    params, state = trained(tx, 3)
    assert worst(runner.params, params) < 1e-5
    assert worst(runner.opt_state, state) < 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize("name", RULES)
def test_a_checkpoint_with_other_partitions_goes_on(name, tmp_path):
    tx = RULES[name]
    runner = make(tx, partitions=3)
    for seed in range(2):
        runner.run(batch(seed))
    runner.save(tmp_path)
    again = make(tx, partitions=2)
    again.restore(tmp_path)
    again.run(batch(2))
    params, state = trained(tx, 3)
    assert worst(again.params, params) < 1e-5
    assert worst(again.opt_state, state) < 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [
        {"run_option": "ar"},
        {"run_option": "ps"},
        {"server_processes": True},
        {"folder": "tables"},
        {"local_aggregation": False},
    ],
    ids=str,
)
def test_wherever_rows_are(options, tmp_path):
    tx = RULES["adam with a first moment"]
    if "folder" in options:
        options = {"folder": tmp_path}
    with make(tx, **options) as runner:
        for seed in range(3):
            runner.run(batch(seed))
        params, state = trained(tx, 3)
        assert worst(runner.params, params) < 1e-5
        assert worst(runner.opt_state, state) < 1e-5


@pytest.mark.nightly
def test_lazy_rows_keep_their_state():
    tx = rowwise_rmsprop(0.05)
    runner = make(tx, table_mode="lazy")
    runner.run(batch(0))
    before = np.asarray(runner.opt_state[0].nu["lone"])
    runner.run(batch(1))
    after = np.asarray(runner.opt_state[0].nu["lone"])
    touched = np.zeros(len(after), bool)
    touched[batch(1)["ids"]] = True
    assert (after[~touched] == before[~touched]).all()
    assert (after != before)[touched].all()
    faithful = trained(tx, 2)[1][0].nu["lone"]
    assert (np.asarray(faithful) < after)[~touched & (before > 0)].all()


def test_rows_along_another_axis_are_refused():
    params = {"columns": np.ones((3, 40), np.float32)}
    runner = make(
        rowwise_adagrad(0.1),
        lambda p, ids: jnp.mean(p["columns"][:, ids] ** 2),
        params,
    )
    text = (
        r'`columns`.*Store `columns` with its rows along the first axis.*keep_dense=\("columns",\)'
    )
    with pytest.raises(TableError, match=text):
        runner.run(np.arange(4))
