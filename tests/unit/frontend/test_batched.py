"""A batch of ragged examples as one function: its values and gradients are those of the function as it is, example by example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import DataError, GraphError

SPEC = {"x": "float32[n,2]", "words": "int32[n]", "chars": "int32[n,c]", "k": "int32[]"}
LENGTHS = (3, 0, 5, 1)


def example(seed, n):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, n)
    return {
        "x": rng.normal(size=(n, 2)).astype(np.float32),
        "words": rng.integers(0, 7, n).astype(np.int32),
        "chars": amp.Ragged(rng.integers(0, 7, int(sizes.sum())).astype(np.int32), sizes),
        "k": np.int32(rng.integers(0, 3)),
    }


EXAMPLES = [example(seed, n) for seed, n in enumerate(LENGTHS)]
RNG = np.random.default_rng(9)
PARAMS = {"embed": RNG.normal(size=(7, 2)).astype(np.float32), "w": RNG.normal(size=(2, 2)).astype(np.float32)}


def of_words(p, s):
    vectors = amp.map(lambda w, x: p["embed"][w] + x @ p["w"], s["words"], s["x"])
    return amp.sum(amp.map(lambda a, v: jnp.sum(a * v**2), amp.softmax(vectors), vectors))


def recurrent(p, s):
    def step(h, x):
        h = jnp.tanh(h @ p["w"] + x)
        return h, jnp.sum(h)

    last, ys = amp.scan(step, jnp.zeros(2), s["x"])
    first, _ = amp.scan(step, last, s["x"], reverse=True)
    return jnp.sum(first) + amp.mean(ys)


def spelled(p, s):
    def word(w, chars):
        spell = lambda: amp.scan(lambda h, c: (jnp.tanh(h @ p["w"] + p["embed"][c]), None), jnp.zeros(2), chars)[0]
        return amp.cond(w < 3, spell, lambda: p["embed"][w])

    return amp.sum(amp.map(lambda v: jnp.sum(v**2), amp.map(word, s["words"], s["chars"])))


def chosen_by_example(p, s):
    last = lambda: amp.take(s["x"], -1) @ p["w"]
    safe = lambda: amp.cond(amp.length(s["x"]) > 0, last, lambda: jnp.ones(2))
    branches = [
        safe,
        lambda: amp.fori_loop(s["k"], lambda i, h: jnp.sin(h @ p["w"] + i), jnp.ones(2)),
        lambda: p["w"][0],
    ]
    return jnp.sum(amp.switch(s["k"], branches))


def attention(p, s):
    values = amp.map(lambda x: x @ p["w"], s["x"])

    def each(q):
        weights = amp.softmax(amp.map(lambda v: jnp.dot(q, v), values))
        return amp.sum(amp.map(lambda a, v: a * v, weights, values))

    return amp.sum(amp.map(lambda q: jnp.sum(jnp.tanh(each(q))), values))


def looped(p, s):
    test = lambda h: amp.read(jnp.sum(h) < 2)
    h = amp.while_loop(test, lambda h: h * 1.5 + p["w"][0] ** 2, jnp.ones(2) * 0.3, most=4)
    total = jnp.sum(amp.sum(s["x"]) * h)
    return amp.cond(amp.read(total > 0), lambda: jnp.log(total), lambda: total * p["w"][0, 0])


FUNCTIONS = [of_words, recurrent, spelled, chosen_by_example, attention, looped]


def compare(one, other, tolerance=2e-5):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_and_gradients_are_those_of_the_function(function):
    batched = amp.vmap(function, SPEC)
    compare(batched(PARAMS, EXAMPLES), jnp.stack([function(PARAMS, each) for each in EXAMPLES]))
    batch = batched.pack(EXAMPLES)
    grads = jax.jit(jax.grad(lambda p: batched(p, batch).mean()))(PARAMS)
    want = jax.grad(lambda p: sum(function(p, each) for each in EXAMPLES) / len(EXAMPLES))(PARAMS)
    compare(grads, want)


def test_a_batch_is_an_argument_of_jit_and_shapes_decide_what_is_compiled():
    batched = amp.vmap(of_words, SPEC, params=PARAMS)
    traces = []

    @jax.jit
    def step(p, batch):
        traces.append(1)
        return jnp.sum(batched(p, batch) * batch.weights)

    first, second = batched.pack(EXAMPLES), batched.pack(EXAMPLES[::-1])
    compare(step(PARAMS, first), step(PARAMS, second))
    assert len(traces) == 1


def test_copies_fill_a_batch_up_to_its_size():
    batched = amp.vmap(of_words, SPEC, params=PARAMS)
    batch = batched.pack(EXAMPLES[:3], size=5)
    assert (batch.size, batch.n_examples) == (5, 3) and batch.weights.tolist() == [1, 1, 1, 0, 0]
    compare(batched(PARAMS, batch)[:3], batched(PARAMS, EXAMPLES[:3]))
    assert repr(batch).startswith("Batch(3 of 5 examples, ")


def test_nothing_comes_from_rows_that_are_not_there():
    """A function whose derivative is not finite anywhere but at what the examples hold."""

    def inverse(p, s):
        root = lambda x: jnp.sum(jnp.sqrt(x * p["w"][0, 0] ** 2))
        by_example = amp.cond(amp.length(s["x"]) > 0, lambda: amp.sum(amp.map(root, s["x"])), lambda: 1.0)
        carried, _ = amp.scan(lambda h, x: (h / jnp.sqrt(h - 0.9 + 0 * x[0]), None), 1.0, s["x"])
        guarded = lambda x: amp.cond(amp.read(x[0] > 1), lambda: jnp.log(x[0] - 1), lambda: p["w"][1, 1])
        return by_example + carried + amp.sum(amp.map(guarded, s["x"]))

    examples = [{**each, "x": np.abs(each["x"]) + 0.1} for each in EXAMPLES]
    batched = amp.vmap(inverse, SPEC, params=PARAMS)
    batch = batched.pack(examples, size=6)
    grads = jax.grad(lambda p: jnp.sum(batched(p, batch) * batch.weights))(PARAMS)
    compare(grads, jax.grad(lambda p: sum(inverse(p, each) for each in examples))(PARAMS), 1e-4)


def test_a_compiled_model_has_it():
    compiled = amp.compile(of_words, PARAMS, SPEC)
    compare(compiled.batched(PARAMS, EXAMPLES).sum(), compiled.loss(PARAMS, EXAMPLES))
    assert compiled.batched is compiled.batched and repr(compiled.batched) == "vmap(of_words)"


def test_an_ensemble_is_a_vmap_over_parameters():
    batched = amp.vmap(recurrent, SPEC, params=PARAMS)
    batch = batched.pack(EXAMPLES)
    several = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), PARAMS)
    both = jax.vmap(batched, in_axes=(0, None))(several, batch)
    compare(both[1], batched(jax.tree.map(lambda x: 0.5 * x, PARAMS), batch))


def test_mistakes_have_errors():
    batched = amp.vmap(of_words, SPEC)
    with pytest.raises(GraphError, match=r"pack: expected types of the parameters, got none so far"):
        batched.pack(EXAMPLES)
    batched(PARAMS, EXAMPLES)
    with pytest.raises(DataError, match="at least one example, got none"):
        batched.pack([])
    with pytest.raises(DataError, match="at least 4, the number of examples, got 2"):
        batched.pack(EXAMPLES, size=2)
    other = amp.vmap(recurrent, SPEC, params=PARAMS)
    with pytest.raises(DataError, match="what its own `pack` made, got another function's batch"):
        batched(PARAMS, other.pack(EXAMPLES))
    with pytest.raises(DataError, match=r"instance 1: expected `\['chars'\]`, got \['x'\]"):
        batched.pack([EXAMPLES[0], {"x": np.zeros((2, 2))}])
    with pytest.raises(DataError, match="a number from -7 to 6, of one of 7 entries"):
        batched.pack([{**EXAMPLES[0], "words": np.array([0, 7, 1])}])
    with pytest.raises(GraphError, match=r"arrays of fixed shapes, got a sequence, float32\[n"):
        amp.vmap(lambda p, s: s["x"], SPEC)(PARAMS, EXAMPLES)
