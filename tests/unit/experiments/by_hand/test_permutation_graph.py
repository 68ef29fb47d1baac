"""Ways follow from orders."""

import numpy as np
import pytest

from ampjax.errors import SettingsError
from ampjax.ir.instances import Instances
from experiments.by_hand.permutation_graph import ShuffledRows, permutation, powers
from experiments.data.permutation import generate


def test_a_way_spells_its_order():
    data = generate(6, 4)
    programs = ShuffledRows(data)
    assert isinstance(programs, Instances) and len(programs) == 6
    got = programs.gather(np.array([4, 1]))
    ways = got["digits"].fields["way"]
    np.testing.assert_array_equal(
        ways[:, None] // powers(4) % 4,
        data.orders[[4, 1]],
    )
    np.testing.assert_array_equal(
        got["label"].payload,
        data.labels[[4, 1]],
    )


def test_bad_sizes_are_refused():
    for sizes in ((0, 8), (13, 8), (4, 0), (4, 8, 0)):
        with pytest.raises(SettingsError, match="permutation, sizes: expected 1 to 12 operations"):
            permutation(*sizes)
