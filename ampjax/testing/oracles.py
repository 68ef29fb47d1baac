"""The reference's evaluation of bodies: operation by operation in float64, or compiled in their own precision.

Compiled bodies share the compiler with the engine: where it fuses operations wrongly, both may be wrong. Evaluated operation by operation
they share single operations only, and rounding is a billion times finer than the engine's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from ampjax.errors import AmpError, GraphError
from ampjax.ir.bodies import NodeBody
from ampjax.numerics.double_precision import operation_by_operation, widen_tree
from ampjax.utils.setting_checks import one_of


class Oracle(Protocol):
    """A way to evaluate bodies."""

    def scope(self) -> AbstractContextManager[None]:
        """A context in which bodies are evaluated and their results used."""
        ...

    def cast(self, tree: Any) -> Any:
        """Casts parameters or payloads to this oracle's precision."""
        ...

    def body(
        self,
        node: str,
        body: NodeBody,
    ) -> Callable[..., Any]:
        """Makes a function that evaluates a body on one row.

        Returns:
          `call(params, key, *inputs)`.
        """
        ...


class Eager:
    """Operation by operation, with single precision widened to double.

    Python's loops stand in for `scan`, `fori_loop`, `while_loop` and `cond`, and a `jit` inside a body is opened; only a `while_loop` or
    `cond` under `vmap` is still compiled whole. What a body itself rounds (`astype(jnp.float32)`, `jnp.zeros(n, jnp.float32)` that is
    written into, a `dtype` of its own) stays as coarse as it says, narrower floats and integers stay what they are.
    """

    def scope(self) -> AbstractContextManager[None]:
        """Neither compiles more than one operation at a time, nor narrows float64."""
        return _evaluable_throughout()

    def cast(self, tree: Any) -> Any:
        """The same values; single precision leaves in double precision, as NumPy arrays."""
        return widen_tree(tree)

    def body(
        self,
        node: str,
        body: NodeBody,
    ) -> Callable[..., Any]:
        """Makes a function that evaluates a body on one row.

        Returns:
          `call(params, key, *inputs)`.

        Raises:
          GraphError: By the call, if the body can't be evaluated so; it names the node.
        """

        def call(params: Any, key: Any, *inputs: Any) -> Any:
            with evaluable(f"node `{node}`"):
                params, inputs = jax.tree.map(
                    jnp.asarray, (params, inputs)
                )  # as a compiled body gets them
                if body.rng:
                    return body.apply(params, *inputs, key=key)
                return body.apply(params, *inputs)

        return call


class Jitted:
    """Each body is one compiled function, in its own precision: quicker, but by the engine's compiler."""

    def scope(self) -> AbstractContextManager[None]:
        """Changes nothing."""
        return nullcontext()

    def cast(self, tree: Any) -> Any:
        """The same."""
        return tree

    def body(
        self,
        node: str,
        body: NodeBody,
    ) -> Callable[..., Any]:
        """Makes a function that evaluates a body on one row.

        Returns:
          `call(params, key, *inputs)`.
        """
        compiled = _compile if isinstance(body.apply, Hashable) else _compile.__wrapped__
        return compiled(body.apply, body.rng)


ORACLES: dict[str, Oracle] = {
    "eager": Eager(),
    "jit": Jitted(),
}


def find_oracle(name: str) -> Oracle:
    """The oracle of that name.

    Raises:
      SettingsError: If there is none.
    """
    one_of("oracle", name, tuple(ORACLES))
    return ORACLES[name]


@contextmanager
def evaluable(where: str) -> Iterator[None]:
    """Adds advice to the error about a body that can't be evaluated operation by operation in float64.

    Raises:
      GraphError: In place of any error but our own; it has the original as its cause.
    """
    try:
        yield
    except AmpError:
        raise
    except Exception as error:
        raise GraphError(
            where,
            "what can be evaluated operation by operation in float64",
            f"{type(error).__name__}: {str(error).rstrip('.')}",
            'Let bodies keep the dtype of their inputs, or use `oracle="jit"`.',
        ) from error


@contextmanager
def _evaluable_throughout() -> Iterator[None]:
    with operation_by_operation(), evaluable("the reference, between bodies or on its way back"):
        yield


@functools.lru_cache(maxsize=512)
def _compile(
    apply_: Callable[..., Any],
    rng: bool,
) -> Callable[..., Any]:
    if rng:
        return jax.jit(lambda params, key, *inputs: apply_(params, *inputs, key=key))
    return jax.jit(lambda params, key, *inputs: apply_(params, *inputs))
