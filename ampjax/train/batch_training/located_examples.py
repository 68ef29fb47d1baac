"""The places of a data set's examples: in columns of its own, or in the columns of the data set behind a selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.errors import SettingsError


@dataclass(frozen=True, eq=False)
class LocatedExamples:
    """The examples of a data set.

    Args:
      columns: Columns that hold them, perhaps beside others.
      numbers: `[n]`: the place of each in the columns.
    """

    columns: Any
    numbers: np.ndarray

    def groups(self, groups: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Places in the columns.

        Args:
          groups: Numbers of examples in the data set, group by group.
        """
        return [self.numbers[group] for group in groups]


def located(data: Any) -> LocatedExamples:
    """Finds the examples of a data set.

    Args:
      data: The data set: what a model made of its examples, or a choice of such, which has `locate` (`ir.instances.Subset`).

    Raises:
      SettingsError: If it was not made of examples of a model.
    """
    numbers = np.arange(len(data))
    whole = data
    while hasattr(whole, "locate"):
        whole, numbers = whole.locate(numbers)
    columns = getattr(whole, "leaves", None)
    if columns is None:
        expected = "what `compiled.data(examples)` gives"
        fix = "Pass the examples through `compiled.data`."
        raise SettingsError("mode='batch', data", expected, type(whole).__name__, fix)
    return LocatedExamples(columns, numbers)
