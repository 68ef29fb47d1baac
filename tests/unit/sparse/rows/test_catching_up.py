import numpy as np
import optax
import pytest

from ampjax.sparse import Table
from ampjax.sparse.rows.row_kernels import RowKernels, jitted_functions

N_ROWS = 512
MAX_LAG = 16
VALUES = np.linspace(
    -1,
    1,
    N_ROWS * 512,
    dtype=np.float32,
).reshape(N_ROWS, 512)  # 16 blocks of 32 rows
ADAM = optax.adam(0.1)


@pytest.fixture
def made(monkeypatch):
    """Counts updates of single rows that are made later than they were due."""
    counts = []
    plain = RowKernels.catch_up

    def catch_up(self, history, first, stop, *rest):
        counts.append(int(np.sum(stop - first)))
        return plain(self, history, first, stop, *rest)

    monkeypatch.setattr(RowKernels, "catch_up", catch_up)
    return counts


def pushed(table, n, made):
    """By update, how many missed updates of rows were made meanwhile, and the gradients."""
    rng = np.random.default_rng(0)
    each = []
    whole = []
    for _ in range(n):
        ids = rng.choice(N_ROWS, 2, replace=False)
        grads = rng.normal(size=(2, 512)).astype(np.float32)
        made.clear()
        table.push(ids, grads)
        each.append(sum(made))
        whole.append(np.zeros_like(VALUES))
        whole[-1][ids] = grads
    return each, whole


@pytest.mark.nightly
def test_no_update_has_to_make_up_for_many_others(made):
    table = Table(VALUES, ADAM, mode="faithful", max_lag=MAX_LAG, partitions=3)
    each, whole = pushed(table, 5 * MAX_LAG, made)
    touched = 2 * MAX_LAG
    assert (
        max(each) <= 1.2 * N_ROWS + touched
    )  # a slice of all rows, which differ by a row between partitions
    assert min(each[MAX_LAG:]) > 0.5 * N_ROWS
    params = VALUES
    state = ADAM.init(VALUES)
    for grads in whole:
        updates, state = ADAM.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(table.dense(), params, atol=2e-5)


def test_no_row_falls_behind_further_than_it_may(made):
    table = Table(VALUES, ADAM, mode="faithful", max_lag=MAX_LAG, partitions=3)
    pushed(table, 3 * MAX_LAG + 5, made)
    (part,) = table._connection.servers._servers[0]._parts.values()
    assert all(
        (part.history().version - held.seen).max() <= MAX_LAG for held in part._partitions.values()
    )
    assert part.history().length <= 2 * MAX_LAG


def test_rows_catch_up_by_what_the_first_update_has_compiled(made):
    table = Table(
        VALUES,
        optax.adam(0.2),
        mode="faithful",
        max_lag=MAX_LAG,
    )
    compiled = jitted_functions(table.rule)["catch_up"]._cache_size
    pushed(table, 1, made)
    assert compiled() == 1
    pushed(table, 3 * MAX_LAG, made)
    assert compiled() == 1


def test_a_table_of_few_rows_catches_up_seldom(made):
    table = Table(
        VALUES[:40, :4],
        ADAM,
        mode="faithful",
        max_lag=MAX_LAG,
    )
    for _ in range(2 * MAX_LAG):
        table.push([1], VALUES[:1, :4])
    assert sum(count > 0 for count in made) <= 4
