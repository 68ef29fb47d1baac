"""Checkpoints of changed rows: each is restored to the bit."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.errors import DataError, SettingsError, TableError
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


def make(tx=None, **options):
    tx = optax.adagrad(0.1) if tx is None else tx
    config = px.ParallaxConfig(
        alpha_threshold=2.0,
        **options,
    )
    return px.get_runner(
        loss,
        PARAMS,
        tx,
        config=config,
    )


def same(runner, other):
    assert runner.steps == other.steps
    for one, two in ((runner.params, other.params), (runner.opt_state, other.opt_state)):
        jax.tree.map(
            np.testing.assert_array_equal,
            one,
            two,
        )


def rows_in(folder):
    """By table, rows in its files."""
    found = []
    for path in sorted(folder.glob("table-*")):
        found.append(table_files.read_manifest(path)["files"][0]["shape"][0])
    return found


OPTIONS = {
    "one partition": {},
    "partitions": {"partitions": 4},
    "server processes": {"partitions": 2, "server_processes": True},
    "mapped": {"partitions": 3},
    "lazy": {"partitions": 2, "table_mode": "lazy"},
}
SLOW = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=SLOW if name == "server processes" else [],
        )
        for name in OPTIONS
    ],
)
def test_each_checkpoint_of_a_chain_is_restored_to_the_bit(name, tmp_path):
    options = dict(OPTIONS[name])
    if name == "mapped":
        options["folder"] = tmp_path / "tables"
    tx = optax.adam(0.1) if name == "lazy" else optax.adagrad(0.1)
    base = None
    with make(tx, **options) as runner:
        for number in range(4):
            for step in range(3):
                runner.run(batch(10 * number + step))
            runner.save(tmp_path / f"c{number}", base)
            base = tmp_path / f"c{number}"
            other = make(tx)
            other.run(batch(99))  # a model with other numbers
            other.restore(base)
            same(other, runner)
            fresh = make(tx)  # before its first batch
            fresh.restore(base)
            same(fresh, runner)
            assert sum(rows_in(base)) == 100 if number == 0 else sum(rows_in(base)) <= 24


def test_training_goes_on_from_a_difference(tmp_path):
    runner = make()
    runner.run(batch(0))
    runner.save(tmp_path / "a")
    runner.run(batch(1))
    runner.save(tmp_path / "b", base=tmp_path / "a")
    other = make()
    other.restore(tmp_path / "b")
    for seed in (2, 3):
        assert runner.run(batch(seed)).loss == other.run(batch(seed)).loss
    same(other, runner)
    other.save(
        tmp_path / "c",
        base=tmp_path / "b",
    )  # of another runner: all rows
    assert sum(rows_in(tmp_path / "c")) == 100
    shutil.rmtree(tmp_path / "a")
    third = make()
    third.restore(tmp_path / "c")
    same(third, runner)


def test_rows_that_begin_anew_have_changed(tmp_path):
    runner = make()
    runner.run(batch(0))
    runner.save(tmp_path / "a")
    runner.assign_rows(
        "words",
        [7, 50],
        np.ones((2, 3)),
    )
    runner.save(tmp_path / "b", base=tmp_path / "a")
    other = make()
    other.restore(tmp_path / "b")
    same(other, runner)
    assert sum(rows_in(tmp_path / "b")) == 2


@pytest.mark.parametrize("what", ["split", "base", "reset", "faithful"])
def test_all_rows_are_written_where_changes_are_not_known(what, tmp_path):
    runner = make(
        optax.adam(0.1) if what == "faithful" else None,
        partitions=2,
    )
    runner.run(batch(0))
    runner.save(tmp_path / "a")
    runner.run(batch(1))
    runner.save(tmp_path / "b")
    if what == "split":
        runner.resplit(3)
    elif what == "reset":
        runner.reset(PARAMS)
    runner.run(batch(2))
    runner.save(
        tmp_path / "c",
        base=tmp_path / ("a" if what == "base" else "b"),
    )
    assert sum(rows_in(tmp_path / "c")) == 100
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    other = make(optax.adam(0.1) if what == "faithful" else None)
    other.restore(tmp_path / "c")
    same(other, runner)


def test_a_save_that_fails_forgets_no_change(tmp_path, monkeypatch):
    runner = make()
    runner.run(batch(0))
    runner.save(tmp_path / "a")
    runner.run(batch(1))
    with monkeypatch.context() as patch:
        patch.setattr(
            table_files,
            "_sync",
            lambda file: 1 / 0,
        )
        with pytest.raises(ZeroDivisionError):
            runner.save(tmp_path / "b", base=tmp_path / "a")
    runner.save(tmp_path / "b", base=tmp_path / "a")
    other = make()
    other.restore(tmp_path / "b")
    same(other, runner)


def chain(tmp_path):
    runner = make()
    base = None
    for number in range(3):
        runner.run(batch(number))
        runner.save(tmp_path / f"c{number}", base)
        base = tmp_path / f"c{number}"
    return runner


def test_a_chain_with_a_gap_is_refused(tmp_path):
    runner = chain(tmp_path)
    shutil.move(
        tmp_path / "c1",
        tmp_path / "elsewhere",
    )
    other = make()
    with pytest.raises(
        TableError,
        match=r"the one that it continues: expected the folder .*c1",
    ):
        other.restore(tmp_path / "c2")
    runner.save(tmp_path / "c1")
    with pytest.raises(
        TableError,
        match=r"as it was then, got another checkpoint",
    ):
        other.restore(tmp_path / "c2")


def test_a_chain_that_was_moved_as_a_whole_is_restored(tmp_path):
    (tmp_path / "here").mkdir()
    runner = chain(tmp_path / "here")
    shutil.move(
        tmp_path / "here",
        tmp_path / "there",
    )
    other = make()
    other.restore(tmp_path / "there" / "c2")
    same(other, runner)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_damage_anywhere_in_a_chain_is_found(number, tmp_path):
    chain(tmp_path)
    file = next((tmp_path / f"c{number}" / "table-1").glob("*-rows-1.bin"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    other = make()
    other.run(batch(5))
    before = other.params
    with pytest.raises(TableError, match="altered"):
        other.restore(tmp_path / "c2")
    jax.tree.map(
        np.testing.assert_array_equal,
        other.params,
        before,
    )


def test_rows_of_another_table_are_refused(tmp_path):
    chain(tmp_path)
    path = tmp_path / "c2" / "table-0" / table_files.MANIFEST
    body = json.loads(path.read_text())
    del body["sha256"]
    body["files"] = body["files"][:2]
    path.write_text(json.dumps(body | {"sha256": table_files._digest(body)}))
    with pytest.raises(
        TableError,
        match="changed rows of a table",
    ):
        make().build(batch(0)).restore(tmp_path / "c2")


def test_a_checkpoint_can_not_continue_itself(tmp_path):
    runner = chain(tmp_path)
    with pytest.raises(
        SettingsError, match="save, `base`: expected a checkpoint in another folder"
    ):
        runner.save(
            tmp_path / "c2",
            base=tmp_path / "c2",
        )
    with pytest.raises(
        TableError,
        match="a saved table, got no such file",
    ):
        runner.save(
            tmp_path / "c3",
            base=tmp_path / "none",
        )
    with pytest.raises(
        DataError,
        match="a new folder",
    ):
        runner.save(tmp_path, base=tmp_path / "c2")


def test_checkpoints_by_themselves(tmp_path):
    when = px.Checkpoints(
        tmp_path / "c",
        every_steps=1,
        keep=2,
        full_every=3,
    )
    runner = make(checkpoint=when)
    rows = []
    for number in range(1, 9):
        runner.run(batch(number))
        rows.append(sum(rows_in(tmp_path / "c" / f"step-{number}")))
    assert [count == 100 for count in rows] == [True, False, False] * 2 + [True, False]
    there = sorted(path.name for path in (tmp_path / "c").iterdir())
    assert there == ["step-7", "step-8"]
    runner.run(batch(9))
    there = sorted(path.name for path in (tmp_path / "c").iterdir())
    assert there == ["step-7", "step-8", "step-9"]  # `step-7` has all rows, and is needed
    again = make(checkpoint=when)
    assert again.resume() == 9
    same(again, runner)
    again.run(batch(10))
    runner.run(batch(10))
    same(again, runner)


class Killed(Exception):
    """A stand-in for a kill: the runner is not used again."""


def states_by_step(n, **options):
    """Parameters after each step of a run that nothing disturbs."""
    runner = make(**options)
    result = [PARAMS]
    for number in range(1, n + 1):
        runner.run(batch(number))
        result.append(runner.params)
    return result


@pytest.mark.parametrize(
    "nth",
    [0, 1, 2, 3, 5, 8, 13, 17],
)
def test_a_kill_in_the_middle_loses_nothing_that_was_saved(nth, tmp_path, monkeypatch):
    when = px.Checkpoints(
        tmp_path / "c",
        every_steps=1,
        keep=2,
        full_every=3,
    )
    runner = make(checkpoint=when)
    for number in range(1, 4):
        runner.run(batch(number))
    calls = iter(range(1000))
    sync = table_files._sync

    def killed(file):
        if next(calls) == nth:
            raise Killed
        sync(file)

    saved = 3
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(table_files, "_sync", killed)
        for number in range(4, 9):
            runner.run(batch(number))
            saved = number
    again = make(checkpoint=when)
    assert again.resume() == saved
    again.build(batch(0))
    wanted = states_by_step(8)
    jax.tree.map(
        np.testing.assert_array_equal,
        again.params,
        wanted[saved],
    )
    for number in range(saved + 1, 9):
        again.run(batch(number))
    jax.tree.map(
        np.testing.assert_array_equal,
        again.params,
        wanted[8],
    )


PROGRAM = """
import sys
sys.path[:0] = {paths!r}
import test_row_changes as here
import ampjax.parallel as px
when = px.Checkpoints({folder!r}, every_steps=1, keep=2, full_every=4)
runner = here.make(checkpoint=when)
print("resumed", runner.resume(), flush=True)
while True:
    runner.run(here.batch(runner.steps + 1))
    print("saved", runner.steps, flush=True)
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_thirty_kills(tmp_path):
    """Processes that are killed at any moment: each goes on from the last save of the one before."""
    folder = tmp_path / "c"
    paths = [
        str(Path(__file__).parent),
        str(Path(__file__).parents[2]),
    ]
    program = PROGRAM.format(
        paths=paths,
        folder=str(folder),
    )
    rng = np.random.default_rng(0)
    said = 0
    for _ in range(30):
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        resumed = process.stdout.readline().split()
        assert resumed[0] == "resumed" and int(resumed[1]) >= said
        timer = threading.Timer(
            rng.uniform(0.5, 2.5),
            process.kill,
        )
        timer.start()
        for line in process.stdout:
            said = int(line.split()[1])
        process.wait()
    when = px.Checkpoints(
        folder,
        every_steps=1,
        keep=2,
        full_every=4,
    )
    runner = make(checkpoint=when)
    assert runner.resume() >= said > 60
    runner.build(batch(0))
    wanted = states_by_step(runner.steps)
    jax.tree.map(
        np.testing.assert_array_equal,
        runner.params,
        wanted[runner.steps],
    )
