"""Errors about rows with NaN or infinity: the row in the message."""

import numpy as np
import pytest

from ampjax.errors import TableError
from ampjax.optim.row_rule import RowTypes
from ampjax.sparse.rows.row_gradients import refuse_new_rows

TYPES = RowTypes(
    (2,),
    np.dtype(np.float32),
    (),
    starts=(0, 5),
    parameters=("first", "second"),
)
IDS = np.array([1, 4, 5, 8])
OF_GRADIENTS = "got nan in row 3 of `second`, whose gradient has -inf"


@pytest.mark.parametrize(
    ("bad_rows", "bad_grads", "got"),
    [
        ([3], [3], OF_GRADIENTS),
        ([0, 1, 2, 3], [3], OF_GRADIENTS),
        ([1, 3], [0, 3], OF_GRADIENTS),
        ([1, 3], [0], r"got nan in row 4 of `first`\."),
        ([2], [], r"got nan in row 0 of `second`\."),
    ],
    ids=["one row", "all of one", "a replaced one, too", "replaced ones only", "none"],
)
def test_a_row_with_a_bad_gradient_is_named_before_others(bad_rows, bad_grads, got):
    rows = np.ones((4, 2), np.float32)
    grads = np.ones((4, 2), np.float32)
    rows[bad_rows, 1] = np.nan
    grads[bad_grads, 0] = -np.inf
    with pytest.raises(TableError, match=f"apply, new rows: expected finite numbers, {got}"):
        refuse_new_rows(
            rows,
            grads,
            IDS,
            TYPES.row_name,
        )
