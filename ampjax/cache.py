"""The user's cache folder: downloads, compiled kernels, and what was found out about this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder for what can be made again: `$XDG_CACHE_HOME/ampjax`, by default `~/.cache/ampjax`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ampjax"
