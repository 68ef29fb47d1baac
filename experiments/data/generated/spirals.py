"""Two spirals, one inside the other (Lang and Witbrock 1988): which of them is a point on?"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.data.readers.data_checks import at_least_one


def generate(
    n: int,
    seed: int | np.random.SeedSequence = 0,
    turns: float = 1.25,
) -> list[dict[str, Any]]:
    """Draws points of the two spirals, with a little noise.

    Args:
      n: How many.
      seed: Same seed, same points.
      turns: How often a spiral goes around.

    Returns:
      Instances: `x` `[2]` float32 and `label`, 0 or 1.

    Raises:
      SettingsError: If `n` is below 1.
    """
    at_least_one("generate", n=n)
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, n, dtype=np.int32)
    along = np.sqrt(rng.uniform(0.02, 1.0, n))
    angle = 2 * np.pi * turns * along + np.pi * label
    points = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1) + rng.normal(
        0, 0.01, (n, 2)
    )
    result = []
    for x, k in zip(points.astype(np.float32), label, strict=True):
        result.append({"x": x, "label": k})
    return result
