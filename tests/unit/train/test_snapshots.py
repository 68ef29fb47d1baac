"""Snapshots of a fit: what they hold, what is refused, and what is done about damaged ones."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from support import resumed
from support.models import model
from support.transforms import adam

import ampjax as amp
from ampjax.errors import DataError, ReplayError, SettingsError, TableError
from ampjax.parallel.checkpoints.series import SnapshotWarning
from ampjax.sparse.table import table_files
from ampjax.train.history import History

pytestmark = pytest.mark.slow

VIRTUAL = {"cost": resumed.cost}
TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A fit that nobody kills, and its history."""
    one = resumed.trainer(tmp_path_factory.mktemp("whole"), **VIRTUAL)
    return one, resumed.fit(one)


def half_way(folder):
    """What is there of a fit that was killed in its second epoch."""
    assert resumed.killed(resumed.trainer(folder, **VIRTUAL), 28)


def go_on(folder, whole, **options):
    one = resumed.trainer(folder, **VIRTUAL)
    history = resumed.fit(one, resume=True, **options)
    resumed.require_same(whole[0], one, (whole[1], history))
    return history


def damage(snapshot, how):
    """Alters, cuts off or deletes a file of a snapshot."""
    file = max(
        (snapshot / "dense").glob("*.bin"),
        key=lambda path: path.stat().st_size,
    )
    if how == "altered":
        file.write_bytes(bytes(255 - byte for byte in file.read_bytes()))
    elif how == "cut off":
        file.write_bytes(file.read_bytes()[:-1])
    elif how == "no manifest":
        (snapshot / "dense" / table_files.MANIFEST).unlink()
    else:
        (snapshot / "dense" / table_files.MANIFEST).write_text("{")


def newest(folder):
    return sorted(
        folder.glob("snapshot-*"),
        key=lambda path: int(path.name.split("-")[1]),
        reverse=True,
    )


@pytest.mark.first_case
@pytest.mark.parametrize("how", ["altered", "cut off", "no manifest", "half a manifest"])
def test_a_damaged_snapshot_is_passed_over(tmp_path, whole, how):
    half_way(tmp_path)
    damage(newest(tmp_path)[0], how)
    with pytest.warns(SnapshotWarning, match=r"a snapshot is damaged, and `.*` was taken instead"):
        history = go_on(tmp_path, whole)
    assert "resumed" in repr(history) and history.resumed


def test_none_that_is_whole(tmp_path):
    half_way(tmp_path)
    for snapshot in newest(tmp_path):
        damage(snapshot, "altered")
    one = resumed.trainer(tmp_path, **VIRTUAL)
    before = resumed.state(one)["params"]
    with pytest.raises(TableError, match="The file was altered"):
        resumed.fit(one, resume=True)
    np.testing.assert_array_equal(one.params["layer"], before["layer"])
    assert len(newest(tmp_path)) == 2


@pytest.mark.parametrize("n", range(0, 12, 3))
def test_killed_while_a_snapshot_is_written(tmp_path, whole, monkeypatch, n):
    """At its n-th wait for the disk: what was written so far stays, as after a kill."""
    sync = table_files._sync
    left = [13 + n]

    def killed(file):
        left[0] -= 1
        if left[0] < 0:
            raise resumed.Killed
        sync(file)

    with monkeypatch.context() as patch, pytest.raises(resumed.Killed):
        patch.setattr(table_files, "_sync", killed)
        patch.setattr("ampjax.sparse.table.leftovers.sweep", lambda *args: None)
        patch.setattr("shutil.rmtree", lambda *args, **options: None)
        resumed.fit(resumed.trainer(tmp_path, **VIRTUAL))
    go_on(tmp_path, whole)
    assert all(
        path.name.startswith("snapshot-") and path.name[9:].isdigit() for path in tmp_path.iterdir()
    )


def test_a_fit_that_was_complete(tmp_path, whole):
    resumed.fit(resumed.trainer(tmp_path, **VIRTUAL))
    history = go_on(tmp_path, whole)
    assert not history.resumed and len(newest(tmp_path)) == 2


def test_more_epochs_than_before(tmp_path, whole):
    resumed.fit(resumed.trainer(tmp_path, **VIRTUAL), epochs=2)
    assert go_on(tmp_path, whole).resumed == [{"epoch": 3, "instances": 0}]


