"""Checks of settings that several frozen objects share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.errors import SettingsError

MOST = 2**63 - 1
"""The largest integer that arrays of the scheduler's tables hold."""


def at_least(name: str, value: Any, least: int) -> None:
    """Checks an integer setting.

    Raises:
      SettingsError: If it is no integer, less than `least`, or too large for an array.
    """
    if isinstance(value, int) and value > MOST:
        raise SettingsError(
            f"setting `{name}`", "an integer below 2^63", f"{value}"[:60], "Pass a smaller integer."
        )
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        fix = (
            f"Pass `{name}={least}`, or more."
            if isinstance(value, int) or not isinstance(value, Integral)
            else "Convert it with `int`."
        )
        raise SettingsError(
            f"setting `{name}`", f"an integer of at least {least}", f"{value!r}", fix
        )


def above_zero(name: str, value: Any, fix: str) -> None:
    """Checks a setting that is a number, and no whole one.

    Raises:
      SettingsError: If it is no number above 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise SettingsError(f"setting `{name}`", "a number above 0", f"{value!r}", fix)


def integers(where: str, dtype: np.dtype) -> None:
    """Checks that an array holds integers.

    Args:
      where: What it is, for the error.
      dtype: Its dtype.

    Raises:
      SettingsError: If it holds something else.
    """
    if not np.issubdtype(dtype, np.integer):
        raise SettingsError(where, "integers", f"{dtype}", 'Declare the pump with `dtype="int32"`.')


def spelling(name: str, known: Iterable[str]) -> str:
    """Writes an error's advice about an unknown name: the most similar known name, if there is one."""
    close = get_close_matches(name, known, 1)
    return f"Did you mean `{close[0]}`?" if close else "Check its spelling."


def assignable(
    owner: Any,
    where: str,
    name: str,
    fixes: Mapping[str, str],
) -> None:
    """Checks that an attribute may be assigned: a property with a setter, one of `__init__`'s for the first time, or a private one.

    Args:
      owner: The object.
      where: What users call it.
      name: The attribute.
      fixes: By attribute what users shall do in place of an assignment.

    Raises:
      SettingsError: If it may not.
    """
    kind = type(owner)
    setters = []
    for each in dir(kind):
        if getattr(getattr(kind, each), "fset", None):
            setters.append(each)
    is_declared = any(name in getattr(each, "__annotations__", ()) for each in kind.__mro__)
    is_first = is_declared and name not in vars(owner)
    if not (name.startswith("_") or name in setters or is_first):
        known = [each for each in dir(kind) if not each.startswith("_")]
        got = (
            "one that is read only"
            if name in {*known, *vars(owner)}
            else "one that it does not have"
        )
        fix = fixes.get(name) or spelling(name, [*setters, *fixes])
        expected = (
            f"an attribute that can be assigned: {', '.join(f'`{each}`' for each in setters)}"
        )
        raise SettingsError(f"`{where}.{name} = ...`", expected, got, fix)


def a_path(name: str, value: Any) -> Path:
    """A path that was given as text or as a path.

    Raises:
      SettingsError: If it is neither.
    """
    if not isinstance(value, str | os.PathLike):
        raise SettingsError(name, "a path, as text or as a `Path`", f"{value!r}", "Pass a path.")
    return Path(value)


def one_interval(name: str, count: Any, every_seconds: Any) -> None:
    """Checks an interval that is given as a count, or in seconds, or not at all.

    Args:
      name: What the count is called.
      count: The count, or None.
      every_seconds: The seconds, or None.

    Raises:
      SettingsError: If both are given, or what is given is no number that can be.
    """
    if count is not None:
        at_least(name, count, 1)
    seconds = every_seconds
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise SettingsError(
            "setting `every_seconds`",
            "a number above 0",
            f"{seconds!r}",
            "Pass for example `every_seconds=60`.",
        )
    if count is not None:
        raise SettingsError(
            "intervals", f"`{name}` or `every_seconds`", "both", "Leave one out: the other decides."
        )


def one_of(
    name: str,
    value: Any,
    choices: tuple[Any, ...],
) -> None:
    """Checks a setting that has a few choices.

    Raises:
      SettingsError: If it is none of them.
    """
    if value not in choices:
        raise SettingsError(
            f"setting `{name}`", f"one of {list(choices)}", f"{value!r}", "Choose one of these."
        )
