"""While loops of several numbers at a time, made by `jax.vmap`, with a test that is one truth value, for lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ampjax.jaxprs.primitives import CUSTOM_CALLS, bind, is_anywhere, opened
from ampjax.lanes.rewriting.replaced_equations import (
    Rule,
    Run,
    Values,
    WhileLoop,
    type_of_argument,
    with_loops,
)


def with_joint_tests(
    closed: Any,
    types: Sequence[Any],
) -> Any:
    """Rewrites loops whose test has an answer for each of several numbers: a loop goes on while any does, and numbers that have ended stay.

    Args:
      closed: A closed jaxpr.
      types: The types of its inputs.

    Returns:
      The jaxpr with such loops replaced; the same object where there is none.
    """
    jaxpr, constants = opened(closed)
    if not is_anywhere(jaxpr, _has_wide_test):
        return closed
    others: dict[str, Rule] = {name: _of_the_users for name in CUSTOM_CALLS}

    def joint(*args: Any) -> Values:
        return with_loops(jaxpr, constants, args, _joint, others)

    return jax.make_jaxpr(joint)(*types)


def _has_wide_test(eqn: Any) -> bool:
    """Whether an equation is such a loop."""
    return eqn.primitive.name == "while" and bool(_test_shape(eqn))


def _of_the_users(
    eqn: Any,
    values: Values,
    run: Run,
) -> Sequence[Any]:
    """A call with a derivative of the user's own, which stays."""
    del run  # as that would compute what is called without the derivative
    name = "jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"
    function = eqn.params[name]
    body, _ = opened(function)
    types = [type_of_argument(variable.aval) for variable in body.invars]
    joint = with_joint_tests(function, types)
    changed = eqn.replace(params={**eqn.params, name: joint})
    return bind(changed, values)


def _test_shape(eqn: Any) -> tuple[int, ...]:
    """The shape of a loop's test."""
    return eqn.params["cond_jaxpr"].out_avals[0].shape


def _joint(
    loop: WhileLoop,
    asked: Values,
    closed: Values,
    carry: Values,
) -> Sequence[Any]:
    """A loop with one test for all of its numbers."""
    if not _test_shape(loop.eqn):
        return loop.plain(asked, closed, carry)

    def turn(carry: Values) -> Values:
        goes_on = loop.test(asked, carry)
        answers = []
        for new, old in zip(loop.body(closed, carry), carry, strict=True):
            wide = (1,) * (new.ndim - goes_on.ndim)
            mask = goes_on.reshape(goes_on.shape + wide)
            answers.append(jnp.where(mask, new, old))
        return answers

    return lax.while_loop(
        lambda carry: jnp.any(loop.test(asked, carry)),
        turn,
        list(carry),
    )
