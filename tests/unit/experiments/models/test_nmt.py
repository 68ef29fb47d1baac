"""Translation: the papers' sizes, attention by hand, padding, and learning."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from ampjax.errors import SettingsError
from experiments.data import zipf
from experiments.data.pairs import PairBatches, Pairs, Sentences
from experiments.models import nmt
from experiments.models.layers import functional
from experiments.models.layers.attention import Attention
from experiments.models.layers.dropout import Dropout
from experiments.models.layers.lstm import reverse

pytestmark = [pytest.mark.slow, pytest.mark.users]

CONFIG = nmt.Config(
    2,
    8,
    12,
    12,
    dropout=0.0,
    n_updates=100,
    batch=8,
    max_length=3,
)


@pytest.mark.parametrize(
    ("config", "dense"),
    [
        (nmt.Config.full(2), 94_070_785),
        (nmt.Config.full(4), 136_030_209),
        (nmt.Config.full(8), 219_949_057),
        (nmt.Config(4, architecture="bi"), 115_054_593),
    ],
)
def test_the_papers_models_have_their_parameters(config: nmt.Config, dense: int) -> None:
    shapes = functional.shapes(nmt.Translator, config)
    sparse = functional.count([shapes.pop(f"{side}_embedding") for side in ("source", "target")])
    assert sparse == 74_850_304 and functional.count(shapes) == dense


def test_attention_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    layer = Attention(
        3,
        4,
        initializer=lambda key, shape, dtype: jnp.ones(shape),
        rngs=nnx.Rngs(0),
    )
    values = {}
    for name in ("memory", "query", "v", "g", "b"):
        values[name] = rng.normal(size=getattr(layer, name).shape)
    for name, value in values.items():
        setattr(
            layer,
            name,
            nnx.Param(jnp.asarray(value, jnp.float32)),
        )
    query = rng.normal(size=(2, 4))
    memory = rng.normal(size=(2, 5, 3))
    present = np.arange(5) < np.array([[5], [2]])
    context = layer(
        jnp.asarray(query),
        layer.remember(jnp.asarray(memory), jnp.asarray(present)),
    )
    v = values["g"] * values["v"] / np.linalg.norm(values["v"])
    for row in range(2):
        words = memory[row][present[row]]
        energies = (
            np.tanh(words @ values["memory"] + query[row] @ values["query"] + values["b"]) @ v
        )
        weights = np.exp(energies) / np.exp(energies).sum()
        np.testing.assert_allclose(context[row], weights @ words, atol=1e-5)


def test_only_the_words_of_a_sentence_are_reversed() -> None:
    x = np.arange(8.0).reshape(2, 4, 1)
    assert reverse(x, jnp.array([3, 0]))[..., 0].tolist() == [[2, 1, 0, 3], [4, 5, 6, 7]]


@pytest.mark.nightly
def test_training_learns_a_dictionary_and_padding_does_not_matter() -> None:
    data = PairBatches(
        zipf.pairs(160, 12, max_length=2),
        8,
        2,
        1,
    )
    tx = nmt.make_optimizer(CONFIG)
    loss_fn = nmt.make_loss(CONFIG)

    @jax.jit
    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    def train(epochs: int):
        params = nmt.init(CONFIG, 1)
        opt_state = tx.init(params)
        losses = []
        for epoch in range(epochs):
            for batch in data.epoch(epoch):
                params, opt_state, loss = step(params, opt_state, batch)
                losses.append(float(loss))
        return params, losses

    params, losses = train(4)
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:5])
    assert train(1)[1] == losses[:20]

    evaluate = jax.jit(nmt.make_evaluate(CONFIG))
    ids = np.arange(6)
    (nats, n), (wide, n_wide), (filled, n_filled) = (
        evaluate(params, data.gather(rows, width))
        for rows, width in ((ids, 2), (ids, 5), (np.concatenate([ids, [-1, -1]]), 2))
    )
    assert n == n_wide == n_filled == (data.pairs.target.lengths[:6] + 1).sum()
    assert (
        float(wide)
        == pytest.approx(float(nats), rel=1e-5)
        == pytest.approx(float(filled), rel=1e-5)
    )


def test_all_gradients_of_both_architectures_are_finite_and_something() -> None:
    pairs = Pairs(
        Sentences.of([[3, 4]]),
        Sentences.of([[5, 6]]),
    )
    batch = PairBatches(pairs, 1, 2, 1).gather(
        np.array([0]),
        2,
    )
    config = nmt.Config(
        2,
        4,
        8,
        8,
        architecture="bi",
        dropout=0.0,
    )
    grads = jax.jit(jax.grad(nmt.make_loss(config)))(
        nmt.init(config),
        batch,
    )
    for path, leaf in jax.tree.leaves_with_path(grads):
        assert jnp.isfinite(leaf).all() and jnp.abs(leaf).max() > 0, path


def test_decoding_word_by_word_is_what_training_does() -> None:
    batch = PairBatches(
        Pairs(
            Sentences.of([[3, 4]]),
            Sentences.of([[5, 6]]),
        ),
        1,
        2,
        1,
    ).gather(np.array([0]), 2)
    none = Dropout(None, 0.0)

    @jax.jit
    def both(params):
        model = functional.merge(nmt.Translator, CONFIG, params)
        memory, state = model.encode(batch["source"], batch["source_length"], none)
        single = []
        for t in range(2):
            state, logits = model.decode(
                memory,
                state,
                batch["target_in"][:, t],
            )
            single.append(logits)
        return jnp.stack(single, 1), model.logits(batch, none)[:, :2]

    np.testing.assert_allclose(
        *both(nmt.init(CONFIG)),
        atol=1e-6,
    )


def test_the_rate_is_halved_ten_times_in_the_second_half() -> None:
    rate = nmt.halving(nmt.Config(learning_rate=2.0, n_updates=200))
    assert [float(rate(n)) for n in (0, 100, 109, 110, 199, 200)] == [2, 2, 2, 1, 2 / 512, 2 / 1024]


def test_mistakes_are_named() -> None:
    with pytest.raises(
        SettingsError, match=r"`architecture`: expected one of \['gnmt', 'bi'\], got 'transformer'"
    ):
        nmt.Config(architecture="transformer")
    with pytest.raises(
        SettingsError,
        match="`layers`: expected an even number for `bi`, at least 2 for `gnmt`, got 3",
    ):
        nmt.Config(3, architecture="bi")
    with pytest.raises(SettingsError, match=r"`layers`: .*, got 1"):
        nmt.Config(1)
    with pytest.raises(SettingsError, match="`units`: expected at least 1, got 0"):
        nmt.Config(units=0)
