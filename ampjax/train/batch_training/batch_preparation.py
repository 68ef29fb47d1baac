"""Preparation before data run by batches: finding shapes, and compiling the programs that run batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ampjax.train.batch_training.batch_data import BatchData
from ampjax.train.training_data import AnyInstances
from ampjax.utils.progress import COMPILING, Reporter


class BatchPreparation:
    """Finds shapes and compiles programs, once for each kind of pass (`train.preparation.Preparation` by batches).

    Args:
      data: The data sets.
    """

    def __init__(self, data: BatchData):
        self._data = data

    async def prepare(
        self,
        data: AnyInstances,
        valid: AnyInstances | None,
        reporter: Reporter,
        purpose: str = "train",
        warm: bool = True,
        ahead: bool = True,
    ) -> None:
        """Packs data sets for passes over the data, and compiles programs if the caller wants programs compiled ahead.

        Args:
          data: Instances.
          valid: Validation instances, or None.
          reporter: Shows how many programs are compiled.
          purpose: What `data` are run for, one of `passes.PURPOSES`.
          warm: Whether anything is to be compiled.
          ahead: False compiles each program when it is first called; `finish` compiles those that have not been called.

        Raises:
          DataError: If a number in an example is not what the model can use.
        """
        self._data.prepare(data, purpose)
        if valid is not None:
            self._data.prepare(valid, "losses")
        if warm and ahead:
            await self.finish(reporter)

    async def finish(self, reporter: Reporter) -> None:
        """Compiles the programs that have not been called.

        Args:
          reporter: Shows how many these are.
        """
        wanted = self._data.list_uncompiled()
        with reporter.part(COMPILING, len(wanted)) as advance:
            for purpose, batch in wanted:
                self._data.compile(purpose, batch)
                advance(1)
                await asyncio.sleep(0)  # a Ctrl-C takes effect here

    def leave_to_calls(self) -> None:
        """Leaves programs to their first calls: nothing is to be done for that."""

    def is_ready(self, data: AnyInstances, purpose: str) -> bool:
        """Whether a pass over such data has been prepared.

        Args:
          data: Instances.
          purpose: What they are run for.
        """
        return self._data.is_ready(data, purpose)

    def most_kernels(self, data: AnyInstances) -> int:
        """Bounds the number of programs that a pass over data compiles.

        Args:
          data: Instances.
        """
        return self._data.n_shapes(data)

    @contextmanager
    def showing_postponed(self, reporter: Reporter) -> Iterator[Any]:
        """Shows nothing: a pass shows on its own that programs compile.

        Args:
          reporter: Not used.
        """
        del reporter
        yield
