"""How functions are compiled: once, and kept on disk."""

from __future__ import annotations

from numba import njit

entry = njit(cache=True)
"""For functions that Python calls."""

inner = njit(cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For functions that only compiled ones call: to unpack their arguments from Python would be most of their compilation."""
