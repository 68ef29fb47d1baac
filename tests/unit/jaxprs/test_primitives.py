"""What is read off jaxprs."""

import jax
import jax.numpy as jnp

from ampjax.devices.loss_collectives import mean
from ampjax.jaxprs.primitives import inner, source_line


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for each in inner(equation):
            yield from equations(each)


def test_the_users_line_stands_behind_functions_that_we_give_them():
    closed = jax.make_jaxpr(lambda x: mean(x * 2))(jnp.ones(3))
    lines = [source_line(equation) for equation in equations(closed.jaxpr)]
    assert len(lines) > 1
    assert {line.partition(":")[0] for line in lines} == {"test_primitives.py"}
