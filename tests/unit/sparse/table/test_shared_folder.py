"""A shared table: the rows of each process, the facts that all must agree on, and the rows after a kill."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.optimizers import ROW_WISE, Dense, worst

from ampjax.errors import SettingsError, TableError
from ampjax.optim.split_by_rows import ALONE, split_alone
from ampjax.sparse import Table, TableSharing
from ampjax.sparse.rows.server_part import ServerPart
from ampjax.sparse.servers.processes import ServerProcesses
from ampjax.sparse.table import shared_folder

VALUES = np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)
ONES = np.ones((1, 3), np.float32)


def table(
    folder,
    process=0,
    n=2,
    name="sgd",
    writers="partitioned",
    values=VALUES,
    partitions=4,
    **options,
):
    sharing = TableSharing(writers, process, n)
    return Table(
        values,
        ROW_WISE[name],
        partitions=partitions,
        folder=folder,
        sharing=sharing,
        **options,
    )


# ---- the same as plain optax -----------------------------------------------------------------------------------------


pushes = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.lists(
            st.integers(0, 22),
            min_size=1,
            max_size=5,
        ),
    ),
    min_size=1,
    max_size=8,
)


def gradients(ids, turn):
    """Gradients whose sums are exact."""
    return (
        np.random.default_rng(turn).integers(
            -8,
            9,
            (len(ids), 3),
        )
        / 4
    ).astype(np.float32)


@settings(max_examples=examples(40), deadline=None)
@given(
    name=st.sampled_from(["adagrad", "adam", "clipped", "row adam"]),
    pushes=pushes,
)
def test_lock_free_pushes_one_after_another_are_those_of_one_table(tmp_path_factory, name, pushes):
    folder = tmp_path_factory.mktemp("table")
    tables = [
        table(
            folder,
            process,
            name=name,
            writers="lock_free",
        )
        for process in range(2)
    ]
    oracle = Dense(name, VALUES, lazy=True)
    for turn, (process, ids) in enumerate(pushes):
        tables[process].push(ids, gradients(ids, turn))
        oracle.update(
            np.array(ids),
            gradients(ids, turn),
        )
        assert worst(tables[1 - process].dense(), oracle.params) < 1e-6
    for each in tables:
        assert worst(each.opt_state, oracle.state) < 1e-6


@settings(max_examples=examples(40), deadline=None)
@given(
    name=st.sampled_from(["adagrad", "adam", "clipped"]),
    pushes=pushes,
)
def test_an_owner_s_rows_are_those_of_a_table_that_only_the_owner_updates(
    tmp_path_factory, name, pushes
):
    folder = tmp_path_factory.mktemp("table")
    tables = [
        table(
            folder,
            process,
            name=name,
        )
        for process in range(2)
    ]
    oracles = [
        Dense(
            name,
            VALUES,
            lazy=True,
        )
        for _ in range(2)
    ]
    for turn, (process, chosen) in enumerate(pushes):
        ids = []
        for row in chosen:
            if 2 * (row // 2) + process < 23:
                ids.append(2 * (row // 2) + process)
        tables[process].push(ids, gradients(ids, turn))
        oracles[process].update(
            np.array(ids, int),
            gradients(ids, turn),
        )
    wanted = np.array(oracles[0].params)
    wanted[1::2] = oracles[1].params[1::2]
    for each in tables:
        assert worst(each.dense(), wanted) < 1e-6


def test_others_see_a_row_at_once_and_a_new_process_goes_on_with_the_rows_and_the_count(tmp_path):
    first = table(tmp_path, 0, name="adam")
    second = table(
        tmp_path,
        1,
        name="adam",
        values=np.zeros_like(VALUES),
    )  # too late: not used
    first.push([4], ONES)
    assert (second.pull([4]) == first.pull([4])).all()
    assert (second.pull([1]) == VALUES[1]).all()
    del first
    gc.collect()
    again = Table.join(tmp_path, ROW_WISE["adam"], 0)
    again.push([4], ONES)
    oracle = Dense("adam", VALUES, lazy=True)
    for _ in range(2):
        oracle.update(np.array([4]), ONES)
    assert worst(again.dense(), oracle.params) < 1e-6
    assert again.opt_state[0].count == 2
    assert second.opt_state[0].count == 0
    assert again.version == 1 and again.contents != again.contents


def test_rows_get_values_and_files_are_kept_when_the_table_goes(tmp_path):
    t = table(
        tmp_path / "new" / "folder",
        name="momentum",
    )
    t.assign(
        [0, 2],
        np.ones((2, 3)),
    )
    t.push([2], ONES)
    t.save(tmp_path / "saved")
    kept = t.dense()
    del t
    gc.collect()
    t = table(
        tmp_path / "new" / "folder",
        name="momentum",
    )
    assert (t.dense() == kept).all()
    t.set_state(
        0,
        [np.full((23, 3), 7, np.float32)],
    )
    assert (t.opt_state[0].trace[::2] == 7).all()
    assert (t.opt_state[0].trace[1::2] == 0).all()


def test_each_process_loads_its_own_rows(tmp_path):
    private = Table(
        VALUES,
        ROW_WISE["adam"],
        partitions=4,
    )
    private.push(
        [0, 1],
        np.ones((2, 3), np.float32),
    )
    private.save(tmp_path / "saved")
    first = table(
        tmp_path / "shared",
        0,
        name="adam",
        values=np.zeros_like(VALUES),
    )
    second = Table.load(
        tmp_path / "saved",
        ROW_WISE["adam"],
        folder=tmp_path / "shared",
        sharing=TableSharing("partitioned", 1, 2),
    )
    assert (second.dense()[1::2] == private.dense()[1::2]).all()
    assert not second.dense()[::2].any()
    assert second.opt_state[0].count == 1
    assert first.opt_state[0].count == 0


@pytest.mark.parametrize("is_there", [False, True])
def test_the_settings_with_another_folder_are_for_a_table_there(tmp_path, is_there):
    first = table(tmp_path / "first")
    if is_there:
        table(tmp_path / "second", values=VALUES + 1).assign([0], ONES)
        gc.collect()
    options = {**first.settings, "folder": tmp_path / "second"}
    other = Table(VALUES + 1, ROW_WISE["sgd"], **options)
    other.push([4], ONES)
    np.testing.assert_array_equal(first.dense(), VALUES)
    np.testing.assert_array_equal(
        other.dense()[1],
        VALUES[1] + 1,
    )
    np.testing.assert_array_equal(
        other.dense()[0],
        ONES[0] if is_there else VALUES[0] + 1,
    )
    again = Table(VALUES, ROW_WISE["sgd"], **first.settings)
    np.testing.assert_array_equal(again.dense(), VALUES)


def test_a_rule_of_many_variables_is_shared_too(tmp_path):
    rule = split_alone(
        ROW_WISE["adagrad"],
        VALUES.shape,
        VALUES.dtype,
    ).rules[ALONE]
    sharing = TableSharing("lock_free")
    t = Table(
        VALUES,
        rule,
        folder=tmp_path,
        sharing=sharing,
    )
    assert (Table.join(tmp_path, rule).pull([3]) == t.pull([3])).all()


# ---- mistakes --------------------------------------------------------------------------------------------------------


def refused(call, text, kind=TableError):
    with pytest.raises(kind, match=text) as error:
        call()
    assert all(
        (
            error.value.where,
            error.value.expected,
            error.value.got,
            error.value.fix,
        )
    )


def test_processes_must_agree_on_the_table(tmp_path):
    t = table(tmp_path)
    refused(
        lambda: table(tmp_path, 1, values=VALUES[:9]),
        r"shape: .*\[23, 3\], got \[9, 3\]",
    )
    half = VALUES.astype(np.float16)
    refused(
        lambda: table(tmp_path, 1, values=half),
        "dtype: .*'float32', got 'float16'",
    )
    refused(
        lambda: table(tmp_path, 1, name="adagrad"),
        "state: .*remove the folder",
    )
    refused(
        lambda: table(tmp_path, 1, partitions=2),
        "partitions: .*4, got 2",
    )
    refused(
        lambda: table(tmp_path, 1, writers="lock_free"),
        "writers: .*'partitioned'",
    )
    refused(
        lambda: table(tmp_path, 1, n=3),
        "processes: .*2, got 3",
    )
    assert (t.dense() == VALUES).all()


def test_optimizers_with_the_same_state_are_told_apart(tmp_path):
    t = table(tmp_path, name="adam")
    refused(
        lambda: Table.join(tmp_path, optax.nadam(0.1)),
        "optimizer: .*that is there",
    )
    assert (Table.join(tmp_path, optax.adam(0.5)).pull([1]) == t.pull([1])).all()


def test_a_process_is_there_once_and_every_partition_is_somebodys(tmp_path):
    first = table(tmp_path)
    refused(
        lambda: table(tmp_path),
        f"one table for process 0 of 2, got .* id {os.getpid()} has",
    )
    refused(
        lambda: table(tmp_path / "other", n=5),
        "at least 5, .*got 4, so that process 4 would own no row",
    )
    refused(
        lambda: first.push(
            [0, 5],
            np.ones((2, 3), np.float32),
        ),
        r"process 0, \[0, 2\], got row 5 of partition 1, .*process 1, which is not there",
    )
    second = table(tmp_path, 1)
    refused(
        lambda: first.assign([1], ONES),
        "belongs to process 1, which runs",
    )
    assert (second.dense() == VALUES).all() and first.version == 0


def test_a_place_is_free_when_its_table_goes_though_a_fork_has_the_files(tmp_path):
    first = table(tmp_path / "table")
    forked = [os.dup(file) for file in first._connection.shared._files]
    del first
    gc.collect()
    table(tmp_path / "table")
    for file in forked:
        os.close(file)


def test_who_reads_does_not_write(tmp_path):
    refused(
        lambda: Table.join(tmp_path, ROW_WISE["sgd"]),
        "a shared table, got no `table.json`",
    )
    t = table(tmp_path)
    reader = Table.join(tmp_path, ROW_WISE["sgd"])
    t.push([0], ONES)
    assert (reader.pull([0]) == t.pull([0])).all()
    refused(
        lambda: reader.push([0], ONES),
        "push: .*opened for reading",
    )
    refused(
        lambda: reader.resplit(2),
        "resplit: .*this process alone",
    )
    refused(
        lambda: reader.take_over(t),
        "take_over: .*this process alone",
    )


def test_settings_that_do_not_go_together(tmp_path):
    refused(
        lambda: table(None),
        "folder: .*that is shared, got None",
    )
    sgd = ROW_WISE["sgd"]
    refused(
        lambda: Table(
            VALUES,
            sgd,
            folder=tmp_path,
            sharing=2,
        ),
        "a TableSharing or None",
    )
    with ServerProcesses(1) as servers:
        refused(
            lambda: table(tmp_path, processes=servers),
            "no servers",
        )
    refused(
        lambda: table(
            tmp_path,
            name="adam",
            mode="faithful",
        ),
        "`lazy` where processes share",
    )
    assert table(tmp_path, name="adagrad", mode="faithful").untouched_rows_stay
    for arguments in (("hogwild",), ("lock_free", 2, 2), ("lock_free", -1), ("lock_free", 0, 0)):
        refused(
            lambda arguments=arguments: TableSharing(*arguments),
            "setting",
            SettingsError,
        )


def test_there_must_be_room(tmp_path, monkeypatch):
    monkeypatch.setattr(
        shared_folder.shutil,
        "disk_usage",
        lambda folder: type(
            "Usage",
            (),
            {"free": 551},
        ),
    )
    refused(
        lambda: table(tmp_path, name="momentum"),
        "room for 552 bytes .*got 551 bytes free",
    )
    assert table(tmp_path).n_rows == 23  # 276 bytes


def test_the_first_process_may_die_before_all_rows_are_there(tmp_path):
    broken = VALUES.copy()
    broken[22] = np.inf
    refused(
        lambda: table(tmp_path, values=broken),
        "finite",
    )
    assert (table(tmp_path).dense() == VALUES).all()


# ---- kills -----------------------------------------------------------------------------------------------------------

N_ROWS = 8_000
WIDTH = 32
RATE = 0.5
CHILD = f"""
    import sys, os, signal
    import numpy as np, optax
    from ampjax.sparse import Table
    from ampjax.sparse.rows.partition import Selection

    folder, process, n_pushes, cut = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    table = Table.join(folder, optax.adagrad({RATE}), process)
    rng = np.random.default_rng(process)
    grads = np.ones(({N_ROWS} // 8, {WIDTH}), np.float32)

    def half(self, new, version):
        (part, local), = self.parts
        for array, rows in zip(part.arrays, new):
            array[local[:10]] = rows[:10]
        os.kill(os.getpid(), signal.SIGKILL)

    while n_pushes:
        n_pushes -= 1
        ids = process + 4 * rng.choice({N_ROWS} // 4, {N_ROWS} // 8, replace=False)
        if cut == "cut" and not n_pushes:
            Selection.write = half
        table.push(ids, grads)
        print(".", flush=True)
"""


def child(folder, process, n_pushes, cut=""):
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(CHILD),
            folder,
            str(process),
            str(n_pushes),
            cut,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def chosen(process, n_pushes):
    """The rows that a child has pushed, push after push."""
    rng = np.random.default_rng(process)
    result = []
    for _ in range(n_pushes):
        result.append(
            process
            + 4
            * rng.choice(
                N_ROWS // 4,
                N_ROWS // 8,
                replace=False,
            )
        )
    return result


@pytest.fixture(
    params=[
        "partitioned",
        pytest.param("lock_free", marks=pytest.mark.nightly),
    ]
)
def large(tmp_path, request):
    sharing = TableSharing(request.param, None, 4)
    values = np.zeros((N_ROWS, WIDTH), np.float32)
    return Table(
        values,
        optax.adagrad(RATE),
        partitions=4,
        folder=tmp_path,
        sharing=sharing,
    )


def updates_of_whole_rows(t, rows):
    """Counts the updates of each row; fails if parameters or state are not as after so many updates, in all columns."""
    params = t.dense()[rows]
    (sums,) = (
        np.asarray(leaf)[rows] for leaf in jax.tree.leaves(t.opt_state) if np.ndim(leaf) == 2
    )
    counts = np.rint(sums[:, 0] - 0.1).astype(int)
    steps = RATE / np.sqrt(
        0.1
        + np.arange(
            1,
            counts.max(initial=0) + 1,
        )
        + 1e-7
    )
    wanted = -np.concatenate([[0], np.cumsum(steps)])
    assert np.abs(sums - 0.1 - counts[:, None]).max(initial=0) < 1e-2
    # Sums of float32 steps.
    assert np.abs(params - wanted[counts][:, None]).max(initial=0) < 1e-4
    return counts


@pytest.mark.slow
def test_rows_in_writing_when_a_process_was_killed_are_named_and_all_others_are_whole(large):
    folder = str(large.settings["folder"])
    process = child(folder, 1, 3, "cut")
    assert process.wait() == -signal.SIGKILL
    *done, cut = chosen(1, 3)
    assert (large.interrupted_rows() == np.sort(cut)).all()
    rows = np.setdiff1d(np.arange(N_ROWS), cut)
    wanted = np.bincount(
        np.concatenate(done),
        minlength=N_ROWS,
    )
    assert (updates_of_whole_rows(large, rows) == wanted[rows]).all()
    # A process that takes the number keeps the note; `forget` ends it.
    again = Table.join(
        folder,
        optax.adagrad(RATE),
        1,
    )
    assert (again.interrupted_rows() == np.sort(cut)).all()
    again.assign(
        cut,
        np.zeros((len(cut), WIDTH), np.float32),
    )
    again.push(
        cut,
        np.ones((len(cut), WIDTH), np.float32),
    )
    assert (large.interrupted_rows(forget=True) == np.sort(cut)).all()
    assert not len(large.interrupted_rows()) and not len(again.interrupted_rows())
    assert (updates_of_whole_rows(large, cut) == 1).all()
    refused(
        lambda: Table.join(
            folder,
            optax.adagrad(RATE),
            1,
        ),
        "a second one",
    )


def test_of_a_cut_replacement_of_all_rows_the_process_s_own_are_named(tmp_path, monkeypatch):
    first = table(tmp_path, 0, name="momentum")
    second = table(tmp_path, 1, name="momentum")

    def write(self, start, stop, rows):
        raise KeyboardInterrupt

    monkeypatch.setattr(ServerPart, "write", write)
    with pytest.raises(KeyboardInterrupt):
        second.set_state(
            0,
            [np.zeros((23, 3), np.float32)],
        )
    assert not len(first.interrupted_rows())  # its process is there
    del second
    gc.collect()
    assert (first.interrupted_rows() == np.arange(1, 23, 2)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        0,
        *(
            pytest.param(
                n,
                marks=pytest.mark.nightly,
            )
            for n in range(1, 10)
        ),
    ],
)
def test_killed_processes_lose_nothing_of_others(large, seed):
    rng = np.random.default_rng(seed)
    folder = str(large.settings["folder"])
    n_pushes = 100
    children = [
        child(
            folder,
            process,
            n_pushes if process == 3 else -1,
        )
        for process in range(4)
    ]
    for killed in rng.permutation(3):
        for _ in range(rng.integers(1, 20)):
            assert children[killed].stdout.readline()
        for _ in range(rng.integers(100_000)):  # so that it is killed somewhere in a push
            pass
        children[killed].kill()
        children[killed].wait()
    children[3].communicate()
    assert children[3].returncode == 0
    own = np.arange(3, N_ROWS, 4)
    wanted = np.bincount(
        np.concatenate(chosen(3, n_pushes)),
        minlength=N_ROWS,
    )
    assert (updates_of_whole_rows(large, own) == wanted[own]).all()
    cut = large.interrupted_rows()
    assert not (cut % 4 == 3).any()
    assert (
        updates_of_whole_rows(
            large,
            np.setdiff1d(np.arange(N_ROWS), cut),
        ).max()
        > 0
    )
    for killed in range(3):
        children[killed].stdout.close()


@contextlib.contextmanager
def without_rights(folder):
    """A folder that this process may read but not write: the superuser becomes somebody else meanwhile."""
    folder.chmod(0o555)
    is_superuser = os.geteuid() == 0
    if is_superuser:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_superuser:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.fixture
def open_folder():
    """A folder for anybody, as pytest's folders are their maker's."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


def test_a_folder_without_the_right_to_write_is_named(open_folder):
    new = open_folder / "new"
    wanted = f"folder `{new}`: expected a folder in which this process may read, make and write"
    with without_rights(open_folder), pytest.raises(TableError, match=wanted):
        table(new)
    table(new).push([0], ONES)
    gc.collect()
    for process in (0, None):
        refused = pytest.raises(TableError, match=f"Permission denied: `{new}.*Give the process's")
        with without_rights(new), refused:
            table(new, process)
    with without_rights(new), pytest.raises(TableError, match="Permission denied"):
        Table.join(new, ROW_WISE["sgd"], 1)
    with without_rights(open_folder), pytest.raises(TableError, match="or name another folder"):
        Table(VALUES, ROW_WISE["sgd"], folder=open_folder)
    assert table(new).pull([0]).tolist() != VALUES[:1].tolist()
