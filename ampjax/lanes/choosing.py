"""The choice of the fastest form of a function, by measurements at the first call of each shape."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import Tracer

from ampjax.lanes.element_function import Form
from ampjax.lanes.running import LanePace

LANES = 32
"""Lanes where nothing was measured."""

TRIPS = 4
"""Trips of innermost loops between looks, where nothing was measured."""

SAMPLE = 128
"""Elements of which one after another is measured: that form takes as long for each, whatever their number."""

LONG = 0.2
"""Seconds of `jax.vmap` from which on lanes are tried on a part of the elements first."""

PART = 8
"""One element in so many is in that part."""

MARGIN = 0.9
"""The share of the time of `jax.vmap` that another form has to stay below, to be taken in its place."""


def candidates(
    n: int,
    lanes: int | None,
    trips: int | None,
) -> list[LanePace]:
    """Lists the paces to measure, in the order of their measurement.

    Args:
      n: The number of elements.
      lanes: The number of lanes, if it is given.
      trips: Trips, if they are given.
    """
    forms = []
    for wanted in (LANES, LANES // 4, LANES * 4):
        n_lanes = lanes or min(n, wanted)
        forms.append(LanePace(n_lanes, trips or TRIPS))
    return list(dict.fromkeys(forms))


def fastest(
    compute: Callable[[Form, Sequence[Any]], Any],
    args: Sequence[Any],
    is_mapped: Sequence[bool],
    n: int,
    paces: Sequence[LanePace],
) -> Form | None:
    """The fastest form for some arguments.

    Args:
      compute: Computes results by form and flat arguments.
      args: The arguments.
      is_mapped: By argument, whether each element has its own.
      n: The number of elements.
      paces: Forms in lanes that are tried.

    Returns:
      The form; None if it can't be measured, since what is computed is being traced.
    """
    step = -(-n // SAMPLE)
    sample = _every(step, args, is_mapped)
    n_sample = -(-n // step)
    of_vmap = _seconds(compute, "vmap", args)
    of_map = _seconds(compute, "map", sample)
    if of_vmap is None or of_map is None:
        return None
    times: dict[Form, float] = {}
    times["vmap"] = of_vmap * MARGIN
    times["map"] = of_map * n / n_sample
    best = min(times.values())
    if of_vmap > LONG and _is_hopeless(
        compute,
        args,
        is_mapped,
        n,
        paces[0],
        best,
    ):
        paces = ()
    for pace in paces:
        seconds = _seconds(compute, pace, args)
        if seconds is None:
            return None
        # other numbers of lanes are worth a compilation only where lanes are near the best
        is_far = seconds > 3 * min(times.values())
        times[pace] = seconds
        if is_far:
            break
    return min(times, key=lambda form: times[form])


def _is_hopeless(
    compute: Callable[[Form, Sequence[Any]], Any],
    args: Sequence[Any],
    is_mapped: Sequence[bool],
    n: int,
    pace: LanePace,
    best: float,
) -> bool:
    """Whether lanes take longer for a part of the elements than another form for all."""
    part = _every(PART, args, is_mapped)
    n_part = -(-n // PART)
    pace = pace._replace(lanes=min(pace.lanes, n_part))
    seconds = _seconds(compute, pace, part)
    return seconds is not None and seconds > best


def _every(
    step: int,
    args: Sequence[Any],
    is_mapped: Sequence[bool],
) -> list[Any]:
    """The arguments of a part of the elements, taken at equal steps."""
    part = []
    for arg, mapped in zip(args, is_mapped, strict=True):
        part.append(arg[::step] if mapped else arg)
    return part


def _seconds(
    compute: Callable[[Form, Sequence[Any]], Any],
    form: Form,
    args: Sequence[Any],
) -> float | None:
    """Measures the least time in seconds of up to three compiled calls; None while JAX traces the call."""
    results = compute(form, args)
    leaves = jax.tree.leaves(results)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return None
    jax.block_until_ready(results)
    times: list[float] = []
    while len(times) < 3 and sum(times) < 0.3:
        start = time.perf_counter()
        jax.block_until_ready(compute(form, args))
        times.append(time.perf_counter() - start)
    return min(times)
