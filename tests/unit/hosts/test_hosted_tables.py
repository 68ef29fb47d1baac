"""Tables on hosts: in the memory of their node's host, with the bits that they have in one process; checkpoints; recovery."""

import os
import signal

import cloudpickle
import numpy as np
import optax
import pytest
from support import table_models as models
from support.hosted import assert_same, trainer

import ampjax as amp
from ampjax.cluster.hosts.packed_programs import pack_program
from ampjax.errors import GraphError, HostError, TableError
from ampjax.sparse import Table
from ampjax.sparse.servers.processes import ServerProcesses
from ampjax.sparse.table.travelling_table import TravellingTable

QUIET = {"progress": False}
DATA = models.data(10)
OPTIONS = {
    "max_active_keys": 3,
    "min_update_interval": 6,
    "arena_rows": 64,
    "workers": 2,
    "affinity": "coloured",
}
OPTIMIZERS = {
    "adagrad": (optax.adagrad(0.1), "lazy"),
    "adam": (optax.adam(0.05), "faithful"),
}
"""The second one moves rows without gradients, too, later."""


def made(n_hosts, name="adam", **options):
    """A trainer whose table has three partitions, and the table."""
    tx, mode = OPTIMIZERS[name]
    graph, table = models.with_table(tx, mode=mode, partitions=3)
    return trainer(
        graph,
        optax.adam(0.01),
        n_hosts,
        2,
        **OPTIONS | options,
    ), table


def assert_same_state(one, other):
    """Parameters, gradients that wait, and what tables keep beside their rows."""
    assert_same(one.params, other.params)
    assert_same(one.gradients, other.gradients)
    states = []
    for run in (one, other):
        states.append(run.session.executor.store.tables["embed"].table.opt_state)
    assert_same(*states)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param("adagrad", marks=pytest.mark.nightly), "adam"],
)
def test_a_recorded_run_gives_the_same_bits_on_hosts(name, tmp_path):
    options = {
        "drop_staler_than": 0,
        "min_update_interval": 1,
        "max_dispatch_size": 2,
        "policy": "wavefront",
    }
    here, table = made(0, name, **options)
    history = here.fit(
        DATA,
        epochs=2,
        record=tmp_path / "run",
        **QUIET,
    )
    assert all(epoch.dropped for epoch in history.epochs), (
        "all go forth before the first comes back"
    )
    there, other = made(2, name, **options)
    again = amp.replay(tmp_path / "run", there, DATA, **QUIET)
    assert_same_state(there, here)
    assert other.version == table.version > 0
    np.testing.assert_array_equal(other.dense(), table.dense())
    assert [epoch.train for epoch in again.epochs] == [epoch.train for epoch in history.epochs]
    assert here.evaluate(DATA) == there.evaluate(DATA)
    (owner,) = [host for host in there.hosts if "embed" in host.nodes]
    assert "embed" in owner.nodes and len(there.hosts) == 2
    there.close()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_checkpoint_of_hosts_is_one_of_a_process_and_the_other_way_round(tmp_path):
    here, _ = made(0)
    there, table = made(2)
    here.fit(DATA, epochs=1, **QUIET)
    assert here.gradients["embed"][1], "some gradients wait"
    here.save(tmp_path / "saved")
    there.restore(tmp_path / "saved")
    assert_same_state(there, here)
    there.accumulate(DATA[:3], update=False)
    there.save(tmp_path / "saved")
    here.restore(tmp_path / "saved")
    assert_same_state(there, here)
    before = table.version
    there.fit(DATA, epochs=1, **QUIET)
    assert table.version == before, "the table of this program is as it was last brought"
    np.testing.assert_array_equal(there.params["embed"], table.dense())
    assert table.version > before
    there.restart_hosts()  # with the rows that this program has now, and no gradients
    np.testing.assert_array_equal(there.params["embed"], table.dense())
    assert not np.any(there.gradients["embed"][0])
    there.close()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_fit_on_processes_goes_on_when_the_host_of_the_table_dies(tmp_path):
    graphs = []
    for _ in range(2):
        graphs.append(models.with_table(optax.adagrad(0.1))[0])
    options = {**OPTIONS, "mode": "pipeline"}
    whole = trainer(
        graphs[0],
        optax.adam(0.01),
        0,
        2,
        **options,
    )
    whole.fit(DATA, epochs=3, **QUIET)
    there = amp.Trainer(
        graphs[1],
        optax.adam(0.01),
        hosts=2,
        snapshot=tmp_path / "snapshots",
        **options,
    )
    (owner,) = [host for host in there.hosts if "embed" in host.nodes]

    def kill(trainer, epoch):
        if epoch.epoch == 2 and owner.process in [host.process for host in trainer.hosts]:
            os.kill(owner.process, signal.SIGKILL)

    history = there.fit(
        DATA,
        epochs=3,
        callbacks=[kill],
        **QUIET,
    )
    assert len(history) == 3 and len(history.resumed) == 1
    assert_same(there.params, whole.params)
    there.close()


