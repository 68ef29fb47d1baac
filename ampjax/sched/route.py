"""Routing: messages pass chains of control nodes until they reach stages. No payload is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.control import Bcast, Cond, Distribute, Flatmap, Isu, Phi, Repeat, Ungroup
from ampjax.ir.graph import Node
from ampjax.ir.instances import Topology
from ampjax.ir.state import SLOT, Layout, State, apply, column
from ampjax.sched.plan import Leaf, Targets
from ampjax.sched.slots import ROW, Cells


@dataclass(eq=False, slots=True)
class Batch:
    """Messages on their way, as columns.

    Args:
      states: `[n, width]` integers.
      cells: `[n]`, the messages' cells.
      train: False for inference: no activations are kept.
    """

    states: np.ndarray
    cells: np.ndarray
    train: bool

    def take(self, rows: np.ndarray) -> Batch:
        """Some of the messages."""
        return Batch(self.states[rows], self.cells[rows], self.train)


Deliver = Callable[[Leaf, Batch], None]


class Router:
    """Applies control nodes to batches.

    Args:
      layout: Where state fields stand.
      cells: The cell table; ungrouping, repeating and distributing make views in it.
      topologies: Maps of the instances in flight: pump name to instance slot to `Topology`.
    """

    def __init__(self, layout: Layout, cells: Cells, topologies: Mapping[str, Mapping[int, Topology]]):
        self._layout, self._cells, self._topologies = layout, cells, topologies
        self._apply = {
            Cond: self._cond,
            Phi: self._phi,
            Isu: self._isu,
            Bcast: self._bcast,
            Flatmap: self._flatmap,
            Repeat: self._repeat,
            Ungroup: self._ungroup,
            Distribute: self._distribute,
        }

    def route(self, targets: Targets, batch: Batch, deliver: Deliver) -> None:
        """Sends a batch along a route; `deliver` gets what arrives at each stage's port.

        Raises:
          MessageError: If a state function fails or gives something unusable, or a topology does not fit.
        """
        stack = [(targets, batch)]
        while stack:
            targets, batch = stack.pop()
            for target in targets:
                if isinstance(target, Leaf):
                    deliver(target, batch)
                    continue
                for output, part in self._apply[type(target.node.op)](target.node, batch):
                    if len(part.cells):
                        stack.append((target.targets[output], part))

    def _state(self, node: Node, batch: Batch) -> State:
        wire = node.inputs[0]
        assert wire is not None and wire.type is not None
        return State(batch.states, self._layout, wire.type.fields)

    def _cond(self, node: Node, batch: Batch) -> list[tuple[int, Batch]]:
        chosen = node.op.choose(f"node `{node.name}`, condition", self._state(node, batch))
        first = int(chosen[0])
        if len(chosen) == 1 or not np.count_nonzero(chosen != first):
            return [(first, batch)]
        return [(output, batch.take(chosen == output)) for output in range(node.op.n)]

    def _phi(self, node: Node, batch: Batch) -> list[tuple[int, Batch]]:
        return [(0, batch)]

    def _isu(self, node: Node, batch: Batch) -> list[tuple[int, Batch]]:
        after = apply(f"node `{node.name}`, f", node.op.function, self._state(node, batch))
        return [(0, Batch(self._checked(node, after, batch.states), batch.cells, batch.train))]

    def _bcast(self, node: Node, batch: Batch) -> list[tuple[int, Batch]]:
        return [(output, batch) for output in range(node.op.n)]

    def _flatmap(self, node: Node, batch: Batch) -> list[tuple[int, Batch]]:
        of, i = self._counted(node, batch)
        states = self._new_states(node, batch.states[of], i)
        return [(0, Batch(states, batch.cells[of], batch.train))]

    def _repeat(self, node: Node, batch: Batch) -> list[tuple[int, Batch]]:
        of, _ = self._counted(node, batch)
        slots = self._cells.table[batch.cells, ROW]
        views = self._cells.view(batch.cells, batch.states, None)
        sizes = np.bincount(of, minlength=len(views))
        for view, slot, size in zip(views.tolist(), slots.tolist(), sizes.tolist(), strict=True):
            self._cells.rows[view] = np.full(size, slot, np.int64)
        return [(0, Batch(batch.states, views, batch.train))]

    def _ungroup(self, node: Node, batch: Batch) -> list[tuple[int, Batch]]:
        slots, sizes = self._cells.rows_of(batch.cells)
        if not len(slots):
            return []
        of = np.repeat(np.arange(len(sizes)), sizes)
        i = np.arange(len(slots)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        states = self._new_states(node, batch.states[of], i)
        return [(0, Batch(states, self._cells.view(batch.cells[of], states, slots), batch.train))]

    def _distribute(self, node: Node, batch: Batch) -> list[tuple[int, Batch]]:
        wire = node.inputs[1]
        assert wire is not None
        outputs: list[list[np.ndarray]] = [[] for _ in range(node.op.n)]
        for cell, slot in zip(batch.cells.tolist(), batch.states[:, SLOT].tolist(), strict=True):
            rows = self._cells.rows[cell]
            maps = find_topology(node, wire.source.name, self._topologies, slot).gather
            if len(maps) != node.op.n:
                raise MessageError(
                    f"node `{node.name}`, topology `{wire.name}`",
                    f"{node.op.n} gather maps, one per output",
                    f"{len(maps)}",
                    "Make the Topology with one map per wire.",
                )
            for output, picks in enumerate(maps):
                if len(picks) and picks.max() >= len(rows):
                    raise MessageError(
                        f"node `{node.name}`, topology `{wire.name}`",
                        f"row numbers below {len(rows)}, the rows of the message",
                        f"{int(picks.max())}",
                        "Give the message a row for each node of the topology.",
                    )
                outputs[output].append(rows[picks])
        result = []
        for output, parts in enumerate(outputs):
            views = self._cells.view(batch.cells, batch.states, None)
            self._cells.rows.update(zip(views.tolist(), parts, strict=True))
            result.append((output, Batch(batch.states, views, batch.train)))
        return result

    def _counted(self, node: Node, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """For `count(s)` copies of each message: which message each copy is of, and its number among them."""
        where = f"node `{node.name}`, count"
        state = self._state(node, batch)
        counts = column(where, apply(where, node.op.count, state), len(batch.cells)).astype(np.int64)
        if (counts < 0).any():
            bad = state.take(np.flatnonzero(counts < 0)[:1])
            raise MessageError(
                where, "a count of at least 0", f"{int(counts.min())} for {bad!r}", "Mend the count function."
            )
        of = np.repeat(np.arange(len(counts)), counts)
        return of, np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)

    def _new_states(self, node: Node, states: np.ndarray, i: np.ndarray) -> np.ndarray:
        wire = node.inputs[0]
        assert wire is not None and wire.type is not None
        before = State(states, self._layout, wire.type.fields)
        return self._checked(node, apply(f"node `{node.name}`, state", lambda s: node.op.state(s, i), before), states)

    def _checked(self, node: Node, after: State, before: np.ndarray) -> np.ndarray:
        wire = node.outputs[0]
        assert wire.type is not None
        if (
            not isinstance(after, State)
            or after.array.shape != before.shape
            or set(after.fields) != set(wire.type.fields)
        ):
            raise MessageError(
                f"node `{node.name}`",
                f"states with the fields {sorted(wire.type.fields)}, as when the graph was built",
                f"{after!r}",
                "Let the function return the same fields for every state.",
            )
        return after.array


def find_topology(node: Node, pump: str, topologies: Mapping[str, Mapping[int, Topology]], slot: int) -> Topology:
    """The topology of the instance in a slot.

    Raises:
      MessageError: If it has not been pumped.
    """
    found = topologies.get(pump, {}).get(slot)
    if found is None:
        raise MessageError(
            f"node `{node.name}`",
            f"a topology on pump `{pump}` before the message",
            "none for this instance",
            "Pump the topology with the instance.",
        )
    return found
