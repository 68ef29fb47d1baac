"""`Compiled.verify` compares the engine with `jax.grad` of the function itself, and says what differs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import DataError, NumericsError

PARAMS = {"embed": np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2), "cell": {"w": np.eye(2, dtype=np.float32)}}
SPEC = {"words": "int32[t]", "y": "float32[]"}
EXAMPLES = [{"words": [1, 2, 3], "y": 0.1}, {"words": [], "y": 0.2}, {"words": [5], "y": 0.3}]


def model(p, s):
    step = lambda h, w: (jnp.tanh(h @ p["cell"]["w"] + p["embed"][w]), None)
    return jnp.sum((amp.scan(step, jnp.ones(2), s["words"])[0] - s["y"]) ** 2)


def test_a_model_that_is_compiled_right():
    unread = np.ones(3, np.float32)
    verdict = amp.compile(model, PARAMS | {"unread": unread}, SPEC).verify(EXAMPLES, progress=False)
    assert verdict and verdict.worst < 1e-6
    first, *rest = repr(verdict).splitlines()
    assert first.startswith(
        "The engine agrees with jax.grad of `model`, operation by operation in float64, in the loss and 3 gradients of 3 instances:"
    )
    assert any(line.split()[:2] == ["cell", "['w']"] for line in rest) and verdict.not_looked_at


def test_other_parameters_and_a_model_that_names_its_dtype():
    def rounded(p, s):
        start = jnp.ones(2, jnp.float32)
        assert p["cell"]["w"].dtype == jnp.float32  # nothing wider
        return model(p, s) + jnp.sum(start)

    verdict = amp.compile(rounded, PARAMS, SPEC).verify(
        EXAMPLES, progress=False, params=jax.tree.map(lambda x: x / 2, PARAMS)
    )
    assert "`rounded`, in its own precision" in repr(verdict)


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
    assert "Does the function compute the same whenever it is called?" in told and "the loss" in told


def test_numbers_that_are_not_finite_are_refused():
    largest = lambda p, s: jnp.sum(amp.max(amp.map(lambda w: p["embed"][w], s["words"]))) * s["y"]
    compiled = amp.compile(largest, PARAMS, SPEC)
    with pytest.raises(
        DataError, match=r"verify, the loss: expected finite numbers from `<lambda>` itself, got NaN or inf"
    ):
        compiled.verify(EXAMPLES, progress=False)
    with pytest.raises(
        DataError, match=r"verify, instances: expected instances as the model takes them, got what `compiled"
    ):
        compiled.verify(compiled.data(EXAMPLES))
    with pytest.raises(DataError, match=r"verify, instances: expected at least one instance, got none\."):
        compiled.verify([])
