"""Shuffles: labels follow from the operations."""

import numpy as np
import pytest

from ampjax.errors import DataError, SettingsError
from experiments.data.permutation import N_PLACES, Shuffles, generate, shuffles


def test_labels_are_what_the_operations_do_one_by_one():
    data = generate(20, 5, seed=3)
    moves = shuffles(5)
    for digits, order, label in zip(
        data.digits,
        data.orders,
        data.labels,
        strict=True,
    ):
        for k in order:
            digits = [digits[moves[k][place]] for place in range(N_PLACES)]
        assert digits[0] == label


def test_mistakes_are_told():
    with pytest.raises(SettingsError, match="`n_operations`: expected at least 1, got 0"):
        generate(1, 0)
    data = generate(2, 3)
    with pytest.raises(DataError, match="Shuffles, orders: expected each operation once"):
        Shuffles(data.digits, np.zeros_like(data.orders), data.labels)
    with pytest.raises(DataError, match="a row of digits, an order and a label each"):
        Shuffles(data.digits[:1], data.orders, data.labels)
    assert repr(data) == "Shuffles(2 instances, 3 operations)"
