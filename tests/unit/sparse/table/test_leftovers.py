"""Saves that are killed at any moment: nothing is lost, and the next save or restore deletes what they have left."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ampjax.errors import DataError, TableError
from ampjax.parallel.checkpoints import runner_files
from ampjax.sparse.table import leftovers, table_files

pytestmark = pytest.mark.slow

PARAMS = {
    "w": np.zeros((3, 2), np.float32),
    "b": np.zeros(4, np.float32),
}

KILLED = """
import os, shutil, signal, sys
import numpy as np
from pathlib import Path
from ampjax.parallel.checkpoints import runner_files

def saved(folder, step):
    runner_files.save(folder, step, {"w": np.full((3, 2), step, np.float32), "b": np.full(4, step, np.float32)}, (), {})

def killed_at(name, call, count):
    def wrapped(*args, **kwargs):
        count[0] -= 1
        if count[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    setattr(os, name, wrapped)

root, n = Path(sys.argv[1]), 0
while True:
    n += 1
    folder = root / str(n) / "c"
    saved(folder, 1)
    child = os.fork()  # JAX has started no threads yet
    if child == 0:
        count = [n]
        for name in ("replace", "fsync", "rmdir", "unlink"):
            killed_at(name, getattr(os, name), count)
        saved(folder, 2)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(n)
"""


def save(folder: Path, step: int) -> None:
    runner_files.save(
        folder,
        step,
        {name: np.full_like(leaf, step) for name, leaf in PARAMS.items()},
        (),
        {},
    )


def restored(folder: Path) -> int:
    """The step of a checkpoint, whose parameters must be that step's."""
    saved = runner_files.load(folder, PARAMS, (), {})
    assert all((leaf == saved.step).all() for leaf in saved.params.values())
    return saved.step


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.nightly
def test_a_save_that_is_killed_at_any_moment_loses_nothing_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    """The child is killed before each of its calls that change names or wait for the disk."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)]
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    kills = int(done.stdout) - 1
    steps = []
    left = 0
    assert kills >= 8
    for n in range(1, kills + 1):
        folder = tmp_path / str(n) / "c"
        left += any(name.endswith(".new") for name in names(folder.parent))
        cut_between_names = not folder.exists()
        steps.append(restored(folder))
        assert not any(name.endswith((".new", ".lock")) for name in names(folder.parent))
        assert cut_between_names or names(folder.parent) == ["c"]
        save(folder, 3)
        assert names(folder.parent) == ["c"] and restored(folder) == 3
        assert not any(name.endswith(".lock") for name in names(folder / "dense"))
    assert steps == sorted(steps)
    assert set(steps) == {1, 2}
    assert left >= 4


def leave(
    folder: Path,
    token: str,
    ending: str,
    step: int,
    at_ns: int = 0,
    cut: bool = False,
) -> Path:
    """What a save that was killed leaves: a folder beside `folder`."""
    save(folder.parent / "other", step)
    left = (folder.parent / "other").rename(folder.with_name(f"{folder.name}.{token}.{ending}"))
    if at_ns:
        os.utime(left / "dense" / table_files.MANIFEST, ns=(at_ns, at_ns))
    if cut:
        next((left / "dense").glob("*-shared-1-0.bin")).unlink()
    return left


@pytest.mark.parametrize(
    "order",
    [("00000001", "00000002"), ("00000002", "00000001")],
)
def test_of_two_folders_that_were_replaced_the_whole_one_is_chosen(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    folder = tmp_path / "c"
    leave(folder, order[0], "old", 1)
    leave(folder, order[1], "old", 2, cut=True)
    assert restored(folder) == 1
    folder.mkdir()  # as a job's script may do before it restores
    assert restored(folder) == 1
    save(folder, 3)
    assert names(tmp_path) == ["c"] and restored(folder) == 3


@pytest.mark.parametrize(
    "order",
    [("00000001", "00000002"), ("00000002", "00000001")],
)
def test_of_two_whole_folders_the_later_one_is_chosen(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    leave(
        tmp_path / "c",
        order[0],
        "old",
        1,
        at_ns=2 * 10**18,
    )
    leave(
        tmp_path / "c",
        order[1],
        "old",
        2,
        at_ns=10**18,
    )
    leave(tmp_path / "c", "00000003", "new", 3)
    assert restored(tmp_path / "c") == 1
    assert names(tmp_path) == ["c.00000001.old", "c.00000002.old"]


def test_what_was_replaced_stays_while_what_replaced_it_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    leave(folder, "00000001", "old", 1)
    leave(folder, "00000002", "old", 2, cut=True).rename(folder)
    with pytest.raises(TableError, match="no such file"):
        restored(folder)
    assert names(tmp_path) == ["c", "c.00000001.old"]


@pytest.mark.parametrize("act", ["save", "restore"])
def test_only_what_is_left_of_the_own_name_is_deleted(tmp_path: Path, act: str) -> None:
    folder = tmp_path / "c"
    save(folder, 1)
    others = [
        "c.other",
        "c.other.01234567.new",
        "cc.01234567.new",
        "c.0123456.new",
        "c.01234567",
        "c.01234567.news",
        "x.c.01234567.old",
    ]
    for name in others:
        (tmp_path / name).mkdir()
    for left in ("c.01234567.new", "c.89abcdef.old"):
        (tmp_path / left / "dense").mkdir(parents=True)
    (tmp_path / "c.89abcdef.lock").touch()
    save(folder, 2) if act == "save" else restored(folder)
    assert names(tmp_path) == sorted(["c", *others])


def test_what_a_living_save_is_writing_stays(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with leftovers.saving(tmp_path, "c.") as token:
        writing = leave(folder, token, "new", 5)
        save(folder, 1)
        assert restored(folder) == 1 and names(tmp_path) == sorted(
            ["c", f"c.{token}.lock", writing.name]
        )
        runner_files._replace(folder, writing, folder.with_name(f"c.{token}.old"))
        assert restored(folder) == 5 and f"c.{token}.old" in names(tmp_path)
    assert restored(folder) == 5 and names(tmp_path) == ["c"]


def test_a_save_that_finds_anothers_in_its_place_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "c"
    replace = os.replace
    save(folder, 1)

    def slowly(source, target) -> None:
        replace(source, target)
        if str(target).endswith(".old"):
            monkeypatch.setattr(os, "replace", replace)
            save(folder, 2)  # another process, meanwhile

    monkeypatch.setattr(os, "replace", slowly)
    save(folder, 3)
    assert restored(folder) == 3 and names(tmp_path) == ["c"]


def test_a_save_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "c"
    save(folder, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(table_files, "_sync", full)
        with pytest.raises(OSError, match="No space left"):
            save(folder, 2)
    assert restored(folder) == 1 and names(tmp_path) == ["c"]


def test_a_file_system_without_locks_loses_no_living_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(leftovers.fcntl, "flock", unknown)
    with leftovers.saving(tmp_path, "c.") as token:
        leave(tmp_path / "c", token, "new", 1)
        save(tmp_path / "c", 2)
        assert f"c.{token}.new" in names(tmp_path) and restored(tmp_path / "c") == 2


def test_a_lock_that_a_sweep_took_first_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the making of a lock's file and the lock, a sweep may take it for one that was left, and delete it."""
    flock = leftovers.fcntl.flock
    tokens = iter(["00000001", "00000002"])

    def late(descriptor: int, how: int) -> None:
        (tmp_path / "c.00000001.lock").unlink(missing_ok=True)
        flock(descriptor, how)

    monkeypatch.setattr(leftovers.secrets, "token_hex", lambda _: next(tokens))
    monkeypatch.setattr(leftovers.fcntl, "flock", late)
    with leftovers.saving(tmp_path, "c.") as token:
        assert token == "00000002" and names(tmp_path) == ["c.00000002.lock"]
    assert names(tmp_path) == []


def test_a_name_that_would_be_deleted_as_left_over_is_refused(tmp_path: Path) -> None:
    for ending in ("new", "old"):
        with pytest.raises(
            DataError,
            match=r"expected another name, got .* Name it otherwise: such folders get deleted",
        ):
            save(tmp_path / f"c.01234567.{ending}", 1)


def test_a_tables_folder_loses_what_killed_saves_left_and_nothing_else(tmp_path: Path) -> None:
    arrays = [np.arange(3, dtype=np.float32)]
    table_files.save(tmp_path, {}, iter([]), arrays)
    kept = names(tmp_path)
    (tmp_path / "table-01234567-rows-0.bin").write_bytes(bytes(100))
    (tmp_path / "table-01234567.lock").touch()
    (tmp_path / "table-notes.bin").write_bytes(b"mine")
    with leftovers.saving(tmp_path, "table-") as token:
        (tmp_path / f"table-{token}-rows-0.bin").write_bytes(bytes(100))
        _, others = table_files.read_arrays(tmp_path, table_files.read_manifest(tmp_path))
        living = [f"table-{token}-rows-0.bin", f"table-{token}.lock"]
        table_files.sweep(tmp_path)
        assert (others[0] == arrays[0]).all()
        assert names(tmp_path) == sorted([*kept, *living, "table-notes.bin"])
    table_files.save(tmp_path, {}, iter([]), arrays)
    assert len(names(tmp_path)) == len(kept) + 1
