"""Instances as the messages that a compiled graph's pumps get: columns, made once for a whole data set."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ampjax.errors import DataError
from ampjax.frontend.deduction.numpy_rows import rows_in_numpy
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.payload_types import from_raw, raw, raw_type
from ampjax.frontend.instances.chosen_messages import ChosenMessages, RegionMessages, SpaceMessages
from ampjax.frontend.instances.instance_topologies import InstanceTopologies
from ampjax.frontend.instances.selected_instances import InstanceSelection, KeptColumns
from ampjax.ir.instances import Messages
from ampjax.jaxprs.primitives import bind
from ampjax.utils.row_ranges import ranges

if TYPE_CHECKING:
    from ampjax.frontend.draft.edge_plans import EdgePlan
    from ampjax.frontend.draft.graph_draft import PumpPlan
    from ampjax.frontend.instances.instance_spec import LeafSpec


_NOTHING: frozenset[str] = frozenset()


class Columns:
    """The known values of a data set while its columns are made.

    Args:
      leaves: The leaves of the spec.
      instances: The instances.
      labels: Whether all leaves are needed; if not, those that no instance has are 0, of the length of others along the same dimension.

    Attributes:
      missing: The paths of the leaves that no instance has.
      selection: Which instances of a larger data set they are, if they are any.

    Raises:
      DataError: If instances do not fit the spec, or lengths that the spec calls the same differ.
    """

    def __init__(
        self,
        leaves: Sequence[LeafSpec],
        instances: Sequence[Any],
        labels: bool = True,
    ):
        if isinstance(instances, Mapping) or not hasattr(instances, "__len__"):
            got = type(instances).__name__
            fix = "Give a list, also for a single instance."
            raise DataError("instances", "a list of instances", f"one {got}", fix)
        self._n = len(instances)
        self._known: dict[Hashable, tuple[Any, frozenset[str] | set[str]]] = {}
        self._noted: list[set[str]] = [set()]
        self._values: dict[str, np.ndarray] = {}
        self._sizes: dict[tuple[str, ...], tuple[str, np.ndarray]] = {}
        self._starts: dict[tuple[str, ...], np.ndarray] = {}
        self._dimensions = {leaf.path: leaf.dimensions for leaf in leaves}
        self.selection: InstanceSelection | None = None
        self._kept = KeptColumns(self)
        if labels:
            missing = []
        else:
            missing = [leaf for leaf in leaves if leaf.is_missing(instances)]
        self.missing = tuple(leaf.path for leaf in missing)
        for leaf in leaves:
            if leaf.path not in self.missing:
                values, sizes = leaf.read(instances)
                self._values[leaf.path] = (
                    values.view()
                )  # messages may be slices of the user's own array
                self._values[leaf.path].flags.writeable = False
                for depth, column in enumerate(sizes):
                    self._same_sizes(leaf, depth, column)
        for leaf in missing:
            self._values[leaf.path] = self._zeros(leaf)

    def __len__(self) -> int:
        return self._n

    def as_read(self) -> Columns:
        """The same columns, of which nothing is known yet but the leaves; so what is found out of them can be forgotten."""
        same = copy(self)
        same._known = {}
        same._noted = [set()]
        same._kept = KeptColumns(same)
        return same

    def some(self, numbers: np.ndarray) -> Columns:
        """The columns of some instances, of which nothing is known yet but the leaves.

        Args:
          numbers: Which instances, `[n]`.
        """
        part = self.as_read()
        part._n = len(numbers)
        part.selection = None if self.missing else InstanceSelection(self._kept, numbers)
        part._starts = {}
        part._sizes = {}
        rows: dict[tuple[str, ...], np.ndarray] = {(): numbers}
        for dimensions, (path, sizes) in _outer_first(self._sizes):
            around = rows[dimensions[:-1]]
            lengths = sizes[around]
            rows[dimensions] = ranges(self._starts_of(dimensions)[around], lengths)
            part._sizes[dimensions] = path, lengths
        part._values = {}
        for path, values in self._values.items():
            part._values[path] = values[rows[self._dimensions[path]]]
        return part

    def n_elements(self) -> np.ndarray:
        """Counts the elements of each instance along all dimensions of the spec, the instance included, `[n]`."""

        def make() -> np.ndarray:
            total = np.ones(self._n, np.int64)
            instance: dict[tuple[str, ...], np.ndarray] = {(): np.arange(self._n)}
            for dimensions, (_, sizes) in _outer_first(self._sizes):
                own = instance[dimensions[:-1]]
                total += np.bincount(own, sizes, self._n).astype(np.int64)
                instance[dimensions] = own.repeat(sizes)
            return total

        return self.once("n_elements", make)

    def _starts_of(self, dimensions: tuple[str, ...]) -> np.ndarray:
        """The start of each row's elements."""
        if dimensions not in self._starts:
            sizes = self._sizes[dimensions][1]
            self._starts[dimensions] = sizes.cumsum() - sizes
        return self._starts[dimensions]

    def once(
        self,
        key: Hashable,
        make: Callable[[], Any],
    ) -> Any:
        """A value that is made at first use."""
        known = self._known.get(key)
        if known is None:
            read = _NOTHING
            # In training nothing is missing, and a context for each value would take a tenth of the time.
            if self.missing:
                with self.noting_missing() as read:
                    value = make()
            else:
                value = make()
            known = (value, read)
            self._known[key] = known
        value, read = known
        if read:
            self._noted[-1].update(read)
        return value

    def known(self, column: Column) -> np.ndarray | None:
        """Computes a column's values; None if the column reads a missing leaf: then nobody needs the values."""
        with self.noting_missing() as read:
            try:
                values = column.of(self)
            except Exception:
                if not read:
                    raise
                return None
        return None if read else values

    def noting_missing(self) -> AbstractContextManager[set[str]]:
        """Notes which of the missing leaves are read inside.

        Returns:
          A context that gives the set of their paths, which grows.
        """
        return _noting(self._noted) if self.missing else nullcontext(set())

    def leaf(self, path: str) -> np.ndarray:
        """The values of a leaf of the spec, `[rows, *shape]`.

        Args:
          path: The leaf.

        Raises:
          DataError: If these are the data of a model whose spec has no such leaf.
        """
        self._note(path)
        if path not in self._values:
            raise _of_another_model(f"a leaf `{path}`")
        return self._values[path]

    def sizes(self, dimensions: tuple[str, ...]) -> np.ndarray:
        """Counts the elements of the last dimension for each row of the dimensions before.

        Args:
          dimensions: The dimensions.

        Raises:
          DataError: If these are the data of a model whose spec has no such dimension.
        """
        if dimensions not in self._sizes:
            raise _of_another_model(f"a dimension `{dimensions[-1]}`")
        path, sizes = self._sizes[dimensions]
        self._note(path)
        return sizes

    def equation(
        self,
        source: Any,
        operands: Sequence[Any],
    ) -> list[np.ndarray]:
        """One operation of the model on all rows at once.

        Args:
          source: JAX's equation, on one row.
          operands: Columns, or values that are the same for all rows.

        Returns:
          A column for each result.
        """
        rows = []
        for operand in operands:
            rows.append(operand.of(self) if isinstance(operand, Column) else operand)
        is_column = [isinstance(operand, Column) for operand in operands]
        direct = rows_in_numpy(source, rows, is_column)
        if direct is not None:
            return direct
        n = len(rows[is_column.index(True)])
        size = 1 << max(n - 1, 0).bit_length()  # few sizes, so that few programs are compiled
        axes = [0 if is_one else None for is_one in is_column]
        padded = []
        for row, axis, atom in zip(rows, axes, source.invars, strict=True):
            padded.append(_in_size(row, size, atom.aval) if axis == 0 else row)
        on_rows = _on_rows(source, tuple(axes))
        results = on_rows(*padded)
        return [np.asarray(raw(result))[:n] for result in results]

    def _row(
        self,
        dimensions: tuple[str, ...],
        row: int,
    ) -> str:
        """A row of the space of some dimensions, in words."""
        instance = row
        for depth in range(len(dimensions), 0, -1):
            instance = int(
                np.searchsorted(
                    np.cumsum(self._sizes[dimensions[:depth]][1]),
                    instance,
                    side="right",
                )
            )
        return f"row {row}, of instance {instance}" if dimensions else f"instance {instance}"

    def _note(self, path: str) -> None:
        if path in self.missing:
            self._noted[-1].add(path)

    def _zeros(self, leaf: LeafSpec) -> np.ndarray:
        """Zeros in the place of a leaf that no instance has; none along dimensions that no other leaf has."""
        n = self._n
        for depth in range(len(leaf.dimensions)):
            none = leaf.path, np.zeros(n, np.int64)
            n = int(self._sizes.setdefault(leaf.dimensions[: depth + 1], none)[1].sum())
        return np.zeros((n, *leaf.shape), leaf.dtype)

    def _same_sizes(
        self,
        leaf: LeafSpec,
        depth: int,
        sizes: np.ndarray,
    ) -> None:
        dimensions = leaf.dimensions[: depth + 1]
        other, known = self._sizes.setdefault(dimensions, (leaf.path, sizes))
        if len(known) != len(sizes) or (known != sizes).any():
            if len(known) == len(sizes):
                at = int(np.flatnonzero(known != sizes)[0])
            else:
                at = -1
            got = f"{len(known)} and {len(sizes)} rows"
            if at >= 0:
                got = f"{known[at]} and {sizes[at]} in {self._row(dimensions[:-1], at)}"
            where = f"instances, dimension `{dimensions[-1]}`"
            fix = "Give both the same length, or the dimension another name in the spec."
            raise DataError(where, f"one length in `{other}` and `{leaf.path}`", got, fix)


