"""The rule that hybrid runners and nodes of graphs share: by what updates touch, and by size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.parallel import ParallaxConfig
from ampjax.sparse.table.table_or_dense import ALPHA_THRESHOLD, table_or_dense, touched_share

FLOAT = np.dtype(np.float32)


@given(
    st.floats(0, 1),
    st.floats(0.01, 2),
    st.integers(0, 1000),
    st.none() | st.integers(0, 1000),
)
def test_rows_are_a_table_if_few_are_touched_or_they_do_not_fit(alpha, threshold, size, room):
    choice = table_or_dense(alpha, FLOAT, threshold, size, room)
    assert choice.is_table == (alpha < threshold or (room is not None and size > room))
    assert ("below" in choice.why or choice.is_too_large) == choice.is_table


def test_tables_hold_no_double_precision():
    assert table_or_dense(0.0, np.dtype(np.float64)) == (
        False,
        "tables hold no rows of float64",
        False,
    )


def test_the_reasons():
    assert table_or_dense(0.5, FLOAT).why == "alpha 0.5 is at least 0.4"
    assert (
        table_or_dense(0.5, FLOAT, 0.4, 2000, 1000).why
        == "2,000 bytes do not fit into a device's 1,000"
    )


def test_the_share_is_a_mean():
    assert touched_share([2, 4], 30) == pytest.approx(0.1)
    assert ParallaxConfig().alpha_threshold == ALPHA_THRESHOLD
