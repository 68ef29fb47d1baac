"""`Compiled.verify` compares the engine with `jax.grad` of the function itself, and says what differs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.calls import one_call

import ampjax as amp
from ampjax.errors import DataError, NumericsError
from ampjax.ir.narrow_floats import narrowest_floats
from ampjax.numerics.differences import tolerance_for

PARAMS = {
    "embed": np.linspace(-1, 1, 12, dtype=np.float32).reshape(
        6,
        2,
    ),
    "cell": {"w": np.eye(2, dtype=np.float32)},
}
SPEC = {"words": "int32[t]", "y": "float32[]"}
EXAMPLES = [
    {"words": [1, 2, 3], "y": 0.1},
    {"words": [], "y": 0.2},
    {"words": [5], "y": 0.3},
]


def model(p, s):
    def step(h, w):
        return (
            jnp.tanh(h @ p["cell"]["w"] + p["embed"][w]),
            None,
        )

    return jnp.sum((amp.scan(step, jnp.ones(2), s["words"])[0] - s["y"]) ** 2)


def test_a_model_that_is_compiled_right():
    unread = np.ones(3, np.float32)
    verdict = amp.compile(
        model,
        PARAMS | {"unread": unread},
        SPEC,
    ).verify(
        EXAMPLES,
        progress=False,
    )
    assert verdict and verdict.worst < 1e-6
    first, *rest = repr(verdict).splitlines()
    assert first.startswith(
        "The engine agrees with jax.grad of `model`, operation by operation in float64, in the loss and 3 gradients of 3 instances:"
    )
    assert any(line.split()[:2] == ["cell", "['w']"] for line in rest)
    assert verdict.not_looked_at


@pytest.mark.parametrize("way", [jax.jit, one_call])
def test_a_model_with_a_combinator_in_a_call(way):
    def called(p, s):
        return way(lambda p, words, y: model(p, {"words": words, "y": y}) * y)(
            p, s["words"], s["y"]
        )

    assert amp.compile(called, PARAMS, SPEC).verify(EXAMPLES, progress=False)


def test_other_parameters_and_a_model_that_names_its_dtype():
    def rounded(p, s):
        start = jnp.ones(2, jnp.float32)
        assert p["cell"]["w"].dtype == jnp.float32  # nothing wider
        return model(p, s) + jnp.sum(start)

    verdict = amp.compile(rounded, PARAMS, SPEC).verify(
        EXAMPLES,
        progress=False,
        params=jax.tree.map(lambda x: x / 2, PARAMS),
    )
    assert "`rounded`, in its own precision" in repr(verdict)


def in_half_precision(dtype, of_params):
    """A recurrent model whose cell computes in a dtype, with parameters of another one."""

    def draw(seed, *shape):
        return (0.5 * np.random.default_rng(seed).normal(size=shape)).astype(of_params)

    params = {
        "embed": draw(0, 6, 4),
        "cell": {"w": draw(1, 4, 4)},
        "out": draw(2, 4, 3),
    }

    def narrow(p, s):
        def step(h, w):
            return (
                jnp.tanh(h @ p["cell"]["w"].astype(dtype) + p["embed"][w].astype(dtype)),
                None,
            )

        h, _ = amp.scan(
            step,
            jnp.zeros(4, dtype),
            s["words"],
        )
        return jnp.sum((h @ p["out"].astype(dtype)).astype(jnp.float32) ** 2)

    def words(n):
        return {
            "words": np.random.default_rng(n)
            .integers(
                0,
                6,
                n,
            )
            .astype(np.int32)
        }

    return amp.compile(
        narrow,
        params,
        {"words": "int32[t]"},
    ), [words(n) for n in (2, 9)]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "of_params", "tolerance"),
    [
        (jnp.bfloat16, jnp.bfloat16, 0.125),
        (np.float16, np.float32, 1 / 64),
    ],
)
def test_the_tolerance_is_that_of_the_narrowest_floats(dtype, of_params, tolerance):
    compiled, examples = in_half_precision(dtype, of_params)
    assert compiled.verify(examples, progress=False)
    if of_params == np.float32:
        assert amp.verify(
            compiled.graph,
            compiled.data(examples),
            quick=True,
            progress=False,
        )
    assert tolerance_for(narrowest_floats(compiled.graph)) == tolerance


def test_what_is_wrong_by_more_than_half_precision_is_told_all_the_same():
    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(
        lambda x: (x**2, x),
        lambda x, ct: (3 * x * ct,),
    )
    calls = []

    def drifting(p, s):
        calls.append(s)  # the compiled one has another gradient
        return (square if len(calls) == 1 else lambda x: x**2)(p["w"] * s).astype(jnp.float32)

    compiled = amp.compile(
        drifting,
        {"w": jnp.ones((), jnp.bfloat16)},
        "bfloat16[]",
    )
    with pytest.raises(NumericsError, match=r"to 1e-01, got a difference of 5\.0e-01"):
        compiled.verify([jnp.bfloat16(1.0)], progress=False)


def test_many_examples_are_summed_in_double_precision():
    """In bfloat16, 256 and 1 are 256."""
    params = {"w": jnp.ones((), jnp.bfloat16)}
    compiled = amp.compile(
        lambda p, s: (p["w"] * s).astype(jnp.float32),
        params,
        "bfloat16[]",
    )
    assert compiled.verify(
        [jnp.bfloat16(x) for x in (256, 1, 1, 1)],
        progress=False,
        tolerance=1e-6,
    )


def test_a_function_that_computes_something_else_the_second_time_is_told_of():
    calls = []

    def drifting(p, s):
        calls.append(s)
        return model(p, s) + (0 if len(calls) == 1 else jnp.sum(p["cell"]["w"] ** 2))

    compiled = amp.compile(drifting, PARAMS, SPEC)
    with pytest.raises(NumericsError) as caught:
        compiled.verify(EXAMPLES, progress=False)
    told = str(caught.value)
    assert told.startswith(
        "verify, parameters `cell`['w']: expected what `jax.grad` of `drifting`, operation by operation in float64, gives for 3 instances, to 1e-05, got a difference of "
    )
    assert (
        "Does the function compute the same whenever it is called?" in told and "the loss" in told
    )


def test_numbers_that_are_not_finite_are_refused():
    def largest(p, s):
        return (
            jnp.sum(
                amp.max(
                    amp.map(
                        lambda w: p["embed"][w],
                        s["words"],
                    )
                )
            )
            * s["y"]
        )

    compiled = amp.compile(largest, PARAMS, SPEC)
    with pytest.raises(
        DataError,
        match=r"verify, the loss: expected finite numbers from `largest` itself, got NaN or inf",
    ):
        compiled.verify(EXAMPLES, progress=False)
    with pytest.raises(
        DataError,
        match=r"verify, instances: expected instances as the model takes them, got what `compiled",
    ):
        compiled.verify(compiled.data(EXAMPLES))
    with pytest.raises(
        DataError, match=r"verify, instances: expected at least one instance, got none\."
    ):
        compiled.verify([])
