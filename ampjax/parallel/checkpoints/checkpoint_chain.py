"""Chains of checkpoints: each holds the rows that have changed since the one before, so a restore needs the whole chain."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ampjax.errors import TableError

Facts = Callable[[Path], Mapping[str, Any]]
"""Reads what the manifest of a checkpoint says."""

_AGAIN = "Restore another copy, or an earlier checkpoint."


def base_facts(
    folder: Path,
    base: Path,
    facts: Facts,
) -> dict[str, str] | None:
    """Describes the checkpoint that another one continues.

    Args:
      folder: Where the checkpoint is written.
      base: The one that it continues.
      facts: Reads manifests.

    Returns:
      The path from the one's parent folder to the other, and the other's identifier; None if it has none.

    Raises:
      TableError: If it can't be read.
    """
    identifier = facts(base).get("id")
    if identifier is None:
        return None
    return {
        "folder": os.path.relpath(base, folder.parent),
        "id": identifier,
    }


def chain_of(folder: Path, facts: Facts) -> list[Path]:
    """Finds a checkpoint's chain, back to the one with all rows.

    Args:
      folder: The checkpoint.
      facts: Reads manifests.

    Returns:
      Their folders, the newest first; the last has all rows.

    Raises:
      TableError: If one is missing, or another stands in its place.
    """
    chain = [folder]
    while (base := facts(chain[-1]).get("base")) is not None:
        where = f"checkpoint `{chain[-1]}`, the one that it continues"
        if not isinstance(base, dict) or set(base) != {"folder", "id"}:
            raise TableError(where, "a folder and an identifier", f"{base!r:.60}", _AGAIN)
        path = (chain[-1].parent / f"{base['folder']}").resolve()
        if not path.is_dir():
            raise TableError(where, f"the folder `{path}`", "none", _AGAIN)
        if path in chain or facts(path).get("id") != base["id"]:
            fix = f"Another checkpoint was saved in its place. {_AGAIN}"
            raise TableError(where, f"`{path}` as it was then", "another checkpoint", fix)
        chain.append(path)
    return chain
