"""Data sets as a trainer by batches uses data: packed, with shapes that are found once, and compiled shape by shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ampjax.train.batch_training.batch_function import (
    Batch,
    BatchFunction,
    PackedExamples,
    shape_of,
)
from ampjax.train.batch_training.batch_programs import BatchPrograms
from ampjax.train.batch_training.located_examples import LocatedExamples, located
from ampjax.train.grouping import Orders, in_batches
from ampjax.train.settings import Settings

LEAST_EVALUATED = 64
"""How many examples are evaluated together at least, if there are as many."""

KEPT = 4
"""How many data sets are kept packed."""


@dataclass(frozen=True, eq=False)
class KnownData:
    """A data set that is packed.

    Args:
      data: The data set as users have it.
      purpose: What it is run for, one of `passes.PURPOSES`.
      located: Where its examples lie.
      size: The examples of a batch.
      packed: The columns in which they lie, in batches.
    """

    data: Any
    purpose: str
    located: LocatedExamples
    size: int
    packed: PackedExamples

    def epoch(self, groups: Sequence[np.ndarray]) -> Iterator[Batch]:
        """Packs batches of some examples, a few at a time, while the device computes earlier batches.

        In a thread of its own packing would wait for Python's lock, and a small step took half as long again.

        Args:
          groups: The numbers of the examples of each batch, in the data set.
        """
        return self.packed.batches(self.located.groups(groups))


class BatchData:
    """The data sets of a trainer.

    Args:
      function: Packs examples.
      programs: What is compiled for each shape.
      settings: The trainer's settings.
      orders: The orders in which examples are taken.
    """

    def __init__(
        self,
        function: BatchFunction,
        programs: BatchPrograms,
        settings: Settings,
        orders: Orders,
    ):
        self._function = function
        self._programs = programs
        self._settings = settings
        self._orders = orders
        self._known: list[KnownData] = []
        self._compiled: set[Any] = set()
        self._is_whole: set[KnownData] = set()

    def size(self, data: Any, purpose: str) -> int:
        """Returns the number of examples in a batch.

        Args:
          data: A data set.
          purpose: What it is run for.
        """
        size = self._settings.max_active_keys
        if purpose != "train":
            size = max(size, LEAST_EVALUATED)
        # Of few examples powers of two, so that data sets of about one size share programs.
        return min(
            size,
            1 << (len(data) - 1).bit_length(),
        )

    def is_ready(self, data: Any, purpose: str) -> bool:
        """Whether a data set is packed, so that its shapes are known.

        Args:
          data: The data set.
          purpose: What it is run for.
        """
        return self._find(data, purpose) is not None

    def prepare(self, data: Any, purpose: str) -> None:
        """Packs a data set, and finds the shapes of its batches.

        Args:
          data: The data set.
          purpose: What it is run for.

        Raises:
          SettingsError: If it has no examples of a model.
          DataError: If a number in an example is not what the model can use.
        """
        if self.is_ready(data, purpose):
            return
        if purpose == "train":
            # By a generator of its own: shapes must be the same wherever training has come to.
            order = self._orders.training_order(
                data,
                np.random.default_rng(0),
            )
        else:
            order = self._orders.evaluation_order(data)
        size = self.size(data, purpose)
        examples = located(data)
        packed = self._function.packed(
            examples.columns,
            size,
            examples.groups(in_batches(order, size)),
        )
        self._keep(KnownData(data, purpose, examples, size, packed))

    def packed(self, data: Any, purpose: str) -> KnownData:
        """A data set in batches; one that was drawn anew has the shapes of the one before.

        Args:
          data: The data set.
          purpose: What it is run for.
        """
        place = self._find(data, purpose)
        if place is None:
            like = self._latest(purpose)
            if like is None:
                self.prepare(data, purpose)
            else:
                self._known.remove(like)
                self._keep(self._redrawn(data, like))
            place = self._find(data, purpose)
        assert place is not None
        return place

    def _redrawn(self, data: Any, like: KnownData) -> KnownData:
        """Packs a data set that was drawn anew like the one before; both may share columns.

        Args:
          data: The data set.
          like: The one before.
        """
        examples = located(data)
        size = self.size(data, like.purpose)
        packed = like.packed
        if examples.columns is not like.located.columns or size != like.size:
            packed = self._function.packed(
                examples.columns,
                size,
                [],
                like.packed,
            )
        return KnownData(data, like.purpose, examples, size, packed)

    def list_uncompiled(self) -> list[tuple[str, Batch]]:
        """Lists a batch of each shape that is known and not compiled, each beside the purpose of its run."""
        programs: dict[Any, tuple[str, Batch]] = {}
        for known in self._known:
            if known in self._is_whole:
                continue
            before = len(programs)
            for batch in known.packed.examples():
                key = known.purpose, shape_of(batch)
                if key not in self._compiled:
                    programs[key] = known.purpose, batch
            if len(programs) == before:
                self._is_whole.add(known)
        return [*programs.values()]

    def n_shapes(self, data: Any) -> int:
        """Counts the shapes that the batches of a data set have in training.

        Args:
          data: The data set.
        """
        return len(self.packed(data, "train").packed.examples())

    def compile(self, purpose: str, batch: Batch) -> None:
        """Compiles the program that runs batches of a shape. No parameter changes.

        Args:
          purpose: What they are run for.
          batch: A batch of the shape.
        """
        if purpose == "train":
            self._programs.warm_train(batch)
        elif purpose == "sinks":
            jax.block_until_ready(self._programs.outputs(batch))
        else:
            jax.block_until_ready(self._programs.losses(batch))
        self.note(purpose, batch)

    def note(self, purpose: str, batch: Batch) -> None:
        """Notes that batches of a shape have been run.

        Args:
          purpose: What for.
          batch: A batch of the shape.
        """
        self._compiled.add((purpose, shape_of(batch)))

    def _find(self, data: Any, purpose: str) -> KnownData | None:
        for known in self._known:
            if known.data is data and known.purpose == purpose:
                return known
        return None

    def _latest(self, purpose: str) -> KnownData | None:
        for known in reversed(self._known):
            if known.purpose == purpose:
                return known
        return None

    def _keep(self, known: KnownData) -> None:
        self._known = [*self._known[1 - KEPT :], known]
        self._is_whole.intersection_update(self._known)
