"""The operations of a host, in order, as a few arrays of numbers: launches, halves of transfers, pumped payloads, parameter changes.

A batch is one message: whole numbers of all operations one after the other, the packs of launches in the layout that kernels take, further
columns of whole numbers, floats, and pumped payloads as they are. Nothing in it is a program: a host reads numbers, and looks up stages,
nodes and arenas in its own plan, which is the same as the driver's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ampjax.engine.kernels.launch import Launch
from ampjax.plan.planner import Plan
from ampjax.plan.stages import HOST, ArenaKey
from ampjax.sched.decisions.dispatch import DIRECTIONS
from ampjax.sched.decisions.packs import PackMemory
from ampjax.sched.decisions.parameter_changes import (
    Average,
    Change,
    Contribute,
    JointUpdate,
    Merge,
    Update,
    nodes_of,
)
from ampjax.sched.programs.feeds import Feed
from ampjax.unfold.rules.edges import DispatchEdges

LAUNCH, TAKE, PUT, FEED, CHANGE, FORGET = range(6)
"""Operations: a launch; the halves of a transfer from or to another host; a pumped payload; a parameter change; all that is in flight is given
up."""

_CHANGES = (Update, Average, Contribute, Merge)
_DIRECTION = {name: number for number, name in enumerate(DIRECTIONS)}
BRINGS_UPDATES, _SIZES, _EDGES, _RANDOM, _VERSIONS, _DROP, _STALENESS, _DROPPED, _INSTANCES = (
    1 << n for n in range(9)
)


class Operation(NamedTuple):
    """One thing that a host does.

    Args:
      code: What it is.
      peer: The other host of a transfer.
      what: The launch, feed or change.
      number: Of the launch that a change belongs to.
    """

    code: int
    peer: int
    what: Launch | Feed | Change | None
    number: int = 0


@dataclass(frozen=True, eq=False)
class Names:
    """The meaning of numbers in operations, which follows from the plan and so is the same in all processes.

    Args:
      nodes: The nodes' names.
      arenas: The arenas in host memory.
    """

    nodes: tuple[str, ...]
    arenas: tuple[ArenaKey, ...]

    @classmethod
    def of(cls, plan: Plan) -> Names:
        """The names of a plan."""
        arenas = dict.fromkeys(
            port.arena for stage in plan.stages for port in stage.ports if port.space == HOST
        )
        return cls(tuple(plan.graph.nodes), tuple(arenas))


MadeFor = tuple[int, int | None]
"""The number of the launch that an operation is or belongs to, and the first of that one's parameter changes that it makes; None if it is the launch itself."""


