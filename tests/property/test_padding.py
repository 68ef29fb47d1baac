"""Rule 4: padding poisons nothing, whatever the bodies do with a row of zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import NIGHTLY, examples
from support.laws import Engine, assert_gradients, replayed, schedules

import ampjax.graphs as ag
from ampjax.testing import reference

FEATURES = 3


def root(p, x):
    """Its derivative is infinite at zero."""
    return p * jnp.sqrt(x)


def logarithm(p, x):
    """It and its derivative are infinite at zero."""
    return p + jnp.log(x)


def quotient(p, x):
    """Infinite at zero, and 0/0 in its derivative."""
    return x / (x * x) * p


def angle(p, x):
    """Divides by the row's norm: 0/0 for a row of zeros."""
    return p * x / jnp.sqrt(jnp.sum(x * x)) + 1


def mean(rows, segment_ids, n):
    """0/0 for a segment without rows."""
    return total(rows, segment_ids, n) / total(jnp.ones_like(rows), segment_ids, n)


def total(rows, segment_ids, n):
    return jax.ops.segment_sum(rows, segment_ids, n)


def geometric_mean(rows, segment_ids, n):
    """Logarithms, a division and an exponential."""
    return jnp.exp(mean(jnp.log(rows), segment_ids, n))


def log_ratio(x, y):
    """A loss that is infinite or undefined for rows of zeros, with a metric that divides by zero."""
    ratio = jnp.sum(x) / jnp.sum(y)
    return jnp.log(ratio) ** 2, {
        "ratio": ratio,
        "share": (jnp.sqrt(ratio), 1 / jnp.sum(x)),
    }


BODIES = {f.__name__: f for f in (root, logarithm, quotient, angle)}
REDUCTIONS = {f.__name__: f for f in (mean, geometric_mean)}
ones = np.ones(FEATURES, np.float32)


def rows_graph(first, second):
    """Two bodies in a row, one on rows from the host, one on rows on the device, and a loss."""
    with ag.Graph() as graph:
        x = ag.pump("x", (FEATURES,))
        y = ag.pump("y", (FEATURES,))
        a = ag.ppt("first", BODIES[first], params=2 * ones)(x)
        b = ag.npt("positive", lambda x: 0.5 + x * x)(a)
        ag.loss("loss", log_ratio)(
            ag.npt("square", jnp.square)(
                ag.ppt(
                    "second",
                    BODIES[second],
                    params=3 * ones,
                )(b)
            ),
            y,
        )
    return graph


def segments_graph(body, reduction):
    """A ragged message is mapped row by row, and its rows are reduced."""
    with ag.Graph() as graph:
        x = ag.pump("x", (FEATURES,), ragged=True)
        y = ag.pump("y", (FEATURES,))
        a = ag.npt("positive", lambda x: 0.5 + x * x)(
            ag.ppt("rows", BODIES[body], params=2 * ones)(x)
        )
        ag.loss("loss", log_ratio)(
            ag.reduce("segments", REDUCTIONS[reduction], a),
            y,
        )
    return graph


def positive(rng, n):
    return rng.uniform(0.5, 2, (n, FEATURES)).astype(np.float32)


def check(graph, data, schedule):
    params = {node: 2 * ones for node in graph.parameterised}
    engine = Engine(graph, params, schedule).run(
        data,
        also=[(data, False)],
    )
    assert_gradients(engine, reference(graph, params, data))
    inference = engine.executor.losses.take(False)
    assert inference
    assert all(np.isfinite(sums.line).all() for sums in inference)


# Three, five and six rows leave padding at every size of the ladder that they reach.
some = st.sampled_from([3, 5, 6])
PADDED = (3, 5, 16) if NIGHTLY else (3, 5)


@pytest.mark.parametrize(
    "first, second",
    [
        ("root", "logarithm"),
        pytest.param("quotient", "angle", marks=pytest.mark.users),
        *(
            pytest.param(*again, marks=pytest.mark.nightly)
            for again in (("logarithm", "quotient"), ("angle", "root"))
        ),
    ],
)
@settings(max_examples=examples(8))
@given(n=some, schedule=schedules(sizes=PADDED))
def test_rows(first, second, n, schedule):
    rng = np.random.default_rng(n)
    data = []
    for x, y in zip(
        positive(rng, n),
        positive(rng, n),
        strict=True,
    ):
        data.append({"x": x, "y": y})
    with replayed("test_padding.test_rows", first, second, n, schedule):
        check(rows_graph(first, second), data, schedule)


@pytest.mark.parametrize(
    "body, reduction",
    [
        pytest.param("root", "mean", marks=pytest.mark.users),
        pytest.param("quotient", "geometric_mean", marks=pytest.mark.users),
        pytest.param("logarithm", "mean", marks=pytest.mark.nightly),
    ],
)
@settings(max_examples=examples(8))
@given(n=some, schedule=schedules(sizes=PADDED))
def test_segments(body, reduction, n, schedule):
    rng = np.random.default_rng(n)
    data = []
    for _ in range(n):
        data.append(
            {
                "x": positive(rng, rng.integers(1, 4)),
                "y": positive(rng, 1)[0],
            }
        )
    with replayed("test_padding.test_segments", body, reduction, n, schedule):
        check(segments_graph(body, reduction), data, schedule)
