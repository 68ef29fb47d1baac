"""Finds the launches that can be carried out in one call.

Dispatches of one stage often follow one another: a loop's cell, step by step. Each is little work, and its call costs the host as much as a
kernel takes for a few dozen rows. So what several of them bring is stacked, and one call goes over it in a loop that XLA runs
(`kernels.kernel`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import numpy as np

from ampjax.engine.kernels.launch import Launch
from ampjax.sched.decisions.packs import MOST_COALESCED

MOST_BYTES = 1 << 14
"""Bytes that a dispatch brings, at most, where it can be one of several in a call: larger ones are work enough for a call of their own."""

COUNTS = [np.uint32(n) for n in range(MOST_COALESCED + 1)]
"""How many dispatches there are, as kernels take it: made once, since every call needs one."""

Coalesced = Sequence[Launch]
"""Launches of one kernel and one size, one after the other, that one call carries out; parameters change after the last of them only."""


def n_coalesced(
    launch: Launch,
    behind: Iterable[Launch | None],
    can_coalesce: Callable[[Launch, Launch], bool],
) -> int:
    """Counts the launches that can be carried out in one call.

    Args:
      launch: The first.
      behind: Those behind it, in the order of issue; up to a None.
      can_coalesce: Whether one can be carried out together with the one before it, and with those that this was carried out with.

    Returns:
      From 1 to `MOST_COALESCED`.
    """
    n = 1
    for following in islice(behind, MOST_COALESCED - 1):
        if following is None or not can_coalesce(launch, following):
            break
        launch = following
        n = n + 1
    return n
