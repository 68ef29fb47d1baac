"""Runners whose tables keep rows in eight bits."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.errors import SettingsError, TableError
from ampjax.optim import rowwise_adagrad
from ampjax.sparse import TableSharing
from ampjax.sparse.narrow.narrow_rows import ROW_DTYPES, NarrowRows
from ampjax.sparse.table import table_files

PARAMS = {
    "words": np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32),
    "tags": np.random.default_rng(1).normal(size=(40, 3)).astype(np.float32),
    "w": np.ones((3, 2), np.float32),
}


def loss(params, batch):
    rows = params["words"][batch["words"]] + params["tags"][batch["tags"]]
    return jnp.mean((rows @ params["w"] - batch["y"]) ** 2)


def batch(seed):
    rng = np.random.default_rng(seed)
    return {
        "words": rng.integers(0, 60, 4),
        "tags": rng.integers(0, 40, 4),
        "y": rng.normal(size=(4, 2)).astype(np.float32),
    }


def make(tx=None, params=PARAMS, **options):
    options = {"row_dtype": "int8", "alpha_threshold": 2.0} | options
    return px.get_runner(
        loss,
        params,
        optax.adagrad(0.1) if tx is None else tx,
        config=px.ParallaxConfig(**options),
    )


def trained(n=5, **options):
    runner = make(**options)
    for seed in range(n):
        runner.run(batch(seed))
    return runner


def same(one, other):
    for a, b in ((one.params, other.params), (one.opt_state, other.opt_state)):
        jax.tree.map(np.testing.assert_array_equal, a, b)


def rounded(rows, row_dtype):
    narrow = NarrowRows(row_dtype, rows.shape[1:])
    return narrow.read(narrow.stored(rows))


@pytest.mark.parametrize("row_dtype", ROW_DTYPES)
def test_parameters_and_exports_are_float32(row_dtype, tmp_path):
    runner = make(row_dtype=row_dtype)
    runner.build(batch(0))
    for name in ("words", "tags"):
        assert (runner.params[name] == rounded(PARAMS[name], row_dtype)).all()
    for seed in range(3):
        runner.run(batch(seed))
    runner.export(tmp_path / "all.npz")
    with np.load(tmp_path / "all.npz") as file:
        for name, leaf in runner.params.items():
            assert file[name].dtype == np.float32
            assert (file[name] == leaf).all()
    rows = runner.rows("words", [5, 7])
    assert rows.dtype == np.float32
    assert (rows == runner.params["words"][[5, 7]]).all()
    assert (
        runner.explain(compiled=False)["words"].choice == f"table at servers, rows in {row_dtype}"
    )


def test_a_run_has_the_same_bits_again_however_it_is_split(tmp_path):
    first = trained()
    same(trained(), first)
    same(trained(folder=tmp_path), first)
    same(trained(partitions=4), first)
    other = trained(seed=1)
    assert (other.params["words"] != first.params["words"]).any()


@pytest.mark.slow
@pytest.mark.nightly
def test_server_processes_and_tables_on_every_machine_have_the_same_bits():
    first = trained()
    with trained(partitions=2, server_processes=True) as runner:
        same(runner, first)
    same(trained(run_option="ps"), first)
    same(trained(run_option="ar"), first)


def test_runners_that_share_a_table_have_the_bits_of_one(tmp_path):
    sharing = TableSharing(process=0)
    same(
        trained(folder=tmp_path, table_sharing=sharing, partitions=2),
        trained(),
    )


def test_runners_that_share_a_table_have_seeds_of_their_own(tmp_path):
    runners = []
    for process in range(2):
        sharing = TableSharing("lock_free", process, 2)
        options = {"folder": tmp_path, "table_sharing": sharing, "seed": process}
        runner = make(tx=optax.sgd(0.1), **options)
        runner.run(batch(process))
        runners.append(runner)
    first, second = runners
    assert (first.params["words"] == second.params["words"]).all()
    assert (first.params["words"] != rounded(PARAMS["words"], "int8")).any()


@pytest.mark.parametrize(
    "tx",
    [
        optax.adagrad(0.1),
        rowwise_adagrad(0.1),
        optax.adam(0.1),
    ],
)
def test_each_checkpoint_of_a_chain_is_restored_to_the_bit(tx, tmp_path):
    options = {"tx": tx, "table_mode": "lazy"}
    runner = make(**options)
    base = None
    seeds = itertools.count()
    for number in range(3):
        for _ in range(3):
            runner.run(batch(next(seeds)))
        folder = tmp_path / f"c{number}"
        runner.save(folder, base)
        base = folder
        fresh = make(**options)
        fresh.restore(base)
        same(fresh, runner)
        saved = table_files.read_manifest(folder / "table-0")
        assert saved["is_difference"] == (number > 0)
        rows = saved["files"][1 if number else 0]
        assert (
            rows["dtype"],
            rows["shape"][1:],
        ) == ("uint8", [4])
    for seed in (50, 51):
        assert fresh.run(batch(seed)).loss == runner.run(batch(seed)).loss
    same(fresh, runner)


def test_a_checkpoint_is_read_in_other_bits(tmp_path):
    runner = trained()
    runner.save(tmp_path / "narrow")
    wide = make(row_dtype=None)
    wide.build(batch(0))
    wide.restore(tmp_path / "narrow")
    same(wide, runner)
    wide.save(tmp_path / "wide")
    other = make(row_dtype={"words": "float8_e5m2"})
    other.build(batch(0))
    other.restore(tmp_path / "wide")
    assert (other.params["words"] == rounded(runner.params["words"], "float8_e5m2")).all()
    assert (other.params["tags"] == runner.params["tags"]).all()


def test_tables_are_chosen_by_pattern_and_stacked_alike():
    names = [f"t{i}" for i in range(12)]
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=(20, 3)).astype(np.float32) for name in names}

    def total(params, batch):
        return jnp.mean(sum(params[name][batch["ids"]].sum(axis=1) for name in names) ** 2)

    config = px.ParallaxConfig(
        alpha_threshold=2,
        row_dtype={"t?": "int8", "t11": "float8_e4m3fn"},
    )
    runner = px.get_runner(
        total,
        params,
        optax.sgd(2.0**-6),
        config=config,
    )
    runner.run({"ids": np.arange(4)})
    explained = runner.explain(compiled=False)
    assert explained["t3"].choice.endswith("rows in int8")
    assert explained["t10"].choice == "table at servers"
    assert explained["t11"].choice.endswith("rows in float8_e4m3fn")
    for name, row_dtype in (("t3", "int8"), ("t11", "float8_e4m3fn")):
        assert (runner.params[name][5:] == rounded(params[name], row_dtype)[5:]).all()
    assert (runner.params["t10"][5:] == params["t10"][5:]).all()


def test_rows_are_assigned_and_added():
    runner = trained()
    before = runner.params["words"]
    runner.assign_rows(
        "words",
        [3],
        np.full((1, 3), 0.1),
    )
    assert (
        runner.params["words"][3]
        == rounded(
            np.full(
                (1, 3),
                0.1,
                np.float32,
            ),
            "int8",
        )
    ).all()
    assert (np.delete(runner.params["words"], 3, 0) == np.delete(before, 3, 0)).all()
    runner.grow_rows("tags", np.ones((2, 3)))
    runner.run(batch(9))
    assert (runner.params["tags"][40:] == 1).all()
    assert runner.explain(compiled=False)["tags"].choice.endswith("rows in int8")


def test_what_can_not_be_is_refused():
    for wrong in ("bfloat16", {"words": "int4"}, 8, {3: "int8"}):
        with pytest.raises(
            SettingsError, match="setting `row_dtype`: expected None, one of `int8`"
        ):
            px.ParallaxConfig(row_dtype=wrong)
    with pytest.raises(
        SettingsError, match="setting `row_dtype`, `word`: expected a name in one of"
    ):
        make(row_dtype={"word": "int8"}).run(batch(0))
    with pytest.raises(TableError, match=r"words.*float32 where `row_dtype` is int8, got bfloat16"):
        make(params=PARAMS | {"words": PARAMS["words"].astype("bfloat16")}).run(batch(0))
    with pytest.raises(TableError, match="mode: expected `lazy` where rows are kept in int8"):
        make(tx=optax.adam(0.1)).run(batch(0))
    dense = make(keep_dense=("words", "tags"), alpha_threshold=0.4)
    dense.run(batch(0))
    assert dense.explain(compiled=False)["words"].choice.startswith("allreduce")
