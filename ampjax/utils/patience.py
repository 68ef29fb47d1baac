"""Waiting for devices: as long as it takes, but not in silence."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable

PATIENCE_S = 60.0
"""Seconds after which a wait is told of; each further time after twice as long."""


async def patiently(wait: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Waits in a helper thread for something that blocks; the event loop goes on.

    Args:
      wait: Blocks until what is waited for has come.
      what: Who has not answered to what, for the warning.
      patience_s: Seconds until the first warning.

    Warns:
      RuntimeWarning: If it takes longer: a kernel may never end, or the machine is very busy.
    """
    waiting = asyncio.get_running_loop().run_in_executor(None, wait)
    while not (await asyncio.wait([waiting], timeout=patience_s))[0]:
        warnings.warn(
            f"ampjax: {what} has not ended after {patience_s:g} s more; still waiting", RuntimeWarning, stacklevel=2
        )
        patience_s *= 2
    waiting.result()
