"""The time that tuning may take."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from ampjax.errors import SettingsError


class OutOfTime(Exception):
    """A spent budget. Only `ampjax.tuning` raises and catches this error."""


@dataclass
class Budget:
    """Seconds that may be spent, from now on.

    Args:
      seconds: How many.
      now: Seconds on a clock that goes forward.

    Raises:
      SettingsError: If it is no finite number above 0.
    """

    seconds: float
    now: Callable[[], float] = time.monotonic
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        is_number = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if not is_number or not 0 < self.seconds < math.inf:
            fix = "Give the seconds that tuning may take, compilations included."
            raise SettingsError(
                "tune, `budget_s`", "a finite number above 0", f"{self.seconds!r}", fix
            )
        self._began = self.now()

    @classmethod
    def unlimited(cls) -> Budget:
        """A budget that is never spent."""
        return cls(sys.float_info.max)

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return self.now() - self._began

    @property
    def left_s(self) -> float:
        """Seconds that are left; less than 0 where a step took longer than expected."""
        return self.seconds - self.spent_s

    def check(self) -> None:
        """Checks that there is time left.

        Raises:
          OutOfTime: If there is none.
        """
        if self.left_s <= 0:
            raise OutOfTime

    async def within(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Awaits work, and cancels the work when the budget is spent.

        Returns:
          What it returns.

        Raises:
          OutOfTime: If it was cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait(
                {task},
                timeout=max(0.0, self.left_s),
            )
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        if not done:
            task.cancel()
            await asyncio.wait({task})
            raise OutOfTime
        return task.result()