def test_an_interrupted_fit_goes_on_in_the_same_trainer(tmp_path, whole):
    def interrupt():
        raise KeyboardInterrupt

    one = resumed.trainer(tmp_path, **VIRTUAL)
    run = one.session.executor.run
    resumed.kill_at(one, 28, interrupt)
    assert resumed.fit(one).interrupted
    one.session.executor.run = run
    history = resumed.fit(one, resume=True)
    resumed.require_same(whole[0], one, (whole[1], history))


def test_a_callback_has_ended_it(tmp_path):
    def stop(trainer, epoch):
        return epoch.epoch == 2

    resumed.fit(resumed.trainer(tmp_path, **VIRTUAL), callbacks=[stop])
    assert (
        len(
            resumed.fit(
                resumed.trainer(tmp_path, **VIRTUAL),
                resume=True,
            ).epochs
        )
        == 2
    )


def test_another_fit_of_the_same_trainer(tmp_path):
    one = resumed.trainer(tmp_path, **VIRTUAL)
    resumed.fit(one, epochs=1)
    assert resumed.fit(one, epochs=1).epochs[0].epoch == 2


def test_a_checkpoint_is_read_from_it(tmp_path, whole):
    resumed.fit(resumed.trainer(tmp_path, **VIRTUAL))
    other = resumed.trainer(tmp_path / "other", **VIRTUAL)
    other.restore(newest(tmp_path)[0])
    np.testing.assert_array_equal(
        other.params["layer"],
        whole[0].params["layer"],
    )


def test_folders_of_other_runs(tmp_path):
    half_way(tmp_path)
    with pytest.raises(DataError, match=r"of another run\n?.*Pass `resume=True` to `fit`"):
        resumed.fit(resumed.trainer(tmp_path, **VIRTUAL))
    with pytest.raises(DataError, match=r"settings, max_active_keys: expected 3, got 2"):
        resumed.fit(
            resumed.trainer(tmp_path, max_active_keys=2, **VIRTUAL),
            resume=True,
        )
    with pytest.raises(DataError, match=r"dense leaves|tables"):
        resumed.fit(
            resumed.trainer(tmp_path, replicas=2, **VIRTUAL),
            resume=True,
        )
    with pytest.raises(
        DataError, match=r"resume, training data.*Pass the data that the run began with"
    ):
        one = resumed.trainer(tmp_path, **VIRTUAL)
        one.fit(
            resumed.Drawn(11),
            epochs=3,
            progress=False,
            resume=True,
        )
    resumed.trainer(tmp_path / "saved", **VIRTUAL).save(tmp_path / "saved" / "snapshot-1")
    with pytest.raises(DataError, match=r"what `Trainer.save` has"):
        resumed.fit(resumed.trainer(tmp_path / "saved", **VIRTUAL), resume=True)


def test_settings():
    for wrong, text in (
        ({"keep": 0}, "`keep`"),
        ({"every_instances": 0}, "`every_instances`"),
        ({"every_seconds": 0}, "`every_seconds`.*above 0"),
        ({"every_seconds": 1, "every_instances": 1}, "Leave one out"),
        ({"folder": 3}, "a path"),
    ):
        with pytest.raises(SettingsError, match=text):
            amp.Snapshots(**{"folder": "x", **wrong})
    by_clock = amp.Snapshots("x", every_seconds=1)
    with pytest.raises(SettingsError, match="count instances"):
        amp.Trainer(resumed.net(), cost=resumed.cost, snapshot=by_clock)
    with pytest.raises(SettingsError, match="Count instances"):
        amp.Trainer(resumed.net(), snapshot=by_clock).fit(
            resumed.Drawn(), record="y", progress=False
        )
    with pytest.raises(SettingsError, match="a trainer with snapshots"):
        amp.Trainer(resumed.net()).fit(
            resumed.Drawn(),
            resume=True,
            progress=False,
        )


@pytest.mark.first_case
@pytest.mark.parametrize("mode", ["async", "pipeline"])
def test_by_the_clock(tmp_path, mode):
    """Whenever it is due: in pipeline training with the bits of a run without snapshots."""
    when = amp.Snapshots(tmp_path / "by clock", every_seconds=1e-9)
    settings = {"max_active_keys": 3, "min_update_interval": 4, "mode": mode}
    one = amp.Trainer(
        resumed.net(),
        adam(0.01),
        snapshot=when,
        **settings,
    )
    history = resumed.fit(one)
    assert len(history.epochs) == 3
    assert int(newest(tmp_path / "by clock")[0].name[9:]) > 6
    if mode == "pipeline":
        plain = resumed.trainer(tmp_path / "plain", None, mode=mode)
        resumed.require_same(one, plain, (history, resumed.fit(plain)))


