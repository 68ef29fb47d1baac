"""Laws 1 and 6 of models as functions: the reported loss is the mean of what the function returns, and training in rounds is plain optax training.

Models have branches, loops, sums, empty sequences, parameters that several places share, and some that none reads.
"""

import functools
import os

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plain_models import SPEC, TRANSFORMS, WANT_LOSS, example, models, parameters

import ampjax as amp

pytestmark = pytest.mark.usefixtures("few_objects")

N_CASES = int(os.environ.get("AMPJAX_CASES", 500))
SIZES = 1, 2
"""Examples in a round, of one more in all: so the last round of a pipeline is not full."""
EVALUATED = 8
"""One case in so many also evaluates, which needs kernels of its own."""


@functools.cache
def step_of(name):
    """A step of plain optax training, jitted."""
    tx = optax.with_extra_args_support(TRANSFORMS[name])

    @jax.jit
    def step(grads, state, params, loss):
        extra = {"value": loss} if name in WANT_LOSS else {}
        updates, state = tx.update(grads, state, params, **extra)
        return optax.apply_updates(params, updates), state

    return step


def by_hand(model, name, params, rounds):
    """The mean loss of each round, and the parameters after the last."""
    state = TRANSFORMS[name].init(params)
    losses = []
    for examples in rounds:
        every = [jax.value_and_grad(model)(params, e) for e in examples]
        loss = np.float32(sum(float(x) for x, _ in every) / len(examples))
        grads = jax.tree.map(
            lambda *xs: sum(xs) / len(xs),
            *(g for _, g in every),
        )
        params, state = step_of(name)(grads, state, params, loss)
        losses.append(float(loss))
    return losses, params


@settings(max_examples=N_CASES)
@given(
    models(),
    st.sampled_from(sorted(TRANSFORMS)),
    st.sampled_from(SIZES),
    st.integers(
        0,
        1 << 16,
    ),
)
def test_training_in_rounds_is_plain_optax_training(model, name, size, seed):
    rng = np.random.default_rng(seed)
    examples = [example(rng) for _ in range(size + 1)]
    rounds = []
    for i in range(0, len(examples), size):
        rounds.append(examples[i : i + size])
    params = parameters(seed)
    compiled = amp.compile(model, params, SPEC)
    if size == 1:
        mode = {"mode": "sync"}
    else:
        mode = {"mode": "pipeline", "max_active_keys": size}
    # Kernels for one row of one node: models share most of them.
    trainer = amp.Trainer(
        compiled.graph,
        TRANSFORMS[name],
        fuse=False,
        max_dispatch_size=1,
        **mode,
    )
    losses, wanted = by_hand(
        model,
        name,
        jax.tree.map(jax.numpy.asarray, params),
        rounds,
    )
    if not seed % EVALUATED:
        before = trainer.evaluate(compiled.data(rounds[0]))["loss"]
        assert before == pytest.approx(losses[0], rel=1e-5, abs=1e-6)
    reported = trainer.accumulate(compiled.data(examples))["loss"]
    mean = sum(loss * len(examples) for loss, examples in zip(losses, rounds, strict=True)) / len(
        examples
    )
    assert reported == pytest.approx(mean, rel=1e-5, abs=1e-6)
    for one, other in zip(
        jax.tree.leaves(compiled.params(trainer.params)),
        jax.tree.leaves(wanted),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6)
