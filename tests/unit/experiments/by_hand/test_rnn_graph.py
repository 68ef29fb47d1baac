"""The RNN by hand against a few lines of JAX, in all the ways in which it can be fed."""

from typing import Any

import jax
import numpy as np
import pytest
from support.plain_rnn import HIDDEN, accumulated, assert_close, expected

from ampjax.errors import SettingsError
from ampjax.train.initial_params import initial_params
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.data.list_reduction import Buckets, ListReduction, Sequences, generate

pytestmark = pytest.mark.slow

DATA = generate(12, seed=3)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "whole",
    [pytest.param(False, marks=pytest.mark.nightly), True],
)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"max_active_keys": 1, "max_dispatch_size": 1},
            marks=pytest.mark.nightly,
        ),
        {"workers": 2},
    ],
)
def test_gradients_of_single_sequences_are_those_of_plain_jax(
    whole: bool, options: dict[str, int]
) -> None:
    graph = list_reduction_rnn(HIDDEN, whole=whole)
    params = initial_params(graph, {}, 0)
    assert_close(
        accumulated(graph, Sequences(DATA, HIDDEN, whole), params, **options),
        expected(params, DATA),
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "whole",
    [pytest.param(False, marks=pytest.mark.nightly), True],
)
def test_gradients_of_buckets_are_those_of_plain_jax(whole: bool) -> None:
    """Each bucket gives the mean over its real sequences, so buckets of one length with three of them weigh a third."""
    same = DATA.lengths == np.bincount(DATA.lengths).argmax()
    ids = np.flatnonzero(same)[:3]
    data = ListReduction(
        DATA.tokens[ids],
        DATA.lengths[ids],
        DATA.labels[ids],
    )
    graph = list_reduction_rnn(HIDDEN, batch=4, whole=whole)
    params = initial_params(graph, {}, 0)
    wanted = jax.tree.map(
        lambda g: g / len(ids),
        expected(params, data),
    )
    assert_close(
        accumulated(graph, Buckets(data, 4, HIDDEN, whole), params),
        wanted,
    )


OF_ONE_KIND = [
    pytest.param(options, marks=pytest.mark.nightly) for options in ({"replicas": 3}, {"copies": 3})
]
"""The third has both, so these are left to nightly runs."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [*OF_ONE_KIND, {"copies": 2, "replicas": 2, "whole": True}],
)
def test_gradients_of_replicas_add_up_to_those_of_one(options: dict[str, Any]) -> None:
    graph = list_reduction_rnn(HIDDEN, **options)
    params = initial_params(graph, {}, 0)
    found = accumulated(
        graph,
        Sequences(DATA, HIDDEN, options.get("whole", False)),
        params,
        workers=3,
    )
    assert all(np.abs(np.asarray(leaf)).max() > 0 for leaf in jax.tree.leaves(found))
    one = {}
    for name, tree in params.items():
        one[name.split("/")[0]] = tree
    summed = {
        node: jax.tree.map(
            lambda *g: sum(g),
            *(tree for name, tree in found.items() if name.split("/")[0] == node),
        )
        for node in one
    }
    assert_close(summed, expected(one, DATA))


@pytest.mark.parametrize(
    "wrong",
    [{"hidden": 0}, {"batch": 0}, {"replicas": -1}],
)
def test_a_size_below_one_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match=f"`{next(iter(wrong))}`: expected at least 1"):
        list_reduction_rnn(**wrong)  # type: ignore[arg-type]