@dataclass(frozen=True, eq=False)
class _Pumped:
    """The input of a pump.

    Args:
      payload: `[rows of its space, *shape]`.
      row_starts: For a ragged pump, `[rows of the space around]`: where each message's rows begin.
      sizes: For a ragged pump, likewise how many these are.

    Attributes:
      is_same: Whether all rows are the same, such as a loop's zeros: then they are not copied.
    """

    payload: np.ndarray
    row_starts: np.ndarray | None = None
    sizes: np.ndarray | None = None
    is_same: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "is_same",
            len(self.payload) > 0 and not self.payload.strides[0],
        )

    def of(self, chosen: ChosenMessages) -> Messages:
        """Some messages."""
        if self.row_starts is None or self.sizes is None:
            if self.is_same:
                payload = self._rows(chosen.rows)
            else:
                payload = chosen.of(self.payload)
            return Messages(payload, chosen.instance, chosen.fields)
        sizes = self.sizes.take(chosen.rows)
        rows = ranges(self.row_starts.take(chosen.rows), sizes)
        return Messages(self._rows(rows), chosen.instance, chosen.fields, sizes)

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        if not self.is_same:
            return self.payload.take(rows, axis=0)
        one = self.payload[: len(rows)]
        if len(one) == len(rows):
            return one
        return np.broadcast_to(
            one[0],
            (len(rows), *one.shape[1:]),
        )


