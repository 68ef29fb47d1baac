"""The table of n-grams: its hash in Python's integers, its formula in NumPy, and runners."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.optimizers import worst

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import DataError, SettingsError
from ampjax.nn import NgramTable
from ampjax.nn.ngram_hash import ngram_hashes
from ampjax.optim import rowwise_adagrad
from ampjax.sparse import find_sparse

MASK = 2**32 - 1
RNG = np.random.default_rng(0)


def mixed(number):
    """The end of MurmurHash3, in the published form."""
    number ^= number >> 16
    number = (number * 0x85EBCA6B) & MASK
    number ^= number >> 13
    number = (number * 0xC2B2AE35) & MASK
    number ^= number >> 16
    return number


def by_integers(tokens, orders, n_heads, seed):
    """The documented hash of one text, in integers of any size."""
    result = []
    for t in range(len(tokens)):
        own = []
        for n in orders:
            for head in range(n_heads):
                joined = 0
                for i in range(n):
                    token = tokens[t - i] if t - i >= 0 else -1
                    number = (n * 256 + head) * 256 + i + 1
                    factor = mixed((seed + 0x9E3779B9 * number) & MASK) | 1
                    joined ^= (max(token, -1) + 1) * factor & MASK
                own.append(mixed(joined))
        result.append(own)
    return np.array(result, np.uint32).reshape(
        len(tokens),
        len(orders) * n_heads,
    )


@given(
    tokens=st.lists(
        st.integers(-2, 2**31 - 1),
        min_size=6,
        max_size=6,
    ),
    orders=st.sampled_from([(2, 3), (1,), (8, 2)]),
    seed=st.integers(0, 2**33),
)
@settings(max_examples=examples(100))
def test_hashes_of_numpy_are_those_of_integers(tokens, orders, seed):
    wanted = by_integers(tokens, orders, 2, seed)
    for dtype in (np.int64, np.int32):
        got = ngram_hashes(
            np.array(tokens, dtype),
            orders,
            2,
            seed,
        )
        assert got.dtype == np.uint32 and (got == wanted).all()


@pytest.mark.parametrize(
    "seed",
    [
        3,
        pytest.param(2**33 - 1, marks=pytest.mark.nightly),
    ],
)
def test_numpy_and_jax_have_the_same_bits(seed):
    layer = NgramTable(
        n_rows=1009,
        features=2,
        n_hidden=4,
        seed=seed,
    )
    tokens = RNG.integers(
        -1,
        2**31 - 1,
        (3, 50),
    ).astype(np.int32)
    hashes, ids = jax.jit(
        lambda tokens: (
            ngram_hashes(
                tokens,
                (2, 3),
                2,
                seed,
            ),
            layer.ids(tokens),
        )
    )(tokens)
    assert hashes.dtype == jnp.uint32 and ids.dtype == jnp.int32
    assert (
        np.asarray(hashes)
        == ngram_hashes(
            tokens,
            (2, 3),
            2,
            seed,
        )
    ).all()
    assert (np.asarray(ids) == layer.ids(tokens)).all()


def test_ids_of_a_head_are_in_its_own_rows_and_spread_over_them():
    layer = NgramTable(
        n_rows=1000,
        features=2,
        n_hidden=4,
        n_heads=3,
    )
    tokens = np.arange(20_000) % 997 * 3  # even and odd ones, in a row
    ids = layer.ids(RNG.permutation(tokens))
    assert ids.shape == (20_000, 6) and ids.dtype == np.int32
    for head, own in enumerate(ids.T):
        counts = np.bincount(own - head * 1000, minlength=1000)
        assert len(counts) == 1000
        # About 20 n-grams a row: the variance of chance is 20.
        assert 15 < counts.var() < 26
    same = [(own[1:] - own[:-1] == 0).mean() for own in ids.T]
    assert max(same) < 0.005


def test_heads_collide_apart():
    layer = NgramTable(
        n_rows=64,
        features=2,
        n_hidden=4,
        orders=(2,),
    )
    first, second = layer.ids(
        RNG.integers(
            0,
            10_000,
            5_000,
        )
    ).T
    together = first[:, None] == first[None, :]
    both = together & (second[:, None] == second[None, :])
    assert both.sum() - 5_000 < 2 * (together.sum() - 5_000) / 64


def test_a_token_reads_what_is_before_it():
    layer = NgramTable(n_rows=1000, features=2, n_hidden=4)
    text = np.array([4, 8, 15, 16, 23])
    ids = layer.ids(text)
    assert (layer.ids(text[:3]) == ids[:3]).all()
    # 2-grams forget what is older, 3-grams do not yet; -1 is as good as the begin.
    assert (layer.ids(text[2:])[1, :2] == ids[3, :2]).all()
    assert (layer.ids(text[2:])[1, 2:] != ids[3, 2:]).any()
    gap = layer.ids(
        np.array(
            [
                9,
                9,
                -1,
                -1,
                4,
                8,
                15,
                16,
                23,
            ]
        )
    )
    assert (gap[4:] == ids).all()
    assert layer.ids(np.zeros((2, 0), int)).shape == (2, 0, 4)


def by_numpy(layer, params, hidden, ids):
    """The paper's formulas for one text, token by token, in float64."""
    p = {}
    for name, leaf in params.items():
        p[name] = np.asarray(leaf, np.float64)
    hidden = np.asarray(hidden, np.float64)
    normed = lambda x, scale: scale * x / np.sqrt((x * x).mean() + 1e-6)
    let_in = []
    for h, own in zip(hidden, ids, strict=True):
        memory = np.concatenate([p["table"][i] for i in own])
        q = normed(h, p["hidden_scale"])
        k = normed(memory @ p["key"], p["key_scale"])
        alpha = 1 / (1 + np.exp(-(q @ k) / np.sqrt(layer.n_hidden)))
        let_in.append(alpha * (memory @ p["value"]))
    if not layer.kernel:
        return np.array(let_in)
    result = []
    for t, u in enumerate(let_in):
        total = np.zeros(layer.n_hidden)
        for age in range(layer.kernel):
            if (before := t - age * max(layer.orders)) >= 0:
                total += p["conv"][-1 - age] * normed(let_in[before], p["conv_scale"])
        result.append(u + total / (1 + np.exp(-total)))
    return np.array(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    [3, pytest.param(0, marks=pytest.mark.nightly)],
)
def test_the_layer_is_the_papers_formula(kernel):
    layer = NgramTable(
        n_rows=50,
        features=3,
        n_hidden=6,
        kernel=kernel,
        scale=1.0,
    )
    params = {}
    for name, leaf in jax.eval_shape(
        layer.init,
        jax.random.key(0),
    ).items():
        params[name] = RNG.normal(size=leaf.shape).astype(np.float32)
    tokens = RNG.integers(0, 9, (2, 8))
    hidden = RNG.normal(size=(2, 8, 6)).astype(np.float32)
    got = jax.jit(layer)(
        params,
        hidden,
        layer.ids(tokens),
    )
    for k in range(2):
        wanted = by_numpy(
            layer,
            params,
            hidden[k],
            layer.ids(tokens[k]),
        )
        np.testing.assert_allclose(
            got[k],
            wanted,
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.nightly
def test_at_first_the_convolution_adds_nothing():
    layer = NgramTable(n_rows=50, features=3, n_hidden=6)
    params = layer.init(jax.random.key(0))
    assert params["table"].shape == (200, 3)
    assert params["conv"].shape == (4, 6)
    ids = layer.ids(RNG.integers(0, 9, 5))
    hidden = RNG.normal(size=(5, 6)).astype(np.float32)
    plain = NgramTable(
        n_rows=50,
        features=3,
        n_hidden=6,
        kernel=0,
    )
    assert (
        layer(
            params,
            hidden,
            ids,
        )
        == plain(params, hidden, ids)
    ).all()


LAYER = NgramTable(n_rows=40, features=3, n_hidden=4)


def first_params():
    return {
        "words": 0.5 * jax.random.normal(jax.random.key(1), (7, 4)),
        "ngrams": LAYER.init(jax.random.key(2)),
    }


def loss_of(params, tokens, ids):
    """The mean loss of each token from the one before."""
    hidden = params["words"][tokens]
    hidden = hidden + LAYER(params["ngrams"], hidden, ids)
    logits = hidden @ params["words"].T
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits[:, :-1],
        tokens[:, 1:],
    )
    return losses.mean()


