"""Tables whose rows are kept in eight bits, beside an oracle of rounded rows and the optimizer in NumPy."""

import json

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.narrow_oracle import PlainNarrow

from ampjax.errors import TableError
from ampjax.sparse import Table, TableSharing
from ampjax.sparse.narrow.narrow_rows import ROW_DTYPES
from ampjax.sparse.rows.server_part import ServerPart
from ampjax.sparse.servers.processes import ServerProcesses
from ampjax.sparse.table import table_files

N_ROWS = 17
VALUES = np.random.default_rng(0).normal(size=(N_ROWS, 3)).astype(np.float32)
MOMENTUM = optax.sgd(0.25, momentum=0.5)
"""With gradients of quarters all its numbers are exact, so that the oracle has the same bits."""


def gradients(ids, seed):
    return (
        np.random.default_rng(seed).integers(
            -8,
            9,
            (len(ids), 3),
        )
        / 4
    ).astype(np.float32)


class Oracle:
    """Lazy momentum on rounded rows."""

    def __init__(self, row_dtype, seed=0):
        self.rows = PlainNarrow(VALUES, row_dtype, seed)
        self.trace = np.zeros((N_ROWS, 3))
        self.version = 0

    def push(self, ids, grads):
        total = np.zeros((N_ROWS, 3))
        np.add.at(total, ids, grads)
        touched = np.unique(ids)
        self.trace[touched] = total[touched] + 0.5 * self.trace[touched]
        new = self.rows.rows.astype(np.float32) - np.float32(0.25) * self.trace
        self.version += 1
        self.rows.update(
            touched,
            new.astype(np.float32)[touched],
            self.version,
        )

    def require_same(self, table):
        assert (table.dense() == self.rows.rows.astype(np.float32)).all()
        assert (table.opt_state[0].trace == self.trace).all()
        assert table.version == self.version


def place(name, tmp_path, partitions):
    if name == "mapped":
        return {"folder": tmp_path}
    if name == "shared":
        return {"folder": tmp_path, "sharing": TableSharing(process=0)}
    return {"servers": min(2, partitions)}


pushes = st.lists(
    st.tuples(
        st.lists(
            st.integers(0, N_ROWS - 1),
            max_size=8,
        ).map(np.array),
        st.integers(0, 999),
    ),
    min_size=1,
    max_size=6,
)


@given(
    row_dtype=st.sampled_from(ROW_DTYPES),
    where=st.sampled_from(["memory", "mapped", "shared"]),
    partitions=st.integers(1, 9),
    seed=st.integers(0, 2**63),
    pushes=pushes,
)
@settings(max_examples=examples(60), deadline=None)
def test_it_is_rounded_rows_under_the_optimizer(
    tmp_path_factory, row_dtype, where, partitions, seed, pushes
):
    table = Table(
        VALUES,
        MOMENTUM,
        partitions=partitions,
        row_dtype=row_dtype,
        rounding_seed=seed,
        **place(where, tmp_path_factory.mktemp("rows"), partitions),
    )
    oracle = Oracle(row_dtype, seed)
    oracle.require_same(table)
    for ids, number in pushes:
        table.push(ids, gradients(ids, number))
        oracle.push(ids.astype(int), gradients(ids, number))
        read = table.pull(ids)
        assert read.dtype == np.float32
        assert (read == oracle.rows.rows[ids.astype(int)].astype(np.float32)).all()
    oracle.require_same(table)
    half = table.pull(
        np.arange(N_ROWS),
        "bfloat16",
        (1, 3),
    )
    assert (half[:, 1:] == table.dense()[:, 1:].astype("bfloat16").astype(np.float32)).all()
    assert not half[:, 0].any()


@given(
    row_dtype=st.sampled_from(ROW_DTYPES),
    pushes=pushes,
    later=pushes,
    splits=st.tuples(
        st.integers(1, 9),
        st.integers(1, 9),
    ),
)
@settings(max_examples=examples(40), deadline=None)
def test_it_is_saved_restored_and_split_to_the_bit(
    tmp_path_factory, row_dtype, pushes, later, splits
):
    table = Table(
        VALUES,
        MOMENTUM,
        partitions=splits[0],
        row_dtype=row_dtype,
        rounding_seed=5,
    )
    oracle = Oracle(row_dtype, 5)
    folder = tmp_path_factory.mktemp("saved")
    for ids, number in pushes:
        table.push(ids, gradients(ids, number))
        oracle.push(ids.astype(int), gradients(ids, number))
    table.save(folder / "whole")
    table.note_changes("whole")
    for ids, number in later:
        table.push(ids, gradients(ids, number))
        oracle.push(ids.astype(int), gradients(ids, number))
    table.assign([2, 16], VALUES[:2])
    oracle.rows.put([2, 16], VALUES[:2])
    oracle.trace[[2, 16]] = 0
    table.save_part(
        folder / "change",
        0,
        N_ROWS,
        table.rule.state,
        changes=True,
    )
    restored = Table.load_parts(
        [folder / "whole"],
        MOMENTUM,
        differences=[[folder / "change"]],
        partitions=splits[1],
    )
    table.resplit(splits[1])
    for each in (table, restored):
        oracle.require_same(each)
        assert each.settings["row_dtype"] == row_dtype
    ids = np.arange(N_ROWS)
    oracle.push(ids, gradients(ids, 3))
    for each in (table, restored):
        each.push(ids, gradients(ids, 3))
        oracle.require_same(each)
    saved = table_files.read_manifest(folder / "whole")["files"][0]
    assert saved["dtype"] == "uint8"
    assert saved["shape"] == [N_ROWS, 4]


