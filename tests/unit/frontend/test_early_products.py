"""Products of early values are computed before a loop, and products of rows of a small table once for each row of the table."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from support.effort import left_to_nightly
from support.jaxpr_walks import equations_in, loops_in
from support.model_laws import check_batch

import ampjax as amp
from ampjax.frontend.loops.loop_forms import loops_as
from ampjax.frontend.loops.split_products import with_split_products
from ampjax.jaxprs.primitives import bind, depending, evaluate
from ampjax.jaxprs.primitives import inner as bodies
from ampjax.lanes.rewriting.one_kernel import SWITCH

RNG = np.random.default_rng(0)
WIDTH = 4
WORDS = 3
PARAMS = {
    "embed": RNG.normal(size=(WORDS, WIDTH)),
    "cell": RNG.normal(size=(2 * WIDTH, WIDTH)),
    "out": RNG.normal(size=(WIDTH, WORDS)),
}
SPEC = {"words": "int32[t]", "first": "int32[]"}


def example(n):
    return {
        "words": RNG.integers(0, WORDS, n).astype(np.int32),
        "first": np.int32(RNG.integers(WORDS)),
    }


EXAMPLES = [example(n) for n in (3, 0, 7, 1, 6, 0, 5)]


def cell(p, x, h):
    return jnp.tanh(jnp.concatenate([x, h]) @ p["cell"])


def loss_of(p, h, word):
    logits = h @ p["out"]
    amp.metric("right", logits.argmax() == word)
    return jax.nn.logsumexp(logits) - logits[word]


def recurrent(p, s):
    """A recurrent network over words of a small vocabulary, backwards."""

    def step(h, word):
        h = cell(p, p["embed"][word], h)
        return h, loss_of(p, h, word)

    h, losses = amp.scan(
        step,
        jnp.zeros(WIDTH),
        s["words"],
        reverse=True,
    )
    return h.sum() + amp.sum(losses)


def decoder(p, s, reverse=False):
    """A decoder fed with the right words: the last one, and its embedding, are parts of the carry."""

    def step(carry, word):
        h, last, before = carry
        h = cell(p, p["embed"][last], h) - 0.1 * before
        return (h, word, p["embed"][word]), loss_of(p, h, word)

    start = (
        jnp.zeros(WIDTH),
        s["first"],
        p["out"][:, 0],
    )
    (h, last, before), losses = amp.scan(
        step,
        start,
        s["words"],
        reverse=reverse,
    )
    return (h * p["embed"][last] + before).sum() + amp.sum(losses)


def backwards(p, s):
    return decoder(p, s, reverse=True)


def shifted(p, s):
    """A loop whose carry follows from the elements, in a choice by a computed value."""

    def pairs():
        step = lambda last, word: (
            word,
            (p["embed"][last] * p["embed"][word]).sum(),
        )
        last, products = amp.scan(step, s["first"], s["words"])
        return p["out"][0, last] + amp.sum(products)

    return amp.cond(
        amp.read(p["embed"][s["first"]].sum() > 0),
        pairs,
        lambda: p["out"].sum(),
    )


def constant(p, s):
    """A carry equal after each step."""

    def step(carry, word):
        h, bias, scale = carry
        return (jnp.tanh(h * scale + bias + p["embed"][word]), p["out"][:, 1], 0.5), h

    (h, bias, scale), hs = amp.scan(
        step,
        (jnp.zeros(WIDTH), jnp.ones(WIDTH), 2.0),
        s["words"],
    )
    return (h * bias).sum() * scale + amp.sum(hs).sum()


MODELS = [recurrent, decoder, backwards, shifted, constant]


def values_and_gradients(model, examples):
    """The values and gradients of a batch with a copy, and the sum over examples."""
    weights = np.arange(1.0, len(examples) + 2)
    weights[-1] = 0
    batched = amp.vmap(model, SPEC, params=PARAMS)
    batch = batched.pack(examples, size=len(weights))
    found = jax.jit(jax.value_and_grad(lambda p: (batched(p, batch) * weights).sum()))(PARAMS)

    def of_each(p):
        return sum(w * model(p, s) for w, s in zip(weights, examples, strict=False))

    # the second one chooses by a parameter, so JAX can't trace it as it is
    with jax.disable_jit(model is shifted):
        return found, jax.jit(jax.value_and_grad(of_each))(PARAMS)


@pytest.mark.parametrize(
    "form",
    ["steps", *left_to_nightly(["scan"])],
)
@pytest.mark.parametrize(
    "model",
    [decoder, shifted, *left_to_nightly(MODELS, decoder, shifted)],
)
def test_values_and_gradients_are_those_of_each_example(model, form):
    with jax.enable_x64(True), loops_as(form):
        for examples in (EXAMPLES, EXAMPLES[1:2]):
            found, want = values_and_gradients(model, examples)
            for one, other in zip(
                jax.tree.leaves(found),
                jax.tree.leaves(want),
                strict=True,
            ):
                np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def products_in_loops(program):
    """The shapes of the factors of all products in loops."""
    found = []
    for loop in loops_in(program.jaxpr):
        for body in bodies(loop):
            for equation in equations_in(body):
                if equation.primitive.name == "dot_general":
                    found.append([v.aval.shape for v in equation.invars])
    return found


@pytest.mark.first_case
@pytest.mark.parametrize("form", ["steps", "scan"])
def test_a_decoder_waits_for_its_state_alone(form, monkeypatch):
    # in one kernel, products are sums
    monkeypatch.setenv(SWITCH, "0")
    with loops_as(form):
        params = jax.tree.map(jnp.float32, PARAMS)
        batched = amp.vmap(decoder, SPEC, params=params)
        batch = batched.pack(EXAMPLES)
        program = jax.make_jaxpr(lambda p: batched(p, batch))(params)
    shapes = products_in_loops(program)
    assert shapes
    assert all(shape[1] == (WIDTH, WIDTH) for shape in shapes)
    rows = len(EXAMPLES) * max(len(s["words"]) for s in EXAMPLES)
    for equation in equations_in(program.jaxpr):
        if equation.primitive.name == "dot_general":
            # neither the embedding of each word nor the cell's first half of it is multiplied row by row
            left, right = (v.aval.shape for v in equation.invars)
            assert right != (WIDTH, WIDTH) or left[0] < rows


@pytest.mark.parametrize("reverse", [False, True])
def test_reports_of_a_loop_keep_their_order(reverse):
    def model(p, s):
        def step(h, word):
            before = h
            h = cell(p, p["embed"][word], h)
            amp.metric("mean", h.sum(), 2.0)
            amp.output("before", before)
            amp.output("state", h)
            return h, None

        amp.output("words", s["words"])
        return amp.scan(
            step,
            jnp.zeros(WIDTH),
            s["words"],
            reverse=reverse,
        )[0].sum()

    reports = amp.vmap(model, SPEC, params=PARAMS).reports(PARAMS, EXAMPLES)
    for n, s in enumerate(EXAMPLES):
        h = np.zeros(WIDTH)
        before = np.zeros((len(s["words"]), WIDTH))
        after = before.copy()
        places = range(len(s["words"]))
        for place in reversed(places) if reverse else places:
            before[place] = h
            h = np.tanh(np.concatenate([PARAMS["embed"][s["words"][place]], h]) @ PARAMS["cell"])
            after[place] = h
        values, counts = reports.metrics["mean"]
        np.testing.assert_allclose(
            values[n],
            after.sum(),
            rtol=1e-4,
            atol=1e-5,
        )
        assert counts[n] == 2 * len(after)
        for name, want in (("words", s["words"]), ("before", before), ("state", after)):
            own = np.reshape(
                reports.outputs[name].tolist()[n],
                want.shape,
            )
            np.testing.assert_allclose(own, want, rtol=1e-4, atol=1e-5)


def assert_factors_are_late_or_early(equations, late):
    """Asserts that each factor of a product is late as a whole, or not at all."""
    comes_late = depending(equations, late)
    joins = {}
    for each in equations:
        if each.primitive.name == "concatenate":
            joins[each.outvars[0]] = each
    for equation in equations:
        if equation.primitive.name == "dot_general":
            for factor in equation.invars:
                joined = joins[factor].invars if factor in joins else [factor]
                assert len({part in comes_late for part in joined}) == 1


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
    st.integers(0, 1 << 16),
)
@hypothesis.example(
    [(1, True), (2, False), (0, True)],
    False,
    0,
)
def test_no_product_joins_what_is_late_to_what_is_not(parts, on_the_right, seed):
    rng = np.random.default_rng(seed)
    values = [rng.normal(size=n) for n, _ in parts]
    matrix = rng.normal(
        size=(
            sum(n for n, _ in parts),
            2,
        )
    )

    def product(matrix, *values):
        joined = jnp.concatenate(values)
        return jnp.tanh(matrix.T @ joined if on_the_right else joined @ matrix)

    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(product)(matrix, *values).jaxpr
        late = []
        for v, (_, is_late) in zip(
            jaxpr.invars[1:],
            parts,
            strict=True,
        ):
            if is_late:
                late.append(v)
        split = with_split_products(jaxpr, late)
        (found,) = evaluate(
            split,
            [],
            [matrix, *values],
            bind,
        )
        np.testing.assert_allclose(found, product(matrix, *values), rtol=1e-12)
    made = [v for equation in split.eqns for v in equation.outvars]
    assert len({*made}) == len(made)
    assert_factors_are_late_or_early(split.eqns, late)
    if len({is_late for _, is_late in parts}) == 1:
        assert split is jaxpr


@pytest.mark.first_case
@pytest.mark.parametrize("form", ["steps", "scan"])
def test_products_of_several_rows_of_a_table_and_of_rows_in_other_shapes(form):
    def model(p, s):
        embed, out = p["embed"], p["out"]

        def products(word):
            several = embed[jnp.stack([word, 0 * word])] @ out
            square = embed[word].reshape(2, -1) @ out[: WIDTH // 2]
            column = out.T @ embed[word].reshape(WIDTH, 1)
            line = lax.dynamic_slice_in_dim(embed, word, 1) @ out
            return several.sum() * column.sum() + (square * line).sum()

        def step(h, word):
            h = jnp.tanh(h + products(word))
            return h, h

        last, states = amp.scan(step, 0.0, s["words"])
        return last + amp.sum(states) + amp.sum(amp.map(products, s["words"]))

    with jax.enable_x64(True), loops_as(form):
        check_batch(model, PARAMS, SPEC, EXAMPLES[:3], is_traced=True)


def test_rows_of_a_table_that_nobody_reads_do_not_show():
    def model(p, s):
        def each(word):
            # not known from the example, and beyond the end where the word is the last one
            number = word * jnp.where(
                p["out"][0, 0] > -9,
                2,
                1,
            )
            return (p["embed"][number] @ p["out"]).max()

        return amp.sum(amp.map(each, s["words"]))

    examples = [
        {
            "words": np.array(
                [0, 1, -1, 2, 0, 0, 1, 0],
                np.int32,
            ),
            "first": np.int32(0),
        }
    ]
    params = PARAMS | {
        "embed": np.vstack(
            [
                PARAMS["embed"],
                np.full(WIDTH, np.nan),
            ]
        )
    }
    with jax.enable_x64(True):
        alone = jax.value_and_grad(model)(params, examples[0])
        batched = amp.vmap(model, SPEC, params=params)
        found = jax.value_and_grad(lambda p: batched(p, examples).sum())(params)
    assert np.isnan(alone[0]) and np.isnan(found[0])
    known = [{"words": each["words"][:2], "first": each["first"]} for each in examples * 7]
    with jax.enable_x64(True):
        found = jax.value_and_grad(lambda p: batched(p, known).sum())(params)
        want = jax.value_and_grad(lambda p: sum(model(p, s) for s in known))(params)
    for one, other in zip(
        jax.tree.leaves(found),
        jax.tree.leaves(want),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9)
        assert np.all(np.isfinite(one))


def test_in_bfloat16_cotangents_of_frequent_rows_are_summed():
    def model(p, s):
        return amp.sum(
            amp.map(
                lambda word: (p["embed"][word] @ p["out"]).sum(),
                s["words"],
            )
        )

    ones = {
        "embed": jnp.ones((WORDS, WIDTH), jnp.bfloat16),
        "out": jnp.eye(WIDTH, 1),
    }
    ones["out"] = ones["out"].astype(jnp.bfloat16)
    examples = [
        {
            "words": np.zeros(600, np.int32),
            "first": np.int32(0),
        }
    ]
    batched = amp.vmap(model, SPEC, params=ones)
    gradient = jax.grad(lambda p: batched(p, examples).sum().astype(jnp.float32))(ones)
    assert float(gradient["embed"][0, 0]) == pytest.approx(600, rel=0.01)
