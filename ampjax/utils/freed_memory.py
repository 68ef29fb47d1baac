"""Freed memory, kept for the next computation: glibc gives large buffers back to Linux, so that each XLA call pays for fresh pages.

It acts when it is imported, and so with `import ampjax`, before JAX starts threads. Decision 33 has what it gains and costs.
"""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress

SWITCH = "AMPJAX_MALLOC"
"""The environment variable with which users leave glibc's settings alone: 0. Child processes inherit it."""

_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_ARENA_MAX = -8
"""The numbers of the parameters of glibc's `mallopt`."""

_OTHERS = (
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""Environment variables by which users have set glibc themselves."""


def keep_freed_memory() -> bool:
    """Lets the process keep freed memory, in one heap: no buffer is a mapping of its own, and the heap's end is not given back.

    Nothing is changed on another system than Linux with glibc, where the user has set glibc's allocator (`MALLOC_...`, `GLIBC_TUNABLES`) or
    has another one loaded (`LD_PRELOAD`), and with `AMPJAX_MALLOC=0`.

    Returns:
      Whether glibc has taken the settings.
    """
    environment = os.environ
    is_set = any(name in environment for name in _OTHERS) or "glibc.malloc" in environment.get(
        "GLIBC_TUNABLES", ""
    )
    if environment.get(SWITCH) == "0" or is_set or "malloc" in environment.get("LD_PRELOAD", ""):
        return False
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        settings = (
            (_MMAP_MAX, 0),
            (_TRIM_THRESHOLD, -1),
            (_ARENA_MAX, 1),
        )
        return all([bool(mallopt(number, value)) for number, value in settings])
    return False


KEPT = keep_freed_memory()
"""Whether this process keeps what it frees."""


def give_back_freed_memory() -> None:
    """Gives freed memory back to the system, once, as after a large copy; does nothing where freed memory is not kept."""
    if KEPT:
        ctypes.CDLL(None).malloc_trim(0)
