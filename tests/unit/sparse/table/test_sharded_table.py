"""The sharded table: what each call does, what travels, what is refused. The laws are in `property/test_table.py`."""

import copy
import gc
import json
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.optimizers import ROW_WISE, Dense, worst

from ampjax.errors import TableError
from ampjax.optim.split_by_rows import split_rows
from ampjax.optim.split_update import SharedVariables, prepare_update
from ampjax.sparse import Table
from ampjax.sparse.rows import parallel_calls, row_jobs, server_part
from ampjax.sparse.rows.partition_layout import PartitionLayout, place_evenly
from ampjax.sparse.table import table_files
from ampjax.sparse.table.shards import Shards

VALUES = np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)
ONES = np.ones((3, 3), np.float32)
MORE_ROWWISE = ("row adagrad", "row adam", "row rmsprop")
"""Optimizers with one number of state a row, beside the one that has both."""


def table(name="sgd", values=VALUES, **settings):
    return Table(values, ROW_WISE[name], **settings)


def steps(seed, n=4, rows=6):
    """Row ids with duplicates, and gradients whose sums are exact."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        yield (
            rng.integers(
                0,
                23,
                rows,
            ),
            (rng.integers(-8, 9, (rows, 3)) / 4).astype(np.float32),
        )


# ---- pull and push ---------------------------------------------------------------------------------------------------


def test_pull_gives_rows_in_the_order_asked():
    t = table(partitions=5, servers=2)
    ids = [7, 0, 22, 7]
    assert (t.pull(ids) == VALUES[ids]).all()
    assert t.pull(ids).dtype == np.float32
    assert t.pull([]).shape == (0, 3)
    assert (t.dense() == VALUES).all()


def test_what_is_pulled_is_no_view_of_the_table():
    t = table()
    rows = t.pull([0, 1])
    rows[:] = 0
    assert (t.dense() == VALUES).all()
    kept = jax.device_put(t.pull([0, 1]))
    t.push([0, 1, 2], ONES)
    assert (np.asarray(kept) == VALUES[:2]).all()


def test_what_is_given_is_copied():
    values = VALUES.copy()
    grads = ONES.copy()
    t = table(values=values)
    pending = t.aggregate([0, 1, 2], grads)
    values[:] = 0
    grads[:] = 0
    assert (t.dense() == VALUES).all()
    assert (pending.gradients()[1] == ONES).all()


def test_push_sums_duplicates_and_counts_versions():
    t = table("adagrad", partitions=3)
    wanted = Dense("adagrad", VALUES)
    for version, (ids, grads) in enumerate(steps(1), 1):
        assert t.push(ids, grads) == version == t.version
        wanted.update(ids, grads)
    assert worst(t.dense(), wanted.params) < 1e-6
    assert worst(t.opt_state, wanted.state) < 1e-6


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in MORE_ROWWISE else ())
        for name in ROW_WISE
    ],
)
def test_lazy_updates_touched_rows_only(name):
    t = table(name, partitions=4, servers=2)
    wanted = Dense(name, VALUES, lazy=True)
    for ids, grads in steps(2):
        t.push(ids, grads)
        wanted.update(ids, grads)
    assert worst(t.dense(), wanted.params) < 1e-5  # clipping sums squares in another order
    assert worst(t.opt_state, wanted.state) < 1e-5


@pytest.mark.parametrize("name", ["momentum", "clipped", "averaged"])
def test_faithful_is_plain_optax_for_rows_left_behind_longer_than_the_history(name):
    t = table(name, mode="faithful", max_lag=2, partitions=2)
    wanted = Dense(name, VALUES)
    for ids, grads in [
        *steps(3, n=5, rows=2),
        *steps(4, n=1, rows=0),
        *steps(5, n=2),
    ]:
        t.push(ids, grads)
        wanted.update(ids, grads)
        assert (
            worst(
                t.pull([0, 5]),
                wanted.params[np.array([0, 5])],
            )
            < 1e-5
        )
    assert worst(t.dense(), wanted.params) < 1e-5
    assert worst(t.opt_state, wanted.state) < 1e-5


def test_several_clients_make_one_update():
    t = table("adam", partitions=4)
    wanted = Dense("adam", VALUES, lazy=True)
    (a, x), (b, y) = steps(6, n=2)
    pending = t.aggregate(
        b,
        y,
        into=t.aggregate(a, x),
    )
    ids, sums = pending.gradients()
    assert t.version == 0
    assert sorted(ids) == sorted({*a, *b})
    whole = np.zeros_like(VALUES)
    np.add.at(
        whole,
        np.concatenate([a, b]),
        np.concatenate([x, y]),
    )
    assert (sums == whole[ids]).all()
    assert t.apply(pending) == 1
    wanted.update(
        np.concatenate([a, b]),
        np.concatenate([x, y]),
    )
    assert worst(t.dense(), wanted.params) < 1e-6


@pytest.mark.parametrize("partitions", [1, 7])
@pytest.mark.parametrize("columns", [None, (1, 3)])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_gradients_are_copied_unless_nobody_writes_into_them(partitions, columns, is_sorted):
    ids = np.array([3, 5, 11, 17] if is_sorted else [5, 3, 17, 5])
    grads = np.arange(12, dtype=np.float32).reshape(
        4,
        3,
    )
    tables = [table("clipped", partitions=partitions) for _ in range(2)]
    one, other = tables
    pending = one.aggregate(
        ids,
        grads.copy(),
        columns=columns,
        copy=False,
    )
    given = grads.copy()
    copied = other.aggregate(ids, given, columns=columns)
    given[...] = 100  # what it was given is the caller's
    for each, gathered in zip(tables, (pending, copied), strict=True):
        assert each.apply(gathered) == 1
    assert (one.dense() == other.dense()).all()
    if partitions == 1 and columns is None and is_sorted:
        kept = one.aggregate(ids, grads, copy=False)
        assert np.shares_memory(kept.read_sums()[0][1], grads)


@pytest.mark.parametrize("partitions", [1, 7])
@pytest.mark.parametrize("mode", ["lazy", "faithful"])
def test_many_rows_are_read_and_updated_by_threads(monkeypatch, mode, partitions):
    """A partition's rows go to several threads, and several partitions' to one."""
    monkeypatch.setattr(parallel_calls, "PARALLEL_BYTES", 1)
    monkeypatch.setattr(parallel_calls, "n_threads", lambda: 3)
    t = table(
        "clipped",
        partitions=partitions,
        servers=min(2, partitions),
        mode=mode,
    )
    wanted = Dense("clipped", VALUES, lazy=mode == "lazy")
    for ids, grads in steps(7):
        t.push(ids, grads)
        wanted.update(ids, grads)
        assert worst(t.pull(ids), wanted.params[ids]) < 1e-5
    assert (t.pull(ids, columns=(1, 3)) == t.pull(ids) * [0, 1, 1]).all()
    assert (t.pull(ids, wire_dtype=jnp.bfloat16) == t.pull(ids).astype(jnp.bfloat16)).all()
    assert worst(t.dense(), wanted.params) < 1e-5


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
def test_work_is_divided_evenly(monkeypatch, n_threads):
    monkeypatch.setattr(parallel_calls, "n_threads", lambda: n_threads)
    counts = {2: 4, 5: 0, 6: 7, 9: 1}
    pieces = row_jobs.JobPool({}, 1).spans(counts, parallel_calls.PARALLEL_BYTES)
    assert len(pieces) == n_threads
    sizes = []
    for piece in pieces:
        sizes.append(sum(span.stop - span.start for span in piece.values()))
    assert sum(sizes) == 12 and max(sizes) - min(sizes) <= 1
    found = []
    for piece in pieces:
        for p, span in piece.items():
            for row in range(span.start, span.stop):
                found.append((p, row))
    assert found == [(p, row) for p, count in counts.items() for row in range(count)]
    assert row_jobs.JobPool({}, 1).spans({3: 0}, parallel_calls.PARALLEL_BYTES) == []


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, pickle.dumps],
)
def test_a_table_is_not_copied_without_its_rows(copied):
    with pytest.raises(
        TableError,
        match=r"expected a table that stays where it is, got a request to copy it\. Save it",
    ):
        copied(table())


def test_rows_of_any_rank_and_half_precision():
    values = (
        jnp.ones((5,), jnp.bfloat16),
        jnp.ones(
            (5, 2, 2),
            jnp.float16,
        ),
    )
    for v in values:
        t = Table(v, optax.sgd(0.5), partitions=2)
        t.push(
            [1, 1],
            np.ones(
                (2, *v.shape[1:]),
                np.float32,
            ),
        )
        assert t.dtype == v.dtype and t.shape == v.shape
        assert (t.dense() == np.asarray(v.at[1].set(0))).all()


def test_what_a_table_says():
    t = table(partitions=4, servers=2, mode="faithful")
    assert repr(t) == "Table(23 x 3 float32, partitions 4, servers 2, faithful, version 0)"
    assert (t.n_rows, t.shape, t.dtype, t.n_partitions, t.n_servers) == (
        23,
        (23, 3),
        np.float32,
        4,
        2,
    )


def test_an_update_that_fails_half_way_changes_nothing(monkeypatch):
    t = table("adam", partitions=4, servers=2)
    t.push([1, 2, 3], ONES)
    rows = t.dense()
    state = t.opt_state
    pending = t.aggregate([1, 2, 3], ONES)
    whole = server_part.compute_rows
    calls = iter([whole])

    def compute(*args):
        return next(calls)(*args)  # the second server's has no more

    monkeypatch.setattr(server_part, "compute_rows", compute)
    with pytest.raises(StopIteration):
        t.apply(pending)
    assert t.version == 1
    assert (t.dense() == rows).all()
    assert worst(t.opt_state, state) == 0
    monkeypatch.undo()
    assert t.apply(pending) == 2


# ---- partitions, servers, bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_partitions", range(1, 17))
def test_every_row_has_one_place(n_partitions):
    layout = PartitionLayout(23, n_partitions)
    sizes = [layout.size(p) for p in range(n_partitions)]
    assert sum(sizes) == 23 and max(sizes) - min(sizes) <= 1
    ids = np.arange(23)[::-1]
    order, spans, local = layout.group(ids)
    back = np.concatenate([layout.row_ids(p, local[span]) for p, span in spans])
    counts = layout.count(ids[:9])
    assert len(counts) == n_partitions
    assert counts.tolist() == [(ids[:9] % n_partitions == p).sum() for p in range(n_partitions)]
    assert (back == ids[order]).all()
    assert sorted(back) == list(range(23))
    for start, stop in [(0, 23), (5, 11), (22, 23)]:
        pieces = [(ids[::-1][start:stop][w], layout.row_ids(p, np.arange(sizes[p])[o])) for p in range(n_partitions) for w, o in [layout.within(p, start, stop)]]  # fmt: skip
        assert (
            all((a == b).all() for a, b in pieces)
            and sum(len(a) for a, _ in pieces) == stop - start
        )


def test_bytes_of_rows_at_each_server():
    place = table(
        partitions=3,
        servers=[1, 0, 1],
        wire_dtype=jnp.bfloat16,
    ).place
    assert place.bytes_at_servers(np.array([0, 2, 3, 5])) == {
        1: 4 * 3 * 2
    }  # partitions 0 and 2, of three numbers each
    assert place.bytes_at_servers(np.array([1, 2]), np.dtype(np.float32)) == {0: 12, 1: 12}
    assert place.bytes_at_servers(np.array([], np.int64)) == {}


def test_partitions_are_placed_evenly_by_size():
    assert place_evenly([8, 1, 1, 6], 2) == (0, 1, 1, 1)
    assert [table(partitions=8, servers=4).placement.count(s) for s in range(4)] == [2, 2, 2, 2]
    assert table(partitions=3, servers=[1, 0, 1]).placement == (1, 0, 1)


def test_bytes_are_counted_at_both_ends():
    t = table(partitions=4, servers=2)
    t.pull([0, 1, 2, 4, 4])  # partitions 0, 1, 2, 0: servers 0, 1, 0, 0
    t.push([3, 3, 0], ONES)
    clients, servers = t.traffic
    assert clients == servers
    assert [(c.pulled, c.pushed, c.indices) for c in clients] == [(36, 12, 16), (12, 12, 8)]
    t.aggregate([0], ONES[:1]).gradients()
    assert t.traffic[0][0].pulled == 48
    assert t.traffic[0][0].pushed == 24


def test_half_precision_on_the_wire_halves_the_bytes():
    t, wide = (table(partitions=2, wire_dtype=d) for d in (jnp.bfloat16, None))
    for each in (t, wide):
        each.push([0, 1, 1], ONES)
    assert t.pull([0]).dtype == np.float32
    assert (
        worst(
            t.pull([0, 1, 5]),
            wide.pull([0, 1, 5]),
        )
        < 2**-8
    )
    t.pull([7, 8]), wide.pull([7, 8])
    (half,) = t.traffic[0]
    (full,) = wide.traffic[0]
    assert (full.pushed, half.pushed, full.pulled, half.pulled) == (
        24,
        12,
        60,
        36,
    )  # one row more was pulled in half
    assert (t.dense()[5] == VALUES[5]).all()  # the table itself is not rounded


def test_rows_may_be_pulled_in_another_dtype():
    t = table()
    assert (
        worst(
            t.pull([0, 1], wire_dtype=jnp.bfloat16),
            VALUES[:2],
        )
        < 2**-8
    )
    assert t.traffic[0][0].pulled == 12
    assert t.traffic == (t.traffic[0], t.traffic[0])
    with pytest.raises(
        TableError, match="wire_dtype: expected float32, bfloat16 or float16, got int32"
    ):
        t.pull([0], wire_dtype="int32")


def test_some_columns_may_travel():
    t = table("adagrad", partitions=3)
    whole = table("adagrad", partitions=3)
    assert (t.pull([5, 1, 5], columns=(1, 3)) == VALUES[[5, 1, 5]] * [0, 1, 1]).all()
    t.apply(
        t.aggregate(
            [5, 1, 5],
            ONES,
            columns=(1, 3),
        )
    )
    whole.push(
        [5, 1, 5],
        ONES * np.array([0, 1, 1], np.float32),
    )
    assert (t.dense() == whole.dense()).all()
    assert [sum(s.pulled + s.pushed for s in end) for end in t.traffic] == [
        2 * 2 * 2 * 4
    ] * 2  # 2 rows, 2 columns, both ways


@pytest.mark.parametrize(
    "columns",
    [(1, 1), (0, 4), (-1, 2), 2, (0.0, 1.0)],
)
def test_columns_that_are_none(columns):
    t = table()
    for call in (
        lambda: t.pull([0], columns=columns),
        lambda: t.aggregate(
            [0],
            ONES[:1],
            columns=columns,
        ),
    ):
        with pytest.raises(
            TableError,
            match=re.escape(
                f"columns: expected None, or two integers that rise in [0, 3], got {columns}"
            ),
        ):
            call()
    assert t.traffic == table().traffic


def test_a_new_split_may_take_other_servers():
    t = table("adam", partitions=2, servers=2)
    t.push([1, 2, 3], ONES)
    rows = t.dense()
    counted = t.traffic
    t.resplit(3, servers=[2, 0, 2])
    assert t.placement == (2, 0, 2)
    assert t.n_servers == 3
    assert (t.dense() == rows).all()
    assert [c[:2] for c in t.traffic] == list(counted)
    again = Table(rows, ROW_WISE["adam"], **t.settings)
    assert again.placement == t.placement and again.settings == t.settings
    t.resplit(4)
    assert sorted(t.placement) == [0, 0, 1, 2]
    with pytest.raises(TableError, match="servers: expected a number, or 2 servers' numbers"):
        t.resplit(2, servers=[0])


def test_mapped_files_go_with_the_table(tmp_path):
    t = table("adam", partitions=3, folder=tmp_path)
    assert len(list(tmp_path.rglob("*.rows"))) == 9  # parameters and two states of each partition
    t.push([1, 2, 3], ONES)
    plain = table("adam", partitions=3)
    plain.push([1, 2, 3], ONES)
    t.resplit(2)
    assert len(list(tmp_path.rglob("*.rows"))) == 6
    assert (t.dense() == plain.dense()).all()
    del t
    assert list(tmp_path.iterdir()) == []


# ---- one of many variables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clipped", "averaged"])
def test_tables_and_dense_parameters_under_one_transform(name):
    tx = ROW_WISE[name]
    rng = np.random.default_rng(8)

    @jax.jit
    def whole_step(grads, state, params):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = {
        "w": VALUES[:4],
        "in": VALUES,
        "out": VALUES[:9],
    }
    split = split_rows(tx, params, ["['in']", "['out']"])
    dense, rows = split.params.split(params)
    tables = {}
    for t, (leaf,) in rows.items():
        tables[t] = Table(
            leaf,
            split.rules[t],
            partitions=3,
            mode="faithful",
        )
    shared = SharedVariables(split, dense, split.init(dense))
    wanted = params
    wanted_state = tx.init(params)
    for ids, some in steps(9, n=3):
        grads = {"w": rng.normal(size=(4, 3)).astype(np.float32), "in": np.zeros((23, 3), np.float32), "out": np.zeros((9, 3), np.float32)}  # fmt: skip
        np.add.at(grads["in"], ids, some)
        np.add.at(grads["out"], ids % 9, some)
        wanted, wanted_state = whole_step(grads, wanted_state, wanted)
        pending = {
            "['in']": tables["['in']"].aggregate(ids, some),
            "['out']": tables["['out']"].aggregate(ids % 9, some),
        }
        prepare_update(
            split.n_rounds,
            shared,
            split.params.split(grads)[0],
            pending,
        )()
    whole = split.params.fill(
        jax.tree.leaves(shared.params),
        {t: [each.dense()] for t, each in tables.items()},
    )
    assert worst(whole, wanted) < 1e-5
    assert (
        worst(
            split.state.fill(
                jax.tree.leaves(shared.state),
                {t: x.opt_state for t, x in tables.items()},
            ),
            wanted_state,
        )
        < 1e-5
    )


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_saved_table_goes_on_where_it_was(tmp_path):
    t = table("averaged", partitions=3, mode="faithful", servers=2)
    for ids, grads in steps(10):
        t.push(ids, grads)
    t.save(tmp_path)
    again = Table.load(tmp_path, ROW_WISE["averaged"], partitions=5)
    assert repr(again) == repr(t).replace("partitions 3", "partitions 5")
    for ids, grads in steps(11):
        assert again.push(ids, grads) == t.push(ids, grads)
    assert (again.dense() == t.dense()).all()
    assert worst(again.opt_state, t.opt_state) == 0


def test_a_second_save_replaces_the_first(tmp_path):
    t = table()
    t.save(tmp_path)
    t.push([1, 2, 3], ONES)
    t.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2  # one array, and the manifest
    assert (Table.load(tmp_path, ROW_WISE["sgd"]).dense() == t.dense()).all()


def test_half_precision_is_saved(tmp_path):
    t = Table(
        jnp.asarray(VALUES, jnp.bfloat16),
        optax.sgd(0.1),
        wire_dtype="float32",
    )
    t.save(tmp_path)
    again = Table.load(tmp_path, optax.sgd(0.1))
    assert again.dtype == jnp.bfloat16
    assert (again.dense() == t.dense()).all()


def rows_file(folder):
    return next(folder.glob("*-rows-0.bin"))


def manifest(folder, change):
    path = folder / "table.json"
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))


DAMAGE = {
    "cut off": (lambda f: rows_file(f).write_bytes(rows_file(f).read_bytes()[:-1]), "expected 276 bytes, got 275. The file was cut off"),
    "altered": (lambda f: rows_file(f).write_bytes(bytes(276)), "The file was altered."),
    "missing": (lambda f: rows_file(f).unlink(), "expected a file of the table, got no such file"),
    "manifest altered": (lambda f: manifest(f, lambda b: b.update(version=9)), "The manifest was altered."),
    "no manifest": (lambda f: (f / "table.json").unlink(), "expected a saved table, got no such file"),
    "manifest cut off": (lambda f: (f / "table.json").write_text("{"), "expected a table's manifest, got something else"),
    "not a manifest": (lambda f: (f / "table.json").write_text("[1]"), "expected a table's manifest, got something else"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_noticed(tmp_path, damage):
    table().save(tmp_path)
    change, text = DAMAGE[damage]
    change(tmp_path)
    with pytest.raises(TableError, match=re.escape(text)):
        Table.load(tmp_path, ROW_WISE["sgd"])


def forged(folder, change):
    """A manifest that was changed by somebody who knows how its checksum is made."""

    def again(body):
        change(body)
        del body["sha256"]
        body["sha256"] = table_files._digest(body)

    manifest(folder, again)


FORGED = {
    "rows that are not there": (lambda b: b.update(shape=[2**40, 3]), "expected rows of shape [1099511627776, 3], float32, got files of shape"),
    "files that are not there": (lambda b: b["files"][0].update(shape=[2**40, 3]), "expected 13194139533312 bytes, got 276"),
    "another dtype": (lambda b: b["files"][0].update(dtype="int32"), "expected rows of shape [23, 3], float32, got files"),
    "objects": (lambda b: b["files"][0].update(dtype="object"), "`files`: expected names, dtypes, shapes and checksums"),
    "a size below 0": (lambda b: b["files"][0].update(shape=[-23, -3]), "`files`: expected names, dtypes, shapes"),
    "a size that no array has": (lambda b: b["files"][0].update(shape=[0, 2**62]), "`files`: expected names, dtypes, shapes"),
    "shared state without its axis": (lambda b: b.update(n_others=1), "`files`: expected names, dtypes"),
    "a file elsewhere": (lambda b: b["files"][0].update(file="../table-01234567-rows-0.bin"), "`files`: expected names"),
    "no files": (lambda b: b.pop("files"), "`files`: expected a list, got None"),
    "too few files": (lambda b: b.update(n_others=99), "`files`: expected names"),
    "no settings": (lambda b: b.pop("settings"), "`settings`: expected a dict, got None"),
    "settings that are none": (lambda b: b["settings"].update(colour=1), "expected a table's settings, with 1 to 1048576"),
    "endless servers": (lambda b: b["settings"].update(servers=10**12), "expected a table's settings, with 1 to 1048576"),
    "no format": (lambda b: b.pop("format"), "expected format 1, got None"),
}  # fmt: skip


@pytest.mark.parametrize("change", FORGED)
def test_what_a_forged_manifest_claims_is_checked_before_rows_are_made(tmp_path, change):
    table().save(tmp_path)
    forge, text = FORGED[change]
    forged(tmp_path, forge)
    with pytest.raises(TableError, match=re.escape(text)):
        Table.load(tmp_path, ROW_WISE["sgd"])


def test_a_manifest_that_names_no_files_has_none_deleted(tmp_path):
    table().save(tmp_path)
    forged(
        tmp_path,
        lambda body: body.update(files=[], n_others=0),
    )
    before = sorted(tmp_path.iterdir())
    with pytest.raises(
        TableError, match=r"expected rows of shape \[23, 3\], float32, got files of shape \[\]"
    ):
        Table.load(tmp_path, ROW_WISE["sgd"])
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b"\xff", b""],
    ids=["brackets", "no text", "nothing"],
)
def test_a_manifest_that_is_no_json(tmp_path, content):
    (tmp_path / "table.json").write_bytes(content)
    with pytest.raises(TableError, match="expected a table's manifest, got something else"):
        Table.load(tmp_path, ROW_WISE["sgd"])


def test_another_transform_does_not_fit_what_was_saved(tmp_path):
    table().save(tmp_path)
    with pytest.raises(
        TableError, match=re.escape("expected state as `tx` keeps it, [[['[0].mu', [3], 'float32']")
    ):
        Table.load(tmp_path, ROW_WISE["adam"])


# ---- mistakes --------------------------------------------------------------------------------------------------------

NAN = ONES.copy()
INF = ONES.copy()
NAN[1, 2] = np.nan
INF[2, 0] = np.inf
PUSHES = {
    "id too large": ([0, 23, 1], ONES, "push, row ids: expected ids in [0, 23), got 23 at place 1."),
    "id negative": ([-1, 0, -2], ONES, "push, row ids: expected ids in [0, 23), got -1 at place 0, and 1 more outside."),
    "ids of floats": ([0.0, 1.0, 2.0], ONES, "push, row ids: expected integers, got float64."),
    "ids of booleans": ([True, False, True], ONES, "push, row ids: expected integers, got bool."),
    "ids with two axes": ([[0, 1, 2]], ONES, "push, row ids: expected one axis, [n], got shape (1, 3)."),
    "too few gradients": ([0, 1], ONES, "push, gradients: expected shape (2, 3), got (3, 3)."),
    "wrong row": ([0, 1, 2], np.ones((3, 2), np.float32,), "push, gradients: expected shape (3, 3), got (3, 2)."),
    "float64": ([0, 1, 2], np.ones((3, 3)), "push, gradients: expected float32, got float64."),
    "integers": ([0, 1, 2], np.ones((3, 3), np.int32,), "push, gradients: expected float32, got int32."),
    "NaN": ([0, 20, 2], NAN, "push, gradients: expected finite numbers, got nan in row 20."),
    "infinite": ([0, 1, 21], INF, "push, gradients: expected finite numbers, got inf in row 21."),
    "sum overflows": ([7, 7, 7], ONES * 3e38, "push, gradients: expected finite numbers, got inf in row 7."),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("name", PUSHES)
def test_a_bad_push_changes_nothing(name):
    ids, grads, text = PUSHES[name]
    t = table("adagrad", partitions=3)
    t.push([1, 2, 3], ONES)
    rows = t.dense()
    state = t.opt_state
    traffic = t.traffic
    pending = t.aggregate([5], ONES[:1])
    traffic = t.traffic
    for into in (None, pending):
        with pytest.raises(TableError, match=re.escape(text)):
            t.aggregate(ids, grads, into=into)
    with pytest.raises(TableError, match=re.escape(text)):
        t.push(ids, grads)
    assert (
        (t.dense() == rows).all()
        and worst(t.opt_state, state) == 0
        and t.version == 1
        and t.traffic == traffic
    )
    assert pending.gradients()[0].tolist() == [5]


@pytest.mark.filterwarnings("ignore:overflow")
def test_gradients_of_clients_that_overflow_together_change_nothing():
    t = table()
    pending = t.aggregate(
        [1],
        ONES[:1] * 3e38,
        into=t.aggregate([1], ONES[:1] * 3e38),
    )
    with pytest.raises(
        TableError,
        match=re.escape("apply, gradients: expected finite numbers, got inf in row 1"),
    ):
        t.apply(pending)
    assert t.version == 0 and (t.dense() == VALUES).all()


@pytest.mark.parametrize(
    ("wire_dtype", "size", "clients"),
    [(None, 4e4, 2), ("float32", 1e5, 1)],
    ids=["sum", "cast"],
)
def test_gradients_that_are_too_large_for_the_table_change_nothing(wire_dtype, size, clients):
    values = VALUES.astype(np.float16)
    t = table(values=values, wire_dtype=wire_dtype)
    pending = None
    for _ in range(clients):
        pending = t.aggregate(
            [1],
            ONES[:1] * np.float32(size),
            into=pending,
        )
    with pytest.raises(
        TableError,
        match=re.escape("apply, gradients: expected finite numbers, got inf in row 1"),
    ):
        t.apply(pending)
    assert t.version == 0 and (t.dense() == values).all()


def test_gradients_are_applied_once_and_where_they_belong():
    t = table(partitions=2)
    pending = t.aggregate([0], ONES[:1])
    t.apply(pending)
    for call in (
        lambda: t.apply(pending),
        lambda: t.aggregate(
            [1],
            ONES[:1],
            into=pending,
        ),
    ):
        with pytest.raises(TableError, match="expected gradients that were not applied before"):
            call()
    late = t.aggregate([0], ONES[:1])
    t.resplit(3)
    with pytest.raises(
        TableError,
        match=re.escape(
            "got those for an earlier split, PartitionLayout(n_rows=23, n_partitions=2). Aggregate"
        ),
    ):
        t.apply(late)
    assert t.version == 1


def test_gradients_lie_with_one_split_of_one_table():
    t = table(partitions=2)
    other = table(partitions=2)
    late = t.aggregate([0], ONES[:1])
    with pytest.raises(
        TableError, match="expected gradients that this table has aggregated, got another table's"
    ):
        other.apply(late)
    t.resplit(2)  # the same partitions, elsewhere
    for call in (
        lambda: t.apply(late),
        lambda: t.aggregate(
            [1],
            ONES[:1],
            into=late,
        ),
        lambda: late.prepare([]),
        late.gradients,
    ):
        with pytest.raises(TableError, match="got those for an earlier split"):
            call()
    assert t.version == 0 and (t.dense() == VALUES).all()


def test_a_server_that_has_caught_up_alone_does_not_harm_a_new_split():
    t, whole = (
        table("adam", partitions=2, servers=2, mode="faithful", max_lag=8) for _ in range(2)
    )
    for turn, each in ((turn, each) for turn in range(4) for each in (t, whole)):
        each.push(
            [turn, turn + 7],
            ONES[:2] * (turn + 1),
        )
        if turn == 1 and each is t:
            t._shards.ask({0: ("settle",)})  # what an interrupt between two servers leaves
        if turn == 2:
            each.resplit(3)
    np.testing.assert_array_equal(t.dense(), whole.dense())


def test_a_new_split_that_is_cut_off_leaves_the_old_one_alone(monkeypatch):
    t = table(partitions=2)

    def interrupted(self, rows, *, stored=False):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Shards, "fill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            t.resplit(3)
    gc.collect()
    assert [len(server._parts) for server in t._connection.servers._servers.values()] == [1]
    assert t.n_partitions == 2 and (t.dense() == VALUES).all()


def test_shared_values_must_come_from_where_the_transform_is():
    rule = split_rows(ROW_WISE["adam"], {"t": VALUES}, ["['t']"]).rules["['t']"]
    t = Table(VALUES, rule)
    alone = table()
    with pytest.raises(
        TableError, match="apply, shared values: expected those of the rule, got None"
    ):
        t.push([0], ONES[:1])
    with pytest.raises(
        TableError, match="apply, shared values: expected None: the table has a transform, got some"
    ):
        alone.apply(
            alone.aggregate([0], ONES[:1]),
            [],
        )
    with pytest.raises(
        TableError,
        match=re.escape(
            "values: expected rows of float32[3], as the rule was made for, got float32[2]"
        ),
    ):
        Table(VALUES[:, :2], rule)


SETTINGS = {
    "partitions 0": ({"partitions": 0}, "partitions: expected an integer in [1, 23], got 0."),
    "too many partitions": ({"partitions": 24}, "partitions: expected an integer in [1, 23], got 24."),
    "half a partition": ({"partitions": 1.5}, "partitions: expected an integer in [1, 23], got 1.5."),
    "servers": ({"servers": 0}, "servers: expected at least 1, got 0."),
    "placement": ({"partitions": 3, "servers": [0, 1]}, "servers: expected a number, or 3 servers' numbers, got [0, 1]."),
    "servers' name": ({"servers": "two"}, "servers: expected an integer, or one for each partition, got 'two'."),
    "half a server": ({"servers": 1.5}, "servers: expected an integer, or one for each partition, got 1.5."),
    "mode": ({"mode": "eager"}, "mode: expected `lazy` or `faithful`, got 'eager'."),
    "wire": ({"wire_dtype": "int8"}, "wire_dtype: expected float32, bfloat16 or float16, got int8."),
    "lag": ({"max_lag": 0}, "max_lag: expected an integer above 0, got 0."),
    "list": ({"values": [[1.0]]}, "values: expected an array [n_rows, *row], or what has shape, dtype and slices, got list."),
    "empty": ({"values": VALUES[:0]}, "values: expected shape [n_rows, *row], nothing of it 0, got shape (0, 3)."),
    "double": ({"values": VALUES.astype(np.float64)}, "values: expected float32, bfloat16 or float16, got float64."),
    "not finite": ({"values": VALUES * np.nan}, "values: expected finite numbers, got nan in row 0."),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_are_refused(name):
    settings, text = SETTINGS[name]
    with pytest.raises(TableError, match=re.escape(text)):
        table(**settings)


def test_transforms_that_are_refused():
    with pytest.raises(
        TableError, match=re.escape("tx, table `params`: expected an update that works row by row")
    ):
        Table(VALUES, optax.lamb(0.1))


def test_a_bad_split_or_pull_leaves_the_table():
    t = table(partitions=2)
    with pytest.raises(
        TableError, match=re.escape("partitions: expected an integer in [1, 23], got 0.")
    ):
        t.resplit(0)
    with pytest.raises(
        TableError, match=re.escape("pull, row ids: expected ids in [0, 23), got 23 at place 0")
    ):
        t.pull([23])
    assert t.n_partitions == 2 and (t.dense() == VALUES).all()


def test_integers_of_numpy_are_as_good(tmp_path):
    t = table(
        partitions=np.int64(2),
        servers=np.int64(2),
    )
    t.resplit(np.int32(3), servers=np.arange(3))
    t.save(tmp_path)
    assert Table.load(tmp_path, ROW_WISE["sgd"]).n_partitions == 3
    assert t.placement == (0, 1, 2)


def test_an_empty_array_is_saved(tmp_path):
    table_files.save(
        tmp_path,
        {},
        iter([]),
        [np.zeros((0, 3), np.float32)],
    )
    assert table_files.read_arrays(tmp_path, table_files.read_manifest(tmp_path))[1][0].shape == (
        0,
        3,
    )