class BatchWriter:
    """Operations that wait to be sent to one host.

    Args:
      names: What numbers stand for.

    Attributes:
      made_for: What each was made for; None for what belongs to no launch.
    """

    def __init__(self, names: Names):
        self._node = {name: number for number, name in enumerate(names.nodes)}
        self._arena = {key: number for number, key in enumerate(names.arenas)}
        self._groups: dict[str, int] = {}
        self._clear()

    def _clear(self) -> None:
        self.made_for: list[MadeFor | None] = []
        self._head: list[int] = []
        self._packs: list[np.ndarray] = []
        self._columns: list[np.ndarray] = []
        self._floats: list[float] = []
        self._payloads: list[np.ndarray] = []

    @property
    def n(self) -> int:
        """The number of operations."""
        return len(self.made_for)

    def launch(
        self,
        launch: Launch,
        code: int = LAUNCH,
        peer: int = 0,
    ) -> None:
        """Adds a launch, or half of a transfer.

        Args:
          launch: The launch; its changes are updates.
          code: What it is.
          peer: The other host of a transfer.
        """
        number, worker, stage, direction, n_messages, n_rows, n_ports, n_outputs, pack, size = (
            launch[:10]
        )
        rare = self._flags(launch) if _has_more(launch) else 0
        updates = []
        for change in launch.changes:
            assert isinstance(change, Update)
            updates.append((self._node[change.node], change.count, change.mean_staleness))
        numbers = worker, stage, _DIRECTION[direction], n_messages, n_rows, n_ports, n_outputs, size
        self.launch_numbers(
            (code, peer, number, *numbers),
            pack,
            launch.capacities,
            updates,
            rare,
        )
        if rare:
            self._add_rare(launch)

    def launch_numbers(
        self,
        numbers: Sequence[int],
        pack: np.ndarray,
        capacities: Sequence[int],
        updates: Sequence[tuple[int, int, float]] = (),
        rare: int = 0,
    ) -> None:
        """Adds the fields that all launches and halves of transfers have.

        Args:
          numbers: What it is, the other host of a transfer, the launch's number, worker, stage and direction (by number), messages, rows, ports, outputs,
            and the size that it is padded to.
          pack: As in `Launch`.
          capacities: As in `Launch`.
          updates: The updates that follow: node (by number), gradient rows, mean staleness.
          rare: `BRINGS_UPDATES` if these are as `Launch.brings_updates` says. What other flags announce must follow (`launch`).
        """
        self._head += numbers
        self._head += (
            len(pack),
            len(capacities),
            len(updates),
            rare,
            *capacities,
        )
        (self._packs if numbers[-1] else self._columns).append(pack)
        for node, count, staleness in updates:
            self._head += (node, count)
            self._floats.append(staleness)
        self.made_for.append((numbers[2], None))

    def feed(self, feed: Feed) -> None:
        """Adds a pumped payload.

        Args:
          feed: The payload; copied, since a data set may use its buffers again.
        """
        self._head += (
            FEED,
            self._arena[feed.arena],
            len(feed.slots),
            feed.capacity,
        )
        self._columns.append(np.array(feed.slots))
        self._payloads.append(np.array(feed.payload))
        self.made_for.append(None)

    def change(
        self,
        change: Change,
        number: int,
        n_before: int = 0,
    ) -> None:
        """Adds a parameter change.

        Args:
          change: The change.
          number: The launch that it belongs to.
          n_before: How many of that one's changes come before it.
        """
        if isinstance(change, Update):
            self._head += (
                CHANGE,
                number,
                0,
                0,
                1,
                self._node[change.node],
                change.count,
                change.examples,
            )
            self._floats.append(change.mean_staleness)
        else:
            assert not isinstance(change, JointUpdate)  # the driver makes it
            group = self._groups.setdefault(change.group, len(self._groups))
            numbers = [self._node[node] for node in nodes_of(change)]
            self._head += (
                CHANGE,
                number,
                _CHANGES.index(type(change)),
                group,
                len(numbers),
                *numbers,
            )
        self.made_for.append((number, n_before))

    def forget(self) -> None:
        """Adds that all that is in flight is given up."""
        self._head.append(FORGET)
        self.made_for.append(None)

    def take(self) -> list[np.ndarray]:
        """Takes all that waits.

        Returns:
          The arrays of a message; `operations` reads them.
        """
        columns = []
        for column in self._columns:
            columns.append(np.asarray(column, np.int64).ravel())
        arrays = [
            np.array(self._head, np.int64),
            np.concatenate(self._packs) if self._packs else np.zeros(0, np.int32),
            np.concatenate(columns) if columns else np.zeros(0, np.int64),
            np.array(self._floats, np.float64),
            *self._payloads,
        ]
        self._clear()
        return arrays

    def _flags(self, launch: Launch) -> int:
        """Flags of a launch's rare fields."""
        edges = launch.edges
        present = (
            launch.brings_updates,
            launch.sizes is not None,
            edges is not None,
            edges is not None and edges.random,
        )
        parts = (
            *present,
            launch.versions is not None,
            launch.drop,
            launch.staleness is not None,
            bool(launch.dropped),
        )
        parts = *parts, launch.instances is not None
        some = sum(1 << bit for bit, is_there in enumerate(parts) if is_there)
        return some | len(launch.scatter) << 9 | len(launch.seeds) << 17

    def _add_rare(self, launch: Launch) -> None:
        columns = [] if launch.sizes is None else [launch.sizes]
        if launch.edges is not None:
            e = launch.edges
            columns += [
                np.array(e.counts.shape),
                e.senders,
                e.receivers,
                e.counts,
                e.n_rows,
            ]
        columns += [*launch.scatter, *launch.seeds]
        if launch.versions is not None:
            columns.append(np.array(launch.versions, np.int64))
        if launch.instances is not None:
            columns.append(launch.instances)
        self._head += map(np.size, columns)
        self._columns += columns
        if launch.staleness is not None:
            self._head.append(len(launch.staleness))
            self._floats += launch.staleness
        if launch.dropped:
            self._head += (
                len(launch.dropped),
                *[self._node[node] for node in launch.dropped],
            )


def _has_more(launch: Launch) -> bool:
    """Whether a launch has anything that most have not."""
    return bool(
        launch.brings_updates
        or launch.dropped
        or launch.seeds
        or launch.scatter
        or launch.sizes is not None
        or launch.edges is not None
        or launch.versions is not None
        or launch.staleness is not None
        or launch.instances is not None
    )


