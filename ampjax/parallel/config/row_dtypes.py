"""The setting `row_dtype`: which tables keep their rows in eight bits, and in which."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ampjax.errors import SettingsError
from ampjax.parallel.config.leaf_paths import matches
from ampjax.sparse.narrow.narrow_rows import ROW_DTYPES

RowDtypes = str | Mapping[str, str] | None
"""A dtype for all tables, or dtypes by pattern; None keeps rows as they are."""


def check_row_dtypes(setting: Any) -> None:
    """Checks the setting, without knowing tables.

    Args:
      setting: What the user gave.

    Raises:
      SettingsError: If it is nothing of that kind, or names a dtype that rows can't have.
    """
    if setting is None:
        return
    if isinstance(setting, Mapping):
        dtypes = list(setting.values())
        are_patterns = all(isinstance(pattern, str) and pattern for pattern in setting)
    else:
        dtypes = [setting]
        are_patterns = True
    if are_patterns and all(dtype in ROW_DTYPES for dtype in dtypes):
        return
    names = ", ".join(f"`{dtype}`" for dtype in ROW_DTYPES)
    raise SettingsError(
        "setting `row_dtype`",
        f"None, one of {names}, or a dictionary of patterns and these",
        f"{setting!r}",
        'Write `"int8"`, or `{"words": "int8"}`. For bfloat16 and float16 cast the parameter, and see `optim.stochastic_rounding`.',
    )


def row_dtype_of(setting: RowDtypes, name: str) -> str | None:
    """The dtype in which a table stores its rows; None for the parameter's own.

    Args:
      setting: The setting, checked.
      name: The table, as it is written for users.

    >>> row_dtype_of({"words": "int8", "*": "float8_e5m2"}, "encoder/words")
    'int8'
    """
    if not isinstance(setting, Mapping):
        return setting
    for pattern, dtype in setting.items():
        if matches(pattern, name):
            return dtype
    return None


def check_patterns_of(setting: RowDtypes, names: Collection[str]) -> None:
    """Checks that each pattern names a parameter.

    Args:
      setting: The setting, checked.
      names: The parameters, as they are written for users.

    Raises:
      SettingsError: If a pattern names none.
    """
    for pattern in setting if isinstance(setting, Mapping) else ():
        if not any(matches(pattern, name) for name in names):
            raise SettingsError(
                f"setting `row_dtype`, `{pattern}`",
                f"a name in one of {list(names)}",
                "no match",
                "Write names of one of these paths, or leave the pattern out.",
            )
