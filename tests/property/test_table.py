"""Law 8: the table equals a dense array under plain optax, however it is split and whatever happens to it in between."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.effort import examples
from support.optimizers import ROW_WISE, STILL, Dense, worst

from ampjax.errors import TableError
from ampjax.sparse import Table
from ampjax.sparse.servers.processes import ServerProcesses
from ampjax.sparse.table import table_files

N_ROWS = 17
VALUES = np.random.default_rng(0).normal(size=(N_ROWS, 3)).astype(np.float32)
TOLERANCE = (
    1e-5  # sums of squares in another order, then Adam's division by a root; found are 6e-7 at most
)

row_ids = st.lists(
    st.integers(0, N_ROWS - 1),
    max_size=8,
).map(np.array)
seeds = st.integers(0, 2**16)
splits = st.integers(1, 16)


def gradients(ids, seed):
    """Quarters: their sums are exact in any order, so that Adam can't make much of a small difference."""
    return (
        np.random.default_rng(seed).integers(
            -8,
            9,
            (len(ids), 3),
        )
        / 4
    ).astype(np.float32)


@given(
    name=st.sampled_from(list(ROW_WISE)),
    mode=st.sampled_from(["lazy", "faithful"]),
    partitions=splits,
    servers=st.integers(1, 4),
    pushes=st.lists(
        st.tuples(row_ids, row_ids, seeds),
        min_size=1,
        max_size=6,
    ),
)
@settings(max_examples=examples(30))
def test_any_split_and_any_order_of_clients(name, mode, partitions, servers, pushes):
    table = Table(
        VALUES,
        ROW_WISE[name],
        partitions=partitions,
        servers=servers,
        mode=mode,
        max_lag=4,
    )
    dense = Dense(name, VALUES, lazy=mode == "lazy")
    for first, second, seed in pushes:
        clients = [
            (first, gradients(first, seed)),
            (second, gradients(second, seed + 1)),
        ]
        pending = None
        for ids, grads in clients[:: 1 if seed % 2 else -1]:
            pending = table.aggregate(ids, grads, into=pending)
        table.apply(pending)
        dense.update(
            np.concatenate([first, second]).astype(int),
            np.concatenate([grads for _, grads in clients]),
        )
        assert (
            worst(
                table.pull(first),
                dense.params[first.astype(int)],
            )
            < TOLERANCE
        )
    assert worst(table.dense(), dense.params) < TOLERANCE
    assert worst(table.opt_state, dense.state) < TOLERANCE
    assert table.traffic[0] == table.traffic[1]


@pytest.fixture(scope="module")
def processes():
    with ServerProcesses(3) as servers:
        yield servers


@pytest.mark.nightly
@given(
    mode=st.sampled_from(["lazy", "faithful"]),
    splits=st.lists(
        st.tuples(splits, st.integers(1, 3)),
        min_size=1,
        max_size=3,
    ),
    pushes=st.lists(
        st.tuples(row_ids, row_ids, seeds),
        min_size=1,
        max_size=4,
    ),
    columns=st.sampled_from([None, (1, 3)]),
)
@settings(max_examples=examples(15))
def test_servers_in_processes_are_the_same_bit_for_bit(processes, mode, splits, pushes, columns):
    tables = []
    for where in (processes, None):
        for p, s in splits[:1]:
            tables.append(
                Table(
                    VALUES,
                    ROW_WISE["clipped"],
                    partitions=p,
                    servers=s,
                    mode=mode,
                    max_lag=2,
                    processes=where,
                )
            )
    rng = np.random.default_rng(0)
    for turn, (first, second, _) in enumerate(pushes):
        clients = []
        for ids in (first, second):
            clients.append(
                (
                    ids,
                    rng.normal(size=(len(ids), 3)).astype(np.float32),
                )
            )
        for table in tables:
            pending = None
            for ids, grads in clients:
                pending = table.aggregate(ids, grads, pending, columns)
            table.apply(pending)
            table.assign(
                [turn, 7],
                np.full((2, 3), turn),
            )
            if turn + 1 < len(splits):
                table.resplit(*splits[turn + 1])
        assert (
            tables[0].pull(first, columns=columns) == tables[1].pull(first, columns=columns)
        ).all()
    assert tables[0].traffic == tables[1].traffic
    assert tables[0].traffic[0] == tables[0].traffic[1]
    assert (tables[0].dense() == tables[1].dense()).all()
    assert worst(tables[0].opt_state, tables[1].opt_state) == 0


