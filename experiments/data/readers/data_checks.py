"""Checks that the data sets share."""

from __future__ import annotations

from ampjax.errors import SettingsError


def at_least_one(where: str, **settings: int) -> None:
    """Refuses counts that are no positive number.

    Args:
      where: Whose settings these are.
      **settings: The counts by name.

    Raises:
      SettingsError: If one is below 1; names it.
    """
    for name, value in settings.items():
        if value < 1:
            raise SettingsError(
                f"{where}, `{name}`", "at least 1", f"{value}", "Give a positive number."
            )
