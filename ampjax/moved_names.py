"""Old names of public things, which work for one version more and warn with the new name."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

LAST = "0.3"
"""The last version that knows the old names."""


def warn_of_move(
    old: str,
    new: str,
    stacklevel: int,
) -> None:
    """Warns of a public name in its old place.

    Args:
      old: The name that was used, with its module.
      new: The name to use.
      stacklevel: As in `warnings.warn`, of the function that calls this one.
    """
    warnings.warn(
        f"{old}: expected the new name, `{new}`, got the old one, which goes after version {LAST}. "
        f"Write `{new}`.",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )


def finder(
    package: str,
    moved: Mapping[str, str],
    in_a_clone: Mapping[str, str] | None = None,
) -> Callable[[str], Any]:
    """Makes a package's `__getattr__`, which finds its old names.

    Nothing is kept in the package, so that each place that uses an old name is warned of.

    Args:
      package: The package's name.
      moved: Old names of the package, and for each the new name with its module.
      in_a_clone: Old names, and the modules that only a clone of the repository has in their place. To use one is an `ImportError`.

    Returns:
      A function from a name to what it stands for.
    """
    gone = in_a_clone or {}

    def find(name: str) -> Any:
        if name in gone:
            raise ImportError(
                f"{package}: expected a name of the package, got `{name}`, which it has no more. "
                f"Import `{gone[name]}` in a clone of the repository."
            )
        if name not in moved:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        new = moved[name]
        warn_of_move(f"{package}.{name}", new, stacklevel=2)
        module, _, last = new.rpartition(".")
        return getattr(importlib.import_module(module), last)

    return find
