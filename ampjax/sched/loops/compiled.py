"""Compilation of the loops: once, and kept on disk until any of the loops' files changes.

All are compiled without Numba's reference counting (`_nrt=False`): the tables are alive as long as a call takes, and to count their references, atomically, took more than half
of a small dispatch's time. So no loop makes an array: what it needs it gets, or it links lines of tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.registry import CPUDispatcher

from ampjax.sched.layout import columns
from ampjax.unfold import program_keys

FILES = (
    *sorted(Path(__file__).parent.glob("*.py")),
    Path(columns.__file__),
    Path(program_keys.__file__),
)
DIGEST = hashlib.sha256(
    b"".join([columns.__name__.encode(), *(file.read_bytes() for file in FILES)])
).hexdigest()


def select_known(**wanted: Any) -> dict[str, Any]:
    """Selects the options of `njit` that this Numba knows.

    `_nrt` is private, so another Numba may refuse it, with a `KeyError` when the first loop is compiled. None of those that are asked for changes a result: without `_nrt` loops count
    references and are slower, without the others they take longer to compile.

    Returns:
      Those of them that are known.
    """
    options = getattr(getattr(CPUDispatcher, "targetdescr", None), "options", None)
    return {name: value for name, value in wanted.items() if hasattr(options, name)}


OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    **select_known(_nrt=False),
}
ENTRY: dict[str, Any] = select_known(no_cfunc_wrapper=True)
INNER: dict[str, Any] = select_known(no_cfunc_wrapper=True, no_cpython_wrapper=True)
INLINED: dict[str, Any] = {
    **INNER,
    **select_known(forceinline=True),
}


class _Cache(FunctionCache):
    """Compiled code on disk, in files of their own for each version of the loops.

    Numba keeps compiled code until a function's own file changes, but a loop's code holds that of other files too. And Numba reads all that it knows of a function before it looks
    whether that is out of date, which fails if it names a module that has moved since. What is damaged is compiled anew.

    Args:
      function: The function.
    """

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        name = f"{self._impl.filename_base}-{DIGEST[:16]}"
        self._cache_file = IndexDataCacheFile(
            self._cache_path, name, self._impl.locator.get_source_stamp()
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Loads the compiled function for some types of arguments; None if the file is missing or can't be read."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:
            self.flush()
            return None


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function that Python calls. Numbers may overflow, which NumPy warns of where Numba is switched off.

    Returns:
      The compiled function, which takes its arguments by position.
    """
    return _cache_on_disk(njit(**OPTIONS, **ENTRY)(function), function)


def inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function that only compiled ones call: to unpack its arguments from Python would be most of its compilation.

    Returns:
      The compiled function.
    """
    return _cache_on_disk(njit(**OPTIONS, **INNER)(function), function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function into its callers, for work on each message, where a call with all the tables would cost more than the work.

    Returns:
      The compiled function.
    """
    return njit(**OPTIONS, **INLINED)(function)


def _cache_on_disk(
    compiled: Callable[..., Any],
    function: Callable[..., Any],
) -> Callable[..., Any]:
    if not isinstance(compiled, CPUDispatcher):  # Numba is switched off
        return np.errstate(over="ignore")(compiled)
    compiled._cache = _Cache(function)  # pyright: ignore[reportAttributeAccessIssue]  # as `cache=True` does, with Numba's own class
    return compiled
