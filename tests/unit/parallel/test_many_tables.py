"""Runners of models with many tables: tables that are alike share storage, rules and messages, and nobody sees it but by the clock."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.optimizers import worst

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import TableError
from ampjax.parallel.homes.row_homes import RowGrads

pytestmark = pytest.mark.slow

WIDE = [f"wide{k}" for k in range(5)]
NARROW = [f"narrow{k}" for k in range(4)]
ROWS = {name: 20 + k for k, name in enumerate([*WIDE, *NARROW])}
RNG = np.random.default_rng(0)
PARAMS = {
    "tables": {
        name: RNG.normal(size=(n, 3 if name in WIDE else 2)).astype(np.float32)
        for name, n in ROWS.items()
    },
    "lone": RNG.normal(size=(20, 4)).astype(np.float32),
    "w": RNG.normal(size=27).astype(np.float32),
}
WIDE_NAME = "['tables']['wide0'] and 4 others"
NARROW_NAME = "['tables']['narrow0'] and 3 others"
CLIPPED = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1))


def loss(params, batch):
    rows = []
    for k, name in enumerate(ROWS):
        rows.append(params["tables"][name][batch["ids"][:, k]])
    rows.append(params["lone"][batch["ids"][:, 0]])
    return jnp.mean((jnp.concatenate(rows, 1) @ params["w"] - batch["y"]) ** 2)


def batch(seed):
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(0, 20, (4, len(ROWS))),
        "y": rng.normal(size=4).astype(np.float32),
    }


def make(tx=CLIPPED, loss_fn=loss, n_machines=2, **options):
    devices = jax.local_devices()
    machines = Resources(tuple(Machine(f"m{i}", (devices[i],)) for i in range(n_machines)))
    return px.get_runner(
        loss_fn, PARAMS, tx, machines, px.ParallaxConfig(alpha_threshold=2.0, **options)
    )


@pytest.fixture
def apart(monkeypatch):
    """Runners whose tables are not stacked."""

    def make_apart(*args, **options):
        with monkeypatch.context() as patched:
            for module in ("optim.split_by_rows", "parallel.planning.stacking"):
                patched.setattr(sys.modules[f"ampjax.{module}"], "FEWEST_STACKED", 1000)
            return make(*args, **options).build(batch(0))

    return make_apart


def trained(tx, n=3):
    params = PARAMS
    state = tx.init(PARAMS)
    for seed in range(n):
        updates, state = tx.update(
            jax.grad(loss)(params, batch(seed)),
            state,
            params,
        )
        params = optax.apply_updates(params, updates)
    return params, state


LABELS = jax.tree_util.tree_map_with_path(
    lambda path, _: "a" if "wide" in str(path) else "b", PARAMS
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("tx", "options"),
    [
        (CLIPPED, {}),
        pytest.param(
            CLIPPED, {"boundary_among_servers": False, "partitions": 3}, marks=pytest.mark.nightly
        ),
        pytest.param(
            optax.multi_transform(
                {
                    "a": optax.adagrad(0.1),
                    "b": optax.sgd(0.1, 0.9),
                },
                LABELS,
            ),
            {"run_option": "ar"},
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            optax.adam(0.1),
            {"run_option": "ps"},
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            optax.adam(0.1),
            {"server_processes": True},
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            optax.adagrad(0.1),
            {"local_aggregation": False, "partitions": 2},
            marks=pytest.mark.nightly,
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_training_is_plain_optax(tx, options):
    with make(tx, **options) as runner:
        for seed in range(3):
            metrics = runner.run(batch(seed))
        assert {*runner.step.tables} == {NARROW_NAME, WIDE_NAME, "['lone']"}
        assert {*metrics.alpha} == {"lone", *(f"tables/{name}" for name in ROWS)}
        n_rows = len({*batch(2)["ids"][:2, 1]}), len({*batch(2)["ids"][2:, 1]})
        np.testing.assert_allclose(
            metrics.alpha["tables/wide1"],
            np.mean(n_rows) / 21,
        )
        assert worst((runner.params, runner.opt_state), trained(tx)) < 2e-5


@pytest.mark.nightly
def test_asynchronous_training_is_that_of_tables_apart(apart):
    runners = []
    for maker in (make, apart):
        runners.append(maker(optax.adam(0.1), sync=False))
    for seed in range(4):
        losses = [runner.run(batch(seed)).loss for runner in runners]
        np.testing.assert_allclose(*losses, rtol=1e-6)
    assert [len(runner.step.tables) for runner in runners] == [3, 10]
    assert worst(*((runner.params, runner.opt_state) for runner in runners)) < 1e-6


@pytest.mark.nightly
def test_gradients_are_given_by_variable():
    runner = make(n_machines=1)
    grads = runner.run(batch(0), fetch="gradients").fetched["gradients"]
    whole = jax.grad(loss)(PARAMS, batch(0))
    for name, n_rows in ROWS.items():
        own = grads[f"tables/{name}"]
        assert isinstance(own, RowGrads)
        assert (np.diff(own.ids) > 0).all()
        dense = np.zeros(
            (n_rows, own.values.shape[1]),
            np.float32,
        )
        dense[own.ids] = own.values
        np.testing.assert_allclose(dense, whole["tables"][name], atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "before",
    ["apart", pytest.param("stacked", marks=pytest.mark.nightly)],
)
def test_checkpoints_are_those_of_tables_apart(tmp_path, apart, before):
    makers = {"apart": apart, "stacked": make}
    first = makers.pop(before)(partitions=3)
    second = next(iter(makers.values()))()
    [first.run(batch(seed)) for seed in range(2)]
    first.save(tmp_path / "c")
    early = make()
    early.restore(tmp_path / "c")  # before it is known what becomes of variables
    assert (
        worst(
            (early.params, early.opt_state),
            (first.params, first.opt_state),
        )
        == 0
    )
    second.build(batch(0)).restore(tmp_path / "c")
    assert (
        worst(
            (second.params, second.opt_state),
            (first.params, first.opt_state),
        )
        == 0
    )
    for runner in (first, second, early):
        runner.run(batch(2))
    assert (
        worst(
            (second.params, second.opt_state),
            (first.params, first.opt_state),
        )
        < 1e-6
    )
    assert (
        worst(
            (early.params, early.opt_state),
            (first.params, first.opt_state),
        )
        < 1e-6
    )


@pytest.mark.nightly
def test_what_is_explained_is_each_variable(apart):
    runners = [make(), apart()]
    for runner in runners:
        [runner.run(batch(seed)) for seed in range(2)]
    tables = [runner.explain(compiled=False) for runner in runners]
    for name in ("tables/wide1", "tables/narrow3", "lone", "w"):
        own, other = (table[name] for table in tables)
        assert (own.alpha, own.partitions, own.choice) == (
            other.alpha,
            other.partitions,
            other.choice,
        )
        if own.sparse:  # by the rows that were touched: bytes are counted for all together
            assert own.measured == pytest.approx(other.measured, rel=0.5)
    wire = runners[0].setup.wire.traffic()
    total = sum(v.measured for v in tables[0].variables if v.sparse)
    assert total == pytest.approx(
        sum(wire.per_machine(name) for name in runners[0].step.tables) / 2
    )
    assert "tables/wide1 [21, 3]" in str(tables[0])


@pytest.mark.nightly
def test_tables_are_split_anew_and_started_anew_together(tmp_path):
    runner = make(optax.adam(0.1))
    runner.run(batch(0))
    runner.resplit(4)
    assert {table.n_partitions for (table,) in runner.step.tables.values()} == {4}
    [runner.run(batch(seed)) for seed in (1, 2)]
    assert (
        worst(
            (runner.params, runner.opt_state),
            trained(optax.adam(0.1)),
        )
        < 2e-5
    )
    runner.reset(PARAMS)
    assert worst(runner.params, PARAMS) == 0
    [runner.run(batch(seed)) for seed in range(3)]
    assert (
        worst(
            (runner.params, runner.opt_state),
            trained(optax.adam(0.1)),
        )
        < 2e-5
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("check_finite", "text"),
    [
        (True, "push, gradients: expected finite numbers, got inf in row 7 of `tables/wide3`"),
        (
            False,
            "apply, new rows: expected finite numbers, got nan in row 7 of `tables/wide3`, whose gradient has inf",
        ),
    ],
)
def test_an_error_names_the_row_of_the_variable(check_finite, text):
    def infinite(params, batch):
        rows = []
        for k, name in enumerate(ROWS):
            rows.append(params["tables"][name][batch["ids"][:, k]])
        return (
            jnp.mean(jnp.concatenate(rows, 1) @ params["w"][:23])
            + 0 * params["lone"].sum()
            + jnp.sqrt(
                jnp.abs(
                    params["tables"]["wide3"][batch["ids"][:, 3]] - PARAMS["tables"]["wide3"][7]
                )
            ).sum()
        )

    runner = make(
        optax.adam(0.1),
        infinite,
        n_machines=1,
        check_finite=check_finite,
    )
    with pytest.raises(TableError, match=f"variable `tables/wide0 and 4 others`, {text}"):
        runner.run(
            {
                "ids": np.full((2, len(ROWS)), 7),
                "y": np.zeros(2, np.float32),
            }
        )


@pytest.mark.nightly
def test_tables_of_fewer_partitions_than_servers_stay_apart():
    assert len(make(partitions=1).build(batch(0)).step.tables) == 10
    assert len(make(partitions=1, n_machines=1).build(batch(0)).step.tables) == 3


@pytest.mark.nightly
def test_partitioners_and_readings_keep_tables_apart():
    def narrow_read(params, batch):  # of two columns of some tables
        rows = []
        for k, name in enumerate(ROWS):
            rows.append(params["tables"][name][batch["ids"][:, k]][:, : 3 if k < 4 else 2])
        return jnp.mean(jnp.concatenate(rows, 1) @ params["w"][:22]) + 0 * params["lone"].sum()

    machines = make().setup.resources
    config = px.ParallaxConfig(alpha_threshold=2.0)
    named = px.get_runner(
        loss,
        PARAMS,
        CLIPPED,
        machines,
        config,
        ["wide1,wide2"],
    ).build(batch(0))
    assert {*named.step.tables} == {
        NARROW_NAME,
        "['lone']",
        *(f"['tables']['{name}']" for name in WIDE),
    }
    assert (
        "['tables']['wide0'] and 3 others" in make(loss_fn=narrow_read).build(batch(0)).step.tables
    )


def test_the_first_batch_is_traced_and_split_once_for_a_part_and_once_joined(monkeypatch):
    calls = []
    module = sys.modules["ampjax.sparse.rewrite.split_loss"]
    find = module.find_lanes
    monkeypatch.setattr(
        module,
        "find_lanes",
        lambda *args: calls.append("split") or find(*args),
    )

    def counted(params, batch):
        calls.append("trace")
        return loss(params, batch)

    make(optax.adam(0.1), counted).run(batch(0))
    assert sorted(calls) == ["split", "split", "trace", "trace"]
