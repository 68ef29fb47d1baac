"""Which choices there are."""

import jax
import pytest
from support import graphs

from ampjax.errors import SettingsError
from ampjax.ir.instances import InstanceList
from ampjax.tuning.search_space import candidates, full_space, intervals


def sequences(n, length=3):
    return InstanceList([graphs.rnn_instance(length) for _ in range(n)])


def test_usual_intervals_are_updates_for_some_instances():
    """`embed` and `linear1` get three gradient rows of an instance, `linear2` one: the median is three."""
    assert intervals(graphs.rnn(), sequences(8)) == [3, 12, 48, 192]


def test_nodes_with_intervals_of_their_own_need_none():
    assert (
        intervals(
            graphs.chain(min_update_interval=5),
            InstanceList(graphs.chain_data(4)),
        )
        == []
    )


def test_usual_values_are_for_what_is_neither_varied_nor_fixed():
    space = full_space(
        graphs.rnn(),
        sequences(20),
        {"policy": ("largest",), "n": (1, 2)},
        {"workers": 1},
    )
    assert space["max_active_keys"] == [1, 4], "at most a quarter of the instances"
    assert space["policy"] == ["largest"]
    assert space["n"] == [1, 2]
    assert "workers" not in space
    whole = full_space(
        graphs.rnn(),
        sequences(20),
        {},
        {"min_update_interval": 4},
    )
    assert whole["workers"] == [1, len(jax.devices())]
    assert "min_update_interval" not in whole


def test_each_choice_comes_once():
    """Where fewer instances are in flight than would be admitted together, admission is lowered, and choices become equal."""
    found = candidates(
        {
            "max_active_keys": (1, 4),
            "min_admission": (1, 8),
            "n": (2,),
        },
        {"seed": 3},
    )
    assert [(c.settings["max_active_keys"], c.settings["min_admission"]) for c in found] == [
        (1, 1),
        (4, 1),
        (4, 4),
    ]
    assert all(c.knobs == {"n": 2} and c.settings["seed"] == 3 for c in found)


def test_values_that_cannot_be_are_told():
    with pytest.raises(SettingsError, match="setting `policy`: expected one of"):
        candidates({"policy": ("fast",)}, {})
