"""What the controller pumps: instances, as columns of messages.

A training example enters the graph as a few messages on its pumps. For speed they come in batches: one struct of arrays
(`Messages`) per pump for many instances at once. A plain list of dictionaries, one per instance, is turned into that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ampjax.errors import DataError, MessageError


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

    def __post_init__(self) -> None:
        for name in ("gather", "scatter"):
            arrays = tuple(np.asarray(a, dtype=np.int64).reshape(-1) for a in getattr(self, name))
            object.__setattr__(self, name, arrays)
            if any(a.size and a.min() < 0 for a in arrays):
                raise DataError(
                    f"Topology.{name}", "row numbers of at least 0", "a negative row number", "Rows count from 0."
                )
        if any(a.size and a.max() >= self.n_rows for a in self.scatter):
            raise DataError(
                "Topology.scatter",
                f"row numbers below n_rows = {self.n_rows}",
                f"{max(int(a.max()) for a in self.scatter if a.size)}",
                "Give n_rows the number of rows that collect should make.",
            )

    @classmethod
    def from_edges(cls, senders: Any, receivers: Any, kinds: Any, n_node: int, n_kinds: int) -> Topology:
        """The maps of a graph whose edges have kinds: distribute by sender, collect at receiver, one wire per kind.

        Args:
          senders: Node numbers `[n_edge]`.
          receivers: Node numbers `[n_edge]`.
          kinds: Edge kinds `[n_edge]`, each in `[0, n_kinds)`.
          n_node: Number of nodes.
          n_kinds: Number of edge kinds, that is, of wires.
        """
        senders, receivers, kinds = (np.asarray(a, dtype=np.int64).reshape(-1) for a in (senders, receivers, kinds))
        picks = [np.flatnonzero(kinds == kind) for kind in range(n_kinds)]
        return cls(tuple(senders[p] for p in picks), tuple(receivers[p] for p in picks), n_node)

    @classmethod
    def from_kinds(cls, kinds: Any, n_kinds: int) -> Topology:
        """The maps that send row `i` to wire `kinds[i]` and put it back at place `i`."""
        kinds = np.asarray(kinds, dtype=np.int64).reshape(-1)
        picks = tuple(np.flatnonzero(kinds == kind) for kind in range(n_kinds))
        return cls(picks, picks, len(kinds))


@dataclass(frozen=True)
class Messages:
    """Messages for one pump, as columns.

    Args:
      payload: `[m, *shape]`, a row per message; for a ragged pump `[sum(sizes), *shape]`; for a topology pump a list of `Topology`.
      instance: `[m]`, each message's instance, as a position in the batch of instances that it belongs to.
      fields: State columns by name, each `[m]` or a scalar.
      sizes: For ragged pumps, `[m]`: rows of each message.
    """

    payload: Any
    instance: np.ndarray
    fields: Mapping[str, Any] = field(default_factory=dict)
    sizes: np.ndarray | None = None


@runtime_checkable
class Instances(Protocol):
    """A data set: it has a length and hands out many instances at once, as columns."""

    def __len__(self) -> int: ...

    def gather(self, ids: np.ndarray) -> Mapping[str, Messages]:
        """The messages of the instances `ids` (`[n]`), by pump; `Messages.instance` counts positions in `ids`."""
        ...


@dataclass(frozen=True)
class Pumped:
    """Several messages of one instance for one pump; made by `messages`."""

    payload: Any
    fields: Mapping[str, Any]
    sizes: Any = None


def messages(payload: Any, *, sizes: Any = None, **fields: Any) -> Pumped:
    """Messages of one instance for one pump.

    Args:
      payload: `[m, *shape]`: a row per message (for a ragged pump: the rows of all messages, one after the other).
      sizes: For ragged pumps only, `[m]`: rows of each message.
      **fields: State fields: a scalar for all messages, or `[m]`.

    >>> messages([3, 1, 4], t=[0, 1, 2], length=3).fields["length"]
    3
    """
    return Pumped(payload if isinstance(payload, Topology) else np.asarray(payload), fields, sizes)


class InstanceList:
    """A data set from a sequence of dictionaries, one per instance: pump name to payload, or to `messages(...)`.

    A bare payload is one message with no state fields (for a ragged pump: one message whose rows are the payload's).

    Args:
      instances: The dictionaries.
      ragged: Names of the ragged pumps.

    Raises:
      MessageError: From `gather`, when an instance's columns do not agree in length.
    """

    def __init__(self, instances: Sequence[Mapping[str, Any]], ragged: Sequence[str] = ()):
        self._instances, self._ragged = instances, frozenset(ragged)

    def __len__(self) -> int:
        return len(self._instances)

    def gather(self, ids: np.ndarray) -> Mapping[str, Messages]:
        """The messages of the instances `ids`, by pump."""
        columns: dict[str, list[tuple[Any, int, int, Mapping[str, Any], Any]]] = {}
        for position, i in enumerate(np.asarray(ids).tolist()):
            for pump, value in self._instances[i].items():
                columns.setdefault(pump, []).append((*self._count(pump, i, value), position))  # type: ignore[arg-type]
        return {pump: self._stack(pump, parts) for pump, parts in columns.items()}

    def _count(self, pump: str, i: int, value: Any) -> tuple[Any, int, Mapping[str, Any], Any]:
        """One instance's `(payload, messages, fields, sizes)` for a pump."""
        if isinstance(value, Topology):
            return [value], 1, {}, None
        if not isinstance(value, Pumped):
            payload = np.asarray(value)
            return (payload, 1, {}, [len(payload)]) if pump in self._ragged else (payload[None], 1, {}, None)
        if pump in self._ragged:
            sizes = [len(value.payload)] if value.sizes is None else list(value.sizes)
            n, rows = len(sizes), int(sum(sizes))
        else:
            sizes, n = None, len(value.payload)
            rows = n
        if rows != len(value.payload):
            raise MessageError(
                f"pump `{pump}`, instance {i}",
                f"{rows} payload rows, as the sizes say",
                f"{len(value.payload)}",
                "Make the sizes add up.",
            )
        for name, column in value.fields.items():
            if np.ndim(column) and len(column) != n:
                raise MessageError(
                    f"pump `{pump}`, instance {i}, state field `{name}`",
                    f"a scalar or {n} values, one per message",
                    f"{len(column)} values",
                    "Give each message one value.",
                )
        return value.payload, n, value.fields, sizes

    def _stack(self, pump: str, parts: list[Any]) -> Messages:
        payloads = [part[0] for part in parts]
        counts = [part[1] for part in parts]
        instance = np.repeat(np.array([part[4] for part in parts], dtype=np.int64), counts)
        payload = [p for ps in payloads for p in ps] if isinstance(payloads[0], list) else np.concatenate(payloads)
        names = list(parts[0][2])
        for part in parts:
            if sorted(part[2]) != sorted(names):
                raise MessageError(
                    f"pump `{pump}`",
                    f"the same state fields in every instance ({names})",
                    f"{list(part[2])}",
                    "Give every message the same fields.",
                )
        fields = {
            name: np.concatenate(
                [
                    np.broadcast_to(np.asarray(part[2][name], dtype=np.int64), (n,))
                    for part, n in zip(parts, counts, strict=True)
                ]
            )
            for name in names
        }
        sizes = (
            np.concatenate([np.asarray(part[3], dtype=np.int64) for part in parts]) if parts[0][3] is not None else None
        )
        return Messages(payload, instance, fields, sizes)