def test_a_recording_goes_on(tmp_path):
    """An asynchronous run on the real clock is killed and resumed; its recording is one, and gives it again."""
    file = tmp_path / "run.trace"
    assert resumed.killed(resumed.trainer(tmp_path / "run"), 28, record=file)
    with file.open("ab") as cut_off:
        cut_off.write(b"what was decided after the snapshot")
    one = resumed.trainer(tmp_path / "run")
    history = resumed.fit(one, resume=True, record=file)
    again = amp.Trainer(
        resumed.net(),
        adam(0.01),
        max_active_keys=3,
        min_update_interval=4,
    )
    told = amp.replay(
        file,
        again,
        resumed.Drawn(),
        resumed.Drawn(4),
        progress=False,
    )
    resumed.require_same(one, again, (history, told))

    half = resumed.trainer(tmp_path / "replays")
    resumed.kill_at(half, 28, lambda: exec("raise resumed.Killed", globals()))
    with pytest.raises(resumed.Killed):
        amp.replay(
            file,
            half,
            resumed.Drawn(),
            resumed.Drawn(4),
            progress=False,
        )
    half = resumed.trainer(tmp_path / "replays")
    told = amp.replay(
        file,
        half,
        resumed.Drawn(),
        resumed.Drawn(4),
        progress=False,
        resume=True,
    )
    assert told.resumed
    resumed.require_same(one, half, (history, told))


def test_a_run_that_was_not_recorded(tmp_path):
    assert resumed.killed(resumed.trainer(tmp_path / "run"), 28)
    with pytest.raises(DataError, match=r"a place, in bytes, got None\. Resume without `record`"):
        resumed.fit(
            resumed.trainer(tmp_path / "run"),
            resume=True,
            record=tmp_path / "run.trace",
        )
    assert not (tmp_path / "run.trace").exists()


def test_another_recording(tmp_path):
    assert resumed.killed(
        resumed.trainer(tmp_path / "run"),
        28,
        record=tmp_path / "run.trace",
    )
    (tmp_path / "run.trace").write_bytes(b"")
    with pytest.raises(ReplayError, match="that were there at the snapshot"):
        resumed.fit(
            resumed.trainer(tmp_path / "run"),
            resume=True,
            record=tmp_path / "run.trace",
        )


PROGRAM = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from support import resumed
from support.models import model
one = resumed.trainer(sys.argv[1], **{{"cost": resumed.cost}})
resumed.kill_at(one, int(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL))
resumed.fit(one, resume=True)
"""


@pytest.mark.nightly
def test_a_process_that_is_killed(tmp_path, whole):
    """By SIGKILL, while it trains."""
    command = [
        sys.executable,
        "-c",
        PROGRAM.format(tests=str(TESTS)),
        str(tmp_path),
        "28",
    ]
    ended = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert go_on(tmp_path, whole).resumed


@pytest.mark.nightly
def test_a_fit_goes_on_in_the_trainer_whose_callback_failed(tmp_path):
    """Queues count anew then, and forget what they were: else one that looks as it did once is taken for empty."""
    graph, data = model("sequences")
    options = {"mode": "pipeline", "max_active_keys": 4, "arena_rows": 256, "workers": 2}
    whole = amp.Trainer(graph, optax.adam(0.01), **options)
    whole.fit(data, epochs=4, progress=False)
    trainer = amp.Trainer(
        graph,
        optax.adam(0.01),
        snapshot=tmp_path,
        **options,
    )

    def fails(trainer, epoch):
        if epoch.epoch == 3 and not history.resumed:
            raise ZeroDivisionError

    history = History()
    with pytest.raises(ZeroDivisionError):
        trainer.fit(
            data,
            epochs=4,
            progress=False,
            callbacks=[fails],
            history=history,
        )
    trainer.fit(
        data,
        epochs=4,
        progress=False,
        resume=True,
        history=history,
    )
    jax.tree.map(np.testing.assert_array_equal, trainer.params, whole.params)