def in_the_loss(params, batch):
    return loss_of(
        params,
        batch["tokens"],
        LAYER.ids(batch["tokens"]),
    )


def in_the_pipeline(params, batch):
    return loss_of(params, batch["tokens"], batch["ids"])


def batch(seed):
    tokens = (
        np.random.default_rng(seed)
        .integers(
            0,
            7,
            (4, 6),
        )
        .astype(np.int32)
    )
    return {"tokens": tokens, "ids": LAYER.ids(tokens)}


@pytest.mark.parametrize("loss", [in_the_loss, in_the_pipeline])
def test_the_table_is_found_sparse(loss):
    found = find_sparse(loss, jax.eval_shape(first_params), batch(0))
    assert [variable.path for variable in found if variable.sparse] == ["['ngrams']['table']"]


@pytest.mark.nightly
@pytest.mark.parametrize("loss", [in_the_loss, in_the_pipeline])
def test_a_runner_trains_it_as_one_device_does(loss):
    devices = jax.local_devices()
    machines = Resources(tuple(Machine(f"m{i}", (devices[i],)) for i in range(2)))
    tx = rowwise_adagrad(0.1, eps=1e-3)
    config = px.ParallaxConfig(alpha_threshold=2.0, check_equivalence="error")
    runner = px.get_runner(loss, first_params(), tx, machines, config)
    params = first_params()
    state = tx.init(params)
    step = jax.jit(jax.value_and_grad(in_the_pipeline))
    for seed in range(3):
        value, grads = step(params, batch(seed))
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        assert runner.run(batch(seed)).loss == pytest.approx(float(value), rel=1e-5)
    assert {*runner.step.tables} == {"['ngrams']['table']"}
    assert worst(runner.params, params) < 1e-4


