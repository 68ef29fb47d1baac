"""Instances: the data that the controller pumps, as columns of messages.

A training example enters the graph as a few messages on its pumps. For speed they come in batches: one struct of arrays
(`Messages`) per pump for many instances at once. A plain list of dictionaries, one per instance, is turned into that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ampjax.errors import DataError, MessageError


@dataclass(frozen=True, eq=False)
class EdgeList:
    """A topology's edges as columns, one kind after the other.

    Args:
      ends: `[2, edges]`: senders, the rows that are picked, and receivers, the rows that they are added to.
      counts: `[kinds]`: edges of each kind.
      n_senders: Rows that there must be at least to pick from.
      n_rows: Rows that are collected.
    """

    ends: np.ndarray
    counts: np.ndarray
    n_senders: int
    n_rows: int


@dataclass(frozen=True)
class Topology:
    """One instance's integer maps for `distribute` and `collect` (ICLR version, figure 3); stays on the host.

    Output `j` of `distribute` holds the rows `gather[j]` of its input. Row `i` of input `j` of `collect` is added to row
    `scatter[j][i]` of its output, which has `n_rows` rows; rows that receive nothing are zero.

    Args:
      gather: One integer array `[e_j]` per output of `distribute`.
      scatter: One integer array `[e_j]` per input of `collect`.
      n_rows: Rows of `collect`'s output.
    """

    gather: tuple[np.ndarray, ...]
    scatter: tuple[np.ndarray, ...]
    n_rows: int
    _edges: dict[tuple[int, ...], EdgeList] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for name in ("gather", "scatter"):
            arrays = tuple(np.asarray(a, dtype=np.int64).reshape(-1) for a in getattr(self, name))
            object.__setattr__(self, name, arrays)
            if any(a.size and a.min() < 0 for a in arrays):
                raise DataError(
                    f"Topology.{name}",
                    "row numbers of at least 0",
                    "a negative row number",
                    "Count rows from 0, and leave out rows that go nowhere: a negative number does not count from the end.",
                )
        if any(a.size and a.max() >= self.n_rows for a in self.scatter):
            raise DataError(
                "Topology.scatter",
                f"row numbers below n_rows = {self.n_rows}",
                f"{max(int(a.max()) for a in self.scatter if a.size)}",
                "Give n_rows the number of rows that collect should make.",
            )

    def edges(self, outputs: tuple[int, ...]) -> EdgeList:
        """The edges whose senders are `gather[outputs[i]]` and whose receivers `scatter[i]`, for each `i`; made once.

        Args:
          outputs: Outputs of `distribute`, in the order of the inputs of `collect`.

        Returns:
          The edges as columns.
        """
        if outputs not in self._edges:
            picks = [self.gather[output] for output in outputs]
            ends = np.stack(
                [
                    np.concatenate(picks),
                    np.concatenate(self.scatter[: len(outputs)]),
                ]
            ).astype(np.int32)
            n_senders = max(
                (int(a.max()) + 1 for a in self.gather if a.size),
                default=0,
            )
            self._edges[outputs] = EdgeList(
                ends,
                np.array([len(a) for a in picks]),
                n_senders,
                self.n_rows,
            )
        return self._edges[outputs]

    @classmethod
    def from_edges(
        cls,
        senders: Any,
        receivers: Any,
        kinds: Any,
        n_node: int,
        n_kinds: int,
    ) -> Topology:
        """The maps of a graph whose edges have kinds: distribute by sender, collect at receiver, one wire per kind.

        Args:
          senders: Node numbers `[n_edge]`.
          receivers: Node numbers `[n_edge]`.
          kinds: Edge kinds `[n_edge]`, each in `[0, n_kinds)`.
          n_node: Number of nodes.
          n_kinds: Number of edge kinds, that is, of wires.

        Returns:
          The topology.
        """
        senders, receivers, kinds = (
            np.asarray(a, dtype=np.int64).reshape(-1) for a in (senders, receivers, kinds)
        )
        picks = [np.flatnonzero(kinds == kind) for kind in range(n_kinds)]
        return cls(
            tuple(senders[p] for p in picks),
            tuple(receivers[p] for p in picks),
            n_node,
        )

    @classmethod
    def from_kinds(cls, kinds: Any, n_kinds: int) -> Topology:
        """The maps that send row `i` to wire `kinds[i]` and put the row back at place `i`.

        Args:
          kinds: The wire of each row, `[n]` integers in `[0, n_kinds)`.
          n_kinds: Number of wires.

        Returns:
          The topology.
        """
        kinds = np.asarray(kinds, dtype=np.int64).reshape(-1)
        picks = tuple(np.flatnonzero(kinds == kind) for kind in range(n_kinds))
        return cls(picks, picks, len(kinds))


@dataclass(frozen=True)
class Messages:
    """Messages for one pump, as columns.

    Args:
      payload: `[m, *shape]`, a row per message; for a ragged pump `[sum(sizes), *shape]`; for a topology pump a list of `Topology`.
      instance: `[m]`: which instance each message belongs to, as a position in the `ids` that `gather` was asked for, not as one of these.
      fields: Integer state columns by name, each `[m]` or a scalar.
      sizes: For ragged pumps, `[m]`: rows of each message.
    """

    payload: Any
    instance: np.ndarray
    fields: Mapping[str, Any] = field(default_factory=dict)
    sizes: np.ndarray | None = None


@runtime_checkable
class Instances(Protocol):
    """A data set with a length, which hands out many instances at once, as columns.

    It may have an attribute `sizes` `[n]`: how large each instance is, for the setting `group_by_size`; and one `missing_labels`, names
    of what losses need and it has not, so that only `predict` takes it.
    """

    def __len__(self) -> int: ...

    def gather(self, ids: np.ndarray) -> Mapping[str, Messages]:
        """Gives the messages of some instances, by pump.

        Args:
          ids: `[n]`: which instances.

        Returns:
          By pump, the messages as columns. Message `i` belongs to instance `ids[messages.instance[i]]`; `ids` may have repeats.
        """
        ...


def declared_sizes(data: Any) -> np.ndarray | None:
    """The `sizes` of a data set, a number `[n]` for each instance; None for a data set without sizes.

    Raises:
      DataError: If they are not one number for each instance.
    """
    sizes = getattr(data, "sizes", None)
    if sizes is None:
        return None
    sizes = np.asarray(sizes)
    if sizes.shape != (len(data),) or sizes.dtype.kind not in "iufb":
        raise DataError(
            f"{type(data).__name__}.sizes",
            f"a number for each of the {len(data)} instances",
            f"{sizes.dtype} of shape {sizes.shape}",
            "Mend or remove it: without `sizes`, messages are counted.",
        )
    return sizes


class Subset:
    """Some instances of a data set, in an order of their own.

    Args:
      data: The data set.
      ids: `[m]`: which instances, in which order; may repeat.

    >>> some = Subset(InstanceList([{"x": 0.5}, {"x": 1.5}, {"x": 2.5}]), np.array([2, 0]))
    >>> len(some), some.gather(np.array([0, 1]))["x"].payload.tolist()
    (2, [2.5, 0.5])
    """

    def __init__(self, data: Instances, ids: np.ndarray):
        self._data = data
        self._ids = np.asarray(ids, dtype=np.int64)

    @property
    def sizes(self) -> np.ndarray | None:
        """`[m]`: how large each instance is, if the data set says so."""
        sizes = declared_sizes(self._data)
        return None if sizes is None else sizes[self._ids]

    def __len__(self) -> int:
        return len(self._ids)

    def gather(self, ids: np.ndarray) -> Mapping[str, Messages]:
        """Gives the messages of some instances, by pump.

        Args:
          ids: `[n]`: which instances, as positions in this selection.

        Returns:
          By pump, the messages as columns.
        """
        return self._data.gather(self.locate(ids)[1])

    def locate(self, ids: np.ndarray) -> tuple[Instances, np.ndarray]:
        """Finds some instances of this selection in the data set behind the selection.

        Args:
          ids: `[n]`: which instances, as positions in this selection.

        Returns:
          The data set, and `[n]` their positions in it.
        """
        return self._data, self._ids[np.asarray(ids, dtype=np.int64)]

    def __repr__(self) -> str:
        return f"Subset({len(self)} of {len(self._data)} instances)"


@dataclass(frozen=True)
class Pumped:
    """Several messages of one instance for one pump; made by `messages`."""

    payload: Any
    fields: Mapping[str, Any]
    sizes: Any = None


def messages(
    payload: Any,
    *,
    sizes: Any = None,
    **fields: Any,
) -> Pumped:
    """Messages of one instance for one pump.

    Args:
      payload: `[m, *shape]`: a row per message (for a ragged pump: the rows of all messages, one after the other).
      sizes: For ragged pumps only, `[m]`: rows of each message.
      **fields: State fields: a scalar for all messages, or `[m]`.

    Returns:
      The messages, as a value in an instance's dictionary.

    >>> messages([3, 1, 4], t=[0, 1, 2], length=3).fields["length"]
    3
    """
    return Pumped(
        payload if isinstance(payload, Topology) else np.asarray(payload),
        fields,
        sizes,
    )


class InstanceList:
    """A data set from a sequence of dictionaries, one per instance: pump name to payload, or to `messages(...)`.

    A bare payload is one message with no state fields (for a ragged pump: one message whose rows are the payload's).

    Args:
      instances: The dictionaries.
      ragged: Names of the ragged pumps.

    Raises:
      MessageError: From `gather`, when an instance is no dictionary, or its columns do not fit each other.
    """

    def __init__(
        self,
        instances: Sequence[Mapping[str, Any]],
        ragged: Sequence[str] = (),
    ):
        self._instances = instances
        self._ragged = frozenset(ragged)

    def __len__(self) -> int:
        return len(self._instances)

    def gather(self, ids: np.ndarray) -> Mapping[str, Messages]:
        """Gives the messages of some instances, by pump.

        Args:
          ids: `[n]`: which instances.

        Returns:
          By pump, the messages of all these instances as columns.

        Raises:
          MessageError: If an instance is no dictionary, or its columns do not fit each other or those of other instances.
        """
        parts: dict[str, list[_PumpedPart]] = {}
        for position, i in enumerate(np.asarray(ids).tolist()):
            instance = self._instances[i]
            if not isinstance(instance, Mapping):
                raise MessageError(
                    f"instance {i}",
                    "a dictionary from pump names to payloads",
                    f"{type(instance).__name__}",
                    'Give each instance as `{pump: payload, ...}`: of columns, for example, `[{"x": x, "y": y} for x, y in zip(xs, ys)]`.',
                )
            # Part by part first, with errors that name the instance; then columns of all instances,
            # pump by pump.
            for pump, value in instance.items():
                where = f"pump `{pump}`, instance {i}"
                parts.setdefault(pump, []).append(
                    _part(where, position, value, pump in self._ragged)
                )
        return {pump: _stack_parts(pump, of_pump) for pump, of_pump in parts.items()}


@dataclass(frozen=True)
class _PumpedPart:
    """One instance's messages for one pump: `n` messages, at a position in the batch."""

    where: str
    position: int
    payload: Any
    n: int
    fields: Mapping[str, Any]
    sizes: Any


def _part(
    where: str,
    position: int,
    value: Any,
    ragged: bool,
) -> _PumpedPart:
    pumped = value if isinstance(value, Pumped) else Pumped(value, {})
    if isinstance(pumped.payload, Topology):
        return _PumpedPart(
            where,
            position,
            [pumped.payload],
            1,
            pumped.fields,
            None,
        )
    payload = np.asarray(pumped.payload)
    if ragged and payload.ndim == 0:
        raise MessageError(
            where,
            "rows for a ragged pump",
            "a scalar",
            "Give an array whose first axis counts rows.",
        )
    # A plain payload is one message; rows of `Pumped` are messages of their own.
    if not isinstance(value, Pumped) and not ragged:
        payload = payload[None]
    sizes = None
    n = rows = len(payload)
    if ragged:
        if pumped.sizes is None:
            sizes = [len(payload)]
        else:
            sizes = [int(size) for size in pumped.sizes]
        n = len(sizes)
        rows = sum(sizes)
    if rows != len(payload):
        raise MessageError(
            where,
            f"{rows} payload rows, as the sizes say",
            f"{len(payload)}",
            "Give `sizes` one number of rows for each message; their sum is the payload's length.",
        )
    for name, column in pumped.fields.items():
        _check_field(f"{where}, state field `{name}`", np.asarray(column), n)
    return _PumpedPart(where, position, payload, n, pumped.fields, sizes)


def _check_field(
    where: str,
    values: np.ndarray,
    n: int,
) -> None:
    """Checks that a state field has an integer for each of `n` messages, or one for all."""
    if values.ndim and len(values) != n:
        raise MessageError(
            where,
            f"a scalar or {n} values, one per message",
            f"{len(values)} values",
            "Give each message one value.",
        )
    if values.dtype.kind not in "iub" and values.size:
        raise MessageError(
            where,
            "integers",
            f"{values.dtype}",
            "States are integers: convert them.",
        )


def _stack_parts(pump: str, parts: list[_PumpedPart]) -> Messages:
    first = parts[0]
    for part in parts:
        _check_alike(pump, first, part)
    fields = {}
    for name in first.fields:
        fields[name] = np.concatenate(
            [
                np.broadcast_to(
                    np.asarray(part.fields[name], dtype=np.int64),
                    (part.n,),
                )
                for part in parts
            ]
        )
    payload = (
        [t for part in parts for t in part.payload]
        if isinstance(first.payload, list)
        else np.concatenate(
            [part.payload for part in parts if len(part.payload)] or [first.payload]
        )  # [] would make floats
    )
    # Each message names the place of its instance in the batch.
    instance = np.repeat(
        np.array([part.position for part in parts], dtype=np.int64),
        [part.n for part in parts],
    )
    if first.sizes is None:
        sizes = None
    else:
        sizes = np.concatenate([np.asarray(part.sizes, dtype=np.int64) for part in parts])
    return Messages(payload, instance, fields, sizes)


def _check_alike(
    pump: str,
    first: _PumpedPart,
    part: _PumpedPart,
) -> None:
    """Checks that an instance has the same fields and rows of the same shape for a pump as the first one."""
    if sorted(part.fields) != sorted(first.fields):
        raise MessageError(
            f"pump `{pump}`",
            f"the same state fields in every instance ({list(first.fields)})",
            f"{list(part.fields)}",
            "Give every message the same fields.",
        )
    are_lists = isinstance(part.payload, list), isinstance(first.payload, list)
    shape = np.shape(part.payload)[1:]
    expected = np.shape(first.payload)[1:]
    if are_lists[0] != are_lists[1] or shape != expected:
        raise MessageError(
            part.where,
            f"rows of shape {expected}, as in other instances",
            f"{shape}",
            "Give all instances rows of the pump's shape.",
        )
