"""The user's cache folder: downloads, compiled kernels, and findings about this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Finds the folder for files that can be made again: `$XDG_CACHE_HOME/ampjax`, by default `~/.cache/ampjax`.

    A relative `XDG_CACHE_HOME` is ignored, as the XDG Base Directory Specification says.

    Raises:
      RuntimeError: If the user has no home folder.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "ampjax"
