"""What is recorded of an activation: the least from which the rest follows with cheap operations."""

import jax
import jax.numpy as jnp

from ampjax.ir.bodies import NodeBody
from ampjax.ir.parameter_dependence import needing_record, records
from ampjax.jaxprs.min_cut import smallest_cut

ROW = jax.ShapeDtypeStruct((3, 4), "float32")


def cut(function, n_wanted=None):
    """The cut for a function of a parameter and rows, whose results are wanted: shapes, in order."""
    jaxpr = jax.make_jaxpr(function)(
        jax.ShapeDtypeStruct((4,), "float32"),
        ROW,
    ).jaxpr
    rows = {}
    for equation in jaxpr.eqns:
        for v in equation.outvars:
            if v.aval.shape[:1] == (3,):
                rows[v] = v.aval.size
    found = smallest_cut(
        jaxpr.eqns,
        needing_record(jaxpr, 1),
        rows,
        jaxpr.outvars,
    )
    names = {}
    for equation in jaxpr.eqns:
        for v in equation.outvars:
            names[v] = equation.primitive.name
    return [names[v] for v in found]


def test_what_follows_with_cheap_operations_is_not_recorded():
    def function(p, x):
        y = jnp.tanh(x * p)
        return y, 1 - y, y * x, jnp.concatenate([y, x], axis=1)

    assert cut(function) == ["tanh"]


def test_a_whole_is_recorded_rather_than_its_parts_and_what_is_made_of_it():
    def function(p, x):
        y = jax.nn.sigmoid(
            jnp.concatenate(
                [x * p, x + p],
                axis=1,
            )
        )
        left, right = jnp.split(y, 2, axis=1)
        return y * (1 - y), left, right

    assert cut(function) == ["logistic"]


def test_a_small_part_is_recorded_rather_than_a_whole():
    def function(p, x):
        return jnp.tanh(x * p)[:, :1] * x

    assert cut(function) == ["slice"]


def test_what_parameters_enter_is_not_computed_again():
    """A sum with a parameter is cheap, but the parameter will have changed."""
    assert cut(lambda p, x: jnp.tanh(x * p) + p) == ["add"]


def test_which_bodies_need_recorded_activations():
    rows = (((4,), "float32"),)

    def needs(apply):
        return records(NodeBody(apply, lambda key: jnp.ones(4)), rows)

    assert not needs(lambda p, x: x * p)
    assert not needs(lambda p, x: jnp.sin(x) * p + p)
    assert needs(lambda p, x: jnp.tanh(x * p))
    assert not records(
        NodeBody(lambda p, x: jnp.tanh(x)),
        rows,
    )
