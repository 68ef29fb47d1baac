"""A linear function together with its transpose, both written by hand: JAX takes the one for the other where JAX goes backwards.

It is what a loop with a backward pass of its own needs under all of JAX's transformations at once: forward derivatives, gradients, `vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.custom_derivatives import SymbolicZero
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from ampjax.jaxprs.primitives import is_inexact

Linear = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
"""From what is given and what it is linear in to results."""

IS_DIFFERENTIATED: ContextVar[bool] = ContextVar("is_differentiated", default=False)
"""Whether functions are to be written as JAX differentiates them by itself, in any direction: their own derivative is being taken."""

PAIR: Any = jex.Primitive("linear_pair")
PAIR.multiple_results = True


def linear_pair(
    function: Linear,
    transpose: Linear,
    operands: Sequence[Any],
    linear: Sequence[Any],
    results: Sequence[Any],
) -> list[Any]:
    """The results of a linear function that has a transpose of its own.

    Args:
      function: The function.
      transpose: Its transpose: from what is given and cotangents of the results to those of what it is linear in.
      operands: What both are given beside.
      linear: What the function is linear in.
      results: Types of the results.

    Returns:
      `function(given, linear)`.
    """
    return PAIR.bind(
        *operands,
        *linear,
        function=function,
        transpose=transpose,
        n_given=len(operands),
        results=tuple(ShapedArray(kind.shape, kind.dtype) for kind in results),
    )


class FloatParts(NamedTuple):
    """The arguments and results of a function that have derivatives.

    Args:
      of_args: The numbers of such arguments.
      of_results: The numbers of such results.
    """

    of_args: list[int]
    of_results: list[int]

    def of(
        self,
        function: Callable[..., Sequence[Any]],
        args: Sequence[Any],
    ) -> Any:
        """Returns a function of such arguments alone, to such results.

        Args:
          function: The function.
          args: All its arguments.
        """

        def floats(*own: Any) -> list[Any]:
            given = list(args)
            for i, x in zip(self.of_args, own, strict=True):
                given[i] = x
            found = function(*given)
            return [found[i] for i in self.of_results]

        return floats

    def own(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Such arguments.

        Args:
          args: All arguments.
        """
        return tuple(args[i] for i in self.of_args)


def changes_by_pair(
    function: Callable[..., Sequence[Any]],
    transpose: Callable[[FloatParts, Sequence[Any], Sequence[Any]], Sequence[Any]],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    results: Sequence[Any],
    fixed: Collection[int] = (),
) -> list[Any]:
    """The tangents of a function's results: forwards JAX's own, backwards by another function.

    Args:
      function: The function, flat.
      transpose: From what has derivatives, the arguments, and cotangents of such results to those of such arguments.
      primals: The arguments.
      tangents: Their tangents.
      results: The results.
      fixed: Numbers of arguments that never change.
    """
    of_args = []
    for i, x in enumerate(primals):
        if i not in fixed and is_inexact(jax.typeof(x).dtype):
            of_args.append(i)
    parts = FloatParts(
        of_args,
        [i for i, x in enumerate(results) if is_inexact(x.dtype)],
    )

    def forward(
        operands: Sequence[Any],
        changes: Sequence[Any],
    ) -> Sequence[Any]:
        floats = parts.of(function, operands)
        _, derivative = jax.jvp(floats, parts.own(operands), tuple(changes))
        return derivative

    found = linear_pair(
        forward,
        lambda given, cotangents: transpose(parts, given, cotangents),
        primals,
        parts.own(tangents),
        [results[i] for i in parts.of_results],
    )
    changes: list[Any] = []
    for x in results:
        changes.append(np.zeros(x.shape, jax.dtypes.float0))
    for i, change in zip(parts.of_results, found, strict=True):
        changes[i] = change
    return changes


def _run(
    *args: Any,
    function: Linear,
    n_given: int,
    **_: Any,
) -> list[Any]:
    return list(
        function(
            args[:n_given],
            args[n_given:],
        )
    )


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    """Differentiates: in its linear arguments the function is its own derivative, in all others JAX differentiates."""
    n = params["n_given"]
    results = PAIR.bind(*primals, **params)
    changes = [fill_tangents(t) for t in tangents]
    if all(isinstance(t, ad.Zero) for t in tangents[:n]):
        return results, PAIR.bind(
            *primals[:n],
            *changes[n:],
            **params,
        )
    whole = lambda *args: _run(*args, **params)
    return results, derivative(whole, primals, changes)


