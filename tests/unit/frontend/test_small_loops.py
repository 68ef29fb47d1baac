"""Loops with small steps as one kernel of XLA: the same numbers as from many kernels."""

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp
from ampjax.lanes.rewriting.one_kernel import SWITCH

SPEC = {"x": "float32[n,4]"}
CALL = 'xla_cpu_small_call = "true"'
RNG = np.random.default_rng(0)


def recurrent(w, example):
    """A recurrent network, from the last state of another one."""
    step = lambda h, x: (jnp.tanh(h @ w + x), h)
    start = jnp.zeros(len(w))
    h, hs = amp.scan(step, start, example["x"])
    h, _ = amp.scan(step, h, hs, reverse=True)
    return jnp.sum(h)


def batch_of(n_examples):
    examples = []
    for _ in range(n_examples):
        length = RNG.integers(0, 6)
        x = RNG.normal(size=(length, 4))
        examples.append({"x": x.astype(np.float32)})
    return examples


def gradient(w, examples):
    """Value and gradient, and the text of the program."""
    model = amp.vmap(recurrent, SPEC, params=w)
    batch = model.pack(examples)
    loss = jax.jit(jax.value_and_grad(lambda w: jnp.sum(model(w, batch))))
    return loss(w), loss.lower(w).as_text()


def test_small_loops_have_the_numbers_of_many_kernels(monkeypatch):
    w = RNG.normal(size=(4, 4)).astype(np.float32)
    examples = batch_of(9)
    (value, grad), text = gradient(w, examples)
    assert CALL in text
    monkeypatch.setenv(SWITCH, "0")
    (wanted, wanted_grad), text = gradient(w, examples)
    assert CALL not in text
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    np.testing.assert_allclose(grad, wanted_grad, rtol=1e-5, atol=1e-6)


def test_large_products_keep_kernels_of_their_own():
    w = np.eye(4, dtype=np.float32)
    _, text = gradient(w, batch_of(400))
    assert CALL not in text


def test_without_jit_nothing_is_compiled_at_once():
    w = np.eye(4, dtype=np.float32)
    examples = batch_of(3)
    model = amp.vmap(recurrent, SPEC, params=w)
    compiled = model(w, examples)
    with jax.disable_jit():
        np.testing.assert_allclose(model(w, examples), compiled, rtol=1e-6)
