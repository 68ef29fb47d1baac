"""Look-up tables whose updates go over the rows that have got gradients: found, and trained as others are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
import ampjax.graphs as ag
from ampjax.engine import touched_rows
from ampjax.engine.parameters import ParameterStore
from ampjax.engine.touched_rows import TouchedRows, row_input
from ampjax.ir.bodies import NodeBody
from ampjax.optim.row_update import make_row_update

pytestmark = pytest.mark.slow

N_ROWS = 64
FEATURES = 5
NUMBER = jax.ShapeDtypeStruct((), np.int32)


def bag(n_rows=N_ROWS, body=None, **options):
    """The vector of one word to a class."""
    with ag.Graph() as g:
        word = ag.pump("word", dtype="int32")
        label = ag.pump("label", dtype="int32")
        embed = amp.nn.Embed(n_rows, FEATURES)
        table = ag.ppt(
            "embed",
            body or embed,
            params=embed.init if body else None,
            **options,
        )
        logits = ag.ppt(
            "out",
            amp.nn.Linear(FEATURES, 3),
        )(table(word))
        ag.loss("xent", optax.softmax_cross_entropy_with_integer_labels)(logits, label)
    return g


def words(n, low=0, high=12):
    rng = np.random.default_rng(0)
    result = []
    for _ in range(n):
        result.append(
            {
                "word": np.int32(rng.integers(low, high)),
                "label": np.int32(rng.integers(3)),
            }
        )
    return result


@pytest.fixture
def every_table(monkeypatch):
    """Small tables are taken for large ones."""
    monkeypatch.setattr(touched_rows, "LARGE", (2, 1))


def by_rows(trainer, monkeypatch):
    """Notes for each update of the table whether it went over rows."""
    update = ParameterStore._update
    found = []

    def noted(self, change, rows):
        if change.node == "embed":
            found.append(rows is not None)
        update(self, change, rows)

    monkeypatch.setattr(ParameterStore, "_update", noted)
    return found


def trained(tx, data, monkeypatch, **settings):
    settings = {"max_active_keys": 4, "min_update_interval": 3, **settings}
    trainer = amp.Trainer(bag(), tx, **settings)
    trainer.warm_up(data, progress=False)
    with monkeypatch.context() as patch:
        found = by_rows(trainer, patch)
        history = trainer.fit(data, epochs=2, progress=False)
    assert [epoch.compilations for epoch in history.epochs] == [0, 0]
    return trainer, found


@pytest.mark.first_case
@pytest.mark.parametrize(
    "settings",
    [{}, {"mode": "sync"}, {"min_update_interval": 1}, {"mode": "pipeline"}],
)
@pytest.mark.parametrize(
    "tx",
    [optax.sgd(0.5), optax.adagrad(0.5)],
    ids=["sgd", "adagrad"],
)
def test_training_by_rows_is_training(tx, settings, monkeypatch):
    plain, none = trained(tx, words(20), monkeypatch, **settings)
    monkeypatch.setattr(touched_rows, "LARGE", (2, 1))
    by_row, found = trained(tx, words(20), monkeypatch, **settings)
    assert not any(none) and found and all(found)

    def close(a, b):
        return np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)

    jax.tree.map(close, by_row.params, plain.params)
    jax.tree.map(
        close,
        by_row.session.executor.store.opt_state,
        plain.session.executor.store.opt_state,
    )
    jax.tree.map(
        close,
        by_row.session.executor.store.accumulators,
        plain.session.executor.store.accumulators,
    )


def two_words(product):
    """The vectors of two words, from one table; with `product` the table is multiplied by, too."""
    with ag.Graph() as g:
        embed = amp.nn.Embed(N_ROWS, FEATURES)
        first = ag.ppt("embed", embed)(ag.pump("word", dtype="int32"))
        second = ag.ppt("again", embed, params_of="embed")(ag.pump("other", dtype="int32"))
        both = ag.npt(
            "both",
            lambda x, y: jnp.tanh(x) * y,
        )(
            first,
            second,
        )
        if product:
            both = ag.ppt(
                "product",
                lambda p, h: (p @ h)[:FEATURES],
                params_of="embed",
            )(both)
        logits = ag.ppt(
            "out",
            amp.nn.Linear(FEATURES, 3),
        )(both)
        ag.loss("xent", optax.softmax_cross_entropy_with_integer_labels)(
            logits, ag.pump("label", dtype="int32")
        )
    return g


@pytest.mark.first_case
@pytest.mark.parametrize(
    "fuse",
    [True, False],
    ids=["one stage", "many stages"],
)
@pytest.mark.parametrize(
    "product",
    [False, True],
    ids=["two look-ups", "and a product"],
)
def test_a_table_that_nodes_share_is_updated_by_rows_where_all_of_them_look_up(
    product, fuse, monkeypatch
):
    data = []
    for i, word in enumerate(words(12)):
        data.append(
            {
                **word,
                "other": np.int32(20 + i % 3),
            }
        )
    graph = two_words(product)
    ends = []
    for large in ((2, 1), touched_rows.LARGE):
        monkeypatch.setattr(touched_rows, "LARGE", large)
        trainer = amp.Trainer(
            graph, optax.sgd(0.5), max_active_keys=4, min_update_interval=6, fuse=fuse
        )
        with monkeypatch.context() as patch:
            found = by_rows(trainer, patch)
            trainer.fit(data, epochs=1, progress=False)
        assert found and set(found) == {large == (2, 1) and not product}
        ends.append(trainer.params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        *ends,
    )


@pytest.mark.nightly
@pytest.mark.usefixtures("every_table")
@pytest.mark.parametrize(
    "tx",
    [
        optax.adam(0.1),
        optax.sgd(
            0.1,
            momentum=0.9,
        ),
    ],
    ids=["adam", "momentum"],
)
def test_where_rows_do_not_stay_as_they_are_whole_tables_are_updated(tx, monkeypatch):
    trainer, found = trained(tx, words(20), monkeypatch)
    assert not trainer.session.executor.store._by_row and not any(found)


@pytest.mark.usefixtures("every_table")
@pytest.mark.parametrize("weights", ["stashed", "estimated"])
def test_stashed_and_estimated_parameters_are_updated_whole(weights, monkeypatch):
    _, found = trained(
        optax.sgd(0.1),
        words(20),
        monkeypatch,
        weights=weights,
    )
    assert found and not any(found)


@pytest.mark.first_case
@pytest.mark.parametrize("low", [-5, 60])
def test_numbers_outside_the_table_are_its_own_affair(low, monkeypatch):
    data = words(20, low, low + 8)
    plain, _ = trained(optax.adagrad(0.5), data, monkeypatch)
    monkeypatch.setattr(touched_rows, "LARGE", (2, 1))
    by_row, found = trained(optax.adagrad(0.5), data, monkeypatch)
    assert not all(found)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        by_row.params,
        plain.params,
    )


@pytest.mark.usefixtures("every_table")
def test_gradients_that_a_checkpoint_brings_are_in_the_next_update(tmp_path):
    """Which rows they belong to is nowhere but in them."""
    data = words(8)
    settings = {"min_update_interval": 5, "max_active_keys": 2}
    first = amp.Trainer(bag(), optax.sgd(0.5), **settings)
    first.accumulate(data[:4], update=False)
    first.save(tmp_path / "kept")
    second = amp.Trainer(bag(), optax.sgd(0.5), **settings)
    second.restore(tmp_path / "kept")
    for trainer in (first, second):
        trainer.accumulate(data[4:5], update=True)
    jax.tree.map(np.testing.assert_array_equal, first.params, second.params)
    assert not np.asarray(second.session.executor.store.accumulators["embed"]).any()


@pytest.mark.nightly
def test_small_tables_are_updated_whole(monkeypatch):
    trainer, found = trained(optax.sgd(0.1), words(20), monkeypatch)
    assert not trainer.session.executor.store._by_row and not any(found)


READS = {
    "clip": lambda t, i: t.at[i].get(mode="clip"),
    "fill": lambda t, i: t.at[i].get(mode="fill"),
    "plain": lambda t, i: t[i],
    "take": lambda t, i: jnp.take(t, i, axis=0),
    "scaled": lambda t, i: jnp.tanh(3 * t[i]),
    "embed": amp.nn.Embed(5_000, 64),
}
OTHERS = {
    "shifted": lambda t, i: t[i + 1],
    "two": lambda t, i: t[i] + t[0],
    "normed": lambda t, i: t[i] / jnp.linalg.norm(t),
    "part": lambda t, i: t[i, :3],
    "one hot": lambda t, i: jax.nn.one_hot(i, len(t)) @ t,
    "table": lambda t, i: t,
    "odd": lambda t, i: t[jnp.where(i == 4_321, 0, i)],
    "constant": lambda t, i: t[3] * i,
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize(
    "dtype",
    [np.int32, np.uint32, np.int16],
)
def test_a_body_that_reads_the_row_of_a_number(name, dtype):
    assert (
        row_input(
            NodeBody(READS[name]),
            jnp.zeros((5_000, 64)),
            [jax.ShapeDtypeStruct((), dtype)],
        )
        == 0
    )


@pytest.mark.parametrize("name", OTHERS)
def test_a_body_that_does_anything_else(name):
    assert (
        row_input(
            NodeBody(OTHERS[name]),
            jnp.zeros((5_000, 64)),
            [NUMBER],
        )
        is None
    )


def test_the_number_among_several_inputs():
    read = NodeBody(lambda t, x, i: t[i] * x)
    assert (
        row_input(
            read,
            jnp.zeros((50, 4)),
            [jax.ShapeDtypeStruct((), np.float32), NUMBER],
        )
        == 1
    )
    assert (
        row_input(
            NodeBody(lambda t, x, i: t[i + x]),
            jnp.zeros((50, 4)),
            [NUMBER, NUMBER],
        )
        is None
    )
    assert (
        row_input(
            NodeBody(lambda t, ids: t[ids].sum(0)),
            jnp.zeros((50, 4)),
            [jax.ShapeDtypeStruct((3,), int)],
        )
        is None
    )


@pytest.mark.nightly
@pytest.mark.usefixtures("every_table")
def test_numbers_that_were_computed_are_not_known():
    with ag.Graph() as g:
        word = ag.pump("word", dtype="int32")
        label = ag.pump("label", dtype="int32")
        half = ag.npt("half", lambda i: i // 2)(word)
        logits = ag.ppt(
            "embed",
            amp.nn.Embed(N_ROWS, 3),
        )(half)
        ag.loss("xent", optax.softmax_cross_entropy_with_integer_labels)(logits, label)
    for fuse in (True, False):
        trainer = amp.Trainer(
            g,
            optax.sgd(0.5),
            max_active_keys=4,
            fuse=fuse,
        )
        assert not trainer.session.executor.store._by_row
        trainer.fit(words(8), progress=False)


def test_rows_are_kept_until_they_have_been_updated():
    rows = TouchedRows(
        40,
        make_row_update(
            optax.sgd(0.1),
            "mean",
            (40, 2),
            np.dtype(np.float32),
        ),
    )
    rows.add(
        np.array(
            [3, 3, 39],
            np.int16,
        )
    )
    assert list(rows.rows) == [3, 39]
    rows.add(np.zeros(0, np.int32))
    rows.add(np.arange(20))
    assert rows.rows is None, "half of the table"
    rows.clear()
    assert list(rows.rows) == []
    for number in (-1, 40):
        rows.add(np.array([1, number]))
        assert rows.rows is None
        rows.clear()
    rows.restart(np.eye(40)[:, :2])
    assert list(rows.rows) == [0, 1]
