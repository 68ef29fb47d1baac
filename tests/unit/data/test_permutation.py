"""Shuffles: labels follow from the operations, ways from the orders."""

import numpy as np
import pytest

from ampjax.data.permutation import N_PLACES, ShuffledRows, Shuffles, generate, powers, shuffles
from ampjax.errors import DataError, SettingsError
from ampjax.ir.instances import Instances


def test_labels_are_what_the_operations_do_one_by_one():
    data, moves = generate(20, 5, seed=3), shuffles(5)
    for digits, order, label in zip(data.digits, data.orders, data.labels, strict=True):
        for k in order:
            digits = [digits[moves[k][place]] for place in range(N_PLACES)]
        assert digits[0] == label


def test_a_way_spells_its_order():
    data = generate(6, 4)
    programs = ShuffledRows(data)
    assert isinstance(programs, Instances) and len(programs) == 6
    got = programs.gather(np.array([4, 1]))
    ways = got["digits"].fields["way"]
    np.testing.assert_array_equal(ways[:, None] // powers(4) % 4, data.orders[[4, 1]])
    np.testing.assert_array_equal(got["label"].payload, data.labels[[4, 1]])


def test_mistakes_are_told():
    with pytest.raises(SettingsError, match="`n_operations`: expected at most 12, got 13"):
        generate(1, 13)
    data = generate(2, 3)
    with pytest.raises(DataError, match="Shuffles, orders: expected each operation once"):
        Shuffles(data.digits, np.zeros_like(data.orders), data.labels)
    with pytest.raises(DataError, match="a row of digits, an order and a label each"):
        Shuffles(data.digits[:1], data.orders, data.labels)
    assert repr(data) == "Shuffles(2 instances, 3 operations)"
