"""What is read off jaxprs."""

import jax
import jax.numpy as jnp
from jax.extend.core import primitives
from support.calls import one_call
from support.jaxpr_walks import equations_in

from ampjax.devices.loss_collectives import mean
from ampjax.jaxprs.primitives import CALLS, REMATERIALIZED, source_line


def test_the_users_line_stands_behind_functions_that_we_give_them():
    closed = jax.make_jaxpr(lambda x: mean(x * 2))(jnp.ones(3))
    lines = [source_line(equation) for equation in equations_in(closed.jaxpr)]
    assert len(lines) > 1
    assert {line.partition(":")[0] for line in lines} == {"test_primitives.py"}


def test_calls_are_known_by_the_names_that_this_version_of_jax_gives_them():
    plain = (primitives.jit_p, primitives.call_p, primitives.closed_call_p)
    again = (primitives.remat_p,)
    assert {each.name for each in plain} <= set(CALLS)
    assert {each.name for each in again} <= set(REMATERIALIZED)
    traced = []
    for way in (jax.jit, one_call, jax.checkpoint):
        traced.append(jax.make_jaxpr(way(jnp.sin))(1.0))
    (jitted, called, computed_again) = [closed.jaxpr.eqns[0].primitive.name for closed in traced]
    assert jitted in CALLS
    assert called in CALLS
    assert computed_again in REMATERIALIZED
