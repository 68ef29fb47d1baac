"""The works by name, and how many elements of each are measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from experiments.bench.lanes import library_works as library
from experiments.bench.lanes import plain_works as plain
from experiments.bench.lanes.plain_works import Work

WORKS: dict[str, Callable[[int], Work]] = {
    "loops-equal": partial(plain.loops, "equal"),
    "loops-uniform": partial(plain.loops, "uniform"),
    "loops-lognormal": partial(plain.loops, "lognormal"),
    "loops-one-long": partial(plain.loops, "one long"),
    "loop-in-a-loop": plain.nested,
    "resets": plain.resets,
    "early-exit-128": partial(plain.early_exit, 128),
    "early-exit-512": partial(plain.early_exit, 512),
    "early-exit-1024": partial(plain.early_exit, 1024),
    "newton": plain.newton,
    "lbfgs": library.lbfgs,
    "lbfgs-optimistix": library.lbfgs_of_optimistix,
    "lbfgs-jaxopt": library.lbfgs_of_jaxopt,
    "bfgs-jaxopt": library.bfgs_of_jaxopt,
    "van-der-pol": library.van_der_pol,
    "learned-field": library.learned_field,
    "nuts-funnel": library.funnel,
    "nuts-mixture": library.mixture,
}
"""By name, what makes the work of so many elements."""

ELEMENTS = {
    "loop-in-a-loop": 256,
    "resets": 128,
    "early-exit-512": 512,
    "early-exit-1024": 256,
    "newton": 256,
    "lbfgs": 256,
    "lbfgs-optimistix": 256,
    "lbfgs-jaxopt": 256,
    "bfgs-jaxopt": 256,
    "van-der-pol": 512,
    "learned-field": 512,
    "nuts-funnel": 128,
    "nuts-mixture": 128,
}
"""By name, how many elements are measured, where these are not 1,024."""
