"""Several rounds of training in one call: the same bits as one round after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import batch_mode
from support.batch_mode import compiled, examples, same_bits, trainer

from ampjax.train.batch_training import batch_programs

DATA = examples(23)


def counts_in_floats(rate):
    """An optimizer whose state has another type after its first step."""

    def init(params):
        return jnp.zeros((), jnp.int32)

    def update(gradients, state, params=None):
        changes = jax.tree.map(lambda gradient: -rate * gradient, gradients)
        return changes, state + 0.5

    return optax.GradientTransformation(init, update)


def fitted(function=batch_mode.model, tx=None, **settings):
    """A trainer after two epochs, its history, and how many rounds each call took."""
    one = trainer(tx=tx or optax.adam(0.05), function=function, **settings)
    rounds = []
    programs = one.session.passes._programs
    train = type(programs).train

    def counted(self, batches, seed, places):
        rounds.append(len(batches))
        return train(self, batches, seed, places)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(programs), "train", counted)
        history = one.fit(compiled(function).data(DATA), epochs=2, progress=False)
    return one, history, rounds


@pytest.mark.parametrize("function", [batch_mode.model, batch_mode.dropped])
def test_rounds_in_one_call_have_the_bits_of_one_after_the_other(monkeypatch, function):
    together, history, rounds = fitted(function)
    assert max(rounds) > 1
    monkeypatch.setattr(batch_programs, "MOST_ROUNDS", 1)
    alone, want, single = fitted(function)
    assert set(single) == {1}
    assert sum(single) == sum(rounds)
    assert same_bits(together.params, alone.params)
    assert same_bits(together.opt_state, alone.opt_state)
    assert [epoch.train for epoch in history.epochs] == [epoch.train for epoch in want.epochs]


def test_large_steps_are_calls_of_their_own(monkeypatch):
    monkeypatch.setattr(batch_programs, "SMALL_BYTES", 64)
    _, _, rounds = fitted()
    assert set(rounds) == {1}


def test_a_step_that_changes_types_is_not_repeated():
    one, _, rounds = fitted(tx=counts_in_floats(0.1))
    assert rounds[0] == 1
    (state,) = {np.asarray(leaf).item() for leaf in jax.tree.leaves(one.opt_state)}
    assert state == sum(rounds) / 2
