"""A trainer whose graph has a node with a table in host memory: what it says, keeps in files and refuses."""

import jax
import numpy as np
import optax
import pytest
from support import table_models as models

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import (
    DataError,
    GraphError,
    MessageError,
    ParameterError,
    ServerError,
    SettingsError,
    TableError,
)
from ampjax.plan.affinity import assign
from ampjax.plan.node_memory import kept_bytes
from ampjax.sparse import Table
from ampjax.sparse.servers.processes import ServerProcesses

QUIET = {"progress": False}
DATA = models.data(10)


def trainer(graph, **options):
    options = {"max_active_keys": 3, "min_update_interval": 6, "compile_ahead": False, **options}
    return amp.Trainer(
        graph,
        optax.adam(0.01),
        cost=lambda plan: lambda d: 1 + d.n_rows,
        **options,
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_a_checkpoint_holds_the_table_and_gradients_that_wait(tmp_path):
    graph, table = models.with_table(optax.adam(0.1), partitions=3)
    first = trainer(graph)
    first.fit(DATA, epochs=1, **QUIET)
    _, waiting = first.gradients["embed"]
    version = table.version
    assert waiting > 0 and version > 0
    first.save(tmp_path / "saved")
    other, again = models.with_table(optax.adam(0.1), partitions=2)
    second = trainer(other)
    second.restore(tmp_path / "saved")
    assert (again.version, again.n_partitions) == (version, 2)
    for each in (first, second):
        each.fit(DATA, epochs=1, **QUIET)
    jax.tree.map(np.testing.assert_array_equal, first.params, second.params)
    jax.tree.map(np.testing.assert_array_equal, table.opt_state, again.opt_state)
    assert table.version == again.version > version


def test_a_checkpoint_of_a_graph_without_the_table_is_refused(tmp_path):
    graph, table = models.with_table(optax.sgd(0.1))
    trainer(models.dense()).save(tmp_path / "dense")
    ours = trainer(graph)
    with pytest.raises(DataError, match="how many wait at"):
        ours.restore(tmp_path / "dense")
    ours.save(tmp_path / "ours")
    with pytest.raises(DataError, match="tables: expected"):
        trainer(models.dense()).restore(tmp_path / "ours")
    assert table.version == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_a_fit_goes_on_from_a_snapshot(tmp_path):
    whole, table = models.with_table(optax.adagrad(0.1))
    trainer(whole, snapshot=tmp_path / "whole").fit(
        DATA,
        epochs=3,
        **QUIET,
    )
    cut, _ = models.with_table(optax.adagrad(0.1))
    trainer(cut, snapshot=tmp_path / "cut").fit(
        DATA,
        epochs=1,
        **QUIET,
    )
    again, resumed = models.with_table(optax.adagrad(0.1))
    trainer(again, snapshot=tmp_path / "cut").fit(
        DATA,
        epochs=3,
        resume=True,
        **QUIET,
    )
    np.testing.assert_array_equal(table.dense(), resumed.dense())


@pytest.mark.nightly
@pytest.mark.slow
def test_a_recorded_run_replays_with_a_table_that_starts_alike(tmp_path):
    graph, table = models.with_table(optax.adagrad(0.1))
    trainer(graph).fit(
        DATA,
        epochs=2,
        record=tmp_path / "run",
        **QUIET,
    )
    other, again = models.with_table(optax.adagrad(0.1))
    amp.replay(tmp_path / "run", trainer(other), DATA)
    np.testing.assert_array_equal(table.dense(), again.dense())


@pytest.mark.nightly
@pytest.mark.slow
def test_verify_compares_with_all_rows_and_leaves_them_as_they_were():
    graph, table = models.with_table(optax.sgd(0.1))
    found = amp.verify(
        graph,
        DATA[:3],
        quick=True,
        progress=False,
    )
    assert found.ok, found
    assert table.version == 0


def test_a_table_needs_no_memory_on_devices():
    graph, _ = models.with_table(optax.sgd(0.1))
    kept = kept_bytes(graph)
    assert kept["embed"] == 0 and kept["output"] > 0
    bytes_of_both = trainer(graph).device_bytes, trainer(models.dense()).device_bytes
    assert all(
        bytes_of_both[0][part] < bytes_of_both[1][part]
        for part in ("params", "opt_state", "accumulators")
    )


def test_one_worker_runs_all_that_reads_a_table():
    """Its updates come before what reads it later, as at any node."""
    graph, _ = models.with_table(optax.sgd(0.1), copies=2)
    placed = assign(graph, 2)
    assert placed["output/0"] != placed["output/1"] and placed["embed/0"] == placed["embed/1"]


@pytest.mark.nightly
@pytest.mark.slow
def test_tables_in_files_and_at_server_processes(tmp_path):
    found = []
    with ServerProcesses(2) as processes:
        for kept in (
            {},
            {"folder": tmp_path},
            {"processes": processes, "servers": 2, "partitions": 4},
        ):
            graph, table = models.with_table(optax.adagrad(0.1), **kept)
            trainer(graph).fit(DATA, **QUIET)
            found.append(table.dense())
    for rows in found[1:]:
        np.testing.assert_allclose(rows, found[0], rtol=1e-6)
    with pytest.raises(ServerError):
        trainer(graph).fit(DATA, **QUIET)


def test_computed_ids_are_read_back():
    table = Table(models.VALUES, optax.sgd(0.1))
    with ag.Graph() as g:
        word = ag.npt(
            "next",
            lambda word: (word + 1) % models.WORDS,
        )(ag.pump("word", dtype="int32"))
        ag.sink(
            "row",
            ag.ppt("embed", amp.nn.TableEmbed(table))(word),
        )
    ids = np.array([3, 11, 0], np.int32)
    rows = trainer(g).predict([{"word": i} for i in ids])["row"].payload
    np.testing.assert_array_equal(
        np.array(rows),
        models.VALUES[(ids + 1) % models.WORDS],
    )


def test_two_nodes_may_read_one_table():
    table = Table(models.VALUES, optax.sgd(0.1))
    with ag.Graph() as g:
        x = ag.ppt(
            "first",
            amp.nn.TableEmbed(table),
        )(ag.pump("x", dtype="int32"))
        y = ag.ppt(
            "second",
            amp.nn.TableEmbed(table),
        )(ag.pump("y", dtype="int32"))
        ag.loss(
            "loss",
            lambda x, y: (x * y).sum(),
        )(
            x,
            y,
        )
    assert {*g.parameterised} == {"first"}
    ours = trainer(g, mode="sync", gradient="sum")
    ours.fit(
        [
            {
                "x": np.int32(1),
                "y": np.int32(2),
            }
        ],
        **QUIET,
    )
    want = models.VALUES.copy()
    want[1] = want[1] - 0.1 * models.VALUES[2]
    want[2] = want[2] - 0.1 * models.VALUES[1]
    np.testing.assert_allclose(ours.params["first"], want, rtol=1e-6)
    assert ours.statistics.nodes["first"].updates == 1


@pytest.mark.parametrize("bad", [-1, models.WORDS])
def test_an_id_outside_of_the_table_names_node_and_instance(bad):
    graph, table = models.with_table(optax.sgd(0.1))
    word = ag.messages(
        np.array(
            [[0, 1], [2, bad]],
            np.int32,
        ),
        t=[0, 1],
    )
    instances = [
        DATA[0],
        {
            "word": word,
            "tag": ag.messages(
                np.zeros(2, np.int32),
                t=[0, 1],
            ),
        },
    ]
    with pytest.raises(
        MessageError, match=rf"node `embed`, id of instance 1: expected .*\[0, 12\), got {bad}"
    ):
        trainer(graph).fit(instances, **QUIET)
    assert np.isfinite(table.dense()).all()


def test_what_does_not_fit_is_refused():
    table = Table(models.VALUES, optax.sgd(0.1))
    layer = amp.nn.TableEmbed(table)
    with pytest.raises(SettingsError, match=r"an `ampjax\.sparse\.Table`, got ndarray"):
        amp.nn.TableEmbed(models.VALUES)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="none: its table has an optimizer of its own"):
        models.build(layer, tx=optax.sgd(0.1))
    with ag.Graph():
        word = ag.pump("word", dtype="int32")
        ag.sink(
            "rows",
            ag.ppt("first", layer, min_update_interval=3)(word),
        )
        with pytest.raises(GraphError, match="`second`, min_update_interval: expected 3"):
            ag.ppt("second", layer, min_update_interval=4)(word)
        with pytest.raises(GraphError, match="parameters that lie on a device"):
            ag.ppt("tied", lambda p, x: x, params_of="first")(word)
    with pytest.raises(GraphError, match="Declare the pump with"), ag.Graph():
        ag.ppt("embed", layer)(ag.pump("x"))
    graph = models.build(layer)
    with pytest.raises(ParameterError, match="none: its table has its rows"):
        trainer(graph, params={"embed": models.VALUES})
    ours = trainer(graph)
    with pytest.raises(ParameterError, match="none: its table has its rows"):
        ours.set_params(ours.params)
    assert table.version == 0


def test_a_table_takes_over_what_another_is():
    table, other = (Table(models.VALUES, optax.adagrad(0.1), partitions=p) for p in (1, 3))
    held = amp.nn.TableEmbed(table)
    other.push(
        np.array([2]),
        np.ones((1, models.FEATURES), np.float32),
    )
    want = other.dense()
    table.take_over(other)
    del other
    assert (held.table.version, held.table.n_partitions) == (1, 3)
    np.testing.assert_array_equal(held.table.dense(), want)
    with pytest.raises(TableError, match=r"take_over: expected a table \(\(12, 4\), 'float32'\)"):
        table.take_over(
            Table(
                models.VALUES[:3],
                optax.sgd(0.1),
            )
        )
