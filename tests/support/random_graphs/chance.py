"""Random choices, all from one generator: a graph is a function of its seed and of the order in which choices are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Chance:
    """Makes random choices.

    Args:
      seed: Of the generator.

    Attributes:
      rng: The generator.
    """

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def happens(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self.rng.random() < probability)

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, each as likely."""
        return options[int(self.rng.integers(len(options)))]

    def weighted(self, options: Sequence[tuple[float, T]]) -> T:
        """One of the options; each comes with its weight."""
        weights = np.array([weight for weight, _ in options])
        return options[int(self.rng.choice(len(options), p=weights / weights.sum()))][1]

    def integer(self, least: int, end: int) -> int:
        """Draws an integer.

        Args:
          least: The least that it can be.
          end: One more than the largest.
        """
        return int(self.rng.integers(least, end))
