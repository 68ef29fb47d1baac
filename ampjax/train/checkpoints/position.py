"""The position of a training: the epochs, the random numbers, and the clock of a simulated machine."""

from __future__ import annotations

import numpy as np


class Position:
    """The state that is needed to continue training, besides parameters, optimizer states and gradients.

    Args:
      seed: The seed of the random numbers.

    Attributes:
      rng: Draws the order of instances, and reshuffles data sets.
      epochs: Epochs begun so far.
      accumulated: Passes so far that accumulated gradients outside of epochs.
      virtual_ns: Time on the clock of a simulated machine, in nanoseconds.
      is_virtual: Whether training goes by that clock.
    """

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.epochs = 0
        self.accumulated = 0
        self.virtual_ns = 0
        self.is_virtual = False
