"""Layers that choose where their rows lie: in a table in host memory or on the node's device."""

import numpy as np
import optax
import pytest
from support import table_models as models

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import GraphError, SettingsError
from ampjax.sparse import Table
from experiments.by_hand.tagger_graph import tagger
from experiments.models.tagger import Sizes

IDS = np.arange(24) % models.WORDS


def choose(**options):
    return amp.nn.choose_embed(
        models.VALUES,
        optax.adagrad(0.3),
        IDS,
        **options,
    )


@pytest.mark.parametrize(
    ("options", "is_table", "why"),
    [
        ({}, True, "alpha 0.0833 is below 0.4"),
        ({"ids_per_update": 6}, False, "alpha 0.5 is at least 0.4"),
        ({"ids_per_update": 6, "alpha_threshold": 0.51}, True, "alpha 0.5 is below 0.51"),
        ({"ids_per_update": 100}, False, "alpha 1 is at least 0.4"),
        (
            {"ids_per_update": 6, "device_bytes": 500},
            True,
            "576 bytes do not fit into a device's 500",
        ),
        ({"ids_per_update": 6, "device_bytes": 576}, False, "alpha 0.5 is at least 0.4"),
    ],
)
def test_the_choice_and_its_reason(options, is_table, why):
    """The rows take 192 bytes, and Adagrad's sums and the accumulated gradient as many."""
    layer = choose(**options)
    assert isinstance(layer.host_table, Table) == is_table and layer.why == why
    assert (
        repr(layer)
        == f"ChosenEmbed([12, 4], {'a table in host memory' if is_table else 'on the device'}: {why})"
    )
    np.testing.assert_array_equal(layer.init(None), models.VALUES)


def test_settings_reach_the_table():
    layer = choose(mode="faithful", partitions=3)
    assert layer.table.n_partitions == 3


def test_incomplete_updates_do_not_count():
    """The last piece has two ids only."""
    assert (
        amp.nn.choose_embed(
            models.VALUES,
            optax.sgd(0.1),
            IDS[:8],
            ids_per_update=6,
        ).alpha
        == 0.5
    )


@pytest.mark.parametrize(
    ("ids", "options", "expected"),
    [
        ([], {}, r"choose_embed, ids: expected integers, got float"),
        (np.zeros(0, np.int32), {}, r"`ids`: expected rows in \[0, 12\), got none"),
        ([0, 12], {}, r"`ids`: expected rows in \[0, 12\), got ids from 0 to 12"),
        ([-1, 3], {}, r"got ids from -1 to 3"),
        ([0.5], {}, r"ids: expected integers, got float"),
        ([1], {"ids_per_update": 0}, r"`ids_per_update`: expected an integer of at least 1, got 0"),
        (
            [1],
            {"alpha_threshold": float("nan")},
            r"`alpha_threshold`: expected a number above 0, got nan",
        ),
        (
            [1],
            {"alpha_threshold": "0.4"},
            r"`alpha_threshold`: expected a number above 0, got '0.4'",
        ),
        ([1], {"device_bytes": -1}, r"`device_bytes`: expected an integer of at least 0, got -1"),
    ],
)
def test_what_does_not_fit(ids, options, expected):
    with pytest.raises(SettingsError, match=expected):
        amp.nn.choose_embed(
            models.VALUES,
            optax.sgd(0.1),
            ids,
            **options,
        )


@pytest.mark.parametrize(
    "values",
    [[[1.0]], np.float32(1.0)],
    ids=["lists", "a number"],
)
def test_values_are_an_array(values):
    with pytest.raises(
        SettingsError, match=r"`values`: expected an array \[n_rows, \*row\], got (list|float32)\."
    ):
        amp.nn.choose_embed(values, optax.sgd(0.1), [0])


@pytest.mark.filterwarnings("error")
def test_rows_in_double_precision_are_kept_as_the_device_keeps_them():
    layer = amp.nn.choose_embed(
        models.VALUES.astype(np.float64),
        optax.sgd(0.1),
        IDS,
    )
    assert layer.host_table is None and layer.why == "tables hold no rows of float64"


@pytest.mark.parametrize("threshold", [0.01, 2.0])
def test_a_second_optimizer_is_refused_wherever_the_rows_lie(threshold):
    with pytest.raises(
        GraphError, match=r"`embed`, tx: expected none: its layer has an optimizer of its own"
    ):
        models.build(choose(alpha_threshold=threshold), tx=optax.sgd(0.1))


def test_ids_are_integers():
    with pytest.raises(GraphError, match="Declare the pump with"), ag.Graph():
        ag.ppt("embed", choose(alpha_threshold=0.01))(ag.pump("x"))


def test_models_take_a_chosen_layer():
    layer = amp.nn.choose_embed(
        np.ones((14, 4), np.float32),
        optax.sgd(0.1),
        np.arange(14),
        ids_per_update=14,
    )
    sizes = Sizes(char=2, char_hidden=2, word_hidden=2, mlp=2)
    node = tagger(14, 5, sizes, table=layer).nodes["embed"]
    assert node.table is None and node.options.tx is layer.tx
    with pytest.raises(SettingsError, match="`table`: expected at least 15 rows of 4 numbers"):
        tagger(15, 5, sizes, table=layer)
