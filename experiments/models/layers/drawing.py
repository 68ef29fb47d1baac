"""Bodies that draw random numbers in training, as the hand-written graphs have them: `body(*args, key)`, without a key elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ampjax as amp


def drawing(
    draws: bool,
    body: Callable[..., Any],
    *args: Any,
) -> Any:
    """Calls a body with a key in training, and without one elsewhere.

    Args:
      draws: Whether it draws at all; False never gives it a key.
      body: `body(*args, key)`, where `key` may be left out.
      *args: Its other arguments.

    Returns:
      What it returns.
    """
    if draws:
        return amp.stochastic(
            lambda key, *xs: body(*xs, key),
            body,
            *args,
        )
    return body(*args)
