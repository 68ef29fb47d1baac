"""Runners that share their tables: the same losses as with tables of their own or at server processes, and one table where rows meet."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import SettingsError, TableError
from ampjax.sparse import Table, TableSharing

TX = optax.adagrad(0.1)
PARAMS = {
    "net/words": np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32),
    "w": np.ones(3, np.float32),
}


def loss(params, batch):
    return jnp.mean((params["net/words"][batch["ids"]] @ params["w"] - batch["y"]) ** 2)


def make(folder=None, sharing=None, params=PARAMS, tx=TX, **options):
    config = px.ParallaxConfig(
        alpha_threshold=2,
        folder=folder,
        table_sharing=sharing,
        partitions=4,
        **options,
    )
    one = Resources(
        (
            Machine(
                "a",
                (jax.local_devices()[0],),
            ),
        )
    )
    return px.get_runner(
        loss,
        params,
        tx,
        one,
        config,
    )


def batch(seed, process=None):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 20, 8)
    if process is not None:  # its own rows
        ids = 2 * (ids // 2) + process
    return {
        "ids": ids,
        "y": rng.normal(size=8).astype(np.float32),
    }


def sharers(folder, writers, **options):
    return [
        make(
            folder,
            TableSharing(writers, process, 2),
            **options,
        )
        for process in range(2)
    ]


@pytest.mark.parametrize(
    "processes",
    [
        False,
        pytest.param(
            True,
            marks=[pytest.mark.nightly, pytest.mark.slow],
        ),
    ],
)
def test_runners_with_rows_of_their_own_train_as_without_each_other(tmp_path, processes):
    shared = sharers(tmp_path, "partitioned")
    alone = [make(server_processes=processes) for _ in range(2)]
    for step in range(4):
        for process in range(2):
            part = batch(step, process)
            assert shared[process].run(part).loss == alone[process].run(part).loss
    wanted = alone[0].params["net/words"].copy()
    wanted[1::2] = alone[1].params["net/words"][1::2]
    for each in shared:
        np.testing.assert_array_equal(
            each.params["net/words"],
            wanted,
        )
    for each in alone:
        each.close()


def plain_step(tx, params, state, part):
    value, grads = jax.value_and_grad(loss)(
        params,
        part,
    )
    updates, state = tx.update(grads, state, params)
    return (
        value,
        optax.apply_updates(
            params,
            updates,
        ),
        state,
    )


def test_lock_free_runners_train_one_table_and_each_its_own_dense_variables(tmp_path):
    shared = sharers(tmp_path, "lock_free")
    plain = [
        jax.tree.map(
            jnp.asarray,
            PARAMS,
        )
        for _ in range(2)
    ]
    states = [TX.init(params) for params in plain]
    for step in range(6):
        own, other = step % 2, 1 - step % 2
        part = batch(step)
        value, plain[own], states[own] = plain_step(
            TX,
            plain[own],
            states[own],
            part,
        )
        assert shared[own].run(part).loss == pytest.approx(float(value), rel=1e-5)
        # The other one goes on with the table and its state.
        plain[other] = {
            **plain[other],
            "net/words": plain[own]["net/words"],
        }
        of_rows = states[own][0].sum_of_squares["net/words"]
        sums = {**states[other][0].sum_of_squares, "net/words": of_rows}
        states[other] = (
            states[other][0]._replace(sum_of_squares=sums),
            *states[other][1:],
        )
    for runner, params in zip(
        shared,
        plain,
        strict=True,
    ):
        for name, wanted in params.items():
            np.testing.assert_allclose(
                runner.params[name],
                wanted,
                rtol=1e-5,
            )


def test_a_runner_goes_on_with_the_rows_that_are_there(tmp_path):
    first = make(
        tmp_path,
        TableSharing("lock_free"),
    )
    first.run(batch(0))
    rows = first.params["net/words"]
    first.close()
    del first
    gc.collect()
    again = make(
        tmp_path,
        TableSharing("lock_free"),
    )
    again.build(batch(0))
    np.testing.assert_array_equal(
        again.params["net/words"],
        rows,
    )
    (folder,) = tmp_path.iterdir()
    rule = again._training.built.step.tables["['net/words']"][0].rule
    np.testing.assert_array_equal(
        Table.join(folder, rule).dense(),
        rows,
    )


def test_a_checkpoint_gives_shared_tables_their_rows_back(tmp_path):
    first = make(
        tmp_path / "tables",
        TableSharing("lock_free"),
    )
    first.run(batch(0))
    first.save(tmp_path / "checkpoint")
    saved, state = first.params, first.opt_state
    wanted = first.run(batch(1)).loss
    first.close()
    del first
    gc.collect()
    again = make(
        tmp_path / "tables",
        TableSharing("lock_free"),
    )
    again.restore(tmp_path / "checkpoint")
    again.build(batch(1))
    jax.tree.map(
        np.testing.assert_array_equal,
        again.params,
        saved,
    )
    jax.tree.map(
        np.testing.assert_array_equal,
        again.opt_state,
        state,
    )
    assert again.run(batch(1)).loss == wanted
    again.restore(tmp_path / "checkpoint")
    assert again.run(batch(1)).loss == wanted
    with pytest.raises(
        TableError,
        match="one table for process 0",
    ):
        make(
            tmp_path / "tables",
            TableSharing("lock_free"),
        ).run(batch(1))


def test_new_parameters_are_written_to_the_process_s_own_rows(tmp_path):
    runners = sharers(tmp_path, "partitioned")
    for process, runner in enumerate(runners):
        runner.run(batch(0, process))
    rows = runners[0].params["net/words"]
    runners[1].reset(PARAMS)
    rows[1::2] = PARAMS["net/words"][1::2]
    for runner in runners:
        np.testing.assert_array_equal(
            runner.params["net/words"],
            rows,
        )
    alone = make()
    part = batch(1, 1)
    assert runners[1].run(part).loss == alone.run(part).loss
    np.testing.assert_array_equal(
        runners[0].params["net/words"][1::2],
        alone.params["net/words"][1::2],
    )


def test_mistakes_are_named(tmp_path):
    first, second = sharers(tmp_path, "partitioned")
    first.run(batch(0, 0))
    with pytest.raises(
        TableError,
        match=r"net/words.*belongs to process 1, which is not there",
    ):
        first.run(batch(0))
    with pytest.raises(
        TableError,
        match="this process alone",
    ):
        first.resplit(2)
    with pytest.raises(
        TableError,
        match="one table for process 0",
    ):
        make(
            tmp_path,
            TableSharing("partitioned", 0, 2),
        ).run(batch(0, 0))
    with pytest.raises(
        TableError,
        match=r"`lazy`.*table_mode",
    ):
        make(
            tmp_path / "adam",
            TableSharing(),
            tx=optax.adam(0.1),
        ).run(batch(0))
    lazy = make(
        tmp_path / "adam",
        TableSharing(),
        tx=optax.adam(0.1),
        table_mode="lazy",
    )
    assert np.isfinite(lazy.run(batch(0)).loss)
    assert second.run(batch(0, 1)).loss > 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"table_sharing": "lock_free"}, "a TableSharing or None"),
        ({"table_sharing": TableSharing()}, "setting `folder`"),
        ({"run_option": "ar"}, "`hybrid` or `ps`"),
        ({"server_processes": True}, "setting `server_processes`"),
        ({"search_partitions": True}, "setting `search_partitions`"),
    ],
    ids=str,
)
def test_settings_that_exclude_each_other(tmp_path, options, text):
    if "table_sharing" not in options:
        options = {"table_sharing": TableSharing(), "folder": tmp_path, **options}
    with pytest.raises(SettingsError, match=text):
        px.ParallaxConfig(**options)


def test_runners_with_processes_of_their_own_share_no_tables(tmp_path):
    config = px.ParallaxConfig(
        folder=tmp_path,
        table_sharing=TableSharing(),
    )
    machines = {
        "machines": [{"host": "a", "address": "localhost", "devices": [0]}],
    }
    with pytest.raises(
        SettingsError,
        match="without an `address`",
    ):
        px.get_runner(loss, PARAMS, TX, machines, config)
