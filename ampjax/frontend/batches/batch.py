"""A batch of examples as arrays: a pytree that JAX transforms, and whose shapes alone decide which programs are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax
import numpy as np

from ampjax.errors import DataError


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Examples as `Batched.pack` has laid the examples out: columns, and integers that say which rows belong together.

    It is a pytree of arrays: pass it to functions under `jax.jit`. Batches whose arrays have the same shapes share a compiled program.

    Args:
      weights: `[size]` floats: 1 for an example, 0 for a copy that fills the batch up.
      arrays: What the program reads.
      layout: What the arrays mean: programs of one layout read the same ones.
      missing: Where labels were left out, the numbers of the arrays that they would have been in, and which leaves those are.

    Attributes:
      has_rows: False: rows of its arrays can't be cut apart, since they refer to each other.
    """

    has_rows: ClassVar[bool] = False

    weights: Any
    arrays: Sequence[Any]
    layout: str = field(metadata={"static": True})
    missing: tuple[tuple[int, tuple[str, ...]], ...] = field(
        default=(),
        metadata={"static": True},
    )

    @property
    def size(self) -> int:
        """The number of examples, copies that fill the batch up included."""
        return self.weights.shape[0]

    @property
    def parts(self) -> tuple[Batch, ...]:
        """The batches that `pack(parts=...)` has put together: `px.Parts(batch.parts)` gives each replica of a runner its own.

        Raises:
          DataError: If the batch was made without.
        """
        if self.weights.ndim == 1:
            fix = "Pack with `parts=`, the number of devices."
            raise DataError("batch, parts", "a batch in parts", "one without", fix)
        each = []
        for i in range(len(self.weights)):
            arrays = tuple(array[i, ...] for array in self.arrays)
            each.append(replace(self, weights=self.weights[i], arrays=arrays))
        return tuple(each)

    @property
    def n_examples(self) -> int:
        """The number of examples; known where the batch is not traced."""
        return int(np.asarray(self.weights).sum())

    def __repr__(self) -> str:
        if any(
            not isinstance(leaf, np.ndarray | jax.Array) for leaf in (self.weights, *self.arrays)
        ):
            return f"Batch({len(self.arrays)} arrays, traced)"
        n_bytes = sum(leaf.nbytes for leaf in self.arrays)
        filling = f" of {self.size}" if self.size != self.n_examples else ""
        return f"Batch({self.n_examples}{filling} examples, {len(self.arrays)} arrays, {n_bytes / 1e6:.2f} MB)"