def derivative(
    function: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
) -> Any:
    """Computes the change of a function's results, by JAX alone, so that JAX can transpose the computation.

    Args:
      function: The function.
      primals: Its arguments.
      tangents: Their changes.
    """
    with _while_differentiated():
        _, tangents_out = jax.jvp(function, tuple(primals), tuple(tangents))
        return tangents_out


@contextmanager
def _while_differentiated() -> Iterator[None]:
    """Sets `IS_DIFFERENTIATED` meanwhile, so that functions are written in a form that JAX differentiates."""
    token = IS_DIFFERENTIATED.set(True)
    try:
        yield
    finally:
        IS_DIFFERENTIATED.reset(token)


def fill_tangents(tangent: Any) -> Any:
    """Returns a tangent or cotangent as an array, also for one known to be zero.

    Args:
      tangent: The tangent or cotangent.
    """
    if isinstance(tangent, ad.Zero | SymbolicZero):
        kind: Any = tangent.aval
        return np.zeros(kind.shape, kind.dtype)
    return tangent


def _transpose(
    cotangents: Sequence[Any],
    *args: Any,
    function: Linear,
    transpose: Linear,
    n_given: int,
    results: Sequence[Any],
) -> list[Any]:
    operands = args[:n_given]
    linear = args[n_given:]
    seeds = []
    for ct, kind in zip(cotangents, results, strict=True):
        seeds.append(
            jnp.zeros(
                kind.shape,
                kind.dtype,
            )
            if isinstance(ct, ad.Zero)
            else ct
        )
    kinds = []
    for x in linear:
        aval: Any = x.aval if ad.is_undefined_primal(x) else jax.typeof(x)
        kinds.append(ShapedArray(aval.shape, aval.dtype))
    transposed = PAIR.bind(
        *operands,
        *seeds,
        function=transpose,
        transpose=function,
        n_given=n_given,
        results=tuple(kinds),
    )
    wanted = []
    for x, ct in zip(linear, transposed, strict=True):
        wanted.append(ct if ad.is_undefined_primal(x) else None)
    return [None] * n_given + wanted


def _batch(
    args: Sequence[Any],
    axes: Sequence[Any],
    *,
    function: Linear,
    transpose: Linear,
    n_given: int,
    results: Sequence[Any],
) -> tuple[list[Any], list[int]]:
    """Batches both functions under `vmap`; all linear arguments get the axis."""
    is_mapped = [axis is not None for axis in axes]
    moved = []
    for x, axis, mapped in zip(args, axes, is_mapped, strict=True):
        moved.append(
            jnp.moveaxis(
                x,
                axis,
                0,
            )
            if mapped
            else x
        )
    first = is_mapped.index(True)
    size = moved[first].shape[0]
    of_given = tuple(0 if mapped else None for mapped in is_mapped[:n_given])
    linear = []
    for x, mapped in zip(moved[n_given:], is_mapped[n_given:], strict=True):
        linear.append(
            x
            if mapped
            else jnp.broadcast_to(
                x,
                (size, *x.shape),
            )
        )
    outputs = PAIR.bind(
        *moved[:n_given],
        *linear,
        function=_map_function(function, of_given),
        transpose=_map_function(transpose, of_given),
        n_given=n_given,
        results=tuple(ShapedArray((size, *kind.shape), kind.dtype) for kind in results),
    )
    return outputs, [0] * len(outputs)


def _map_function(
    function: Linear,
    of_given: tuple[int | None, ...],
) -> Linear:
    """A function under `vmap`."""

    def mapped(
        operands: Sequence[Any],
        linear: Sequence[Any],
    ) -> Sequence[Any]:
        each = lambda given, linear: list(
            function(
                given,
                linear,
            )
        )
        return jax.vmap(each, in_axes=(of_given, 0))(
            tuple(operands),
            tuple(linear),
        )

    return mapped


PAIR.def_impl(_run)
PAIR.def_abstract_eval(lambda *_, results, **params: list(results))
ad.primitive_jvps[PAIR] = _jvp
ad.primitive_transposes[PAIR] = _transpose
batching.primitive_batchers[PAIR] = _batch
mlir.register_lowering(
    PAIR,
    mlir.lower_fun(_run, multiple_results=True),
)
