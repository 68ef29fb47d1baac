"""JAX's persistent compilation cache, switched on unless the user has configured the cache: later processes load compiled programs.

Owns JAX's settings of it and the folder. Acts once in a process, so whatever the user chooses before or after stays.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from ampjax.utils.cache_folder import cache_folder

MOST_BYTES = 2 << 30
"""What the folder holds at most when a process starts; a kernel takes some 10 kB."""

_FROM_THE_USER = (
    "jax_persistent_cache_min_compile_time_secs",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    1.0,
)
"""The setting of which compilations are kept, its environment variable, and JAX's default, with which none of ours would be."""


_CHECKED = "checked"
"""An empty file in the folder, made anew at each start: what is older has been found whole."""

_ZSTANDARD = b"\x28\xb5\x2f\xfd"
"""How an entry begins that JAX has compressed with zstandard, which comes with Python 3.14 and can be installed before; else JAX takes zlib."""


@functools.cache
def use_compilation_cache() -> None:
    """Lets JAX keep compiled programs in the user's cache folder, unless the user has set JAX's cache or switched it off.

    The user's choice is `JAX_COMPILATION_CACHE_DIR` or `JAX_ENABLE_COMPILATION_CACHE=false`, or the settings of these names in
    `jax.config`. Only the first call in a process acts, so a choice that is made later stays, too. But JAX looks at its setting of the
    folder once, so after a new one `jax.experimental.compilation_cache.compilation_cache.reset_cache()` must be called; before the first
    trainer and the first compilation it need not be. Where the folder can't be written, nothing is.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    if not jax.config.values["jax_enable_compilation_cache"]:
        return
    folder = _writable_folder()
    if folder is None:
        return
    drop_oldest(folder.parent, MOST_BYTES)
    drop_damaged(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    setting, variable, default = _FROM_THE_USER
    if jax.config.values[setting] == default and variable not in os.environ:
        jax.config.update(setting, 0.0)
    reset_cache()  # JAX looks once, at its first compilation, which may have been before


def drop_oldest(folder: Path, most_bytes: int) -> None:
    """Deletes the oldest files of a folder that exceeds a size, until half of that size is left.

    Files in subfolders count, too. What can't be deleted is left.

    Args:
      folder: The folder.
      most_bytes: Bytes that they may take.
    """
    files = list(_files(folder))
    total = sum(stat.st_size for _, stat in files)
    if total <= most_bytes:
        return
    for file, stat in sorted(files, key=lambda entry: entry[1].st_mtime):
        with suppress(OSError):
            file.unlink(missing_ok=True)  # another process may have been faster
            total -= stat.st_size
        if total <= most_bytes // 2:
            return


def drop_damaged(folder: Path) -> None:
    """Deletes entries of JAX's cache that are empty or cut off, as after a killed process or on a full disk.

    JAX warns of such an entry in every process, compiles its program, and never replaces it. Entries that have not changed since the last
    call are not read again. One that another process is just writing may be deleted, too; it is compiled and written again when it is next
    needed.
    """
    stamp = folder / _CHECKED
    since_ns = 0
    with suppress(OSError):
        since_ns = stamp.stat().st_mtime_ns
    with suppress(OSError):
        stamp.touch()  # before anything is read: what is written from now on is looked at next time
    for file, stat in _files(folder):
        if file.name.endswith("-cache") and stat.st_mtime_ns >= since_ns:
            with suppress(OSError):
                if not _is_whole(file.read_bytes()):
                    file.unlink(missing_ok=True)


def _is_whole(entry: bytes) -> bool:
    """Tells whether an entry can be decompressed."""
    if entry.startswith(_ZSTANDARD):
        return _is_whole_zstandard(entry)
    try:
        zlib.decompress(entry)
    except zlib.error:
        return False
    return True


def _is_whole_zstandard(entry: bytes) -> bool:
    if (zstandard := _zstandard()) is None:
        return True  # JAX doesn't read such entries then
    decompress, error = zstandard
    try:
        decompress(entry)
    except error:
        return False
    return True


def _zstandard() -> tuple[Callable[[bytes], bytes], type[Exception]] | None:
    """Finds the function that decompresses zstandard and its error; None where JAX has none either."""
    with suppress(ImportError):
        from compression import zstd  # pyright: ignore[reportMissingImports]

        return zstd.decompress, zstd.ZstdError
    with suppress(ImportError):
        import zstandard  # pyright: ignore[reportMissingImports]

        return zstandard.ZstdDecompressor().decompress, zstandard.ZstdError
    return None


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Lists the files below a folder, without files that are gone or unreadable."""
    for parent, _, names in os.walk(folder):
        for name in names:
            file = Path(parent, name)
            with suppress(OSError):
                yield file, file.stat()


def _writable_folder() -> Path | None:
    """Finds the folder of compiled programs for this kind of processor; None where no file can be made."""
    try:
        folder = cache_folder() / "xla" / _machine()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home folder
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


@functools.cache
def _machine() -> str:
    """Writes a name for this kind of processor, and for JAX's compression of cache entries.

    Code for another processor may not run here, and JAX's keys don't tell them apart. Nor do they tell apart how entries are compressed: of
    one that this Python can't read, JAX would warn in every process.
    """
    features = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next(
            (line for line in lines if line.startswith(("flags", "Features"))),
            "",
        )
    compressed = "zlib" if _zstandard() is None else "zstandard"
    facts = f"{platform.machine()} {platform.processor()} {features} {compressed}"
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