@pytest.mark.nightly
@pytest.mark.slow
def test_tables_that_no_host_can_keep(tmp_path):
    graph, _ = models.with_table(optax.sgd(0.1), folder=tmp_path)
    expected = r"node `embed`, on hosts: expected a table in this process's memory, got one in mapped files"
    with pytest.raises(GraphError, match=expected):
        trainer(graph, None, 2, 2)
    with ServerProcesses(1) as processes:
        graph, _ = models.with_table(optax.sgd(0.1), processes=processes)
        with pytest.raises(
            GraphError, match=r"got one at server processes.*\n?.*without `folder` and `processes`"
        ):
            trainer(graph, None, 2, 2)


def test_an_error_names_the_instance():
    instances = models.data(2)
    instances[1]["word"].payload[0, 0] = models.WORDS
    there, _ = made(2)
    with pytest.raises(
        HostError, match=r"node `embed`, id of instance 1: expected a row of its table"
    ):
        there.fit(instances, **QUIET)
    there.close()


# What travels


@pytest.mark.nightly
def test_trainers_of_one_graph_keep_their_tables_apart():
    """After as many updates, so that the tables' versions are the same, each has its own rows."""
    graph, table = models.with_table(optax.adagrad(0.1))
    trainers = []
    for _ in range(2):
        trainers.append(
            trainer(
                graph,
                optax.adam(0.01),
                2,
                2,
                **OPTIONS | {"min_update_interval": 1},
            )
        )
    rows = []
    for number, there in enumerate(trainers):
        there.fit(
            models.data(6, seed=number, length=2),
            epochs=1,
            **QUIET,
        )
        rows.append(there.params["embed"])
    assert table.version > 0
    assert np.any(rows[0] != rows[1])
    for there, own in zip(trainers, rows, strict=True):
        np.testing.assert_array_equal(there.params["embed"], own)
        there.close()


def test_a_table_is_pickled_without_its_rows():
    table = Table(
        np.ones((100_000, 8), np.float32),
        optax.sgd(0.5),
    )
    bytes_sent = pack_program(amp.nn.TableEmbed(table), "a layer")
    assert len(bytes_sent) < table.shape[0]
    elsewhere = cloudpickle.loads(bytes_sent).table
    assert (elsewhere.shape, elsewhere.dtype) == (table.shape, table.dtype)
    assert "in another process" in repr(elsewhere)
    with pytest.raises(
        TableError, match="expected rows in this process, got a table that is in another process"
    ):
        elsewhere.pull(np.array([1]))


def test_files_bring_rows_state_and_version():
    tx = optax.adam(0.1)
    one, other = (Table(models.VALUES, tx, partitions=p, mode="faithful") for p in (2, 3))
    one.push(
        np.array([2, 3]),
        np.ones((2, models.FEATURES), np.float32),
    )
    TravellingTable.of(other).take_files(TravellingTable.of(one).as_files())
    assert (other.version, other.n_partitions) == (1, 2)
    assert_same(
        (other.dense(), other.opt_state),
        (one.dense(), one.opt_state),
    )
    with pytest.raises(
        TableError, match=r"take_files: expected the files of a saved table, got `\.\./x`"
    ):
        TravellingTable.of(other).take_files({"../x": np.zeros(1, np.uint8)})
