"""Embeddings in host memory in compiled models: they compute what arrays do, and are updated by their own optimizers."""

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.cluster.hosts.packed_programs import pack_program
from ampjax.errors import GraphError, ParameterError
from ampjax.sparse import Table
from ampjax.sparse.table.travelling_table import TravellingTable

ROWS = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
W = jnp.asarray(
    np.random.default_rng(1).normal(size=(3, 3)),
    jnp.float32,
)
SPEC = {"words": "int32[t]", "twice": "int32[2]"}
DATA = [
    {
        "words": np.array(words, np.int32),
        "twice": np.array(twice, np.int32),
    }
    for words, twice in (([1, 2, 1], [0, 6]), ([5], [5, 5]), ([3, 3], [1, 4]))
]


def model(p, s):
    """Reads rows for each word, for two ids at once, and for an id that is computed."""
    h, _ = amp.scan(
        lambda h, w: (
            jnp.tanh(amp.look_up(p["embed"], w) + h @ p["w"]),
            None,
        ),
        jnp.zeros(3),
        s["words"],
    )
    chosen = amp.look_up(p["embed"], jnp.argmax(h))
    amp.output("chosen", chosen)
    return jnp.sum(h * amp.look_up(p["embed"], s["twice"]).sum(0)) + jnp.sum(chosen**2)


def compiled(embed):
    return amp.compile(model, {"embed": embed, "w": W}, SPEC)


@pytest.mark.slow
def test_a_table_computes_what_an_array_does_and_trains():
    table = Table(ROWS, optax.sgd(0.1))
    one = compiled(table)
    trainer = amp.Trainer(
        one.graph,
        optax.sgd(0.1),
        max_active_keys=3,
        max_dispatch_size=4,
    )
    loss = trainer.accumulate(one.data(DATA), update=False)["loss_sum"]
    dense = {"embed": jnp.asarray(ROWS), "w": W}
    want, grads = jax.value_and_grad(one.loss)(dense, DATA)
    assert loss == pytest.approx(float(want), rel=1e-5)
    assert float(one.loss(one.initial_params, DATA)) == pytest.approx(float(want), rel=1e-6)
    got = one.gradients(trainer.gradients)
    for name, wanted in grads.items():
        np.testing.assert_allclose(
            got[name],
            wanted,
            rtol=1e-4,
            atol=1e-6,
        )
    assert trainer.predict(one.data(DATA))["chosen"].payload.shape == (3, 3)
    before = one.params(trainer.params)
    np.testing.assert_array_equal(before["embed"], ROWS)
    assert not one.node_params(before).keys() - {"w"}
    trainer.fit(one.data(DATA), progress=False)
    assert table.version > 0
    np.testing.assert_array_equal(
        one.params(trainer.params)["embed"],
        table.dense(),
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_verify_compares_a_table_too():
    assert compiled(Table(ROWS, optax.sgd(0.1))).verify(
        DATA[:2],
        progress=False,
    )


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (
            lambda p, s: amp.look_up(p["embed"], 2).sum(),
            "ids that depend on the example, got the same for all",
        ),
        (
            lambda p, s: amp.sum(
                amp.look_up(
                    p["embed"],
                    s["words"],
                )
            ).sum(),
            "ids of one element, got a sequence of them",
        ),
        (
            lambda p, s: amp.look_up(
                Table(ROWS, optax.sgd(0.1)),
                s["twice"],
            ).sum(),
            "a table that is one of the parameters",
        ),
        (
            lambda p, s: amp.look_up(
                p["embed"],
                s["twice"] * 0.5,
            ).sum(),
            "integers as ids of rows, got",
        ),
    ],
)
def test_what_a_table_can_not_be_asked(model, match):
    with pytest.raises(GraphError, match=match):
        amp.compile(
            model,
            {"embed": Table(ROWS, optax.sgd(0.1))},
            SPEC,
        )


def test_a_table_is_a_key_of_its_own_and_has_its_rows():
    table = Table(ROWS, optax.sgd(0.1))
    with pytest.raises(
        GraphError, match="a table as the value of a key, got one inside of another value"
    ):
        amp.compile(
            model,
            {"embed": {"rows": table}, "w": W},
            SPEC,
        )
    with pytest.raises(
        ParameterError,
        match="parameters of `embed`: expected the rows that its table has, got others",
    ):
        compiled(table).node_params({"embed": ROWS + 1, "w": W})
    assert set(compiled(table).node_params({"embed": table, "w": W})) == {"w"}


def test_a_table_that_nobody_reads_is_zeros_among_gradients():
    table = Table(ROWS, optax.sgd(0.1))
    one = amp.compile(
        lambda p, s: jnp.sum(p["w"] * s["x"]),
        {"w": W, "unread": table},
        {"x": "float32[3]"},
    )
    np.testing.assert_array_equal(
        one.gradients({"w": (W, 1)})["unread"],
        np.zeros_like(ROWS),
    )
    np.testing.assert_array_equal(
        one.params({"w": W})["unread"],
        ROWS,
    )


def test_a_table_is_the_value_of_one_key():
    table = Table(ROWS, optax.sgd(0.1))
    with pytest.raises(
        GraphError,
        match=r"`\['tied'\]`: expected a table that is the value of one key, got that of `emb",
    ):
        amp.compile(
            model,
            {"embed": table, "tied": table, "w": W},
            SPEC,
        )


def test_a_table_is_one_where_the_model_is_compiled_again():
    """Hosts compile the model for themselves; the rows come later."""
    graph = compiled(Table(ROWS, optax.sgd(0.1))).graph
    elsewhere = cloudpickle.loads(pack_program(graph, "a graph")).parameterised["embed"].table
    assert isinstance(elsewhere, TravellingTable) and elsewhere.shape == ROWS.shape
