"""Data for a compiled graph that are drawn anew for each epoch, such as buckets of sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ampjax.frontend.instances.instance_columns import Columns, CompiledInstances
from ampjax.ir.instances import Messages


@runtime_checkable
class PlainSource(Protocol):
    """A data set that yields its instances in the model's form."""

    def plain(self) -> Any:
        """Returns the instances, in the form of `Compiled.data`'s argument."""


class RedrawnInstances:
    """A data set for a compiled graph, with new instances in each epoch (`ampjax.ir.instances.Instances`).

    Args:
      source: A data set with `plain()`, the instances of an epoch as the model takes them, and `reshuffle(rng)`, the same data set with those of
        another one.
      make: From such instances to data for the graph.

    Attributes:
      n_examples: Examples in all instances, for throughput.
    """

    missing_labels = ()

    def __init__(
        self,
        source: Any,
        make: Callable[[Any], CompiledInstances],
    ):
        self._source = source
        self._make = make
        self._data = make(source.plain())
        self.n_examples = getattr(source, "n_examples", len(self._data))

    @property
    def plans(self) -> Mapping[str, Any]:
        """The input of each pump."""
        return self._data.plans

    @property
    def leaves(self) -> Columns:
        """The unchanged instances, for training by batches."""
        return self._data.leaves

    def __len__(self) -> int:
        return len(self._data)

    def reshuffle(self, rng: np.random.Generator) -> RedrawnInstances:
        """Draws the instances of another epoch; this object, which may still be in use, does not change.

        Returns:
          The data set.
        """
        return RedrawnInstances(self._source.reshuffle(rng), self._make)

    def gather(self, ids: np.ndarray) -> Mapping[str, Messages]:
        """Gives the messages of some instances, by pump.

        Args:
          ids: `[n]`: which instances.

        Returns:
          By pump, the messages of all these instances as columns.
        """
        return self._data.gather(ids)
