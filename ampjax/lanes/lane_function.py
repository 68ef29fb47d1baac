"""`LaneFunction`: a plain JAX function of one element as a function of many, as `jax.vmap` makes it, computed in lanes where that is faster."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ampjax.errors import DataError, GraphError
from ampjax.lanes.argument_axes import FlatArguments, flat_arguments, placed
from ampjax.lanes.choosing import LANES, TRIPS, candidates, fastest
from ampjax.lanes.element_function import ElementFunction, Form, trace
from ampjax.lanes.lane_report import LaneReport
from ampjax.lanes.lane_state import zeros
from ampjax.lanes.running import Pace, run


class LaneFunction:
    """A function of many elements: `jax.vmap` without waiting for the element whose loops are longest.

    Args:
      function: The function of one element: plain JAX.
      in_axes: As for `jax.vmap`.
      out_axes: As for `jax.vmap`.
      lanes: How many elements are computed at a time; None to choose by measuring.
      trips: Trips of an innermost loop between two looks at what is around it; None to choose.
      max_trips: Trips of loops after which an element is given up.

    Raises:
      GraphError: If a number is no whole number from 1.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        in_axes: Any = 0,
        out_axes: Any = 0,
        lanes: int | None = None,
        trips: int | None = None,
        max_trips: int | None = None,
    ):
        self._function = function
        self._in_axes = in_axes
        self._out_axes = out_axes
        self._lanes = lanes
        self._trips = trips
        self._most = max_trips
        self._name = getattr(function, "__name__", "function")
        self._forms: dict[Hashable, Form] = {}
        self._jitted = jax.jit(self._compute, static_argnums=(0, 1, 2))
        for name, number in (("lanes", lanes), ("trips", trips), ("max_trips", max_trips)):
            is_count = isinstance(number, int) and not isinstance(number, bool) and number > 0
            if number is not None and not is_count:
                raise GraphError(
                    f"{self!r}, {name}",
                    "a whole number from 1",
                    f"{number!r}",
                    "Leave it out, or mend it.",
                )

    def __call__(self, *args: Any) -> Any:
        """Computes the function's results for all elements.

        The first call for arrays of some shapes measures which form is fastest: in lanes, as `jax.vmap` computes it, or one element after another. A call that is
        itself traced, as under `jax.jit`, takes what was measured for these shapes before, or else 32 lanes.

        Args:
          *args: As for `jax.vmap(function, in_axes)`.

        Returns:
          As `jax.vmap(function, in_axes, out_axes)`. With `max_trips` a pair: the results, and a truth value for each element, `[n]`, whether it came to its end. One
          that did not has made `max_trips` trips of its loops, which then ended as if their tests had said so; rows that a `scan` did not reach are zero.

        Raises:
          GraphError: If axes do not fit the arguments or results, a derivative is taken with `max_trips`, or a gradient through a `jax.custom_jvp` whose rule has a loop of unknown trips.
          DataError: If no argument is mapped, or numbers of elements differ.
        """
        flat = flat_arguments(repr(self), self._in_axes, args)
        form = self._form(flat)
        results, ended = self._jitted(form, flat.is_mapped, flat.structure, *flat.leaves)
        results = placed(repr(self), self._out_axes, results)
        return results if self._most is None else (results, ended)

    def explain(self, *args: Any) -> LaneReport:
        """Counts how often loops run for each element, and how many rows lanes and `jax.vmap` compute for that.

        The function runs twice, in the lanes that were asked for, or 32, and with all elements step by step together.

        Args:
          *args: As for a call, with one element at least.

        Returns:
          The counts.

        Raises:
          GraphError: If axes do not fit the arguments, or the function has effects, which lanes would repeat.
          DataError: If no argument is mapped, numbers of elements differ, or there is no element.
        """
        where = f"{self!r}, explain"
        flat = flat_arguments(where, self._in_axes, args)
        if flat.n == 0:
            raise DataError(where, "an element at least", "none", "Give arrays that are not empty.")
        traced = self._traced(flat.is_mapped, flat.structure, flat.leaves)
        if traced.jaxpr.effects:
            raise GraphError(
                where,
                "a function without effects",
                "one that tells the host something on the way",
                "Leave `jax.debug.print` and the like out.",
            )
        program = traced.program
        operands = [*traced.constants, *flat.leaves]
        bodies = [block.number for block in program.blocks if block.is_trip]
        rows = []
        for pace in (self._given(flat.n), Pace(flat.n, 0, self._most)):
            counted = jax.jit(partial(run, program, pace._replace(counts=True)))(operands)
            rows.append(int(sum(counted.runs[number] for number in bodies)) * pace.lanes)
        trips = np.asarray(counted.trips)
        return LaneReport(self._name, trips, self._given(flat.n).lanes, rows[1], rows[0])

    def _given(self, n: int) -> Pace:
        """The pace that was asked for, or the default."""
        return Pace(self._lanes or min(n, LANES), self._trips or TRIPS, self._most)

    def _form(self, flat: FlatArguments) -> Form:
        """The form for some arguments: given, remembered, or measured."""
        is_given = self._lanes is not None and self._trips is not None
        if is_given or self._most is not None or flat.n <= 1:
            return self._given(flat.n)
        types = tuple((leaf.shape, str(leaf.dtype)) for leaf in flat.leaves)
        key = (flat.structure, flat.is_mapped, types, jax.config.read("jax_enable_x64"))
        if key in self._forms:
            return self._forms[key]
        if any(isinstance(leaf, Tracer) for leaf in flat.leaves):
            return self._given(flat.n)
        found = self._measured(flat)
        if found is None:
            return self._given(flat.n)
        self._forms[key] = found
        return found

    def _measured(self, flat: FlatArguments) -> Form | None:
        """The fastest form; None if it can't be measured."""
        if not self._traced(flat.is_mapped, flat.structure, flat.leaves).can_split:
            return "vmap"
        paces = candidates(flat.n, self._lanes, self._trips)
        if self._lanes is not None:
            return paces[0]
        compute = lambda form, leaves: self._jitted(form, flat.is_mapped, flat.structure, *leaves)
        return fastest(compute, flat.leaves, flat.is_mapped, flat.n, paces)

    def _traced(self, is_mapped: Any, structure: Any, leaves: Any) -> ElementFunction:
        return trace(self._function, leaves, is_mapped, structure, self._name)

    def _compute(self, form: Form, is_mapped: Any, structure: Any, *leaves: Any) -> Any:
        """The results of all elements, and which of them came to their end; traced once for each form and shape."""
        traced = self._traced(is_mapped, structure, leaves)
        n = next(leaf.shape[0] for leaf, own in zip(leaves, is_mapped, strict=True) if own)
        if n == 0:
            return self._empty(traced), jnp.ones(0, bool)
        if isinstance(form, Pace) and form.most is not None and not traced.jaxpr.effects:
            found, is_cut = traced.bounded(form, leaves)
            return traced.structure.unflatten(found), ~is_cut
        if not traced.can_split:
            form = "vmap"
        results = traced(form, leaves)
        return traced.structure.unflatten(results), jnp.ones(n, bool)

    def _empty(self, traced: ElementFunction) -> Any:
        """The results of no element."""
        found = []
        for var in traced.jaxpr.outvars:
            found.append(zeros((0,), var.aval))
        return traced.structure.unflatten(found)

    def __repr__(self) -> str:
        return f"vmap({self._name})"
