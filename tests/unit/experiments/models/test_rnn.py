"""The RNN against a few lines of JAX: single sequences, buckets, copies."""

from typing import Any

import jax
import numpy as np
import pytest
from support.plain_rnn import HIDDEN, accumulated, assert_close, expected

import ampjax as amp
from ampjax.errors import SettingsError
from experiments.data.list_reduction import Buckets, ListReduction, generate, plain
from experiments.models import list_reduction_rnn

pytestmark = pytest.mark.slow

DATA = generate(12, seed=3)


@pytest.mark.users
@pytest.mark.parametrize(
    "options",
    [
        {"max_active_keys": 1, "max_dispatch_size": 1},
        {"workers": 2},
    ],
)
def test_gradients_of_single_sequences_are_those_of_plain_jax(options: dict[str, int]) -> None:
    model = list_reduction_rnn(HIDDEN)
    params = model.initial_params
    assert_close(
        accumulated(
            model.graph,
            model.data(plain(DATA)),
            params,
            **options,
        ),
        expected(params, DATA),
    )


@pytest.mark.users
def test_gradients_of_buckets_are_those_of_plain_jax() -> None:
    """Each bucket gives the mean over its real sequences, so buckets of one length with three of them weigh a third."""
    same = DATA.lengths == np.bincount(DATA.lengths).argmax()
    ids = np.flatnonzero(same)[:3]
    data = ListReduction(
        DATA.tokens[ids],
        DATA.lengths[ids],
        DATA.labels[ids],
    )
    model = list_reduction_rnn(HIDDEN, batch=4)
    wanted = jax.tree.map(
        lambda g: g / len(ids),
        expected(model.initial_params, data),
    )
    assert_close(
        accumulated(
            model.graph,
            model.data(Buckets(data, 4)),
            model.initial_params,
        ),
        wanted,
    )


OF_ONE_KIND = [
    pytest.param(options, marks=pytest.mark.nightly) for options in ({"replicas": 3}, {"copies": 3})
]
"""The third has both, so these are left to nightly runs."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [*OF_ONE_KIND, {"copies": 2, "replicas": 2}],
)
def test_gradients_of_replicas_add_up_to_those_of_one(options: dict[str, Any]) -> None:
    model = list_reduction_rnn(HIDDEN, **options)
    params = model.initial_params
    found = accumulated(
        model.graph,
        model.data(plain(DATA)),
        model.node_params(params),
        workers=3,
    )
    assert all(np.abs(np.asarray(leaf)).max() > 0 for leaf in jax.tree.leaves(found))
    assert_close(
        model.gradients({node: (tree, 0) for node, tree in found.items()}),
        expected(params, DATA),
    )


@pytest.mark.users
def test_metrics_of_copies_are_those_of_one() -> None:
    """Two losses would add up; two copies of one loss are one."""
    found = []
    for copies in (1, 3):
        model = list_reduction_rnn(HIDDEN, copies=copies)
        found.append(
            amp.Trainer(
                model.graph,
                workers=copies,
            ).evaluate(model.data(plain(DATA)))
        )
    assert found[0] == pytest.approx(found[1])
    assert {*found[0]} == {"loss", "accuracy"}


@pytest.mark.parametrize(
    "wrong",
    [{"hidden": 0}, {"batch": 0}, {"replicas": -1}],
)
def test_a_size_below_one_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match=f"`{next(iter(wrong))}`: expected at least 1"):
        list_reduction_rnn(**wrong)  # type: ignore[arg-type]
