"""Bags of ids as for torch's `EmbeddingBag`, in a form whose arrays have one row for each bag and so can be cut like other leaves.

Knows arrays; nothing of replicas' devices, of steps or of where tables are.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ampjax.errors import DataError, SettingsError

Tree = Any

MODES = ("sum", "mean", "max")
NO_ID = -1
"""Stands in place of an id where there is none."""


@jax.tree_util.register_pytree_with_keys_class
class Bag:
    """Bags of ids of any lengths: the leaf of a batch that has several rows of a table for each example, or none.

    Takes what torch's `EmbeddingBag` takes: all ids one after the other, and where each bag begins. In a loss `look_up` gives a vector for each
    bag. A batch may have several, beside arrays with as many examples as each has bags. A runner cuts between bags, and each replica gets the ids
    of its own.

    As leaves of a pytree the ids are filled up and laid out in a row for each bag: `ids` and `weights` `[n_bags, width]`, in the order of the bags,
    where a row holds ids of others, too; `shifts` says of each id how many rows behind its own row its bag is. So nothing but a multiple of
    the mean length matters for shapes, and few shapes are compiled. Where an id is filled in no row is read.

    Args:
      values: Ids, `[n]`, integers of at least 0.
      offsets: Where bags begin in them, `[n_bags]`, rising from 0. A bag ends where the next one begins; both are equal if it is empty.
      weights: What the rows are multiplied with in sums, `[n]`, floats; None for 1. They may be traced, the others not.

    Attributes:
      ids: As laid out, `[n_bags, width]`, int32; -1 where there is none.
      shifts: `[n_bags, width]`, int32.
      weights: `[n_bags, width]`, or None.

    Raises:
      DataError: If the arrays have other shapes or kinds, offsets do not rise from 0 to at most n, an id is negative or beyond int32, or there is
        no bag.

    >>> bag = Bag([7, 1, 1], [0, 2, 2])
    >>> bag
    Bag(3 bags, 3 ids)
    >>> bag.look_up(jnp.arange(10.0), "mean").tolist()
    [4.0, 0.0, 1.0]
    """

    ids: Any
    shifts: Any
    weights: Any

    def __init__(
        self,
        values: Any,
        offsets: Any,
        weights: Any = None,
    ):
        ids = _checked_ids(values)
        lengths = _lengths(offsets, len(ids))
        bags = np.repeat(np.arange(len(lengths)), lengths)
        if weights is not None and np.shape(weights) != ids.shape:
            raise DataError(
                "Bag, `weights`",
                f"one for each value, {list(ids.shape)}",
                f"{list(np.shape(weights))}",
                "Give each id a weight, or none.",
            )
        self._lay_out(
            ids,
            bags,
            weights,
            len(lengths),
            _width(len(ids), len(lengths)),
        )

    def _lay_out(
        self,
        ids: np.ndarray,
        bags: np.ndarray,
        weights: Any,
        n_bags: int,
        width: int,
    ) -> None:
        """Fills ids up and lays the ids out.

        Args:
          ids: `[n]`.
          bags: By id the number of its bag, `[n]`.
          weights: `[n]`, or None.
          n_bags: The number of bags.
          width: Places in a row.
        """
        more = n_bags * width - len(ids)
        shifts = bags - np.arange(len(ids)) // width
        shape = (n_bags, width)
        self.ids = np.pad(
            ids,
            (0, more),
            constant_values=NO_ID,
        ).reshape(shape)
        self.shifts = np.pad(
            shifts.astype(np.int32),
            (0, more),
        ).reshape(shape)
        if weights is not None:
            xp = jnp if isinstance(weights, jax.Array) else np
            weights = xp.pad(
                xp.asarray(weights),
                (0, more),
            ).reshape(shape)
        self.weights = weights

    # ---- as a pytree -------------------------------------------------------------------------------------------------

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], None]:
        """The leaves, each with its name."""
        children = []
        for name in ("ids", "shifts", "weights"):
            key = jax.tree_util.GetAttrKey(name)
            children.append((key, getattr(self, name)))
        return tuple(children), None

    @classmethod
    def tree_unflatten(cls, structure: None, leaves: Any) -> Bag:
        """A bag of leaves that are laid out."""
        del structure
        bags = object.__new__(cls)
        bags.ids, bags.shifts, bags.weights = leaves
        return bags

    # ---- in a loss ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.ids.shape[0]

    def __repr__(self) -> str:
        if isinstance(self.ids, np.ndarray):
            n_ids = int((self.ids >= 0).sum())
        else:
            n_ids = "traced"
        return f"Bag({len(self)} bags, {n_ids} ids)"

    @property
    def lengths(self) -> jax.Array:
        """The number of ids in each bag, `[n_bags]`, int32."""
        counts = (self.ids >= 0).reshape(-1).astype(jnp.int32)
        return jax.ops.segment_sum(counts, self._bags(), len(self))

    def look_up(self, table: Any, mode: str = "sum") -> jax.Array:
        """Reads a table's rows and takes the sum, mean or maximum over each bag, as `torch.nn.functional.embedding_bag` does.

        An empty bag has zeros. Sums are formed in float32 at least. The gradient of a maximum goes to the first of the largest numbers.
        An id beyond the table reads NaN, as with `jnp.take`, and a runner then stops the step.

        Args:
          table: `[n_rows, *row]`, floats.
          mode: `sum`, `mean` or `max`.

        Returns:
          `[n_bags, *row]`, in the table's dtype.

        Raises:
          SettingsError: If there is no such mode, or bags with weights have another one than `sum`.
        """
        self._require_mode(mode)
        table = jnp.asarray(table)
        n_rows, *row = table.shape
        is_id = (self.ids >= 0).reshape(-1)
        # Read no row where there is no id: beyond the table nothing is read, and nothing gets a gradient.
        places = jnp.where(
            is_id,
            jnp.asarray(self.ids).reshape(-1),
            n_rows,
        )
        rows = table.at[places].get(
            mode="fill",
            fill_value=jnp.nan,
        )
        rows = rows.reshape(-1, math.prod(row))
        rows = jnp.where(is_id[:, None], rows, 0)
        if mode == "max":
            rows_of_bags = _first_largest(rows, is_id, self._bags(), len(self))
        else:
            rows_of_bags = self._sums(rows)
        if mode == "mean":
            rows_of_bags = rows_of_bags / jnp.maximum(self.lengths, 1)[:, None]
        return rows_of_bags.astype(table.dtype).reshape(len(self), *row)

    def _sums(self, rows: jax.Array) -> jax.Array:
        wide = rows.astype(jnp.promote_types(rows.dtype, jnp.float32))
        if self.weights is not None:
            wide = wide * self.weights.reshape(-1, 1)
        return jax.ops.segment_sum(wide, self._bags(), len(self))

    def _bags(self) -> jax.Array:
        """By id the number of its bag, `[n_bags * width]`; where there is no id the number of bags, which sums leave out."""
        rows = jnp.arange(len(self), dtype=jnp.int32)[:, None]
        return jnp.where(
            self.ids >= 0,
            self.shifts + rows,
            len(self),
        ).reshape(-1)

    def _require_mode(self, mode: str) -> None:
        if mode not in MODES:
            raise SettingsError(
                "Bag.look_up, `mode`",
                f"one of {', '.join(MODES)}",
                f"{mode!r}",
                "Take one of these.",
            )
        if self.weights is not None and mode != "sum":
            raise SettingsError(
                "Bag.look_up, `mode`",
                "`sum`, since the bags have weights",
                f"{mode!r}",
                "Leave the weights out, or divide their sums by a sum of your own.",
            )

    # ---- in a batch --------------------------------------------------------------------------------------------------

    def arranged(self, n_parts: int, width: int) -> Bag:
        """The same bags in an order of ids such that equal cuts between rows are cuts between bags.

        Args:
          n_parts: The number of cuts, which divides the number of bags.
          width: Places in a row, as `widest` gives them or more.

        Returns:
          The bags; each part of the leaves is a bag by itself.
        """
        ids, bags, weights = self._flat()
        size = len(self) // n_parts
        stops = np.searchsorted(bags, np.arange(1, n_parts) * size)
        parts = []
        for k, (own, of_bags, factors) in enumerate(
            zip(
                np.split(ids, stops),
                np.split(bags, stops),
                [None] * n_parts if weights is None else np.split(weights, stops),
                strict=True,
            )
        ):
            part = object.__new__(Bag)
            part._lay_out(own, of_bags - k * size, factors, size, width)
            parts.append(part)
        return jax.tree.map(
            lambda *leaves: np.concatenate(leaves),
            *parts,
        )

    def widest(self, n_parts: int) -> int:
        """The places in a row that the part with the most ids needs.

        Args:
          n_parts: The number of parts, which divides the number of bags.
        """
        if n_parts == 1:
            n_ids = int((self.ids >= 0).sum())
            return _width(n_ids, len(self))
        _, bags, _ = self._flat()
        size = len(self) // n_parts
        counts = np.bincount(bags // size, minlength=n_parts)
        return _width(int(counts.max()), size)

    def _flat(self) -> tuple[np.ndarray, np.ndarray, Any]:
        """Ids, the numbers of their bags, and weights, without filled places, each `[n]`."""
        is_id = np.asarray(self.ids) >= 0
        bags = np.asarray(self.shifts) + np.arange(len(self))[:, None]
        weights = None if self.weights is None else np.asarray(self.weights)[is_id]
        return np.asarray(self.ids)[is_id], bags[is_id], weights


class BagWidths:
    """Widths of the bags in batches, which only grow, so that few programs are compiled."""

    def __init__(self) -> None:
        self._widths: dict[tuple[int, int], int] = {}

    def at_least(self, number: int, n_bags: int, width: int) -> int:
        """The width of a bag leaf: that of the widest batch so far, or a larger one.

        Args:
          number: Which of a batch's bags it is.
          n_bags: The bags of a part.
          width: What is needed.
        """
        key = number, n_bags
        before = self._widths.get(key, 0)
        self._widths[key] = max(before, width)
        return self._widths[key]


def is_bag(part: Any) -> bool:
    """Whether some part of a batch is a `Bag`."""
    return isinstance(part, Bag)


def has_bags(batch: Tree) -> bool:
    """Whether there is a `Bag` in a batch."""
    leaves = jax.tree.leaves(batch, is_leaf=is_bag)
    return any(map(is_bag, leaves))


def arrange_bags(
    batches: tuple[Tree, ...],
    n_parts: int,
    widths: BagWidths,
) -> tuple[Tree, ...]:
    """Batches whose bags can be cut in equal parts, and have equal widths in all batches.

    Args:
      batches: Batches of equal structure.
      n_parts: In how many parts each is to be cut.
      widths: The widths so far.

    Returns:
      The same batches. A bag whose number of bags can't be cut in such parts stays as it is, and so do batches of unequal structures.
    """
    if not has_bags(batches):
        return batches
    flat = [jax.tree.leaves(batch, is_leaf=is_bag) for batch in batches]
    structures = [jax.tree.structure(batch, is_leaf=is_bag) for batch in batches]
    if any(other != structures[0] for other in structures):
        return batches
    columns = []
    for number, leaves in enumerate(zip(*flat, strict=True)):
        if all(is_bag(leaf) and len(leaf) % n_parts == 0 for leaf in leaves):
            needed = max(leaf.widest(n_parts) for leaf in leaves)
            width = widths.at_least(number, len(leaves[0]) // n_parts, needed)
            columns.append([_arranged(leaf, n_parts, width) for leaf in leaves])
        else:
            columns.append(leaves)
    results = []
    for leaves in zip(*columns, strict=True):
        results.append(jax.tree.unflatten(structures[0], leaves))
    return tuple(results)


def _arranged(bag: Bag, n_parts: int, width: int) -> Bag:
    """A bag in parts; the same bag if there is one part of its width."""
    if n_parts == 1 and bag.ids.shape[1] == width:
        return bag
    return bag.arranged(n_parts, width)


def _first_largest(
    rows: jax.Array,
    is_id: jax.Array,
    bags: jax.Array,
    n_bags: int,
) -> jax.Array:
    """The largest number of each bag in each column, zeros for an empty bag; differentiable in the first row with this number.

    Args:
      rows: `[n, d]`.
      is_id: Which of them count, `[n]`.
      bags: By row its bag, `[n]`; `n_bags` where it has none.
      n_bags: The number of bags.
    """
    values = jax.lax.stop_gradient(rows)
    largest = jax.ops.segment_max(values, bags, n_bags)
    # A NaN equals nothing, yet is what its bag gives.
    is_largest = (values == largest.at[bags].get(mode="clip")) | jnp.isnan(values)
    n = len(rows)
    numbers = jnp.where(
        is_largest & is_id[:, None],
        jnp.arange(n, dtype=jnp.int32)[:, None],
        n,
    )
    first = jax.ops.segment_min(numbers, bags, n_bags)
    return jnp.take_along_axis(
        rows,
        jnp.minimum(first, n),
        axis=0,
        mode="fill",
        fill_value=0,
    )


def _width(n_ids: int, n_bags: int) -> int:
    """Places in a row for some ids: the mean number in a bag, rounded up so that at most an eighth is empty and widths are few.

    >>> [_width(n, 2) for n in (0, 3, 30, 34, 200)]
    [1, 2, 15, 18, 104]
    """
    mean = max(-(-n_ids // n_bags), 1)
    step = 1 << max(mean.bit_length() - 4, 0)
    return -(-mean // step) * step


def _checked_ids(values: Any) -> np.ndarray:
    fix = "Pass a flat array of row numbers; hash larger ids in NumPy (`ids % n_rows`)."
    if isinstance(values, Tracer):
        raise DataError("Bag, `values`", "an array", "a traced one", "Make bags on the host.")
    if isinstance(values, np.ma.MaskedArray):
        left_out = "Leave masked ids out: `compressed()`, and offsets without them."
        raise DataError("Bag, `values`", "an array without a mask", "a masked one", left_out)
    ids = np.asarray(values)
    if ids.size == 0:
        ids = ids.astype(np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise DataError("Bag, `values`", "integers [n]", f"{ids.dtype}{list(ids.shape)}", fix)
    if ids.size and not 0 <= (low := ids.min()) <= (high := ids.max()) < 2**31:
        raise DataError(
            "Bag, `values`",
            "ids from 0 to 2^31 - 1",
            f"{low if low < 0 else high}",
            fix,
        )
    return ids.astype(np.int32)


def _lengths(offsets: Any, n_ids: int) -> np.ndarray:
    """The lengths of bags, from their offsets."""
    if isinstance(offsets, Tracer):
        raise DataError("Bag, `offsets`", "an array", "a traced one", "Make bags on the host.")
    starts = np.asarray(offsets)
    if starts.ndim != 1 or starts.dtype.kind not in "iu" or not starts.size:
        fix = "Pass where each bag begins, without the end of the last."
        got = f"{starts.dtype}{list(starts.shape)}"
        raise DataError("Bag, `offsets`", "integers [n_bags]", got, fix)
    lengths = np.diff(starts.astype(np.int64), append=n_ids)
    if starts[0] or (lengths < 0).any():
        got = f"{starts[0]}" if starts[0] else f"{starts[lengths < 0][0]} before a smaller number"
        fix = "A bag begins where the one before it ends, the first at 0."
        raise DataError("Bag, `offsets`", f"numbers that rise from 0 to {n_ids}", got, fix)
    return lengths