@pytest.mark.nightly
def test_in_a_flax_module():
    linen = pytest.importorskip("flax.linen")

    class Model(linen.Module):
        @linen.compact
        def __call__(self, tokens):
            hidden = linen.Embed(7, 4)(tokens)
            ngrams = self.param("ngrams", LAYER.init)
            hidden = hidden + LAYER(ngrams, hidden, LAYER.ids(tokens))
            return linen.Dense(7)(hidden)

    model = Model()
    tokens = batch(0)["tokens"]

    def loss(params, batch):
        logits = model.apply(params, batch["tokens"])
        return optax.softmax_cross_entropy_with_integer_labels(
            logits[:, :-1], batch["tokens"][:, 1:]
        ).mean()

    params = model.init(jax.random.key(0), tokens)
    config = px.ParallaxConfig(alpha_threshold=2.0)
    devices = jax.local_devices()
    machines = Resources(tuple(Machine(f"m{i}", (devices[i],)) for i in range(2)))
    runner = px.get_runner(
        loss,
        params,
        optax.sgd(0.5),
        machines,
        config,
    )
    losses = []
    for _ in range(5):
        losses.append(float(runner.run(batch(0)).loss))
    assert "['params']['ngrams']['table']" in runner.step.tables
    assert losses[-1] < losses[0] == pytest.approx(float(loss(params, batch(0))), rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"n_rows": 0}, "setting `n_rows`: expected an integer of at least 1"),
        ({"orders": ()}, "setting `orders`: expected lengths of n-grams, got none"),
        ({"orders": (2, 0)}, "setting `orders`: expected an integer of at least 1, got 0"),
        ({"n_heads": 300}, "NgramTable: expected orders below 256 and at most 256 heads, got 3"),
        ({"n_rows": 2**30}, "NgramTable, `n_rows`: expected at most 536870911 for 4 heads"),
        ({"kernel": -1}, "setting `kernel`: expected an integer of at least 0"),
    ],
)
def test_settings_out_of_their_range(changes, text):
    with pytest.raises(SettingsError, match=text):
        NgramTable(**{"n_rows": 10, "features": 2, "n_hidden": 4} | changes)


def test_what_are_no_tokens_is_refused():
    with pytest.raises(
        DataError, match=r"n-grams, `tokens`: expected integers .* got float64\[2\]"
    ):
        LAYER.ids(np.ones(2))
    with pytest.raises(
        DataError, match=r"n-grams, `tokens`: expected numbers below 2\^32 - 1, got"
    ):
        LAYER.ids(np.array([2**32]))
