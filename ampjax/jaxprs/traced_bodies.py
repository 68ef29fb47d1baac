"""Bodies of nodes as jaxprs: traced once, and equal wherever they compute the same, so that a model compiled again reuses kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.jaxprs.content import content
from ampjax.jaxprs.primitives import bind, evaluate


@dataclass(frozen=True, eq=False)
class TracedProgram:
    """A traced function of flat arguments.

    Args:
      jaxpr: Its open jaxpr.
      constants: Values of the jaxpr's constants.
    """

    jaxpr: Any
    constants: Sequence[Any]

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """Computes the results' leaves.

        Args:
          leaves: The arguments' leaves. A reference that works in 64 bits may bring other dtypes than the model was traced with.
        """
        types = [variable.aval for variable in self.jaxpr.invars]
        inputs = []
        for x, t in zip(leaves, types, strict=True):
            inputs.append(_as(x, t.dtype))
        return evaluate(self.jaxpr, self.constants, inputs, bind)


class TracedBody:
    """The body of a node as a jaxpr. Bodies are equal if they compute the same, from whatever traces.

    Args:
      plain: What it computes without a PRNG key.
      drawing: What it computes with one, the last argument; None if it draws nothing.
      results: Types of its results, in their structure.
    """

    def __init__(self, plain: TracedProgram, drawing: TracedProgram | None, results: Any):
        self.plain = plain
        self.drawing = drawing
        self.results = results
        self._structure = jax.tree.structure(results)

    def __call__(self, *args: Any, key: Any = None) -> Any:
        """Computes the results for one message."""
        leaves = jax.tree.leaves(args)
        if key is not None and self.drawing is not None:
            return self._structure.unflatten(self.drawing([*leaves, key]))
        return self._structure.unflatten(self.plain(leaves))

    @functools.cached_property
    def _content(self) -> Hashable:
        programs = [p for p in (self.plain, self.drawing) if p is not None]
        return self._structure, *(content(p.jaxpr, p.constants) for p in programs)

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TracedBody) and (self is other or self._content == other._content)

    def __hash__(self) -> int:
        return self._hash


def trace_body(
    function: Callable[..., Any],
    types: Sequence[Any],
    draws: bool,
) -> TracedBody:
    """Traces a body.

    Args:
      function: The body, `function(*args, key=None)`.
      types: Its arguments' types, pytrees.
      draws: Whether it draws random numbers, if it is given a key.
    """
    with jax.disable_jit():  # one flat list of operations
        closed, results = jax.make_jaxpr(
            lambda *args: function(*args),
            return_shape=True,
        )(*types)
        drawing = None
        if draws:
            key = jax.eval_shape(lambda: jax.random.key(0))
            drawing = jax.make_jaxpr(lambda *args: function(*args[:-1], key=args[-1]))(
                *types,
                key,
            )
    return TracedBody(
        _program(closed),
        None if drawing is None else _program(drawing),
        results,
    )


def _program(closed: Any) -> TracedProgram:
    return TracedProgram(closed.jaxpr, closed.consts)


def _as(x: Any, dtype: Any) -> Any:
    if getattr(x, "dtype", None) == dtype:
        return x
    return jnp.asarray(x, dtype)
