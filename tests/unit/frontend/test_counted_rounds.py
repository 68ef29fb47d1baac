"""Loops whose rounds have a number that all rows share: a layer chosen by the number is read once, and for all rounds before the loop."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples as tried
from support.jaxpr_walks import equations_in, loops_in

import ampjax as amp
from ampjax.frontend.batch_rules import while_steps
from ampjax.jaxprs.primitives import inner

WIDTH = 5
LAYERS = 6
SPEC = {"x": f"float32[{WIDTH}]", "limit": "float32[]"}


def params_of(seed):
    rng = np.random.default_rng(seed)
    return {
        "layers": rng.normal(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32),
        "bias": rng.normal(size=(LAYERS, WIDTH)).astype(np.float32),
    }


def layer(p, h, number):
    return h + jnp.tanh(h @ p["layers"][number] + p["bias"][number])


def early_exit(start, step):
    """A network that ends when its activations are large; `start` is the first layer, and `step` leads to the next."""

    def model(p, s):
        def test(carry):
            h, number = carry
            return (jnp.abs(h).sum() < s["limit"]) & (number >= 0) & (number < LAYERS)

        def turn(carry):
            h, number = carry
            return layer(p, h, number), number + step

        h, number = amp.while_loop(
            test,
            turn,
            (s["x"], start),
            most=LAYERS,
        )
        return (h**2).sum() + 0.1 * number

    return model


def by_hand(start, step, p, s):
    """The same network as a loop of Python."""
    h = s["x"]
    number = start
    while np.abs(jax.lax.stop_gradient(h)).sum() < s["limit"] and 0 <= number < LAYERS:
        h = layer(p, h, number)
        number += step
    return (h**2).sum() + 0.1 * number


def agree(p, of_batch, of_each):
    """Compares two functions of the parameters, and their gradients."""
    found, grads = jax.jit(jax.value_and_grad(of_batch))(p)
    want, want_grads = jax.value_and_grad(of_each)(p)
    np.testing.assert_allclose(found, want, 1e-4)
    for name in p:
        largest = max(
            1.0,
            float(np.abs(want_grads[name]).max()),
        )
        np.testing.assert_allclose(
            grads[name],
            want_grads[name],
            1e-3,
            1e-4 * largest,
        )


@pytest.mark.parametrize(
    ("start", "step"),
    [
        (0, 1),
        (LAYERS - 1, -1),
        (1, 2),
    ],
)
@settings(max_examples=tried(16))
@given(
    seed=st.integers(0, 1 << 16),
    limits=st.lists(
        st.sampled_from([0.0, 4.0, 6.0, 8.0, 12.0, 1e6]),
        min_size=1,
        max_size=5,
    ),
)
def test_rounds_that_are_counted_are_those_of_each_example(start, step, seed, limits):
    rng = np.random.default_rng(seed)
    p = params_of(seed)
    examples = []
    for limit in limits:
        x = rng.normal(size=WIDTH).astype(np.float32)
        examples.append({"x": x, "limit": np.float32(limit)})
    batched = amp.vmap(
        early_exit(start, step),
        SPEC,
        params=p,
    )
    batch = batched.pack(examples)

    def total(p):
        return sum(by_hand(start, step, p, s) for s in examples)

    agree(p, lambda p: batched(p, batch).sum(), total)


def test_a_layer_is_read_once_for_all_rows():
    p = params_of(0)
    examples = []
    for i in range(7):
        examples.append(
            {
                "x": np.ones(WIDTH, np.float32),
                "limit": np.float32(i),
            }
        )
    batched = amp.vmap(
        early_exit(0, 1),
        SPEC,
        params=p,
    )
    batch = batched.pack(examples)
    text = str(jax.make_jaxpr(jax.grad(lambda p: batched(p, batch).sum()))(p))
    rows = len(batch.weights)
    assert rows > LAYERS
    assert f"f32[{WIDTH},{WIDTH}]" in text
    assert not re.search(rf"f32\[{rows},{WIDTH},{WIDTH}\]", text)


def test_a_part_that_counts_otherwise_is_each_rows_own():
    def model(p, s):
        def turn(carry):
            h, number = carry
            return layer(
                p,
                h,
                number,
            ), number + 1 + (h.sum() > 0).astype(int)

        test = lambda carry: carry[1] < LAYERS
        h, number = amp.while_loop(
            test,
            turn,
            (s["x"], 0),
            most=LAYERS,
        )
        return h.sum() + number

    p = params_of(3)
    rng = np.random.default_rng(1)
    examples = []
    for _ in range(6):
        x = rng.normal(size=WIDTH).astype(np.float32)
        examples.append({"x": x, "limit": np.float32(0)})
    found = amp.vmap(model, SPEC)(p, examples)
    want = [float(model(p, s)) for s in examples]
    np.testing.assert_allclose(found, want, 1e-4)


def layers_of_depth(p, s):
    """As many layers as the example says."""
    return (
        amp.fori_loop(
            s["depth"],
            lambda i, h: layer(p, h, i),
            s["x"],
        )
        ** 2
    ).sum()


def layers_along_words(p, s):
    """A layer for each word, chosen by the number of the word."""

    def step(i, h):
        return layer(p, h, i) + amp.take(s["words"], i)

    n = amp.length(s["words"])
    return (amp.fori_loop(n, step, s["x"]) ** 2).sum()


def layers_of_pairs(p, s):
    """A loop for each word, as deep as the example says."""

    def deep(word):
        return amp.fori_loop(
            s["depth"],
            lambda i, h: layer(p, h, i),
            s["x"] * word,
        ).sum()

    return amp.sum(amp.map(deep, s["words"]))


@pytest.mark.parametrize("model", [layers_of_depth, layers_along_words, layers_of_pairs])
@settings(max_examples=tried(16))
@given(
    seed=st.integers(0, 1 << 16),
    depths=st.lists(
        st.integers(0, LAYERS),
        min_size=1,
        max_size=5,
    ),
)
def test_layers_chosen_by_a_number_are_those_of_each_example(model, seed, depths):
    rng = np.random.default_rng(seed)
    p = params_of(seed)
    examples = []
    for depth in depths:
        examples.append(
            {
                "x": rng.normal(size=WIDTH).astype(np.float32),
                "depth": np.int32(depth),
                "words": rng.normal(size=int(rng.integers(LAYERS + 1))).astype(np.float32),
            }
        )
    spec = {"x": f"float32[{WIDTH}]", "depth": "int32[]", "words": "float32[t]"}
    batched = amp.vmap(model, spec, params=p)
    batch = batched.pack(examples)

    def total(p):
        return sum(model(p, s) for s in examples)

    agree(p, lambda p: batched(p, batch).sum(), total)


@pytest.mark.parametrize("model", [layers_of_depth, early_exit(0, 1)])
def test_no_row_has_a_layer_of_its_own_and_no_round_a_gradient_of_all(model):
    p = params_of(0)
    examples = []
    for i in range(7):
        x = np.ones(WIDTH, np.float32)
        examples.append(
            {
                "x": x,
                "limit": np.float32(i),
                "depth": np.int32(i % 4),
            }
        )
    batched = amp.vmap(
        model,
        {**SPEC, "depth": "int32[]"},
        params=p,
    )
    batch = batched.pack(examples)
    traced = jax.make_jaxpr(jax.grad(lambda p: batched(p, batch).sum()))(p)
    rows = len(batch.weights)
    assert rows > LAYERS
    assert not re.search(rf"f32\[{rows},{WIDTH},{WIDTH}\]", str(traced))
    made = []
    for loop in loops_in(traced.jaxpr):
        for body in inner(loop):
            made += [out.aval.shape for each in equations_in(body) for out in each.outvars]
    assert made
    assert (LAYERS, WIDTH, WIDTH) not in made


@pytest.mark.parametrize("few", [0, 16])
def test_rounds_without_rows_leave_no_trace(few, monkeypatch):
    """A round behind the last one takes a root of a negative number, which counts nowhere."""
    monkeypatch.setattr(while_steps, "FEW_ROUNDS", few)

    def model(p, s):
        def turn(x):
            return jnp.sqrt(x - p["less"]) * p["times"]

        x = amp.while_loop(
            lambda x: x > 1,
            turn,
            s["x"],
            most=12,
        )
        return x**2

    p = {
        "less": jnp.float32(0.9),
        "times": jnp.float32(0.8),
    }
    examples = [{"x": np.float32(x)} for x in (0.5, 3.0, 7.0)]
    batched = amp.vmap(model, {"x": "float32[]"}, params=p)
    batch = batched.pack(examples)

    def total(p):
        return sum(model(p, s) for s in examples)

    found = jax.value_and_grad(lambda p: batched(p, batch).sum())(p)
    want = jax.value_and_grad(total)(p)
    assert np.isfinite(found[0])
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, 1e-4),
        found,
        want,
    )


def of_last_state(s, turn):
    """A number that depends on the state after as many turns as the example says."""
    h, _ = amp.while_loop(
        lambda carry: carry[1] < s["limit"],
        turn,
        (s["x"], 0),
        most=LAYERS,
    )
    return (h**2).sum()


def not_finite_behind(p, s):
    """A later round's number would divide by zero."""

    def turn(carry):
        h, number = carry
        own = p["layers"] / (5 - number)
        return jnp.tanh(own[number % LAYERS] @ h), number + 1

    return of_last_state(s, turn)


