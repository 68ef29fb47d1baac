"""Cohorts: instances in flight whose programs grow in one unfolding."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ampjax.sched.tables.program_store import Parts
from ampjax.unfold.growth import KnownLines
from ampjax.unfold.unfolding import Unfolding


@dataclass(eq=False)
class Cohort:
    """Instances that are unfolded together.

    Args:
      unfolding: Their unfolding.
      known: What is known of their programs.
      purpose: What they are run for.
      handles: `[n]`: the handle of each, by its place in the unfolding.
      in_flight: Their places in the unfolding, of those in flight.
      parts: Lines of tables that are theirs.
    """

    unfolding: Unfolding
    known: KnownLines
    purpose: str
    handles: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    in_flight: set[int] = field(default_factory=set)
    parts: Parts = field(default_factory=list)

    def is_in_flight(self, places: np.ndarray) -> np.ndarray:
        """Tells which of the instances are in flight.

        Args:
          places: `[n]`: their places in the unfolding.

        Returns:
          `[n]` truth values.
        """
        in_flight = np.zeros(len(self.handles), bool)
        in_flight[list(self.in_flight)] = True
        return in_flight[places]
