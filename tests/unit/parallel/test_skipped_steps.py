"""Steps that `optax.apply_if_finite` skips, on dense parameters and tables together; learning rates of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.optimizers import worst

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, RemoteDevice, Resources
from ampjax.errors import ParameterError, TableError
from ampjax.optim import scale_rows
from ampjax.optim.split_by_rows import split_rows
from ampjax.optim.split_update import SharedVariables, prepare_update
from ampjax.sparse import Table

RNG = np.random.default_rng(0)
PARAMS = {
    "table": RNG.normal(size=(30, 3)).astype(np.float32),
    "w": RNG.normal(size=(3, 2)).astype(np.float32),
}
ADAM = optax.adam(0.05, b1=0.875, b2=0.9375, eps=1e-2)
SKIPS = optax.apply_if_finite(ADAM, 3)


def loss(params, batch):
    return jnp.mean((params["table"][batch["ids"]] @ params["w"] - batch["y"]) ** 2)


def batch(seed):
    """A batch; the second and the fourth have a NaN in the second replica's part."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(4, 2)).astype(np.float32)
    if seed in (1, 3):
        y[3, 0] = np.nan
    return {"ids": rng.integers(0, 30, 4), "y": y}


def make(tx, *names, **options):
    devices = jax.local_devices()
    machines = []
    for i in range(2):
        machines.append(Machine(f"m{i}", (devices[i],)))
    if names:
        machines = []
        for n in names:
            machines.append(
                Machine(
                    n,
                    (RemoteDevice(n, 0),),
                    address="localhost",
                )
            )
    config = px.ParallaxConfig(alpha_threshold=2.0, **options)
    return px.get_runner(
        loss,
        PARAMS,
        tx,
        Resources(tuple(machines)),
        config,
    )


def trained(tx, seeds, change=lambda state: state):
    params = PARAMS
    state = change(tx.init(PARAMS))
    step = jax.jit(jax.grad(loss))
    for seed in seeds:
        updates, state = tx.update(
            step(params, batch(seed)),
            state,
            params,
        )
        params = optax.apply_updates(params, updates)
    return params, state


@pytest.mark.slow
def test_a_table_and_dense_parameters_skip_together():
    split = split_rows(SKIPS, PARAMS, ["['table']"], check_finite=False)
    dense, rows = split.params.split(PARAMS)
    rule = split.rules["['table']"]
    table = Table(
        rows["['table']"][0],
        rule,
        partitions=3,
        mode="faithful",
    )
    shared = SharedVariables(split, dense, split.init(dense))
    params = PARAMS
    state = SKIPS.init(PARAMS)
    update = jax.jit(SKIPS.update)
    for bad in (False, True, False):
        ids = RNG.integers(0, 30, 5)
        some = RNG.normal(size=(5, 3)).astype(np.float32)
        some[2, 1] = np.inf if bad else 1
        grads = {
            "table": np.zeros((30, 3), np.float32),
            "w": np.ones((3, 2), np.float32),
        }
        np.add.at(grads["table"], ids, some)
        pending = {"['table']": table.aggregate(ids, some)}
        dense_grads, _ = split.params.split(grads)
        prepare_update(split.n_rounds, shared, dense_grads, pending)()
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
        assert worst(table.dense(), params["table"]) < 1e-6
        assert worst(shared.params["w"], params["w"]) < 1e-6
    assert int(shared.state.total_notfinite) == 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("names", "options"),
    [
        ((), {"partitions": 3}),
        ((), {"run_option": "ar"}),
        ((), {"run_option": "ps"}),
        ((), {"server_processes": True}),
        (("a", "b"), {}),
    ],
    ids=str,
)
def test_skipped_steps_are_those_of_plain_optax(names, options):
    with make(SKIPS, *names, check_finite=False, **options) as runner:
        losses = []
        for seed in range(5):
            losses.append(float(runner.run(batch(seed)).loss))
        assert np.isnan(losses).tolist() == [False, True, False, True, False]
        params, state = trained(SKIPS, range(5))
        assert worst(runner.params, params) < 1e-6
        assert worst(runner.opt_state, state) < 1e-6
        assert int(runner.opt_state.total_notfinite) == 2


@pytest.mark.nightly
def test_a_table_refuses_rows_that_the_optimizer_lets_through():
    runner = make(optax.sgd(0.1), check_finite=False)
    runner.run(batch(0))
    before = runner.params["table"]
    with pytest.raises(
        TableError, match="`table`, apply, new rows: expected finite numbers, got nan"
    ):
        runner.run(batch(1))
    assert (runner.params["table"] == before).all()
    runner.run(batch(2))


@pytest.mark.nightly
def test_a_checked_step_is_stopped_whatever_the_optimizer():
    runner = make(SKIPS)
    runner.run(batch(0))
    with pytest.raises(ParameterError, match="leaf `y` of the batch"):
        runner.run(batch(1))
    assert int(runner.opt_state.total_notfinite) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["faithful", "lazy"])
def test_rows_have_learning_rates(mode, tmp_path):
    tx = optax.chain(optax.adagrad(0.1), scale_rows())
    factors = np.linspace(0, 2, 30, dtype=np.float32)

    def change(state):
        state[1].factors["table"] = factors
        return state

    wanted, _ = trained(tx, (0, 2, 4), change)
    runner = make(tx, table_mode=mode, partitions=3)
    runner.build(batch(0))
    runner.opt_state[1].factors["table"] = factors
    for seed in (0, 2):
        runner.run(batch(seed))
    runner.save(tmp_path)
    again = make(tx, table_mode=mode)
    again.restore(tmp_path)
    again.run(batch(4))
    assert worst(again.params, wanted) < 1e-6
    assert (np.asarray(again.opt_state[1].factors["table"]) == factors).all()
    assert (again.params["table"][0] == PARAMS["table"][0]).all()
