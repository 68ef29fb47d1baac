"""Results of a loop that its carry does not need are computed behind the loop, with the same numbers; the loop is as short as its carry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.effort import left_to_nightly
from support.jaxpr_walks import equations_in, loops_in

import ampjax as amp
from ampjax.frontend.batch_rules import loop_parts, sequence_steps
from ampjax.frontend.loops.loop_forms import loops_as
from ampjax.jaxprs.primitives import inner as bodies

RNG = np.random.default_rng(1)
WIDTH = 3
PARAMS = {
    "w": RNG.normal(size=(2 * WIDTH, WIDTH)),
    "u": RNG.normal(size=(WIDTH, WIDTH)),
}
SPEC = {
    "words": f"float64[n,{WIDTH}]",
    "memory": f"float64[m,{WIDTH}]",
}


def example(n, m):
    return {
        "words": RNG.normal(size=(n, WIDTH)),
        "memory": RNG.normal(size=(m, WIDTH)),
    }


EXAMPLES = [
    example(3, 4),
    example(0, 2),
    example(5, 1),
    example(1, 7),
    example(2, 0),
]


def attend(h, memory):
    shares = amp.softmax(amp.map(lambda m: h @ m, memory))
    return amp.sum(
        amp.map(
            lambda share, m: share * m,
            shares,
            memory,
        )
    )


def after_the_carry(p, s):
    """Attention of the new state, which the next step does not read."""

    def step(h, x):
        h = jnp.tanh(jnp.concatenate([h, x]) @ p["w"])
        return h, attend(h, s["memory"])

    h, read = amp.scan(
        step,
        jnp.zeros(WIDTH),
        s["words"],
    )
    return jnp.sum(h) + amp.sum(read).sum()


def of_the_carry_before(p, s):
    """Results of the carry before a step, of a part of the step, and of an unchanged element."""

    def step(carry, x):
        h, n = carry
        inner = x @ p["u"]
        new = jnp.tanh(h + inner)
        return (new, n + 1), (
            attend(
                h,
                s["memory"],
            ),
            inner @ p["u"],
            n,
            x,
        )

    (h, n), (read, twice, numbers, xs) = amp.scan(
        step,
        (jnp.ones(WIDTH), 0),
        s["words"],
        reverse=True,
    )
    sums = amp.sum(
        amp.map(
            lambda a, b, i, x: (a * b + x) @ (i * p["u"][0]),
            read,
            twice,
            numbers,
            xs,
        )
    )
    return jnp.sum(h) * n + sums


def in_a_loop(p, s):
    """A loop in a loop: the inner one gives products that the outer one carries."""

    def outer(h, x):
        def inner(g, m):
            g = jnp.tanh(g + m)
            return g, g @ p["u"]

        _, products = amp.scan(inner, h, s["memory"])
        return jnp.tanh(h + x + amp.sum(products)), jnp.sin(h)

    h, waves = amp.scan(
        outer,
        jnp.zeros(WIDTH),
        s["words"],
    )
    return jnp.sum(h) + amp.sum(waves).sum()


def read_by_the_carry(p, s):
    """Nothing can be computed behind the loop."""

    def step(h, x):
        h = jnp.tanh(h + attend(h, s["memory"]) + x)
        return h, h

    h, hs = amp.scan(
        step,
        jnp.zeros(WIDTH),
        s["words"],
    )
    return jnp.sum(h @ p["u"]) + amp.sum(hs).sum()


MODELS = [after_the_carry, of_the_carry_before, in_a_loop, read_by_the_carry]


@pytest.mark.parametrize(
    "form",
    ["steps", *left_to_nightly(["scan"])],
)
@pytest.mark.parametrize(
    "model",
    [in_a_loop, *left_to_nightly(MODELS, in_a_loop)],
)
def test_values_and_gradients_are_those_of_each_example(model, form):
    with jax.enable_x64(True), loops_as(form):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        batch = batched.pack(EXAMPLES, size=7)
        weights = np.array([1.0, 2, 3, 4, 5, 0, 0])
        value, grads = jax.value_and_grad(lambda p: jnp.sum(batched(p, batch) * weights))(PARAMS)

        def one_by_one(p):
            return sum(w * model(p, s) for w, s in zip(weights, EXAMPLES, strict=False))

        want, want_grads = jax.value_and_grad(one_by_one)(PARAMS)
    np.testing.assert_allclose(value, want, rtol=1e-10)
    for name in PARAMS:
        np.testing.assert_allclose(
            grads[name],
            want_grads[name],
            rtol=1e-9,
            atol=1e-12,
        )


@pytest.mark.first_case
@pytest.mark.parametrize("form", ["steps", "scan"])
@pytest.mark.parametrize(
    ("model", "is_behind"), [(after_the_carry, True), (read_by_the_carry, False)]
)
def test_attention_that_no_step_reads_is_in_no_loop(model, is_behind, form):
    with jax.enable_x64(True), loops_as(form):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        batch = batched.pack(EXAMPLES)
        program = jax.make_jaxpr(lambda p: batched(p, batch))(PARAMS)
    in_loops = set()
    for loop in loops_in(program.jaxpr):
        for body in bodies(loop):
            in_loops |= {equation.primitive.name for equation in equations_in(body)}
    assert "tanh" in in_loops
    assert ("exp" not in in_loops) == is_behind


@pytest.mark.nightly
def test_a_loop_that_draws_stays_whole():
    def draws(p, s):
        def step(h, x):
            h = jnp.tanh(h + x)
            return h, amp.stochastic(
                lambda key, v: v * jax.random.bernoulli(key, 0.5, v.shape),
                lambda v: v,
                h @ p["u"],
            )

        return jnp.sum(amp.sum(amp.scan(step, jnp.zeros(WIDTH), s["words"])[1]))

    seen = []
    split = loop_parts.part_behind
    with jax.enable_x64(True), loops_as("scan"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sequence_steps,
            "part_behind",
            lambda *args: seen.append(split(*args)) or seen[-1],
        )
        amp.vmap(draws, SPEC, params=PARAMS)(PARAMS, EXAMPLES)
    assert seen == [None]