def layers_by_a_choice(p, s):
    def turn(carry):
        h, number = carry
        own = amp.cond(
            number > 1,
            lambda: p["layers"],
            lambda: 2 * p["layers"],
        )
        return layer({**p, "layers": own}, h, number), number + 1

    return of_last_state(s, turn)


def shared_by_turns(p, s):
    """Two layers in turn, for many rounds."""
    step = lambda i, h: layer(p, h, i % 2)
    return (
        amp.fori_loop(
            3 * s["limit"].astype(int),
            step,
            s["x"],
        )
        ** 2
    ).sum()


@pytest.mark.parametrize(
    "model",
    [not_finite_behind, layers_by_a_choice, shared_by_turns],
)
@pytest.mark.parametrize(
    "limits",
    [[0.0, 0.0], [3.0, 1.0, 5.0]],
)
def test_rounds_that_no_example_needs_change_nothing(model, limits):
    p = params_of(2)
    rng = np.random.default_rng(2)
    examples = []
    for limit in limits:
        x = rng.normal(size=WIDTH).astype(np.float32)
        examples.append({"x": x, "limit": np.float32(limit)})
    batched = amp.vmap(model, SPEC, params=p)
    batch = batched.pack(examples)

    def total(p):
        return sum(model(p, s) for s in examples)

    found = jax.value_and_grad(lambda p: batched(p, batch).sum())(p)
    want = jax.value_and_grad(total)(p)
    close = lambda x, y: np.testing.assert_allclose(x, y, 1e-3, 1e-4)
    jax.tree.map(close, found, want)


