"""The function of one element, traced: its jaxpr, and the forms in which it is computed for many elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ampjax.errors import GraphError
from ampjax.jaxprs.primitives import bind, evaluate, is_inexact, needed, opened
from ampjax.lanes.lane_lowering import lower
from ampjax.lanes.lane_program import LaneProgram
from ampjax.lanes.linear_pairs import linear_pair
from ampjax.lanes.one_kernel import in_one_kernel
from ampjax.lanes.running import Pace, is_small, run

Form = Pace | str
"""`"vmap"`: all elements step by step together; `"map"`: one element after another; a `Pace`: in lanes."""


@dataclass(frozen=True)
class ElementFunction:
    """A function of one element, as a jaxpr.

    Args:
      jaxpr: The open jaxpr.
      constants: Values of its constants.
      is_mapped: By flat argument, whether each element has its own.
      structure: The structure of the results.
      name: The function's name.
    """

    jaxpr: Any
    constants: Sequence[Any]
    is_mapped: tuple[bool, ...]
    structure: Any
    name: str

    @cached_property
    def program(self) -> LaneProgram:
        """The lane program. Constants are its first arguments, so that what a function closes over may be differentiated."""
        return lower(self.jaxpr, self.is_mapped)

    @property
    def can_split(self) -> bool:
        """Whether lanes can gain something: elements differ in their ways, and no host is told on the way."""
        return not self.jaxpr.effects and self.program.has_loops

    def __call__(self, form: Form, args: Sequence[Any]) -> list[Any]:
        """Computes the results of all elements, with JAX's derivatives of `jax.vmap`.

        Args:
          form: How.
          args: Flat arguments; of one that is mapped `[n, ...]`.

        Returns:
          Flat results, `[n, ...]` each.
        """
        n = len(self.constants)

        @jax.custom_jvp
        def compute(*args: Any) -> list[Any]:
            return self._compute(form, args[:n], args[n:])

        @compute.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            results = compute(*primals)
            return results, self._changes(primals, tangents, results)

        return compute(*self.constants, *args)

    def bounded(self, pace: Pace, args: Sequence[Any]) -> tuple[list[Any], Any]:
        """Computes the results of all elements, of which some are given up.

        Args:
          pace: How, with a bound.
          args: Flat arguments; of one that is mapped `[n, ...]`.

        Returns:
          Flat results, and which elements were given up, `[n]`.

        Raises:
          GraphError: If they are differentiated.
        """

        @jax.custom_jvp
        def compute(*args: Any) -> tuple[list[Any], Any]:
            found = run(self.program, pace, args)
            return found.results, found.is_cut

        @compute.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            raise GraphError(
                f"vmap({self.name}), derivative",
                "loops that come to their end",
                "`max_trips`",
                "Leave `max_trips` out where you differentiate.",
            )

        return compute(*self.constants, *args)

    def _compute(self, form: Form, constants: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Computes the results of all elements in a form."""
        if isinstance(form, Pace):
            return run(self.program, form, [*constants, *args]).results
        one = lambda *own: evaluate(self.jaxpr, constants, self._joined(args, own), bind)
        own = [arg for arg, mapped in zip(args, self.is_mapped, strict=True) if mapped]
        if form == "vmap":
            return jax.vmap(one)(*own)
        mapped = lambda own: lax.map(lambda own: one(*own), own)
        found = in_one_kernel(mapped, own) if is_small(self.program, 1) else None
        return mapped(own) if found is None else found

    def _joined(self, args: Sequence[Any], own: Sequence[Any]) -> list[Any]:
        """The arguments of one element: its own ones, and what all share."""
        left = iter(own)
        joined = []
        for arg, mapped in zip(args, self.is_mapped, strict=True):
            joined.append(next(left) if mapped else arg)
        return joined

    def _changes(
        self,
        primals: Sequence[Any],
        tangents: Sequence[Any],
        results: Sequence[Any],
    ) -> list[Any]:
        """The tangents of the results: those that JAX finds for `jax.vmap` of the function, in either direction."""
        n = len(self.constants)
        of_args = [i for i, x in enumerate(primals) if is_inexact(jnp.asarray(x).dtype)]
        of_results = [i for i, x in enumerate(results) if is_inexact(x.dtype)]

        def floats(given: Sequence[Any]) -> Callable[..., list[Any]]:
            def function(*own: Any) -> list[Any]:
                args = list(given)
                for i, x in zip(of_args, own, strict=True):
                    args[i] = x
                found = self._compute("vmap", args[:n], args[n:])
                return [found[i] for i in of_results]

            return function

        def forward(given: Sequence[Any], changes: Sequence[Any]) -> Sequence[Any]:
            own = tuple(given[i] for i in of_args)
            return jax.jvp(floats(given), own, tuple(changes))[1]

        def backward(given: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
            own = tuple(given[i] for i in of_args)
            try:
                return jax.vjp(floats(given), *own)[1](list(cotangents))
            except ValueError as error:
                if "Reverse-mode differentiation does not work" not in str(error):
                    raise
                raise _not_reversible(self.name) from error

        found = linear_pair(
            forward,
            backward,
            primals,
            [tangents[i] for i in of_args],
            [results[i] for i in of_results],
        )
        changes = [jnp.zeros(x.shape, jax.dtypes.float0) for x in results]
        for i, change in zip(of_results, found, strict=True):
            changes[i] = change
        return changes


def _not_reversible(name: str) -> GraphError:
    """The error for a gradient through a loop of unknown trips."""
    fix = "Bound the loop, by `lax.scan` over a `lax.cond`, take `jax.jvp`, or give the function a `jax.custom_vjp`."
    return GraphError(
        f"vmap({name}), gradient",
        "loops whose trips are bounded",
        "a `lax.while_loop`, or a `fori_loop` with computed bounds, whose trips JAX does not keep for the way back",
        fix,
    )


def trace(
    function: Callable[..., Any],
    args: Sequence[Any],
    is_mapped: Sequence[bool],
    structure: Any,
    name: str,
) -> ElementFunction:
    """Traces a function for one element.

    Args:
      function: The function.
      args: Flat arguments; of one that is mapped `[n, ...]`.
      is_mapped: By argument, whether each element has its own.
      structure: The structure of the arguments.
      name: The function's name.
    """
    types = []
    for arg, mapped in zip(args, is_mapped, strict=True):
        aval = jax.typeof(arg)
        shape = aval.shape[1:] if mapped else aval.shape
        types.append(jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=aval.weak_type))
    found = []

    def flat(*own: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten(function(*structure.unflatten(own)))
        found.append(tree)
        return leaves

    closed = jax.make_jaxpr(flat)(*types)
    jaxpr, constants = opened(closed)
    return ElementFunction(needed(jaxpr), constants, tuple(is_mapped), found[0], name)
