"""The traced function of one element: its jaxpr, and the forms that compute its results for many elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import primitives as prim

from ampjax.errors import GraphError
from ampjax.jaxprs.primitives import bind, drop_unneeded, evaluate, opened
from ampjax.lanes.element_gradients import pull_back_elements
from ampjax.lanes.lane_lowering import lower
from ampjax.lanes.lane_program import LaneProgram
from ampjax.lanes.reversible_loops import differentiable
from ampjax.lanes.rewriting.joint_tests import with_joint_tests
from ampjax.lanes.rewriting.linear_pairs import FloatParts, changes_by_pair
from ampjax.lanes.rewriting.one_kernel import in_one_kernel
from ampjax.lanes.rewriting.replaced_equations import holds, type_of_argument
from ampjax.lanes.rewriting.whole_batches import looks_at_batch, run_alone
from ampjax.lanes.running import LanePace, run

Form = LanePace | str
"""`"vmap"`: all elements step by step together; `"map"`: one element after another; a `LanePace`: in lanes."""


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
        """The lane program. Constants are its first arguments, so that values from a closure have derivatives."""
        return lower(self.jaxpr, self.is_mapped)

    @cached_property
    def has_while(self) -> bool:
        """Whether there is a loop that JAX can't differentiate backwards."""
        return holds(self.jaxpr, ("while",))

    @property
    def can_split(self) -> bool:
        """Whether lanes can gain something: elements differ in their ways, and no host is told on the way."""
        return not self.jaxpr.effects and self.program.has_loops

    def __call__(
        self,
        form: Form,
        args: Sequence[Any],
    ) -> list[Any]:
        """Computes the results of all elements, with JAX's derivatives of `jax.vmap`.

        Args:
          form: How.
          args: Flat arguments; of one that is mapped `[n, ...]`.

        Returns:
          Flat results, `[n, ...]` each.
        """
        compute = self._differentiable(form, counts=False)
        results, _ = compute(*self.constants, *args)
        return results

    def _differentiable(self, form: Form, counts: bool) -> Any:
        """A function of constants and arguments with derivatives, to results, and numbers of trips of each element's loops if lanes count trips."""

        @jax.custom_jvp
        def compute(*args: Any) -> tuple[list[Any], Any]:
            return self._compute(form, counts, args)

        @compute.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            counting = self._differentiable(form, self.has_while)
            results, trips = counting(*primals)
            no_change = np.zeros(trips.shape, jax.dtypes.float0)
            fixed = []
            for i, x in enumerate(self.constants):
                if not isinstance(x, Tracer):
                    fixed.append(i)
            changes = changes_by_pair(
                lambda *args: self._by_vmap(args[:-1]),
                partial(self._pull_arguments_back, form),
                [*primals, trips],
                [*tangents, no_change],
                results,
                fixed,
            )
            return (results, trips), (changes, no_change)

        return compute

    def compute_bounded(
        self,
        pace: LanePace,
        args: Sequence[Any],
    ) -> tuple[list[Any], Any]:
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
            outputs = run(self.program, pace, args)
            return outputs.results, outputs.is_cut

        @compute.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            raise GraphError(
                f"vmap({self.name}), derivative",
                "loops that come to their end",
                "`max_trips`",
                "Leave `max_trips` out where you differentiate.",
            )

        return compute(*self.constants, *args)

    def whole(self, results: Sequence[Any]) -> Any:
        """The function's results from flat ones, with the weak types of `jax.vmap`: lanes keep arrays, which have none.

        Args:
          results: Flat results, `[n, ...]` each.
        """
        found = []
        for var, result in zip(self.jaxpr.outvars, results, strict=True):
            found.append(_weak(result) if var.aval.weak_type else result)
        return self.structure.unflatten(found)

    def _compute(
        self,
        form: Form,
        counts: bool,
        args: Sequence[Any],
    ) -> tuple[list[Any], Any]:
        """Computes the results of all elements in a form, and trips of loops by element, `[n]`: zeros unless lanes count trips."""
        if isinstance(form, LanePace):
            outputs = run(
                self.program,
                form._replace(counts=counts),
                args,
            )
            return outputs.results, outputs.trips
        n = len(self.constants)
        constants = args[:n]
        arguments = args[n:]

        def one(mapped_leaves: Sequence[Any]) -> list[Any]:
            whole = self._join_arguments(arguments, mapped_leaves)
            return evaluate(self.jaxpr, constants, whole, bind)

        def one_alone(own: Sequence[Any]) -> list[Any]:
            whole = self._join_arguments(arguments, own)
            return run_alone(self.jaxpr, constants, whole)

        own = []
        for arg, mapped in zip(arguments, self.is_mapped, strict=True):
            if mapped:
                own.append(arg)
        n_elements = own[0].shape[0]
        not_counted = jnp.zeros(n_elements, jnp.int32)
        if form == "vmap":
            return jax.vmap(one)(own), not_counted
        each = one_alone if looks_at_batch(self.jaxpr) else one
        one_by_one = lambda own: lax.map(each, own)
        outputs = in_one_kernel(one_by_one, own)
        if outputs is None:
            outputs = one_by_one(own)
        return outputs, not_counted

    def _by_vmap(self, args: Sequence[Any]) -> list[Any]:
        """The results of all elements, by `jax.vmap`."""
        results, _ = self._compute("vmap", False, args)
        return results

    def _join_arguments(
        self,
        args: Sequence[Any],
        own: Sequence[Any],
    ) -> list[Any]:
        """Joins the arguments that an element has alone with the shared ones, in the function's order."""
        left = iter(own)
        joined = []
        for arg, mapped in zip(args, self.is_mapped, strict=True):
            joined.append(next(left) if mapped else arg)
        return joined

    def _pull_arguments_back(
        self,
        form: Form,
        parts: FloatParts,
        primals: Sequence[Any],
        cotangents: Sequence[Any],
    ) -> Sequence[Any]:
        """Cotangents of arguments: JAX's for `jax.vmap` of the function, unless the function has loops that JAX can't take back.

        Then elements go one after another, as many together as there are lanes, or all together.
        """
        *args, trips = primals
        if not self.has_while:
            whole = lambda *args: self._by_vmap(args)
            floats = parts.of(whole, args)
            _, back = jax.vjp(floats, *parts.own(args))
            return back(list(cotangents))
        if isinstance(form, LanePace):
            rows = form.lanes
        elif form == "vmap":
            rows = trips.shape[0]
        else:
            rows = 1
        of_constants = [False] * len(self.constants)
        is_mapped = (*of_constants, *self.is_mapped)

        def pull(*operands: Any) -> list[Any]:
            n = len(args)
            return pull_back_elements(
                self.jaxpr,
                is_mapped,
                operands[:n],
                operands[n],
                rows,
                parts,
                operands[n + 1 :],
            )

        try:
            return differentiable(pull)(*primals, *cotangents)
        except ValueError as error:
            if "Reverse-mode differentiation does not work" not in str(error):
                raise
            raise _not_reversible(self.name) from error