def test_a_loop_in_a_round_that_no_example_needs_is_left_out():
    """Newton's rule for a root would go on without end below zero."""

    def root(a):
        return jax.lax.while_loop(
            lambda x: jnp.abs(x * x - a) > 1e-3,
            lambda x: 0.5 * (x + a / x),
            a,
        )

    def model(p, s):
        return amp.while_loop(
            lambda h: h > 0.6,
            lambda h: root(h - 0.5) + p["bias"][0, 0],
            1.0 * s["limit"],
            most=8,
        )

    examples = [
        {"limit": np.float32(0)},
        {"limit": np.float32(-4)},
    ]
    batched = amp.vmap(model, {"limit": "float32[]"})
    np.testing.assert_allclose(
        batched(params_of(2), examples),
        [0, -4],
    )


def test_what_rounds_tell_is_told():
    """A metric, whose layer nothing else reads, and an output."""

    def deep(p, s):
        def step(i, h):
            h = layer(p, h, i)
            amp.metric("read", p["bias"][i].sum())
            amp.output("state", h)
            return h

        return amp.fori_loop(
            s["depth"],
            step,
            s["x"],
        ).sum()

    def turns(p, s):
        def turn(carry):
            h, number = carry
            amp.metric("read", p["bias"][number].sum())
            return layer(p, h, number), number + 1

        test = lambda carry: carry[1] < s["depth"]
        return amp.while_loop(
            test,
            turn,
            (s["x"], 0),
            most=LAYERS,
        )[0].sum()

    p = params_of(1)
    depths = [0, 3, 1]
    examples = []
    for d in depths:
        examples.append(
            {
                "x": np.ones(WIDTH, np.float32),
                "depth": np.int32(d),
            }
        )
    spec = {"x": f"float32[{WIDTH}]", "depth": "int32[]"}
    each = p["bias"].sum(1)
    told = np.concatenate([each[:d] for d in depths])
    for model in (deep, turns):
        batched = amp.vmap(model, spec, params=p)
        reports = batched.reports(p, batched.pack(examples))
        values, counts = reports.metrics["read"]
        assert counts.sum() == sum(depths)
        np.testing.assert_allclose(values.sum(), told.sum(), 1e-5)
        if model is deep:
            lengths = []
            for states in reports.outputs["state"].tolist():
                lengths.append(len(states))
            assert lengths == depths