@pytest.mark.slow
@pytest.mark.nightly
def test_server_processes_keep_the_same_bits():
    oracle = Oracle("int8")
    with ServerProcesses(2) as processes:
        table = Table(
            VALUES,
            MOMENTUM,
            partitions=3,
            servers=2,
            processes=processes,
            row_dtype="int8",
        )
        for turn in range(5):
            ids = np.random.default_rng(turn).integers(0, N_ROWS, 6)
            table.push(ids, gradients(ids, turn))
            oracle.push(ids, gradients(ids, turn))
        oracle.require_same(table)


@pytest.mark.parametrize("row_dtype", ROW_DTYPES)
def test_bytes_are_those_of_its_arrays(row_dtype, tmp_path, monkeypatch):
    """A byte for each element and one for each row, beside one float32 of Adagrad's for each element."""
    parts = []
    init = ServerPart.__init__

    def note(part, *args):
        init(part, *args)
        parts.append(part)

    monkeypatch.setattr(ServerPart, "__init__", note)
    values = np.zeros((1000, 16), np.float32)
    tx = optax.adagrad(0.1)
    table = Table(values, tx, partitions=3, servers=2, row_dtype=row_dtype)
    in_memory = 0
    for part in parts:
        for arrays in part.read(0, 1000).values():
            in_memory += sum(array.nbytes for array in arrays)
    assert in_memory == table.nbytes == 1000 * (16 + 1 + 4 * 16)
    mapped = Table(values, tx, partitions=3, row_dtype=row_dtype, folder=tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.rows")) == mapped.nbytes
    assert Table(values, tx).nbytes == 1000 * 2 * 64


def test_a_saved_table_is_loaded_in_other_bits(tmp_path):
    """As float32 to the bit, in other eight bits to the nearest; saved float32 is rounded."""
    tx = optax.adagrad(0.1)
    table = Table(VALUES, tx, row_dtype="int8")
    table.push(
        np.arange(5),
        np.ones((5, 3), np.float32),
    )
    table.save(tmp_path / "narrow")
    wide = Table.load(tmp_path / "narrow", tx, row_dtype=None)
    assert (wide.dense() == table.dense()).all()
    assert (wide.opt_state[0].sum_of_squares == table.opt_state[0].sum_of_squares).all()
    wide.save(tmp_path / "wide")
    other = Table.load(tmp_path / "narrow", tx, row_dtype="float8_e5m2")
    again = Table.load(tmp_path / "wide", tx, row_dtype="float8_e5m2")
    rounded = PlainNarrow(table.dense(), "float8_e5m2").rows.astype(np.float32)
    assert (other.dense() == rounded).all()
    assert (again.dense() == rounded).all()


def test_a_shared_table_is_joined_in_the_bits_that_it_has(tmp_path):
    tx = optax.sgd(1.0)
    sharing = TableSharing("lock_free", 0, 2)
    table = Table(
        VALUES, tx, folder=tmp_path, sharing=sharing, row_dtype="float8_e4m3fn", rounding_seed=3
    )
    other = Table.join(tmp_path, tx, 1)
    other.push(
        [3],
        np.ones((1, 3), np.float32),
    )
    assert (other.dense() == table.dense()).all()
    assert other.nbytes == table.nbytes
    assert other.settings["row_dtype"] == "float8_e4m3fn" and other.settings["rounding_seed"] == 3
    for row_dtype in ("int8", None):
        with pytest.raises(TableError, match="dtype: expected those of the table that is there"):
            Table(
                VALUES,
                tx,
                folder=tmp_path,
                sharing=TableSharing("lock_free", None, 2),
                row_dtype=row_dtype,
            )


def test_what_can_not_be_is_refused(tmp_path):
    sgd = optax.sgd(1.0)
    with pytest.raises(TableError, match="row_dtype: expected None or one of"):
        Table(VALUES, sgd, row_dtype="int4")
    with pytest.raises(
        TableError, match="values: expected float32 where `row_dtype` is int8, got bfloat16"
    ):
        Table(VALUES.astype("bfloat16"), sgd, row_dtype="int8")
    with pytest.raises(TableError, match="rounding_seed: expected an integer from 0 to"):
        Table(VALUES, sgd, row_dtype="int8", rounding_seed=-1)
    with pytest.raises(
        TableError, match=r'mode: expected `lazy` where rows are kept in int8.*Give `mode="lazy"`'
    ):
        Table(VALUES, optax.adam(0.1), mode="faithful", row_dtype="int8")
    table = Table(VALUES, optax.sgd(1e38), row_dtype="int8")
    with pytest.raises(
        TableError, match="apply, new rows: expected finite numbers, got -inf in row 4"
    ):
        table.push(
            [4],
            np.full((1, 3), 1e3, np.float32),
        )
    assert (table.dense() == PlainNarrow(VALUES, "int8").rows.astype(np.float32)).all()
    table.save(tmp_path)
    manifest = table_files.read_manifest(tmp_path)
    manifest["dtype"] = "float32"
    (tmp_path / table_files.MANIFEST).write_text(_signed(manifest))
    with pytest.raises(TableError, match="float32, got files of shape"):
        Table.load(tmp_path, sgd)


def _signed(manifest):
    return json.dumps(manifest | {"sha256": table_files._digest(manifest)})