class _BatchReader:
    """Reads the arrays of a message one after the other."""

    def __init__(self, arrays: Sequence[np.ndarray], memory: PackMemory):
        head, packs, self._columns, floats, *self._payloads = arrays
        self._head = head.tolist()
        self._head_at = 0
        self._column_at = 0
        self._floats = iter(floats.tolist())
        self._payload = iter(self._payloads)
        self._packs, self._pack_at = memory.keep(packs) if len(packs) else (packs, 0)

    def numbers(self, n: int) -> list[int]:
        start = self._head_at
        self._head_at = self._head_at + n
        return self._head[start : self._head_at]

    def column(self, n: int) -> np.ndarray:
        start = self._column_at
        self._column_at = self._column_at + n
        return self._columns[start : self._column_at]

    def pack(self, n: int) -> tuple[np.ndarray, int]:
        start = self._pack_at
        self._pack_at = self._pack_at + n
        return self._packs[start : self._pack_at], start

    def update(
        self,
        node: str,
        count: int,
        examples: int = 0,
    ) -> Update:
        return Update(node, count, next(self._floats), examples=examples)

    def floats(self, n: int) -> tuple[float, ...]:
        return tuple(itertools.islice(self._floats, n))

    def payload(self) -> np.ndarray:
        return next(self._payload)

    @property
    def more(self) -> bool:
        return self._head_at < len(self._head)


def operations(
    arrays: Sequence[np.ndarray], names: Names, memory: PackMemory
) -> Iterator[Operation]:
    """Reads the operations that `BatchWriter.take` has given.

    Args:
      arrays: These.
      names: What numbers stand for.
      memory: Keeps the packs of launches, one behind the other, so that kernels take those that coalesce as one array.

    Yields:
      The operations in order.
    """
    read = _BatchReader(arrays, memory)
    while read.more:
        (code,) = read.numbers(1)
        if code == FEED:
            arena, n, capacity = read.numbers(3)
            yield Operation(
                FEED,
                0,
                Feed(
                    "",
                    names.arenas[arena],
                    read.column(n),
                    read.payload(),
                    capacity,
                ),
            )
        elif code == CHANGE:
            (number,) = read.numbers(1)
            yield Operation(CHANGE, 0, _change(read, names), number)
        elif code == FORGET:
            yield Operation(FORGET, 0, None)
        else:
            (peer,) = read.numbers(1)
            yield Operation(code, peer, _launch(read, names))


def _change(read: _BatchReader, names: Names) -> Change:
    kind, group, n = read.numbers(3)
    nodes = tuple(names.nodes[number] for number in read.numbers(n))
    if kind == 0:
        return read.update(nodes[0], *read.numbers(2))
    if _CHANGES[kind] is Contribute:
        return Contribute(f"{group}", nodes[0])
    return (Average if _CHANGES[kind] is Average else Merge)(f"{group}", nodes)


def _launch(read: _BatchReader, names: Names) -> Launch:
    number, worker, stage, direction, n_messages, n_rows, n_ports, n_outputs, size, length = (
        read.numbers(10)
    )
    n_capacities, n_changes, rare = read.numbers(3)
    capacities = read.numbers(n_capacities)
    if size:
        pack, place = read.pack(length)
    else:
        pack = read.column(length).astype(np.int32)
        place = 0
    updates = [read.numbers(2) for _ in range(n_changes)]
    changes = tuple([read.update(names.nodes[node], count) for node, count in updates])
    launch = Launch(
        number,
        worker,
        stage,
        DIRECTIONS[direction],
        n_messages,
        n_rows,
        n_ports,
        n_outputs,
        pack,
        size,
        place,
        capacities,
        changes,
    )
    if rare:
        return launch._replace(**_rare(read, rare, names))
    return launch


def _rare(
    read: _BatchReader,
    flags: int,
    names: Names,
) -> dict[str, object]:
    n_scatter = flags >> 9 & 255
    n_seeds = flags >> 17
    sizes = flags & _SIZES
    edges = flags & _EDGES
    versions = flags & _VERSIONS
    instances = flags & _INSTANCES
    singles = sum(map(bool, (sizes, versions, instances)))
    lengths = iter(read.numbers(singles + 5 * bool(edges) + n_scatter + n_seeds))

    def column() -> np.ndarray:
        return read.column(next(lengths))

    return {
        "brings_updates": bool(flags & BRINGS_UPDATES),
        "sizes": column() if sizes else None,
        "edges": _edges(column, bool(flags & _RANDOM)) if edges else None,
        "scatter": [column() for _ in range(n_scatter)],
        "seeds": [column().astype(np.uint32) for _ in range(n_seeds)],
        "versions": tuple(column().tolist()) if versions else None,
        "instances": column() if instances else None,
        "drop": bool(flags & _DROP),
        "staleness": read.floats(*read.numbers(1)) if flags & _STALENESS else None,
        "dropped": tuple([names.nodes[n] for n in read.numbers(*read.numbers(1))])
        if flags & _DROPPED
        else (),
    }


def _edges(
    column: Callable[[], np.ndarray],
    random: bool,
) -> DispatchEdges:
    shape = column()
    senders, receivers, counts, n_rows = (column() for _ in range(4))
    return DispatchEdges(senders, receivers, counts.reshape(shape), n_rows, random)
