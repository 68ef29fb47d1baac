"""The narrowest floats of a graph: of payloads, of parameters, or of what a body computes in between."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampjax.graphs as ag
from ampjax.ir.narrow_floats import narrowest_floats

HALF = jnp.bfloat16


def graph(
    dtype=np.float32,
    params=np.float32,
    body=lambda p, x: p * x,
):
    with ag.Graph() as g:
        y = ag.ppt(
            "f",
            body,
            params=jnp.ones((), params),
        )(ag.pump("x", (2,), dtype))
        ag.loss(
            "loss",
            lambda y, i: jnp.sum(y.astype(jnp.float32)) * i,
        )(y, ag.pump("i", (), np.int32))
    return g


def in_the_middle(p, x):
    return jax.lax.fori_loop(
        0,
        2,
        lambda i, y: (y.astype(HALF) * HALF(2)).astype(jnp.float32),
        p * x,
    )


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (graph(), np.float32),
        (graph(dtype=HALF), HALF),
        (graph(params=np.float16), np.float16),
        (graph(dtype=HALF, params=np.float16), HALF),
        (graph(body=in_the_middle), HALF),
        (graph(body=lambda p, x: jax.jit(in_the_middle)(p, x)), HALF),
    ],
)
def test_wherever_they_are(made, wanted):
    assert narrowest_floats(made) == wanted


def test_integers_alone_count_as_float32():
    with ag.Graph() as g:
        ag.sink(
            "y",
            ag.npt(
                "f",
                lambda x: x + 1,
            )(ag.pump("x", (), np.int32)),
        )
    assert narrowest_floats(g) == np.float32
