"""Checks of settings that several frozen objects share."""

from __future__ import annotations

import os
from numbers import Integral
from pathlib import Path
from typing import Any

from ampjax.errors import SettingsError


def at_least(name: str, value: Any, least: int) -> None:
    """Checks an integer setting.

    Raises:
      SettingsError: If it is no integer, or less than `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        fix = (
            "Change the setting."
            if isinstance(value, int) or not isinstance(value, Integral)
            else "Convert it with `int`."
        )
        raise SettingsError(f"setting `{name}`", f"an integer of at least {least}", f"{value!r}", fix)


def a_path(name: str, value: Any) -> Path:
    """A path that was given as text or as a path.

    Raises:
      SettingsError: If it is neither.
    """
    if not isinstance(value, str | os.PathLike):
        raise SettingsError(name, "a path, as text or as a `Path`", f"{value!r}", "Pass a path.")
    return Path(value)


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Checks a setting that has a few choices.

    Raises:
      SettingsError: If it is none of them.
    """
    if value not in choices:
        raise SettingsError(f"setting `{name}`", f"one of {list(choices)}", f"{value!r}", "Choose one of these.")
