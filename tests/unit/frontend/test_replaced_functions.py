"""Functions of JAX that ask for lengths, on whole sequences: values and gradients agree with the function, for sequences of 0 to 8 elements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.jaxpr_walks import equations_in
from support.model_laws import check_batch

import ampjax as amp
from ampjax.errors import DataError
from ampjax.frontend.jax_functions import replaced_functions

SPEC = {"x": "float64[n,2]", "i": "int32[n]"}
RNG = np.random.default_rng(5)
PARAMS = {
    "w": RNG.normal(size=(2, 2)),
    "b": RNG.normal(size=2),
    "kernel": RNG.normal(size=4),
}


def example(n):
    return {
        "x": RNG.normal(size=(n, 2)),
        "i": RNG.integers(-3, 9, n).astype(np.int32),
    }


EXAMPLES = {n: example(n) for n in range(9)}
ORDINARY = (0, 1, 5)


def hidden(p, s):
    return jnp.tanh(s["x"] @ p["w"])


def total(x):
    """A number that depends on every entry and its place."""
    places = jnp.arange(x.shape[0])
    return jnp.sum(jnp.sin(x.T + 0.3 * places))


def agrees(function, lengths):
    """Compares a batch with the function on each example of a length that the function takes."""
    least = LEAST[function]
    with jax.enable_x64(True):
        check_batch(
            function,
            PARAMS,
            SPEC,
            [EXAMPLES[n] for n in lengths if n >= least],
            is_traced=True,
        )


def loops(p, s):
    """Linear recurrences both ways, and loops of as many turns as there are elements."""

    def joined(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    def turn(h, nothing):
        assert nothing is None
        return jnp.tanh(h @ p["w"]), h

    def counted(i, h):
        return jnp.tanh(h @ p["w"] + i)

    v = hidden(p, s)
    n = v.shape[0]
    gates = jax.nn.sigmoid(v)
    _, forwards = lax.associative_scan(joined, (gates, v))
    _, backwards = lax.associative_scan(joined, (gates, v), reverse=True)
    along = lax.associative_scan(jnp.maximum, v.T, axis=1)
    last, states = lax.scan(
        turn,
        p["b"],
        None,
        length=n,
    )
    counts = lax.fori_loop(
        0,
        n,
        counted,
        p["b"],
    )
    return total(forwards * backwards) + total(along.T) + total(states) + total(last * counts)


def arrays(p, s):
    v = hidden(p, s)
    n = v.shape[0]
    scores = v @ v.T
    share = jnp.linspace(p["b"][0], 1.0, n)
    before = jnp.linspace(0, 1, n, endpoint=False)
    grown = jnp.insert(
        v,
        0,
        p["b"],
        axis=0,
    )
    beside = jnp.tile(v, (1, 2)) * jnp.tile(p["b"], (n, 2))
    return (
        total(share * before)
        + total(jnp.diagonal(scores, offset=1))
        + total(jnp.diag(scores, k=-2))
        + total(grown)
        + total(beside)
        + total(jnp.tile(v, (2, 1)))
    )


def numbers_outside(p, s):
    v = hidden(p, s)
    places = jnp.arange(v.shape[0]) + 2
    filled = v.at[places].get(
        mode="fill",
        fill_value=0.5,
    )
    cut = jnp.take(
        v,
        s["i"],
        axis=0,
        mode="clip",
    )
    lacking = jnp.take(v[:, 0], s["i"])
    known = jnp.where(
        jnp.isnan(lacking),
        0.1,
        lacking,
    )
    added = v.at[s["i"]].add(
        v,
        mode="clip",
    )
    round_ = jnp.take(v, s["i"], axis=0, mode="wrap")
    return total(filled) + total(cut) + total(known) + total(added) + total(round_)


def padded(p, s):
    v = hidden(p, s)
    kernel = p["kernel"]
    wide = [(3, 1), (0, 0)]
    last = jnp.insert(
        v[:, 0],
        -1,
        0.5,
    )
    n = v.shape[0]
    found = total(jnp.convolve(kernel, last)) + total(v.at[3].get(mode="clip"))
    found += total(v[n - 1]) + total(v[n // 2, 0:]) + total((v @ v.T)[0, n - 1] * v)
    for mode in ("edge", "wrap", "reflect", "symmetric"):
        found += total(
            jnp.pad(
                v,
                wide,
                mode=mode,
            )
        )
    return found


def filtered(p, s):
    v = hidden(p, s)
    smooth = lambda x: jnp.convolve(x, p["kernel"], mode="same")
    return (
        total(jax.vmap(smooth, 1, 1)(v))
        + total(
            jnp.convolve(
                v[:, 0],
                p["kernel"],
                mode="valid",
            )
        )
        + total(jnp.correlate(v[:, 0], p["kernel"]))
        + total(jnp.delete(v, 2, axis=0))
        + total(
            jnp.delete(
                v,
                -1,
                axis=0,
            )
        )
    )


LEAST = {
    loops: 0,
    arrays: 0,
    numbers_outside: 0,
    padded: 1,
    filtered: 4,
}
"""By function how many elements it takes at least."""


@pytest.mark.slow
@pytest.mark.parametrize("function", LEAST)
def test_a_batch_computes_what_the_function_does(function):
    agrees(function, ORDINARY)


@pytest.mark.nightly
@pytest.mark.parametrize("function", LEAST)
def test_sequences_of_each_length_compute_what_the_function_does(function):
    agrees(function, EXAMPLES)


def test_sequences_that_are_too_short_are_told_by_the_example():
    told = {
        r"instance 1: expected a length `n - 4` from 0, got -2": lambda p, s: jnp.convolve(
            s["x"][:, 0],
            p["kernel"],
            mode="same",
        ),
        r"instance 1: expected a length `n - 3` from 0, got -1": lambda p, s: jnp.delete(
            s["x"],
            2,
            axis=0,
        ),
        r"instance 2: expected an element that the sequence has": lambda p, s: jnp.pad(
            s["x"],
            [(1, 1), (0, 0)],
            mode="reflect",
        ),
    }
    for text, function in told.items():
        with jax.enable_x64(True):
            batched = amp.vmap(
                lambda p, s, function=function: total(function(p, s)),
                SPEC,
                params=PARAMS,
            )
            with pytest.raises(DataError, match=rf"test_replaced_functions.py:\d+.*{text}"):
                batched.pack([EXAMPLES[n] for n in (5, 2, 0)])


def test_functions_of_jax_are_its_own_when_no_model_is_traced():
    before = jnp.pad, lax.scan
    with replaced_functions.taking_whole_sequences():
        inside = jnp.pad, lax.scan
        with replaced_functions.taking_whole_sequences():
            assert (jnp.pad, lax.scan) == inside
        assert (jnp.pad, lax.scan) == inside
        assert inside[0] is not before[0]
        assert jnp.pad(jnp.ones(2), 1).tolist() == [0, 1, 1, 0]
    assert (jnp.pad, lax.scan) == before


def test_a_kernel_is_convolved_with_all_examples_at_once():
    with jax.enable_x64(True):
        batched = amp.vmap(
            lambda p, s: jnp.sum(
                jnp.convolve(
                    s["x"][:, 0],
                    p["kernel"],
                )
            ),
            SPEC,
            params=PARAMS,
        )
        jaxpr = jax.make_jaxpr(batched)(
            PARAMS,
            batched.pack([EXAMPLES[3], EXAMPLES[5]]),
        )
    convolutions = []
    for equation in equations_in(jaxpr.jaxpr):
        if equation.primitive.name == "conv_general_dilated":
            convolutions.append(equation)
    assert convolutions
    assert all(each.params["feature_group_count"] == 1 for each in convolutions)
