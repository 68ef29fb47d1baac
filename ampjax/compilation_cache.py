"""JAX's persistent compilation cache, switched on for whoever has not chosen one: what was compiled once is loaded in later processes.

Owns JAX's settings of it and the folder. The user's own choice always stays.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from contextlib import suppress
from pathlib import Path

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from ampjax.cache import cache_folder

MOST_BYTES = 2 << 30
"""What the folder holds at most when a process starts; a kernel takes some 10 kB."""

_FROM_THE_USER = ("jax_persistent_cache_min_compile_time_secs", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", 1.0)
"""The setting of which compilations are kept, its environment variable, and JAX's default, with which none of ours would be."""


def use_compilation_cache() -> None:
    """Lets JAX keep compiled programs in the user's cache folder, unless the user has set JAX's cache or switched it off.

    The user's choice is `JAX_COMPILATION_CACHE_DIR` or `JAX_ENABLE_COMPILATION_CACHE=false`, or the settings of these names in `jax.config`.
    Where the folder can't be written, nothing is.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    if not jax.config.values["jax_enable_compilation_cache"]:
        return
    folder = _writable_folder()
    if folder is None:
        return
    with suppress(OSError):
        drop_oldest(folder.parent, MOST_BYTES)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    setting, variable, default = _FROM_THE_USER
    if jax.config.values[setting] == default and variable not in os.environ:
        jax.config.update(setting, 0.0)
    reset_cache()  # JAX looks once, at its first compilation, which may have been before


def drop_oldest(folder: Path, most_bytes: int) -> None:
    """Deletes the oldest files of a folder and of those in it, until they have half of `most_bytes`, if they have more.

    Raises:
      OSError: If the folder can't be read.
    """
    files = [(file, file.stat()) for file in folder.glob("**/*") if file.is_file()]
    total = sum(stat.st_size for _, stat in files)
    if total <= most_bytes:
        return
    for file, stat in sorted(files, key=lambda found: found[1].st_mtime):
        with suppress(OSError):  # another process may have been faster
            file.unlink()
        total -= stat.st_size
        if total <= most_bytes // 2:
            return


def _writable_folder() -> Path | None:
    """Where compiled programs are kept for this kind of processor; None where no file can be made."""
    try:
        folder = cache_folder() / "xla" / _machine()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home folder
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


@functools.cache
def _machine() -> str:
    """A name for this kind of processor: code for another one may not run here, and JAX's keys don't tell them apart."""
    features = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()} {platform.processor()} {features}".encode()).hexdigest()[:16]
