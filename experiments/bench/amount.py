"""The amount of data that a bench measures, and the source of the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Amount:
    """The amount of data that models get, and the source of the data.

    Args:
      size: Instances of a pass, as a part of what is measured by default.
      synthetic: Generated data in place of files.
      data_dir: Folder with data files; else AMPJAX_DATA.
    """

    size: float = 1.0
    synthetic: bool = False
    data_dir: Path | None = None

    def of(self, n: int) -> int:
        """So many instances, where `n` are measured by default."""
        return max(1, round(n * self.size))
