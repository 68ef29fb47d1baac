"""Adaptive computation time against a loop written directly in JAX."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import parity

import ampjax as amp
from ampjax.errors import SettingsError
from experiments.models.act import Ponder, act_rnn, init, spec

pytestmark = pytest.mark.slow

NEVER = 1 << 40
SIZES = Ponder(
    4,
    6,
    2,
    max_steps=6,
    epsilon=0.05,
    time_penalty=0.01,
)


def sequences(n, rng, sizes=SIZES):
    """Sequences of 1 to 4 inputs; the label says whether their sum's first entry is positive."""
    xs = []
    for _ in range(n):
        xs.append(
            rng.normal(
                size=(
                    int(
                        rng.integers(
                            1,
                            5,
                        )
                    ),
                    sizes.n_in,
                )
            ).astype(np.float32)
        )
    result = []
    for x in xs:
        result.append(
            {
                "x": x,
                "label": np.int32(x[:, 0].sum() > 0),
            }
        )
    return result


def compiled_rnn(sizes=SIZES, replicas=1):
    return amp.compile(
        act_rnn(sizes, replicas),
        init(jax.random.key(0), sizes),
        spec(sizes),
    )


def direct_loss(params, data, sizes=SIZES):
    """The summed loss, input by input and step by step; also the steps of each input."""
    p = params["step"]
    total = 0.0
    taken = []
    for instance in data:
        state = jnp.zeros(sizes.hidden)
        for x in instance["x"]:
            mean = jnp.zeros(sizes.hidden)
            remainder = 1.0
            n = 0
            while True:
                flag = jnp.array([1.0 if n == 0 else 0.0])
                state = jnp.tanh(jnp.concatenate([x, flag, state]) @ p["w"] + p["b"])
                h = 1 / (1 + jnp.exp(-(state @ p["halt"] + p["halt_b"])))
                n = n + 1
                if bool(h >= remainder - sizes.epsilon) or n == sizes.max_steps:
                    break
                mean = mean + h * state
                remainder = remainder - h
            state = mean + remainder * state
            total += sizes.time_penalty * (n + remainder)
            taken.append(n)
        logits = state @ params["classify"]["w"] + params["classify"]["b"]
        total += jax.nn.logsumexp(logits) - logits[int(instance["label"])]
    return total, taken


@pytest.mark.parametrize(
    ("workers", "replicas"),
    [
        pytest.param(1, 1, marks=pytest.mark.users),
        pytest.param(
            2,
            2,
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_gradients_are_those_of_a_direct_implementation(workers, replicas):
    """Replicas start equal, and their gradients add up to those of one."""
    rng = np.random.default_rng(0)
    data = sequences(10, rng)
    model = compiled_rnn(replicas=replicas)
    trainer = amp.Trainer(
        model.graph, min_update_interval=NEVER, max_active_keys=4, workers=workers, check=True
    )
    # Half of a unit normal: with larger weights the loop amplifies rounding, up to 24 steps long, to about 1e-5.
    params = parity.alike(
        trainer,
        lambda x: 0.5 * rng.normal(size=x.shape),
    )
    got = trainer.accumulate(model.data(data))
    (loss, taken), want = jax.value_and_grad(direct_loss, has_aux=True)(
        params,
        data,
    )
    assert len(set(taken)) > 2, "the inputs should be pondered for different numbers of steps"
    assert got["loss_sum"] == pytest.approx(float(loss), rel=1e-5)
    for node, (grad, rows) in parity.joined(trainer.gradients).items():
        for a, b in zip(
            jax.tree.leaves(grad),
            jax.tree.leaves(want[node]),
            strict=True,
        ):
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), node
        assert rows == {"step": sum(taken), "classify": len(data)}[node]


@pytest.mark.nightly
def test_it_learns_and_the_penalty_shortens_pondering():
    rng = np.random.default_rng(1)
    model = compiled_rnn(replace(SIZES, time_penalty=0.1))
    trainer = amp.Trainer(
        model.graph,
        optax.adam(1e-2),
        max_active_keys=4,
        max_dispatch_size=4,
    )
    data = model.data(sequences(50, rng))
    before = trainer.evaluate(data)
    history = trainer.fit(
        model.data(sequences(250, rng)),
        data,
        epochs=4,
        progress=False,
    )
    assert history.best() > 0.75
    assert (
        before["ponder"] > 2.15 and history[-1].valid["ponder"] < 2.08
    )  # 2 is the least: one step, of weight 1


def test_impossible_sizes_are_refused():
    with pytest.raises(SettingsError, match="epsilon"):
        Ponder(4, 4, 2, epsilon=1.0)
