"""Waits for devices without a limit, and warns about a long wait."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable

FIRST_WARNING_S = 60.0
"""Seconds to the first warning; to each further one it is twice as long."""


async def wait_with_warning(
    wait: Callable[[], object], awaited: str, first_warning_s: float = FIRST_WARNING_S
) -> None:
    """Waits in a helper thread for something that blocks, so that the event loop goes on.

    Args:
      wait: Blocks until what is waited for has come.
      awaited: What is waited for, in words for the warning.
      first_warning_s: Seconds to the first warning.

    Raises:
      Exception: What `wait` raises.

    Warns:
      RuntimeWarning: If it takes longer: a kernel may never end, or the machine is very busy.
    """
    waiting = asyncio.get_running_loop().run_in_executor(None, wait)
    next_warning_s = first_warning_s
    try:
        while not (await asyncio.wait([waiting], timeout=next_warning_s))[0]:
            text = f"ampjax: {awaited} has not ended after {next_warning_s:g} s more; still waiting"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            next_warning_s *= 2
    except asyncio.CancelledError:
        waiting.cancel()  # else asyncio would print what `wait` raises later, when something else has failed already
        raise
    waiting.result()
