"""The table of messages, and the arithmetic of ranges."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ampjax.unfold.assemble_programs import stable_order
from ampjax.unfold.rules.message_columns import IntColumn, MessageTable, resolve, spread

SIZES = st.lists(st.integers(0, 5), max_size=8)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 99),
            st.integers(0, 5),
        ),
        max_size=8,
    )
)
def test_spread_counts_on_from_each_start(ranges):
    starts, sizes = (np.array([r[i] for r in ranges], np.int64) for i in (0, 1))
    assert spread(starts, sizes).tolist() == [s + i for s, n in ranges for i in range(n)]


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.integers(0, 20),
            st.integers(0, 5),
        ),
        max_size=8,
    )
)
def test_rows_follow_one_another_or_are_picked(messages):
    picks = np.arange(30)[::-1].copy()
    first = np.array(
        [~start if picked else start for picked, start, _ in messages],
        np.int64,
    )
    sizes = np.array(
        [n for *_, n in messages],
        np.int64,
    )
    expected = []
    for picked, s, n in messages:
        for i in range(n):
            expected.append(int(picks[s + i]) if picked else s + i)
    assert resolve(first, sizes, picks).tolist() == expected


@given(
    st.lists(
        st.integers(
            0,
            (1 << 40) - 1,
        ),
        max_size=50,
    )
    | st.lists(st.integers(0, 3), max_size=50)
)
def test_sorting_by_digits_keeps_the_order_of_equals(keys):
    assert stable_order(np.array(keys, np.int64)).tolist() == sorted(
        range(len(keys)), key=keys.__getitem__
    )


def test_numbers_grow_and_are_cleared():
    numbers = IntColumn(7)
    numbers.extend(2000, np.arange(2000))
    numbers.extend(2, 5)
    assert len(numbers) == 2003
    assert numbers.values[[0, 1, 2000, 2001, 2002]].tolist() == [
        7,
        0,
        1999,
        5,
        5,
    ]
    numbers.clear()
    assert numbers.values.tolist() == [7]


def test_views_share_their_owner_and_hold_rows_of_their_own():
    table = MessageTable()
    two = table.emit(
        np.array([0, 1]),
        np.array([0, 3]),
        np.array([3, 2]),
    )
    assert table.rows_of(two)[0].tolist() == [0, 1, 2, 3, 4]
    single = table.view(
        two[[0, 0]],
        np.array([2, 0]),
    )
    picked = table.view(two, None)
    table.set_parts(
        picked,
        [
            np.array([1, 1, 0]),
            np.array([], np.int64),
        ],
    )
    assert table.owner[[*single, *picked]].tolist() == [0, 0, 0, 1]
    assert table.row[single].tolist() == [2, 0]
    assert [table.rows[cell].tolist() for cell in picked.tolist()] == [[1, 1, 0], []]
    rows, sizes = table.rows_of(np.array([*two, *picked]))
    assert rows.tolist() == [0, 1, 2, 3, 4, 1, 1, 0]
    assert sizes.tolist() == [3, 2, 3, 0]
