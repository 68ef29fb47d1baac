"""Results as JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def append(
    path: Path | None,
    records: Iterable[Mapping[str, Any]],
) -> None:
    """Appends a JSON object for each record to a file, a line each.

    Args:
      path: The file; None writes nothing. Its folder is made.
      records: What was measured.
    """
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
