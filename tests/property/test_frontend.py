"""Any model of the front end: the graph that it is compiled to computes what the model computes, run as plain JAX.

The generator (`support/random_models.py`) nests combinators, shares weights and values between places, lets the instance and read values choose.
"""

import os

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.model_laws import Compiled64
from support.random_models import instance, models, parameters, shapes, spec

DTYPE = "float64"
CASES = st.tuples(models(), shapes(), st.integers(0, 1 << 16))
EVERY_GRADIENT = 8
"""One case in so many compares each gradient, which takes three times as long as the derivative in one random direction."""


def check(case):
    model, lengths, seed = case
    with jax.enable_x64(True):
        instances = [instance(seed + i, shape, DTYPE) for i, shape in enumerate(lengths)]
        compiled = Compiled64(model, parameters(seed, DTYPE), spec(DTYPE), instances)
        compiled.check_direction(seed)
        if seed % EVERY_GRADIENT == 0:
            compiled.check_gradients()


@settings(max_examples=examples(3000))
@given(CASES)
def test_a_graph_computes_what_its_model_computes(case):
    check(case)


@pytest.mark.long
@settings(max_examples=int(os.environ.get("AMPJAX_CASES", 20_000)))
@given(CASES)
def test_twenty_thousand_models(case):
    """Half an hour of one processor; `AMPJAX_CASES` sets another number."""
    check(case)
