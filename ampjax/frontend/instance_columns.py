"""Instances as the messages that a compiled graph's pumps get: columns, made once for a whole data set."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ampjax.errors import DataError
from ampjax.frontend.deduction.index_spaces import Column, Region
from ampjax.frontend.deduction.numpy_equations import numpy_results
from ampjax.frontend.instance_topologies import InstanceTopologies
from ampjax.ir.instances import Messages
from ampjax.jaxprs.primitives import bind

if TYPE_CHECKING:
    from ampjax.frontend.deduction.edge_plans import EdgePlan
    from ampjax.frontend.deduction.graph_draft import PumpPlan
    from ampjax.frontend.instance_spec import LeafSpec


class Columns:
    """What is known of a data set while its columns are made.

    Args:
      leaves: The leaves of the spec.
      instances: The instances.

    Raises:
      DataError: If instances do not fit the spec, or lengths that the spec calls the same differ.
    """

    def __init__(self, leaves: Sequence[LeafSpec], instances: Sequence[Any]):
        self._n = len(instances)
        self._known: dict[Hashable, Any] = {}
        self._values: dict[str, np.ndarray] = {}
        self._sizes: dict[tuple[str, ...], tuple[str, np.ndarray]] = {}
        for leaf in leaves:
            self._values[leaf.path], sizes = leaf.read(instances)
            for depth, column in enumerate(sizes):
                self._same_sizes(leaf, depth, column)

    def __len__(self) -> int:
        return self._n

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """A value that is made at first use."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def leaf(self, path: str) -> np.ndarray:
        """The values of a leaf of the spec, `[rows, *shape]`."""
        return self._values[path]

    def sizes(self, dimensions: tuple[str, ...]) -> np.ndarray:
        """How many elements of the last dimension each row of those before has."""
        return self._sizes[dimensions][1]

    def equation(self, source: Any, operands: Sequence[Any]) -> list[np.ndarray]:
        """One operation of the model on all rows at once.

        Args:
          source: JAX's equation, on one row.
          operands: Columns, or values that are the same for all rows.

        Returns:
          A column for each result.
        """
        rows = [operand.of(self) if isinstance(operand, Column) else operand for operand in operands]
        if (direct := numpy_results(source, rows)) is not None:
            return direct
        n = next(len(row) for row, operand in zip(rows, operands, strict=True) if isinstance(operand, Column))
        size = 1 << max(n - 1, 0).bit_length()  # few sizes, so that few programs are compiled
        axes = tuple(0 if isinstance(operand, Column) else None for operand in operands)
        padded = [
            np.concatenate([row, np.zeros((size - n, *row.shape[1:]), row.dtype)]).astype(atom.aval.dtype)
            if axis == 0
            else row
            for row, axis, atom in zip(rows, axes, source.invars, strict=True)
        ]
        return [np.asarray(result)[:n] for result in _vectorised(source, axes)(*padded)]

    def _same_sizes(self, leaf: LeafSpec, depth: int, sizes: np.ndarray) -> None:
        dimensions = leaf.dimensions[: depth + 1]
        other, known = self._sizes.setdefault(dimensions, (leaf.path, sizes))
        if len(known) != len(sizes) or (known != sizes).any():
            at = int(np.flatnonzero(known != sizes)[0]) if len(known) == len(sizes) else -1
            got = f"{known[at]} and {sizes[at]} in row {at}" if at >= 0 else f"{len(known)} and {len(sizes)} rows"
            where = f"instances, dimension `{dimensions[-1]}`"
            fix = "Give both the same length, or the dimension another name in the spec."
            raise DataError(where, f"one length in `{other}` and `{leaf.path}`", got, fix)


@dataclass(frozen=True, eq=False)
class _PumpColumns:
    """A pump's messages for a whole data set.

    Args:
      payload: `[rows, *shape]`.
      fields: The states, `[messages]` by field.
      starts: `[instances + 1]`: where each instance's messages begin.
      row_starts: For a ragged pump, `[messages + 1]`: where each message's rows begin.
    """

    payload: np.ndarray
    fields: Mapping[str, np.ndarray]
    starts: np.ndarray
    row_starts: np.ndarray | None

    def of(self, messages: np.ndarray, position: np.ndarray) -> Messages:
        """Some messages; what is the same for all of them, such as a loop's zeros, is not copied.

        Args:
          messages: `[n]`: which.
          position: `[n]`: the place of each one's instance in the batch.
        """
        fields = {name: column[messages] for name, column in self.fields.items()}
        if self.row_starts is not None:
            sizes = self.row_starts[messages + 1] - self.row_starts[messages]
            return Messages(self.payload[_ranges(self.row_starts, messages)[1]], position, fields, sizes)
        if self.payload.strides[0] or not len(messages):
            return Messages(self.payload[messages], position, fields)
        return Messages(np.broadcast_to(self.payload[0], (len(messages), *self.payload.shape[1:])), position, fields)


