"""A batch of examples as arrays: a pytree that JAX transforms, and whose shapes alone decide which programs are compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax
import numpy as np

from ampjax.errors import DataError

SMALL = 1 << 10
"""Numbers of an array that lies beside others in one: an argument of a compiled program costs some microseconds, however small the array."""

Piece = tuple[int, tuple[int, ...]]
"""The number of the array in which another one lies, behind those before it, and its shape."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Examples as `Batched.pack` has laid the examples out: columns, and integers that say which rows belong together.

    It is a pytree of arrays: pass it to functions under `jax.jit`. Batches whose arrays have the same shapes share a compiled program.

    Args:
      weights: `[size]` floats: 1 for an example, 0 for a copy that fills the batch up.
      arrays: What the program reads; small arrays of one dtype lie in one.
      layout: What the arrays mean: programs of one layout read the same ones.
      missing: Where labels were left out, the numbers of the arrays that they would have been in, and which leaves those are.
      pieces: Where each array lies that the program reads; none where each is one of `arrays`.

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
    pieces: tuple[Piece, ...] = field(
        default=(),
        metadata={"static": True},
    )

    def columns(self) -> list[Any]:
        """Lists the arrays for the program, cut out of the joined ones."""
        if not self.pieces:
            return [*self.arrays]
        columns = []
        ends = [0] * len(self.arrays)
        for number, shape in self.pieces:
            array = self.arrays[number]
            first = ends[number]
            ends[number] += math.prod(shape)
            flat = array[..., first : ends[number]]
            columns.append(flat.reshape((*array.shape[:-1], *shape)))
        return columns

    def joined(self) -> Batch:
        """Lays small arrays of one dtype side by side in one, as fewer arguments of a compiled program.

        A batch of another shape then has another structure as a pytree, so this is for batches of which nothing compares the structures.
        """
        if self.pieces or self.missing:
            return self
        n_axes = self.weights.ndim - 1
        arrays, pieces = _side_by_side(self.arrays, n_axes)
        return replace(self, arrays=arrays, pieces=pieces)

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
        parts = []
        for i in range(len(self.weights)):
            arrays = tuple(array[i, ...] for array in self.arrays)
            part = Batch(
                self.weights[i],
                arrays,
                self.layout,
                self.missing,
                self.pieces,
            )
            parts.append(part)
        return tuple(parts)

    @property
    def n_examples(self) -> int:
        """The number of examples; known where the batch is not traced."""
        return int(np.asarray(self.weights).sum())

    def __repr__(self) -> str:
        n_arrays = len(self.pieces) or len(self.arrays)
        if any(
            not isinstance(leaf, np.ndarray | jax.Array) for leaf in (self.weights, *self.arrays)
        ):
            return f"Batch({n_arrays} arrays, traced)"
        n_bytes = sum(leaf.nbytes for leaf in self.arrays)
        filling = f" of {self.size}" if self.size != self.n_examples else ""
        return (
            f"Batch({self.n_examples}{filling} examples, {n_arrays} arrays, {n_bytes / 1e6:.2f} MB)"
        )


def _side_by_side(
    arrays: Sequence[np.ndarray],
    n_axes: int,
) -> tuple[tuple[np.ndarray, ...], tuple[Piece, ...]]:
    """Lays small arrays of one dtype side by side.

    Args:
      arrays: `[*axes, *shape]` each.
      n_axes: How many axes all have in front.

    Returns:
      `[*axes, numbers]` for each dtype, and beside these the large arrays, flat; and where each array lies.
    """
    together: list[list[np.ndarray]] = []
    of_dtype: dict[Any, int] = {}
    pieces = []
    for array in arrays:
        shape = array.shape[n_axes:]
        flat = array.reshape((*array.shape[:n_axes], math.prod(shape)))
        number = len(together)
        if flat.shape[-1] <= SMALL:
            number = of_dtype.setdefault(array.dtype, number)
        if number == len(together):
            together.append([])
        together[number].append(flat)
        pieces.append((number, shape))
    return tuple(map(_concatenated, together)), tuple(pieces)


def _concatenated(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Joins arrays along the last axis; a single array is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)
