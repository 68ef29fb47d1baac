"""Results as JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read(path: Path | None) -> list[dict[str, Any]]:
    """Reads the records of a file; of one that is cut off, all whole lines.

    Args:
      path: The file; None, or one that is not there, has nothing.
    """
    if path is None or not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:  # killed while it was written
            continue
    return records


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
    is_cut_off = path.is_file() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        if is_cut_off and file.tell():
            file.write("\n")  # so that what was cut off takes no other record with it
        file.writelines(json.dumps(record) + "\n" for record in records)