@functools.lru_cache(maxsize=256)
def _vectorised(source: Any, axes: tuple[int | None, ...]) -> Callable[..., list[Any]]:
    """An equation of many rows, compiled once for all data sets."""
    return jax.jit(jax.vmap(lambda *values: bind(source, values), in_axes=axes))


class CompiledInstances:
    """A data set for a compiled graph (`ampjax.Instances`).

    Args:
      plans: What each pump gets.
      topologies: What each topology pump gets.
      columns: The data set.
    """

    def __init__(self, plans: Mapping[str, PumpPlan], topologies: Mapping[str, EdgePlan], columns: Columns):
        self._n = len(columns)
        self._topologies = {name: InstanceTopologies(plan, columns) for name, plan in topologies.items()}
        self._pumped = {name: self._messages(plan, columns) for name, plan in plans.items()}

    def __len__(self) -> int:
        return self._n

    def gather(self, ids: np.ndarray) -> Mapping[str, Messages]:
        """Gives the messages of some instances, by pump.

        Args:
          ids: `[n]`: which instances.

        Returns:
          By pump, the messages of all these instances as columns.
        """
        ids = np.asarray(ids, np.int64)
        found: dict[str, Messages] = {}
        places: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for name, pump in self._pumped.items():
            if id(pump.starts) not in places:
                places[id(pump.starts)] = _messages_of(pump.starts, ids)
            found[name] = pump.of(*places[id(pump.starts)])
        each = np.arange(len(ids))
        return found | {name: Messages(one.of(ids), each) for name, one in self._topologies.items()}

    def __repr__(self) -> str:
        return f"CompiledInstances({self._n} instances, {len(self._pumped)} pumps)"

    def _messages(self, plan: PumpPlan, columns: Columns) -> _PumpColumns:
        """A pump's payloads and states."""
        space, carrier = plan.region.space, plan.region.space.carrier
        pick, n = _picked(plan.region, columns)
        of_message, n_messages = _picked(plan.region.carrier, columns)
        parts = [np.asarray(pick(column.inside(space).of(columns)), plan.dtype) for column in plan.payload]
        if not parts:
            payload = np.zeros(n, plan.dtype)
        elif len(parts) == 1:
            payload = parts[0]
        else:
            payload = np.concatenate([part.reshape(n, int(np.prod(part.shape[1:]))) for part in parts], axis=1)
        fields = {name: of_message(column) for name, column in carrier.columns(columns).items()}
        fields |= {name: np.zeros(n_messages, np.int64) for name in space.fields if name not in fields}
        row_starts = _starts(of_message(space.lengths(columns))) if space.is_ragged else None

        def starts() -> np.ndarray:
            return _starts(np.bincount(of_message(carrier.instances(columns)), minlength=self._n))

        return _PumpColumns(payload, fields, columns.once(("starts", plan.region.carrier), starts), row_starts)


def _picked(region: Region, columns: Columns) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """What takes a region's rows from a column of its space, and how many there are."""
    chosen = region.rows(columns)
    if chosen is None:
        return lambda column: column, region.space.n_rows(columns)
    return lambda column: column[chosen], len(chosen)


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)])


def _messages_of(starts: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The messages of some instances, and for each the place of its instance among `ids`.

    Args:
      starts: `[n + 1]`: where each instance's messages begin.
      ids: The instances.
    """
    if starts[-1] == len(starts) - 1 and (starts[1:] > starts[:-1]).all():  # one message each
        return ids, np.arange(len(ids))
    position, messages = _ranges(starts, ids)
    return messages, position


def _ranges(starts: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers `starts[i] ... starts[i + 1] - 1` for each `i` of `ids`, and for each number the position of its `i`."""
    n = starts[ids + 1] - starts[ids]
    position = np.repeat(np.arange(len(ids)), n)
    return position, np.arange(len(position)) + np.repeat(starts[ids] - (np.cumsum(n) - n), n)
