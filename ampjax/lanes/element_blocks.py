"""Reads a stream's elements in blocks of one size, as arrays, and checks that each element is like the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError
from ampjax.lanes.argument_axes import leaf_names, spread


class ElementBlock(NamedTuple):
    """Some elements that follow each other in a stream.

    Args:
      leaves: Their flat arguments; of one that is mapped `[size, ...]`, padded with zeros.
      n: How many elements there are.
    """

    leaves: list[Any]
    n: int

    def only(self, is_mapped: Sequence[bool]) -> list[Any]:
        """The arguments without padding.

        Args:
          is_mapped: By argument, whether each element has its own.
        """
        blocks = []
        for leaf, mapped in zip(self.leaves, is_mapped, strict=True):
            blocks.append(leaf[: self.n] if mapped else leaf)
        return blocks

    def pad_with_last(self, is_mapped: Sequence[bool]) -> list[Any]:
        """The arguments, padded with the last element.

        Args:
          is_mapped: By argument, whether each element has its own.
        """
        blocks = []
        for leaf, mapped in zip(self.leaves, is_mapped, strict=True):
            if mapped:
                places = np.arange(len(leaf))
                leaf = leaf[np.minimum(places, self.n - 1)]
            blocks.append(leaf)
        return blocks


class LeafKind(NamedTuple):
    """The type of a flat argument of one element.

    Args:
      shape: Its shape.
      dtype: Its dtype.
    """

    shape: tuple[int, ...]
    dtype: Any

    def __repr__(self) -> str:
        return f"{self.shape} {self.dtype}"


class ElementBlocks:
    """The blocks of a stream, read on demand.

    Args:
      where: The place, for errors.
      in_axes: As for `jax.vmap`: an argument with None is the same object in each element.
      elements: The elements; a tuple is the arguments of one call, anything else the only argument.
      size: How many elements a block has.

    Attributes:
      structure: The structure of an element's arguments, once one has been read.
      is_mapped: By flat argument, whether each element has its own, once one has been read.
    """

    def __init__(
        self,
        where: str,
        in_axes: Any,
        elements: Iterable[Any],
        size: int,
    ):
        self._where = where
        self._in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        self._elements = iter(elements)
        self._size = size
        self._n_read = 0
        self._first: list[Any] = []
        self._kinds: list[LeafKind] = []
        self._dtypes: dict[Any, Any] = {}
        self.structure: Any = None
        self.is_mapped: tuple[bool, ...] = ()

    def __iter__(self) -> Iterator[ElementBlock]:
        """Reads the blocks; only the last one may have fewer elements.

        Raises:
          DataError: If an element's structure, shapes or dtypes are not those of the first, or an argument that all share is another object.
          GraphError: If axes do not fit the arguments.
        """
        block: list[list[Any]] = []
        for element in self._elements:
            block.append(self._check_element(element))
            self._n_read += 1
            if len(block) == self._size:
                yield self._stack_elements(block)
                block = []
        if block:
            yield self._stack_elements(block)

    def _check_element(self, element: Any) -> list[Any]:
        """The flat arguments of an element."""
        args = element if type(element) is tuple else (element,)
        leaves, structure = jax.tree.flatten(args)
        if self.structure is None:
            self._learn(args, leaves, structure)
        if structure != self.structure:
            fix = "Let all elements of a stream have one structure; a tuple is the arguments of a call."
            raise DataError(self._place(), f"{self.structure}", f"{structure}", fix)
        for number, leaf in enumerate(leaves):
            if self.is_mapped[number]:
                self._check_kind(number, leaf)
            else:
                self._check_shared(number, leaf)
        return leaves

    def _learn(
        self,
        args: tuple[Any, ...],
        leaves: list[Any],
        structure: Any,
    ) -> None:
        """Notes the structure, types and shared leaves of the first element."""
        axes = spread(f"{self._where}, in_axes", self._in_axes, args)
        self.is_mapped = tuple(axis is not None for axis in axes)
        self.structure = structure
        self._first = leaves
        for number, leaf in enumerate(leaves):
            self._kinds.append(self._kind(number, leaf))
        if not any(self.is_mapped):
            fix = "Give `in_axes` an axis for at least one argument."
            raise DataError(self._where, "an argument that elements do not share", "none", fix)

    def _kind(self, number: int, leaf: Any) -> LeafKind:
        """The type that a leaf has in JAX."""
        array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        if array.dtype not in self._dtypes:
            self._dtypes[array.dtype] = self._dtype_in_jax(number, array)
        dtype = self._dtypes[array.dtype]
        return LeafKind(np.shape(array), dtype)

    def _dtype_in_jax(self, number: int, array: Any) -> Any:
        if isinstance(array, jax.Array):
            return array.dtype
        try:
            zero = np.zeros((), array.dtype)
            return jnp.asarray(zero).dtype
        except TypeError as error:
            place = f"{self._place()}, argument {self._name(number)}"
            fix = "Leave out what is no number."
            raise DataError(place, "numbers", f"{array.dtype}", fix) from error

    def _check_kind(self, number: int, leaf: Any) -> None:
        wanted = self._kinds[number]
        # most elements are arrays of that very type, which is quickly seen
        dtype = getattr(leaf, "dtype", None)
        if dtype == wanted.dtype and leaf.shape == wanted.shape:
            return
        kind = self._kind(number, leaf)
        if kind != wanted:
            raise DataError(
                f"{self._place()}, argument {self._name(number)}",
                f"{wanted}, as in element 0",
                f"{kind}",
                "Pad or convert it: all elements of a stream go through one compiled program.",
            )

    def _check_shared(self, number: int, leaf: Any) -> None:
        first = self._first[number]
        is_number = isinstance(leaf, int | float | complex)
        is_same = leaf is first or (is_number and leaf == first)
        if not is_same:
            raise DataError(
                f"{self._place()}, argument {self._name(number)}",
                "the same object as in element 0, as `in_axes` has None for it",
                "another one",
                "Make it once, before the elements, or give it an axis in `in_axes`.",
            )

    def _stack_elements(self, block: Sequence[list[Any]]) -> ElementBlock:
        """Some elements as a block."""
        columns = list(zip(*block, strict=True))
        stacked = []
        for number, kind in enumerate(self._kinds):
            if self.is_mapped[number]:
                rows = _rows(columns[number], kind, self._size)
            else:
                rows = jnp.asarray(self._first[number])
            stacked.append(rows)
        return ElementBlock(stacked, len(block))

    def _place(self) -> str:
        return f"{self._where}, element {self._n_read}"

    def _name(self, number: int) -> str:
        """The name of a leaf."""
        numbers = range(self.structure.num_leaves)
        args = self.structure.unflatten(numbers)
        return leaf_names(args)[number]


def _rows(
    leaves: Sequence[Any],
    kind: LeafKind,
    size: int,
) -> Any:
    """Leaves as rows of one array: keys of random numbers in JAX, all else in NumPy."""
    if jnp.issubdtype(kind.dtype, jax.dtypes.prng_key):
        n_padding = size - len(leaves)
        padding = [leaves[-1]] * n_padding
        return jnp.stack([*leaves, *padding])
    rows = np.zeros((size, *kind.shape), kind.dtype)
    for number, leaf in enumerate(leaves):
        rows[number] = leaf
    return rows
