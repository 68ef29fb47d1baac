"""Any model of the front end: the graph that it is compiled to computes what the model computes, run as plain JAX.

The generator (`support/random_models.py`) nests combinators, shares weights and values between places, lets the instance and read values choose.
A case is a random program with one or two random instances and random parameters; most run on the synchronous interpreter, in float64, and take
0.04 to 0.06 s of a processor: half of it to compile the model, a quarter for JAX's derivative of the model as it is.
"""

import os
from contextlib import nullcontext
from unittest import mock

import jax
import numpy as np
import optax
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.effort import NIGHTLY, examples
from support.model_laws import Compiled64
from support.random_expressions import models, shapes
from support.random_models import instance, parameters, spec

import ampjax as amp
from ampjax.frontend.rules import foresight

DTYPE = "float64"
SMALL = 15
LARGEST = 1 << 20 if NIGHTLY else 60
"""Operations of a model. An ordinary run leaves out the largest fifth of all models, which takes half of the time, and most of its models are small."""


def cases(largest=1 << 20):
    sized = models().filter(lambda model: model.size <= largest)
    return st.tuples(
        sized,
        st.integers(1, 2).flatmap(shapes),
        st.integers(0, 1 << 16),
    )


EVERY_GRADIENT = 64
"""One case in so many compares each gradient, which takes five times as long as the derivative in one random direction."""

CLEAR = 1e-3
"""In float32 decisions must have this margin, so that rounding can't make them otherwise."""

SCHEDULES = (
    amp.Settings(max_active_keys=4, max_dispatch_size=64),
    amp.Settings(max_active_keys=1, max_dispatch_size=1, fuse=False, policy="backward_first"),
)


pytestmark = pytest.mark.usefixtures(
    "few_objects"
)  # what a trace leaves behind is collected a hundred times


def check(case):
    model, lengths, seed = case
    # few digits: words run out
    if seed % 2:
        short_words = mock.patch.object(foresight, "BITS", 3)
    else:
        short_words = nullcontext()
    with jax.enable_x64(True), short_words:
        instances = []
        for i, shape in enumerate(lengths):
            instances.append(instance(seed + i, shape, DTYPE))
        compiled = Compiled64(model, parameters(seed, DTYPE), spec(DTYPE), instances)
        compiled.check_direction(seed)
        if seed % EVERY_GRADIENT == EVERY_GRADIENT // 2:  # not 0: Hypothesis draws it often
            compiled.check_gradients()


@settings(max_examples=400)
@given(cases(SMALL))
def test_a_graph_computes_what_its_small_model_computes(case):
    check(case)


@settings(max_examples=3000 if NIGHTLY else 100)
@given(cases(LARGEST))
def test_a_graph_computes_what_its_model_computes(case):
    check(case)


@pytest.mark.long
@settings(max_examples=int(os.environ.get("AMPJAX_CASES", 20_000)))
@given(cases())
def test_twenty_thousand_models(case):
    """A quarter of an hour of one processor; `AMPJAX_CASES` sets another number."""
    check(case)


@settings(max_examples=examples(18))
@given(
    models(2),
    shapes(),
    st.integers(0, 1 << 16),
)
def test_the_engine_computes_it_in_any_schedule(model, lengths, seed):
    """Fused and many messages at once, and one message at a time: gradients of float32, to 1e-5 of the largest entry."""
    params = parameters(seed)
    instances = []
    for i, shape in enumerate(lengths):
        instances.append(instance(seed + i, shape))
    assume(model.margins(params, instances) > CLEAR)
    compiled = amp.compile(model, params, spec())
    want_loss, grads = jax.value_and_grad(lambda p: compiled.loss(p, instances))(params)
    want = compiled.node_params(grads)
    sizes = []
    for tree in (want, grads):
        sizes.append([float(np.abs(x).sum()) for x in jax.tree.leaves(tree)])
    assert sum(sizes[0]) == pytest.approx(sum(sizes[1]))  # what no node reads has no gradient
    assume(want)  # there is something to train
    largest = max(
        1.0,
        *(float(np.abs(x).max()) for x in jax.tree.leaves(want)),
        0.0,
    )
    for schedule in SCHEDULES:
        trainer = amp.Trainer(
            compiled.graph,
            optax.sgd(0.0),
            settings=schedule,
        )
        loss = trainer.accumulate(compiled.data(instances), update=False)["loss_sum"]
        assert abs(loss - want_loss) <= 1e-5 * max(1.0, abs(float(want_loss)))
        for node, (tree, _) in trainer.gradients.items():
            for one, other in zip(
                jax.tree.leaves(tree),
                jax.tree.leaves(want[node]),
                strict=True,
            ):
                assert np.abs(one - other).max() <= 1e-5 * largest, node