class CompiledInstances:
    """A data set for a compiled graph (`ampjax.ir.instances.Instances`).

    Args:
      plans: What each pump gets.
      topologies: What each topology pump gets.
      columns: The data set.
      pumps: The pumps that get messages; None for all.

    Attributes:
      plans: What each pump gets.
      missing_labels: The leaves of the spec that no instance has, so that the data is for `predict` alone.
      leaves: The instances as they are, for training by batches.
    """

    def __init__(
        self,
        plans: Mapping[str, PumpPlan],
        topologies: Mapping[str, EdgePlan],
        columns: Columns,
        pumps: Collection[str] | None = None,
    ):
        self._n = len(columns)
        self.plans = plans
        self.missing_labels = columns.missing
        self.leaves = columns.as_read()
        fed = {*plans, *topologies} if pumps is None else pumps
        result = {}
        for name, plan in topologies.items():
            if name in fed:
                result[name] = InstanceTopologies(plan, columns)
        self._topologies = result
        regions: dict[Hashable, RegionMessages] = {}
        self._pumped: list[tuple[str, int, _Pumped]] = []
        self._regions: list[RegionMessages] = []
        for name, plan in plans.items():
            if name not in fed:
                continue
            key = plan.region.carrier, *plan.told.items()
            region = regions.get(key)
            if region is None:
                region = regions[key] = RegionMessages(
                    plan.region.carrier,
                    plan.told,
                    columns,
                )
                self._regions += [region] if len(region) else []
            if len(region):  # a pump that no instance has messages for is left out
                self._pumped.append(
                    (name, self._regions.index(region), _pump_payloads(plan, columns))
                )
        self._chosen = [
            (region.space, None if region.is_whole else region) for region in self._regions
        ]
        spaces = dict.fromkeys(
            outer for region in self._regions for outer in reversed(region.space.around())
        )
        self._spaces = [
            (space, SpaceMessages(space, columns))
            for space in sorted(spaces, key=lambda s: len(s.around()))
        ]

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
        whole: dict[IndexSpace, ChosenMessages] = {}
        for space, messages in self._spaces:
            outer = space.parent
            if outer is None:
                whole[space] = messages.of_instances(ids)
            else:
                whole[space] = messages.within(whole[outer])
        chosen = []
        for space, region in self._chosen:
            chosen.append(whole[space] if region is None else region.of(whole[space]))
        values = {}
        for name, region, pumped in self._pumped:
            values[name] = pumped.of(chosen[region])
        if self._topologies:
            each = np.arange(len(ids))
            values |= {name: Messages(one.of(ids), each) for name, one in self._topologies.items()}
        return values

    def __repr__(self) -> str:
        return f"CompiledInstances({self._n} instances, {len(self._pumped)} pumps)"


