"""Logs of updates: what is in them is what was decided, whatever the graph and the schedule; and what is refused."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs
from support.effort import examples
from support.laws import GRAPHS_THAT_SHARE, Engine, gives_gradients, random_one, replayed, schedules

import ampjax as amp
from ampjax.errors import DataError, SettingsError
from ampjax.ir.state import INSTANCE
from ampjax.sched.decisions.dispatch import FORWARD
from ampjax.trace.update_log import UpdateLog, read_update_log


class ControlLog(UpdateLog):
    """A log of a run without payloads, whose dispatches are never carried out."""

    def before_kernels(self, dispatches):
        self.after_kernels(dispatches)
        self.after_changes(dispatches)


class Lineage:
    """Keeps anew who brought which rows to each update, from nothing but the order of dispatches."""

    def __init__(self, graph):
        self.versions = dict.fromkeys(graph.parameterised, 0)
        self.seen = {}
        self.held = {node: Counter() for node in graph.parameterised}
        self.updates = []

    def __call__(self, d):
        if d.stage is not None:
            if d.sizes is None:
                sizes = [1] * len(d.states)
            else:
                sizes = d.sizes.tolist()
            keys = []
            for state in d.states.tolist():
                keys.append((d.stage.number, *state))
            if d.direction == FORWARD and d.stage.outputs:
                self.seen |= {key: dict(self.versions) for key in keys}
            for key, instance, n in zip(
                keys,
                d.states[:, INSTANCE].tolist(),
                sizes,
                strict=True,
            ):
                if d.stage.outputs:
                    seen = self.seen.get(key, self.versions)
                else:
                    seen = self.versions
                for node in d.stage.parameterised if gives_gradients(d) and n else ():
                    self.held[node.params_name][instance, seen[node.params_name]] += n
        for change in d.changes:
            self.versions[change.node] += 1
            self.updates.append(
                (
                    change.node,
                    self.versions[change.node],
                    change.count,
                    dict(self.held[change.node]),
                )
            )
            self.held[change.node].clear()


@pytest.mark.nightly
@settings(max_examples=examples(90))
@given(
    GRAPHS_THAT_SHARE,
    schedules(),
    st.integers(1, 9),
    st.sampled_from([None, 0, 2]),
)
@pytest.mark.slow
def test_every_gradient_is_in_one_update_with_the_version_that_it_saw(
    folder, seed, schedule, interval, budget
):
    options = {"min_update_interval": interval, "max_staleness": budget}
    schedule = replace(schedule, settings=replace(schedule.settings, **options))
    engine = Engine(random_one(seed).graph, None, schedule)
    lineage = Lineage(engine.graph)
    engine.watchers.append(lineage)
    with (
        replayed("run_control", seed, schedule),
        ControlLog(
            folder / "log",
            engine.scheduler.contents.gradients,
            lambda: 3,
        ) as log,
    ):
        engine.instruments.append(log)
        engine.run(random_one(seed).instances)
    told = read_update_log(folder / "log")
    for update, (node, version, rows, held) in zip(told, lineage.updates, strict=True):
        entries = zip(
            update.instance.tolist(),
            update.seen.tolist(),
            update.gradient_rows.tolist(),
            strict=True,
        )
        assert update.node == node
        assert update.version == version
        assert update.rows == rows
        assert {(i, seen): n for i, seen, n in entries} == held
        assert sum(held.values()) == rows
        assert (update.epoch == 3).all()
        assert (update.staleness >= 0).all()
        assert budget is None or update.staleness.max(initial=0) <= budget


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


def fitted(
    folder,
    epochs=2,
    resume=False,
    snapshot=None,
    **options,
):
    """A fit of a chain of two nodes, and its log."""
    trainer = amp.Trainer(
        graphs.chain(2),
        optax.sgd(0.01),
        snapshot=snapshot,
        **{"min_update_interval": 4, **options},
    )
    data = graphs.chain_data(10)
    trainer.fit(
        data,
        epochs=epochs,
        update_log=folder / "fit",
        resume=resume,
        progress=False,
    )
    return trainer, read_update_log(folder / "fit")


def test_a_fit_logs_each_update_and_its_epoch(folder):
    trainer, updates = fitted(folder, max_active_keys=3)
    versions = trainer.session.scheduler.updates.versions
    for node in ("f0", "f1"):
        own = [u for u in updates if u.node == node]
        assert [u.version for u in own] == [
            *range(
                1,
                versions[node] + 1,
            )
        ]
        left = trainer.gradients[node][1]
        assert sum(u.rows for u in own) == sum(u.gradient_rows.sum() for u in own) == 20 - left
        counts = Counter(
            (e, i) for u in own for e, i in zip(u.epoch.tolist(), u.instance.tolist(), strict=True)
        )
        assert set(counts) <= {(e, i) for e in (1, 2) for i in range(10)}
        assert set(counts.values()) == {1}
    assert repr(updates[0]).startswith("LoggedUpdate('f") and "staleness at most" in repr(
        updates[0]
    )
    stats = trainer.statistics.nodes["f0"]
    assert max(u.staleness.max() for u in updates if u.node == "f0") >= stats.staleness_max


def test_a_resumed_fit_goes_on_with_its_log(tmp_path):
    options = {"mode": "pipeline", "max_active_keys": 5}
    _, whole = fitted(tmp_path, epochs=3, **options)
    fitted(tmp_path, epochs=2, snapshot=tmp_path / "snapshots", **options)
    with (tmp_path / "fit").open(
        "a"
    ) as file:  # the killed run had begun its third epoch, and was killed while it wrote
        file.write(
            json.dumps(
                {
                    **json.loads(_lines(tmp_path)[1]),
                    "version": 5,
                }
            )
            + "\n"
            + _lines(tmp_path)[1][:30]
        )
    _, resumed = fitted(
        tmp_path,
        epochs=3,
        resume=True,
        snapshot=tmp_path / "snapshots",
        **options,
    )
    assert [str(vars(u)) for u in resumed] == [str(vars(u)) for u in whole]
    assert len(whole) == 12


def _lines(folder):
    return (folder / "fit").read_text().splitlines()


def test_a_log_is_whole_whenever_the_run_is_killed(tmp_path):
    """After each epoch its updates are in the file, so that a resumed fit finds them there."""

    def reads(trainer, epoch):
        told.append([u.version for u in read_update_log(tmp_path / "log") if u.node == "f1"])

    trainer = amp.Trainer(
        graphs.chain(2),
        optax.sgd(0.01),
        mode="pipeline",
        max_active_keys=5,
    )
    told = []
    trainer.fit(
        graphs.chain_data(10),
        epochs=2,
        update_log=tmp_path / "log",
        callbacks=[reads],
        progress=False,
    )
    assert told == [[1, 2], [1, 2, 3, 4]]


def test_a_second_log_does_not_know_what_was_accumulated_before(folder):
    trainer, _ = fitted(folder, epochs=1, min_update_interval=7, max_dispatch_size=1)
    left = {node: count for node, (_, count) in trainer.gradients.items()}
    trainer.fit(
        graphs.chain_data(10),
        update_log=str(folder / "second"),
        progress=False,
    )
    first = {}
    for u in reversed(read_update_log(folder / "second")):
        first[u.node] = u
    assert {node: u.rows - u.gradient_rows.sum() for node, u in first.items()} == left
    assert any(left.values())


DAMAGES = {
    "another file": (0, '{"ampjax": "trace"}'),
    "no JSON": (1, "{"),
    "no update": (1, "[]"),
    "a column that is too short": (1, None),
    "no rows": (
        1,
        '{"node": "f0", "version": 1, "rows": 1, "dropped": "2", "epoch": [], "instance": [], "seen": [], "staleness": [], "gradient_rows": []}',
    ),
    "no number": (1, '{"node": "f0", "version": true, "rows": 1}'),
}


@pytest.mark.parametrize(
    ("line", "text"),
    DAMAGES.values(),
    ids=DAMAGES,
)
def test_a_damaged_log_is_refused(tmp_path, folder, line, text):
    fitted(folder, epochs=1)
    lines = _lines(folder)
    lines[line] = text or json.dumps(
        {
            **json.loads(lines[1]),
            "seen": [],
        }
    )
    (tmp_path / "log").write_text("\n".join([*lines, ""]))
    expected = rf"update log `.*log`, line {line + 1}: expected (an update|\{{'ampjax').*\n?.*update_log=\.\.\."
    with pytest.raises(DataError, match=expected):
        read_update_log(tmp_path / "log")


def test_a_log_needs_a_path():
    trainer = amp.Trainer(graphs.chain(2))
    with pytest.raises(SettingsError, match="fit, `update_log`: expected a path"):
        trainer.fit(graphs.chain_data(2), update_log=3, progress=False)


def test_where_no_log_can_be_written_nothing_is_left_behind(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        amp.Trainer(graphs.chain(2)).fit(
            graphs.chain_data(2), update_log=tmp_path / "folder", progress=False
        )
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_columns_are_integers(folder):
    _, updates = fitted(folder, epochs=1)
    columns = []
    for name in ("epoch", "instance", "seen", "staleness", "gradient_rows"):
        columns.append(getattr(updates[0], name))
    assert {column.dtype for column in columns} == {np.dtype(np.int64)}
