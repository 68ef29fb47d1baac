"""Facts "a leads to b": where does one get from a start by so many facts?"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.data.readers.data_checks import at_least_one

N_PLACES = 8
MOST_HOPS = 3


def generate(
    n: int,
    seed: int | np.random.SeedSequence = 0,
) -> list[dict[str, Any]]:
    """Draws a map from places to places for each instance, written as facts in any order, a start and one to three hops.

    Args:
      n: How many.
      seed: Same seed, same facts.

    Returns:
      Instances: `source` and `target` `[facts]` int32, `start`, `hops` and the `label`, int32 each: where the hops lead. Three to eight
      places are used, and every one has a fact.

    Raises:
      SettingsError: If `n` is below 1.
    """
    at_least_one("generate", n=n)
    rng = np.random.default_rng(seed)
    instances = []
    for _ in range(n):
        source = rng.permutation(N_PLACES)[: rng.integers(3, N_PLACES + 1)].astype(np.int32)
        target = rng.permutation(source)
        leads = dict(zip(source.tolist(), target.tolist(), strict=True))
        start = int(source[0])
        hops = int(rng.integers(1, MOST_HOPS + 1))
        place = start
        for _ in range(hops):
            place = leads[place]
        order = rng.permutation(len(source))
        numbers = {
            "start": np.int32(start),
            "hops": np.int32(hops),
            "label": np.int32(place),
        }
        instances.append({"source": source[order], "target": target[order], **numbers})
    return instances
