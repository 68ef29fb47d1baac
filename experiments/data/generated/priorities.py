"""Items with a priority and a value each, in any order: what is the value of the most urgent one?"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.data.readers.data_checks import at_least_one

N_PRIORITIES = 12
N_VALUES = 6
MOST_ITEMS = 10


def generate(
    n: int,
    seed: int | np.random.SeedSequence = 0,
) -> list[dict[str, Any]]:
    """Draws lists of one to ten items with different priorities.

    Args:
      n: How many.
      seed: Same seed, same lists.

    Returns:
      Instances: `priority` and `value`, `[items]` int32 each, and the `label`: the value of the item of the largest priority.

    Raises:
      SettingsError: If `n` is below 1.
    """
    at_least_one("generate", n=n)
    rng = np.random.default_rng(seed)
    instances = []
    for _ in range(n):
        size = int(rng.integers(1, MOST_ITEMS + 1))
        priority = rng.permutation(N_PRIORITIES)[:size].astype(np.int32)
        value = rng.integers(0, N_VALUES, size, dtype=np.int32)
        instances.append(
            {
                "priority": priority,
                "value": value,
                "label": value[np.argmax(priority)],
            }
        )
    return instances
