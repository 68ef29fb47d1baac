"""Arrays with a row for each row of a loop, side by side in one array: so that a step writes one slice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp


@dataclass(frozen=True, eq=False)
class Packed:
    """Arrays of rows of one dtype, side by side in one array.

    Args:
      shapes: The shape of a row of each.
    """

    shapes: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        """Numbers in a row of all."""
        return sum(math.prod(shape) for shape in self.shapes)

    def pack(self, values: Sequence[Any]) -> Any:
        """Puts arrays together, `[rows, width]`."""
        flat = []
        for value in values:
            flat.append(
                value.reshape(
                    value.shape[0],
                    -1,
                )
            )
        return (
            flat[0]
            if len(flat) == 1
            else jnp.concatenate(
                flat,
                axis=1,
            )
        )

    def unpack(self, packed: Any) -> list[Any]:
        """Takes packed arrays apart again."""
        result = []
        first = 0
        for shape in self.shapes:
            size = math.prod(shape)
            part = packed[:, first : first + size]
            result.append(
                part.reshape(
                    packed.shape[0],
                    *shape,
                )
            )
            first += size
        return result


class Kept:
    """The values kept of a loop's rows: arrays of each dtype together.

    Args:
      types: Their types, with an axis for the rows.
    """

    def __init__(self, types: Sequence[Any]):
        self._numbers: dict[Any, list[int]] = {}
        for number, kind in enumerate(types):
            self._numbers.setdefault(
                kind.dtype,
                [],
            ).append(number)
        self._packed = []
        for numbers in self._numbers.values():
            shapes = tuple(types[i].shape[1:] for i in numbers)
            self._packed.append(Packed(shapes))
        self._n = len(types)

    def pack(self, values: Sequence[Any]) -> list[Any]:
        """Packs arrays of rows, one array for each dtype."""
        found = []
        for packed, numbers in zip(self._packed, self._numbers.values(), strict=True):
            found.append(packed.pack([values[i] for i in numbers]))
        return found

    def unpack(self, arrays: Sequence[Any]) -> list[Any]:
        """Takes packed arrays apart again."""
        found: list[Any] = [None] * self._n
        for packed, numbers, array in zip(
            self._packed, self._numbers.values(), arrays, strict=True
        ):
            for i, value in zip(numbers, packed.unpack(array), strict=True):
                found[i] = value
        return found