@given(
    name=st.sampled_from(STILL),
    pushes=st.lists(
        st.tuples(row_ids, seeds),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=examples(10))
def test_without_a_memory_of_untouched_rows_lazy_is_plain_optax(name, pushes):
    table = Table(VALUES, ROW_WISE[name], partitions=3)
    dense = Dense(name, VALUES)
    for ids, seed in pushes:
        table.push(ids, gradients(ids, seed))
        dense.update(ids.astype(int), gradients(ids, seed))
    assert worst(table.dense(), dense.params) < 1e-6
    assert worst(table.opt_state, dense.state) < 1e-6


class Cut(OSError):
    """What stands for the end of the process in the middle of a save."""


class TableMachine(RuleBasedStateMachine):
    """A table in faithful mode through pulls, pushes, saves, crashes, loads and new splits, beside a dense array."""

    @initialize(
        name=st.sampled_from(["sgd", "adagrad", "momentum", "clipped", "averaged"]),
        partitions=splits,
    )
    def start(self, name, partitions):
        self.name, self.folder, self.saved = name, self.new_folder(), None
        self.table = Table(
            VALUES,
            ROW_WISE[name],
            partitions=partitions,
            servers=2,
            mode="faithful",
            max_lag=3,
        )
        self.dense = Dense(name, VALUES)

    @rule(ids=row_ids)
    def pull(self, ids):
        assert (
            worst(
                self.table.pull(ids),
                self.dense.params[ids.astype(int)],
            )
            < TOLERANCE
        )

    @rule(ids=row_ids, seed=seeds)
    def push(self, ids, seed):
        self.table.push(ids, gradients(ids, seed))
        self.dense.update(ids.astype(int), gradients(ids, seed))

    @rule(ids=row_ids, seed=seeds)
    def assign(self, ids, seed):
        ids = np.unique(ids.astype(int))
        self.table.assign(
            ids[::-1],
            gradients(ids, seed)[::-1],
        )
        self.dense.assign(ids, gradients(ids, seed))

    @rule(
        ids=row_ids.filter(len),
        value=st.sampled_from([np.nan, np.inf]),
    )
    def push_what_is_not_finite(self, ids, value):
        grads = gradients(ids, 0)
        grads[-1, 0] = value
        with pytest.raises(TableError, match="expected finite numbers"):
            self.table.push(ids, grads)

    @rule(partitions=splits)
    def resplit(self, partitions):
        self.table.resplit(partitions)

    @rule()
    def settle(self):
        self.table.settle()

    @rule()
    def save(self):
        self.table.save(self.folder)
        self.saved = self.table.version, self.dense.copy()

    @rule(place=st.integers(0, 9))
    def crash_while_saving(self, place):
        """The process ends before one of the writes of a save; what was saved before must still be whole."""
        calls = iter(range(100))

        def cut(original):
            def call(*args):
                if next(calls) == place:
                    raise Cut
                return original(*args)

            return call

        writes = (
            mock.patch.object(table_files, "_sync", cut(table_files._sync)),
            mock.patch.object(
                table_files.os,
                "replace",
                cut(table_files.os.replace),
            ),
        )
        done = True
        with writes[0], writes[1]:
            try:
                self.table.save(self.folder)
            except Cut:
                done = False
        if done:
            self.saved = self.table.version, self.dense.copy()

    @precondition(lambda self: self.saved)
    @rule(partitions=splits)
    def load(self, partitions):
        version, dense = self.saved
        self.table = Table.load(
            self.folder,
            ROW_WISE[self.name],
            partitions=partitions,
        )
        self.dense = dense.copy()
        assert self.table.version == version and self.table.n_partitions == partitions

    @invariant()
    def both_ends_count_the_same(self):
        if hasattr(self, "table"):
            assert self.table.traffic[0] == self.table.traffic[1]

    def teardown(self):
        if hasattr(self, "table"):
            assert worst(self.table.dense(), self.dense.params) < TOLERANCE
            assert worst(self.table.opt_state, self.dense.state) < TOLERANCE

    def new_folder(self):
        raise NotImplementedError


def test_table_machine(tmp_path_factory):
    class Machine(TableMachine):
        def new_folder(self):
            return tmp_path_factory.mktemp("table")

    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples(25), stateful_step_count=15)
    )
