"""Compilation of passes over rows when one is first called, as importing Numba takes longer than importing the rest of ampjax."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a pass by Numba at its first call.

    Args:
      function: The pass; it calls no other one.

    Returns:
      The pass, which takes its arguments by position.
    """

    @functools.cache
    def compile_once() -> Callable[..., Any]:
        from ampjax.sched.loops.compiled import entry

        return entry(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return compile_once()(*arguments)

    return call
