"""Functions as one call in a jaxpr, by the primitive that JAX has named `closed_call` and, since 0.11.1, `eval_jaxpr`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core.primitives import closed_call_p


def one_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, all of whose operations are in one call, except under `jax.disable_jit`.

    JAX since 0.11.1 stages such a call where a traced function, `jax.jit(f).trace(x)`, is called.
    """

    def call(*args: Any) -> Any:
        if jax.config.jax_disable_jit:
            return function(*args)
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        params = closed_call_p.get_bind_params({"call_jaxpr": closed})
        results = closed_call_p.bind(*jax.tree.leaves(args), **params)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return call
