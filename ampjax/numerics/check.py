"""Checks whether this process computes right numbers: on demand, and once if the guard came too late."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import jax

from ampjax.errors import NumericsError, NumericsWarning
from ampjax.numerics.array_writes import INSTEAD, SLOW, slowness_of_writes, wrongly_moved
from ampjax.numerics.guard import FLAG, GUARD, VALUE
from ampjax.numerics.patterns import patterns, wrong_patterns


def check_numerics() -> str:
    """Computes patterns that some XLA versions get wrong on CPUs and compares the results with NumPy's.

    Takes about half a second, nearly all of it compilation.

    Returns:
      A sentence that says what was checked and what keeps the numbers right.

    Raises:
      NumericsError: If a pattern comes out wrong in this process that a flag can set right.

    Warns:
      NumericsWarning: If arrays whose rows are moved on in place come out wrong, which no flag can change, or if a loop's writes of small
        rows into a large array are slow.
    """
    error = _error("check_numerics")
    if error is not None:
        raise error
    for each in (moved_rows_are_wrong("check_numerics"), _writes_are_slow("check_numerics")):
        if each is not None:
            warnings.warn(str(each), NumericsWarning, stacklevel=2)
    ways = {
        "guard": f"with the flag --{FLAG}={VALUE}, which importing ampjax has set",
        "environment": f"with the flag --{FLAG}={GUARD.value}, which XLA_FLAGS already held",
        "unneeded": "without any flag: this jaxlib needs none on this machine",
        "unknown": "without any flag: this jaxlib has none to set",
    }
    return f"jax {jax.__version__} computes all {len(list(patterns()))} known patterns rightly on this CPU, {ways[GUARD.source]}."


def moved_rows_are_wrong(where: str) -> NumericsError | None:
    """Makes the error about wrong numbers where rows of an array are moved on in place; None if the numbers are right."""
    wrong = wrongly_moved()
    if not wrong:
        return None
    got = f"other numbers for {' and '.join(f'`{text}`' for text in wrong)} in jaxlib {version('jaxlib')}, as plain JAX computes it, too"
    return NumericsError(where, "XLA's kernels on this CPU to agree with NumPy", got, INSTEAD)


def _writes_are_slow(where: str) -> NumericsError | None:
    """Makes the error about slow small writes into large arrays; None if they take as long as writes into small arrays."""
    times = slowness_of_writes()
    if times < SLOW:
        return None
    wanted = "a loop's writes into an array of four megabytes to take as long as into one of four kilobytes"
    fix = "Install another version of jaxlib."
    return NumericsError(
        where, wanted, f"{times:,.0f} times as long in jaxlib {version('jaxlib')}", fix
    )


def warn_of_wrong_numbers(where: str, devices: Iterable[Any]) -> None:
    """Warns if kernels on CPUs are wrong in this process, unless the guard is known to prevent this.

    The guard can't if the backend had started before ampjax was imported, if the user has set another value of the flag, or if jaxlib does
    not know the flag. The check runs once in a process, and not at all if no device is a CPU.

    Args:
      where: Who asks, in the user's words.
      devices: The devices that will compute.

    Warns:
      NumericsWarning: Once in a process, if a pattern comes out wrong.
    """
    if GUARD.certain or _asked or not any(device.platform == "cpu" for device in devices):
        return
    _asked.append(where)
    error = _error(where)
    if error is not None:
        warnings.warn(str(error), NumericsWarning, stacklevel=3)


_asked: list[str] = []
"""The first caller in this process that had the check run, if any."""


def _error(where: str) -> NumericsError | None:
    """The error to raise or to warn of; None if all patterns come out right."""
    wrong = wrong_patterns()
    if not wrong:
        return None
    if GUARD.overwritten:
        fix = f"XLA_FLAGS was changed after ampjax was imported: change it before, or keep --{FLAG}={VALUE} in it."
    elif GUARD.source == "environment" and GUARD.in_time:
        fix = f"XLA_FLAGS sets --{FLAG}={GUARD.value}; take it out, or set {VALUE!r}, before Python starts."
    elif GUARD.source == "unknown":
        fix = "This jaxlib has no flag against it: install another version of jaxlib."
    else:
        fix = f"JAX had started before ampjax was imported: import ampjax first, or set XLA_FLAGS=--{FLAG}={VALUE} before Python starts."
    got = f"other numbers for {len(wrong)} of {len(list(patterns()))} known patterns, first {wrong[0]}"
    return NumericsError(where, "XLA's kernels on this CPU to agree with NumPy", got, fix)
