"""A trainer in files: what goes on from them gives what it would have given."""

import json

import jax
import numpy as np
import optax
import pytest
from support import graphs
from support.resumed import net
from support.transforms import adam

import ampjax as amp
from ampjax.errors import DataError, TableError
from ampjax.sparse.table import table_files

pytestmark = pytest.mark.slow

QUIET = {"progress": False}


def data(n=10):
    rng = np.random.default_rng(0)
    result = []
    for _ in range(n):
        result.append(
            {
                "x": rng.normal(size=4).astype(np.float32),
                "label": np.int32(rng.integers(0, 3)),
            }
        )
    return result


def trainer(graph=None, tx=None, **options):
    options = {
        "max_active_keys": 3,
        "min_update_interval": 4,
        **options,
    }  # 10 instances: two gradients wait in the end
    return amp.Trainer(
        graph or net(),
        tx or adam(0.01),
        **options,
    )


def equal(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.nightly
def test_shared_parameters_are_there_once(tmp_path):
    instances = graphs.tied_data(
        [2, 1, 3, 1, 2]
    )  # 9 tokens and 5 last states: two gradients wait in the end
    first = trainer(graphs.tied())
    first.fit(instances, epochs=1, **QUIET)
    first.save(tmp_path / "saved")
    second = trainer(graphs.tied())
    second.restore(tmp_path / "saved")
    assert {*second.params} == {"embed"} and second.session.scheduler.updates.counts == {"embed": 2}
    equal(*(each.fit(instances, epochs=1, **QUIET) and each.params for each in (first, second)))


@pytest.mark.first_case
@pytest.mark.parametrize(
    "replicas, options",
    [
        (1, {}),
        (2, {"replica_sync": ("every_k", 3)}),
        (1, {"mode": "pipeline"}),
    ],
    ids=["asynchronous", "replicas", "pipeline"],
)
def test_what_goes_on_from_files_is_what_would_have_been(tmp_path, replicas, options):
    graph = net(replicas)
    first = trainer(graph, **options)
    first.fit(data(), epochs=2, **QUIET)
    first.save(tmp_path / "saved")
    second = trainer(graph, **options)
    second.restore(tmp_path / "saved")
    equal(
        (second.params, second.gradients),
        (first.params, first.gradients),
    )
    histories = []
    for one in (first, second):
        histories.append(one.fit(data(), epochs=2, **QUIET))
    equal(
        (second.params, second.gradients),
        (first.params, first.gradients),
    )
    told = []
    for history in histories:
        told.append([(e.epoch, e.train, e.staleness_mean, e.updates) for e in history.epochs])
    assert told[0] == told[1]
    assert told[0][0][0] == 3


def test_a_callback_saves_and_what_was_saved_before_is_replaced(tmp_path):
    first = trainer()
    first.fit(
        data(),
        epochs=2,
        callbacks=[lambda t, epoch: t.save(tmp_path / "saved")],
        **QUIET,
    )
    second = trainer()
    second.restore(tmp_path / "saved")
    equal(second.params, first.params)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@pytest.mark.first_case
@pytest.mark.parametrize(
    "sizes, tx",
    [
        ((1, 5), None),
        ((), optax.sgd(0.1)),
        ((2,), None),
    ],
    ids=["shape", "tx", "nodes"],
)
def test_another_model_is_refused_and_nothing_changes(tmp_path, sizes, tx):
    first = trainer()
    first.fit(data(), **QUIET)
    first.save(tmp_path / "saved")
    second = trainer(net(*sizes), tx)
    before = second.params
    with pytest.raises(DataError, match="checkpoint"):
        second.restore(tmp_path / "saved")
    equal(second.params, before)
    second.fit(data(), **QUIET)


def test_a_damaged_file_is_refused_and_nothing_changes(tmp_path):
    first = trainer()
    first.fit(data(), **QUIET)
    first.save(tmp_path / "saved")
    largest = max(
        (tmp_path / "saved").rglob("*.bin"),
        key=lambda path: path.stat().st_size,
    )
    largest.write_bytes(largest.read_bytes()[:-3])
    second = trainer()
    before = second.params
    with pytest.raises(TableError):
        second.restore(tmp_path / "saved")
    equal(second.params, before)


NOTES = {
    "no trainer's": lambda notes: notes.clear(),
    "another node": lambda notes: notes["updates"]["counts"].update(other=1),
    "text for a number": lambda notes: notes["updates"]["versions"].update(layer="1"),
    "no clock": lambda notes: notes.update(virtual_ns=None),
    "another generator": lambda notes: notes["rng"].update(bit_generator="MT19937"),
}


@pytest.mark.parametrize("change", NOTES)
def test_notes_that_no_trainer_wrote_are_refused_and_nothing_changes(tmp_path, change):
    first = trainer()
    first.save(tmp_path / "saved")
    path = tmp_path / "saved" / "dense" / table_files.MANIFEST
    body = json.loads(path.read_text())
    NOTES[change](body["notes"])
    del body["sha256"]
    path.write_text(json.dumps(body | {"sha256": table_files._digest(body)}))
    second = trainer(seed=1)
    before = second.params
    with pytest.raises(
        DataError, match="notes: expected those of a trainer like this one, got something else"
    ):
        second.restore(tmp_path / "saved")
    equal(second.params, before)