@contextmanager
def _noting(noted: list[set[str]]) -> Iterator[set[str]]:
    """Notes paths in a set of their own, and afterwards in the set around."""
    noted.append(set())
    try:
        yield noted[-1]
    finally:
        read = noted.pop()
        noted[-1].update(read)


def _outer_first(
    sizes: Mapping[tuple[str, ...], tuple[str, np.ndarray]],
) -> list[tuple[tuple[str, ...], tuple[str, np.ndarray]]]:
    """The sizes along each dimension, the outermost first."""
    return sorted(sizes.items(), key=lambda entry: len(entry[0]))


_COMPILED = (
    "add",
    "broadcast_in_dim",
    "concatenate",
    "lt",
    "reshape",
    "select_n",
    "slice",
    "squeeze",
)
"""Operations that are compiled, where they give no floats: nothing is rounded, and to lower them JAX computes nothing else."""


@functools.lru_cache(maxsize=1024)
def _on_rows(source: Any, axes: tuple[int | None, ...]) -> Callable[..., Any]:
    """One operation of the model on all rows at once, kept from batch to batch.

    Args:
      source: JAX's equation, on one row.
      axes: For each operand 0 for a column, None for what is the same for all rows.
    """
    function = jax.vmap(lambda *values: bind(source, values), in_axes=axes)
    kind = getattr(source.outvars[0].aval.dtype, "kind", "")
    is_exact = source.primitive.name in _COMPILED and kind in ("b", "i", "u")
    return jax.jit(function) if is_exact else function


def _of_another_model(lacked: str) -> DataError:
    """The error where a model reads data of another one, which lack something."""
    return DataError(
        "data",
        f"examples with {lacked}, as in the spec of the model",
        "those of another model",
        "Make them by this model's own `compiled.data`.",
    )


def _in_size(rows: np.ndarray, size: int, kind: Any) -> Any:
    """Makes a given number of values of a type, for JAX: a column's values, then zeros."""
    padded = np.concatenate(
        [
            rows,
            np.zeros(
                (size - len(rows), *rows.shape[1:]),
                rows.dtype,
            ),
        ]
    )
    return from_raw(padded.astype(raw_type(kind).dtype), kind.dtype)


def _pump_payloads(plan: PumpPlan, columns: Columns) -> _Pumped:
    """A pump's payloads for a whole data set."""
    space = plan.region.space
    n = space.n_rows(columns)
    parts = []
    for column in plan.payload:
        parts.append(
            np.asarray(
                column.inside(space).of(columns),
                plan.dtype,
            )
        )
    if not parts:
        payload = np.broadcast_to(np.zeros((), plan.dtype), n)
    elif len(parts) == 1:
        payload = parts[0]
    else:
        payload = np.concatenate(
            [part.reshape(n, int(np.prod(part.shape[1:]))) for part in parts],
            axis=1,
        )
    if space.is_ragged:
        return _Pumped(payload, space.starts(columns), space.lengths(columns))
    return _Pumped(payload)