def _weak(array: Any) -> Any:
    """An array of a weak type: as with a number of Python, a product with a `bfloat16` is one, too."""
    return prim.convert_element_type_p.bind(
        array,
        new_dtype=array.dtype,
        weak_type=True,
        sharding=None,
    )


def _not_reversible(name: str) -> GraphError:
    """The error for a derivative of the user's own that JAX can't take back."""
    fix = "Bound that loop, by `lax.scan` over a `lax.cond`, or give the function a `jax.custom_vjp` in place of its `jax.custom_jvp`."
    return GraphError(
        f"vmap({name}), gradient",
        "derivatives that JAX can take backwards",
        "a rule of `jax.custom_jvp` with a `lax.while_loop`, or a `fori_loop` with computed bounds",
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
        if mapped:
            aval = aval.update(shape=aval.shape[1:])
        types.append(type_of_argument(aval))
    results = []

    def flat(*own: Any) -> list[Any]:
        result = function(*structure.unflatten(own))
        leaves, tree = jax.tree.flatten(result)
        results.append(tree)
        return leaves

    traced = jax.make_jaxpr(flat)(*types)
    closed = with_joint_tests(traced, types)
    jaxpr, constants = opened(closed)
    return ElementFunction(
        drop_unneeded(jaxpr),
        constants,
        tuple(is_mapped),
        results[0],
        name,
    )
