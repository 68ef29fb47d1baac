"""Products over several axes: made over one, with the same sums."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.calls import one_call
from support.engines import engine

import ampjax.graphs as ag
from ampjax.jaxprs import axis_products
from ampjax.jaxprs.axis_products import over_one_axis

pytestmark = pytest.mark.slow

sizes = st.integers(1, 5)
MATRICES = [jnp.zeros((2, 3, 4))]
"""Rows of messages that are matrices."""


def dots(jaxpr):
    """The axes of the left operand over which each product sums, those in calls too."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.append(equation.params["dimension_numbers"][0][0])
        if "jaxpr" in equation.params:
            found += dots(equation.params["jaxpr"].jaxpr)
    return found


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@pytest.mark.nightly
@settings(max_examples=30)
@given(
    st.lists(sizes, min_size=1, max_size=3),
    st.lists(sizes, max_size=2),
    st.lists(sizes, max_size=2),
    st.sampled_from([lambda function: function, jax.jit, one_call]),
)
def test_sums_over_leading_axes_are_those_of_tensordot(summed, left, right, nested):
    x = normal(0, *summed, *left)
    y = normal(1, *summed, *right)
    axes = tuple(range(len(summed)))
    product = nested(functools.partial(jnp.tensordot, axes=(axes, axes)))
    found = over_one_axis(
        lambda: {"product": product(x, y), "given": x},
        MATRICES,
    )
    wanted = np.tensordot(
        np.asarray(x),
        np.asarray(y),
        (axes, axes),
    )
    assert found["given"] is x or np.array_equal(found["given"], x)
    np.testing.assert_allclose(
        found["product"],
        wanted,
        rtol=1e-5,
        atol=1e-5,
    )
    assert dots(jax.make_jaxpr(lambda: over_one_axis(lambda: product(x, y), MATRICES))().jaxpr) == [
        (0,)
    ]


@pytest.mark.parametrize(
    "axes",
    [((1, 0), (0, 1)), ((1, 2), (0, 1)), ((0,), (0,))],
)
def test_other_products_stay_as_they_are(axes):
    """Sums over other axes, or over these in another order, would need a transposition of their own."""
    x = normal(0, 3, 3, 3)
    y = normal(1, 3, 3, 2)
    product = functools.partial(jnp.tensordot, x, y, axes=axes)
    np.testing.assert_array_equal(over_one_axis(product, MATRICES), product())
    assert dots(jax.make_jaxpr(lambda: over_one_axis(product, MATRICES))().jaxpr) == dots(
        jax.make_jaxpr(product)().jaxpr
    )


def test_where_no_message_is_a_matrix_nothing_changes():
    x = normal(0, 3, 3, 3)
    y = normal(1, 3, 3, 2)
    product = functools.partial(
        jnp.tensordot,
        x,
        y,
        axes=((0, 1), (0, 1)),
    )
    found = jax.make_jaxpr(
        lambda: over_one_axis(
            product,
            [jnp.zeros((2, 3)), jnp.zeros(2)],
        )
    )()
    assert dots(found.jaxpr) == [(0, 1)]


@pytest.mark.first_case
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_weights_that_multiply_matrices_get_their_gradients_so(monkeypatch, n, fuse):
    """A message is a batch: rows of features, as images are fed. Alone with the loss, and as a stage with an adjoint of its own."""
    made = []
    product = axis_products._product
    monkeypatch.setattr(
        axis_products,
        "_product",
        lambda *args: made.append(args[0]) or product(*args),
    )
    with ag.Graph() as g:
        x = ag.pump("x", (4, 6))
        y = ag.ppt(
            "f",
            lambda w, x: jnp.tanh(x @ w),
            params=np.asarray(normal(0, 6, 5)),
        )(ag.npt("in", jnp.negative)(x))
        ag.loss(
            "loss",
            lambda y: (jnp.square(y).sum(), {}),
        )(y)
    data = []
    for i in range(n):
        data.append({"x": np.asarray(normal(i + 1, 4, 6))})
    e = engine(g, fuse=fuse)
    e.virtual(data)
    wanted = jax.grad(lambda w: sum(jnp.square(jnp.tanh(-i["x"] @ w)).sum() for i in data))(
        normal(0, 6, 5)
    )
    np.testing.assert_allclose(
        e.gradients["f"],
        wanted,
        rtol=1e-4,
        atol=1e-5,
    )
    assert made
