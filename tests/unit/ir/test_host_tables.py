import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ampjax.ir.host_tables import is_table
from ampjax.sparse import Table
from ampjax.sparse.table.travelling_table import TravellingTable


def test_tables_are_told_from_arrays():
    table = Table(np.ones((4, 2), np.float32), optax.sgd(0.1))
    stand_in = TravellingTable.of(table).without_rows()
    assert is_table(table)
    assert is_table(stand_in)


@pytest.mark.parametrize("value", [np.ones(2), jnp.ones(2), 1.0, {"w": np.ones(2)}, Table])
def test_other_values_are_no_tables(value):
    assert not is_table(value)
