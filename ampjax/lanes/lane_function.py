"""`LaneFunction`: a plain JAX function of one element, mapped over many as by `jax.vmap`, in lanes where lanes are faster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ampjax.errors import DataError, GraphError
from ampjax.lanes.argument_axes import FlatArguments, flat_arguments, n_elements, place_results
from ampjax.lanes.block_advance import advance, idle_lanes
from ampjax.lanes.choosing import LANES, TRIPS, candidates, fastest
from ampjax.lanes.element_blocks import ElementBlock, ElementBlocks
from ampjax.lanes.element_function import ElementFunction, Form, trace
from ampjax.lanes.lane_report import LaneReport
from ampjax.lanes.lane_state import zeros
from ampjax.lanes.running import LanePace, run
from ampjax.lanes.streaming import CallWork, LaneWork, StreamWork, in_turn


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
        self._jitted = jax.jit(
            self._compute,
            static_argnums=(0, 1, 2),
        )
        self._advanced = jax.jit(
            self._advance,
            static_argnums=(0, 1, 2),
            donate_argnums=3,
        )
        self._check_count("lanes", lanes)
        self._check_count("trips", trips)
        self._check_count("max_trips", max_trips)

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
        results, ended = self._jitted(
            form,
            flat.is_mapped,
            flat.structure,
            *flat.leaves,
        )
        results = place_results(repr(self), self._out_axes, results)
        return results if self._most is None else (results, ended)

    def stream(
        self,
        elements: Iterable[Any],
        *,
        ordered: bool = True,
        block: int | None = None,
        most_waiting: int | None = None,
    ) -> Iterator[Any]:
        """Computes the function's results for elements that come one by one, and need not be in memory together.

        Elements are read in blocks. Lanes keep their elements from one block to the next, so none waits for the longest of a block. While a block is computed, the next
        one is read, and the results of the one before are given out.

        Where `lanes` or `trips` are not given, the first block is measured as a call of so many elements is. Each block is then a call of its own, if that is faster.

        Args:
          elements: Arguments of the function, one call's at a time: a tuple of all arguments, or, unless it is a tuple itself, the only one. All elements have the same
            shapes and dtypes; NumPy arrays are read fastest. An argument for which `in_axes` has None is the same object in each element; other axes do not count.
          ordered: Whether results come in the order of the elements. Otherwise they come as they finish, with their numbers.
          block: How many elements are read at a time; four times the lanes unless it is given.
          most_waiting: If more finished results than so many wait for one before them, no further element is begun until that one has come; 16 blocks unless it is given.

        Returns:
          An iterator over the results of one element each, in NumPy (keys of random numbers in JAX). With `max_trips` over pairs of results and whether the element came to
          its end. With `ordered=False` over pairs of the element's number, from 0, and that.

        Raises:
          GraphError: If `block` or `most_waiting` is no whole number from 1, or axes do not fit the arguments.
          DataError: If an element is not like the first one, has something else than numbers, or shares all arguments.

        >>> import ampjax as amp
        >>> from jax import lax
        >>> halve = lambda x: lax.while_loop(lambda x: x > 1, lambda x: x / 2, x)
        >>> numbers = (float(i) for i in range(1, 1000))
        >>> sum(float(x) for x in amp.vmap(halve, lanes=4, trips=2).stream(numbers)) < 999
        True
        """
        self._check_count("block", block)
        self._check_count("most_waiting", most_waiting)
        size = block or 4 * (self._lanes or LANES)
        most = (most_waiting or 16 * size) if ordered else None
        blocks = ElementBlocks(f"{self!r}, stream", self._in_axes, elements, size)
        return self._stream(blocks, most)

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
        traced = self._trace_types(flat.is_mapped, flat.structure, flat.leaves)
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
        spans = []
        in_lanes = self._pace_or_default(flat.n)
        together = LanePace(flat.n, 0, self._most)
        for pace in (in_lanes, together):
            counting = pace._replace(counts=True)
            compute = jax.jit(partial(run, program, counting))
            counted = compute(operands)
            n_runs = sum(counted.runs[number] for number in bodies)
            rows.append(int(n_runs) * pace.lanes)
            spans.append(np.asarray(counted.spans))
        trips = np.asarray(counted.trips)
        return LaneReport(
            self._name,
            trips,
            in_lanes.lanes,
            rows[1],
            rows[0],
            *spans[0].T,
        )

    def _check_count(
        self,
        name: str,
        number: int | None,
    ) -> None:
        """Checks a setting that is a number of things, or None."""
        if number is None:
            return
        is_integer = isinstance(number, int) and not isinstance(number, bool)
        if not is_integer or number < 1:
            raise GraphError(
                f"{self!r}, {name}",
                "a whole number from 1",
                f"{number!r}",
                "Leave it out, or mend it.",
            )

    def _stream(
        self,
        blocks: ElementBlocks,
        most_waiting: int | None,
    ) -> Iterator[Any]:
        """The results of a stream, in the form that the first block decides."""
        rest = iter(blocks)
        first = next(rest, None)
        if first is None:
            return
        traced = self._trace_types(blocks.is_mapped, blocks.structure, first.leaves)
        work = self._work(blocks, first, traced)
        all_blocks = itertools.chain([first], rest)
        for found in in_turn(work, all_blocks, most_waiting):
            result = traced.structure.unflatten(found.leaves)
            if self._most is not None:
                result = (result, found.has_ended)
            if most_waiting is None:
                yield found.number, result
            else:
                yield result

    def _work(
        self,
        blocks: ElementBlocks,
        first: ElementBlock,
        traced: ElementFunction,
    ) -> StreamWork:
        """The computation of a stream: in lanes, or by a call for each block where that was faster."""
        is_mapped = blocks.is_mapped
        structure = blocks.structure
        flat = FlatArguments(
            first.only(is_mapped),
            is_mapped,
            structure,
            first.n,
        )
        form = self._form(flat)
        tells_host = bool(traced.jaxpr.effects)
        is_bounded = self._most is not None and not tells_host
        if isinstance(form, LanePace) and (traced.can_split or is_bounded):
            step = partial(self._advanced, form, is_mapped, structure)
            lanes = idle_lanes(traced.program, form.lanes)
            return LaneWork(step, lanes)

        def compute(leaves: list[Any]) -> list[Any]:
            results, _ = self._jitted(form, is_mapped, structure, *leaves)
            return jax.tree.leaves(results)

        return CallWork(compute, is_mapped, pads=not tells_host)

    def _advance(
        self,
        pace: LanePace,
        is_mapped: Any,
        structure: Any,
        kept: Any,
        leaves: Any,
        *numbers: Any,
    ) -> Any:
        """A block in lanes; traced once for each pace and shape."""
        traced = self._trace_types(is_mapped, structure, leaves)
        args = [*traced.constants, *leaves]
        return advance(traced.program, pace, kept, args, *numbers)

    def _pace_or_default(self, n: int) -> LanePace:
        """The pace that was asked for, or the default."""
        return LanePace(
            self._lanes or min(n, LANES),
            self._trips or TRIPS,
            self._most,
        )

    def _form(self, flat: FlatArguments) -> Form:
        """The form for some arguments: given, remembered, or measured."""
        is_given = self._lanes is not None and self._trips is not None
        if is_given or self._most is not None or flat.n <= 1:
            return self._pace_or_default(flat.n)
        types = []
        for leaf in flat.leaves:
            types.append((leaf.shape, str(leaf.dtype)))
        is_double = jax.config.read("jax_enable_x64")
        key = (flat.structure, flat.is_mapped, tuple(types), is_double)
        if key in self._forms:
            return self._forms[key]
        if any(isinstance(leaf, Tracer) for leaf in flat.leaves):
            return self._pace_or_default(flat.n)
        choice = self._measure_forms(flat)
        if choice is None:
            return self._pace_or_default(flat.n)
        self._forms[key] = choice
        return choice

    def _measure_forms(self, flat: FlatArguments) -> Form | None:
        """Measures the fastest form; None while JAX traces the call."""
        traced = self._trace_types(flat.is_mapped, flat.structure, flat.leaves)
        if not traced.can_split:
            return "vmap"
        paces = candidates(flat.n, self._lanes, self._trips)
        if self._lanes is not None:
            return paces[0]

        def compute(form: Form, leaves: Sequence[Any]) -> Any:
            return self._jitted(form, flat.is_mapped, flat.structure, *leaves)

        return fastest(
            compute,
            flat.leaves,
            flat.is_mapped,
            flat.n,
            paces,
        )

    def _trace_types(
        self,
        is_mapped: Any,
        structure: Any,
        leaves: Any,
    ) -> ElementFunction:
        return trace(self._function, leaves, is_mapped, structure, self._name)

    def _compute(
        self,
        form: Form,
        is_mapped: Any,
        structure: Any,
        *leaves: Any,
    ) -> Any:
        """Computes the results of all elements, and whether each element came to its end; traced once for each form and shape."""
        traced = self._trace_types(is_mapped, structure, leaves)
        n = n_elements(is_mapped, leaves)
        if n == 0:
            return self._empty(traced), jnp.ones(0, bool)
        tells_host = bool(traced.jaxpr.effects)
        if isinstance(form, LanePace) and form.most is not None and not tells_host:
            outputs, is_cut = traced.compute_bounded(form, leaves)
            return traced.whole(outputs), ~is_cut
        if not traced.can_split:
            form = "vmap"
        results = traced(form, leaves)
        return traced.whole(results), jnp.ones(n, bool)

    def _empty(self, traced: ElementFunction) -> Any:
        """The results of no element."""
        empty = []
        for var in traced.jaxpr.outvars:
            empty.append(zeros((0,), var.aval))
        return traced.whole(empty)

    def __repr__(self) -> str:
        return f"vmap({self._name})"
