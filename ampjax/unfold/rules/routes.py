"""Routing: messages pass control nodes up to the next stages. No payload is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.instances import Topology
from ampjax.ir.nodes import Node
from ampjax.ir.ops.control_nodes import Bcast, Cond, Flatmap, Isu, Phi, Relabel
from ampjax.ir.ops.ragged_nodes import Distribute, Repeat, Ungroup
from ampjax.ir.state import HANDLE, Layout, State, apply, column, columns_of
from ampjax.plan.stages import ControlStep, StagePort, Targets
from ampjax.unfold.rules.message_columns import MessageTable


@dataclass(eq=False, slots=True)
class MessageBatch:
    """Messages on their way, as columns.

    Args:
      states: `[n, width]` integers.
      messages: `[n]`: the messages, by their numbers in the table.
    """

    states: np.ndarray
    messages: np.ndarray

    def take(self, mask: np.ndarray) -> MessageBatch:
        """Selects messages.

        Args:
          mask: `[n]` truth values.

        Returns:
          The messages for which it is true.
        """
        return MessageBatch(
            self.states.compress(mask, axis=0),
            self.messages[mask],
        )


MOST_CONTROL_NODES = 100_000
"""A message that has passed more control nodes than this without reaching a stage counts as being in an endless loop."""

Deliver = Callable[[StagePort, MessageBatch], None]

Parts = list[tuple[int, MessageBatch]]
"""What a control node's handler gives: numbers of outputs, with the messages there.

A handler gets one message at least. An output that gets none may be left out or get an empty batch, and an output may occur twice. A message
keeps its number as long as it keeps its rows; for others of them, `MessageTable.view` gives a new number. Rows that are sent nowhere are
answered as those that nobody consumes."""


class Router:
    """Applies control nodes to batches.

    Args:
      layout: The column of each state field.
      table: The table of messages; ungrouping, repeating and distributing make views in it.
      topologies: The topologies of the instances in flight: by pump name and instance handle.
      deliver: Called with the messages that arrive at each stage's port.
    """

    def __init__(
        self,
        layout: Layout,
        table: MessageTable,
        topologies: Mapping[str, Mapping[int, Topology]],
        deliver: Deliver,
    ):
        self._layout = layout
        self._table = table
        self._topologies = topologies
        self._deliver = deliver
        self.handlers: dict[type, Callable[[ControlStep, MessageBatch], Parts]] = {
            Cond: self._cond,
            Phi: lambda step, batch: [(0, batch)],
            Isu: self._change_state,
            Relabel: self._change_state,
            Bcast: lambda step, batch: [(output, batch) for output in range(step.node.op.n)],
            Flatmap: self._flatmap,
            Repeat: self._repeat,
            Ungroup: self._ungroup,
            Distribute: self._distribute,
        }

    def route(self, targets: Targets, batch: MessageBatch) -> None:
        """Sends messages along a route.

        Raises:
          MessageError: If a state function fails or gives something unusable, a topology does not fit, or a loop of control nodes never ends.
        """
        stack = [(targets, batch)]
        passed = 0
        while stack:
            # Depth first. `ArrivalRanks` numbers ports in this order, so both must go the same way.
            targets, batch = stack.pop()
            passed += 1
            if passed > MOST_CONTROL_NODES and isinstance(targets[0], ControlStep):
                self._refuse(targets[0], batch)
            for target in targets:
                # A stage's port ends the way; else the node's handler says where each part goes on.
                if isinstance(target, StagePort):
                    self._deliver(target, batch)
                    continue
                for output, part in self.handlers[target.kind](target, batch):
                    if len(part.messages):
                        stack.append((target.targets[output], part))

    def _refuse(self, step: ControlStep, batch: MessageBatch) -> None:
        state = State(batch.states[:1], self._layout, step.fields)
        raise MessageError(
            f"node `{step.node.name}`",
            "messages that reach a payload node, a group or a sink",
            f"one that has passed {MOST_CONTROL_NODES} control nodes, {state!r}",
            "Mend the condition that should let it out of the loop.",
        )

    def _state(self, step: ControlStep, batch: MessageBatch) -> State:
        return State(batch.states, self._layout, step.fields)

    def _cond(self, step: ControlStep, batch: MessageBatch) -> Parts:
        op = step.node.op
        chosen = op.choose(step.where, self._state(step, batch))
        first = int(chosen[0])
        # All go the same way, as mostly in loops: the batch goes on as it is.
        if len(chosen) == 1 or not np.count_nonzero(chosen != first):
            return [(first, batch)]
        if op.n == 2:
            result = []
            for output in range(op.n):
                result.append((output, batch.take(chosen == output)))
            return result
        return _deal_out(batch, chosen)

    def _change_state(self, step: ControlStep, batch: MessageBatch) -> Parts:
        after = apply(
            step.where,
            step.node.op.function,
            self._state(step, batch),
        )
        return [(0, MessageBatch(self._check_states(step, after, batch.states), batch.messages))]

    def _flatmap(self, step: ControlStep, batch: MessageBatch) -> Parts:
        of, i = self._count_copies(step, batch)
        return [(0, MessageBatch(self._new_states(step, batch.states[of], i), batch.messages[of]))]

    def _repeat(self, step: ControlStep, batch: MessageBatch) -> Parts:
        of, _ = self._count_copies(step, batch)
        rows = self._table.row[batch.messages]
        # One new message for each, which holds the old one's row several times.
        views = self._table.view(batch.messages, None)
        sizes = np.bincount(of, minlength=len(views))
        self._table.set_rows(views, np.repeat(rows, sizes), sizes)
        return [(0, MessageBatch(batch.states, views))]

    def _ungroup(self, step: ControlStep, batch: MessageBatch) -> Parts:
        rows, sizes = self._table.rows_of(batch.messages)
        # Empty messages have no rows to send on.
        if not len(rows):
            return []
        # Each row becomes a message of its own, with its number within the old one.
        of = np.repeat(np.arange(len(sizes)), sizes)
        i = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        states = self._new_states(step, batch.states[of], i)
        return [(0, MessageBatch(states, self._table.view(batch.messages[of], rows)))]

    def _distribute(self, step: ControlStep, batch: MessageBatch) -> Parts:
        node = step.node
        wire = node.inputs[1]
        assert wire is not None
        outputs: list[list[np.ndarray]] = [[] for _ in range(node.op.n)]
        # Message by message: topologies have different lengths.
        for message, handle in zip(
            batch.messages.tolist(), batch.states[:, HANDLE].tolist(), strict=True
        ):
            rows = self._table.rows[message]
            maps = find_topology(node, wire.source.name, self._topologies, handle).gather
            if len(maps) != node.op.n:
                raise MessageError(
                    f"node `{node.name}`, topology `{wire.name}`",
                    f"{node.op.n} gather maps, one per output",
                    f"{len(maps)}",
                    "Make the Topology with one map per wire.",
                )
            # Rows are picked for each edge; a topology may name only rows that are there.
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
        # Views come output by output, so the numbers of an output's messages stand together.
        for output, parts in enumerate(outputs):
            views = self._table.view(batch.messages, None)
            self._table.set_parts(views, parts)
            result.append((output, MessageBatch(batch.states, views)))
        return result

    def _count_copies(
        self,
        step: ControlStep,
        batch: MessageBatch,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Makes `count(s)` copies of each message: for each copy, the message's position in the batch, and the copy's number."""
        where = f"node `{step.node.name}`, count"
        state = self._state(step, batch)
        counts = column(where, apply(where, step.node.op.count, state), len(batch.messages)).astype(
            np.int64
        )
        if (counts < 0).any():
            bad = state.take(np.flatnonzero(counts < 0)[:1])
            raise MessageError(
                where,
                "a count of at least 0",
                f"{int(counts.min())} for {bad!r}",
                "Let `count` give 0 for messages that need no copies.",
            )
        of = np.repeat(np.arange(len(counts)), counts)
        return of, np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)

    def _new_states(
        self,
        step: ControlStep,
        states: np.ndarray,
        i: np.ndarray,
    ) -> np.ndarray:
        before = State(states, self._layout, step.fields)
        return self._check_states(
            step,
            apply(
                step.where,
                lambda s: step.node.op.state(s, i),
                before,
            ),
            states,
        )

    def _check_states(
        self,
        step: ControlStep,
        after: State,
        before: np.ndarray,
    ) -> np.ndarray:
        if (
            not isinstance(after, State)
            or columns_of(after).shape != before.shape
            or (after.fields != step.new_fields and set(after.fields) != set(step.new_fields))
        ):
            raise MessageError(
                f"node `{step.node.name}`",
                f"states with the fields {sorted(step.new_fields)}, as when the graph was built",
                f"{after!r}",
                "Let the function return the same fields for every state.",
            )
        return columns_of(after)


def _deal_out(batch: MessageBatch, chosen: np.ndarray) -> Parts:
    """The messages for each output that was chosen; outputs that no message has chosen cost nothing."""
    # Sorted by output, and stable, so the messages of one output keep their order.
    order = np.argsort(chosen, kind="stable")
    chosen = chosen[order]
    starts = [
        0,
        *(np.flatnonzero(chosen[1:] != chosen[:-1]) + 1).tolist(),
    ]
    parts = []
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        rows = order[start:end]
        parts.append(
            (
                int(chosen[start]),
                MessageBatch(
                    batch.states.take(rows, axis=0),
                    batch.messages[rows],
                ),
            )
        )
    return parts


def find_topology(
    node: Node,
    pump: str,
    topologies: Mapping[str, Mapping[int, Topology]],
    handle: int,
) -> Topology:
    """Finds the topology of an instance.

    Args:
      node: The node that needs it, for messages.
      pump: The name of the topology's pump.
      topologies: Maps of the instances: pump name to instance handle to `Topology`.
      handle: The instance's handle.

    Returns:
      The topology.

    Raises:
      MessageError: If it has not been pumped.
    """
    topology = topologies.get(pump, {}).get(handle)
    if topology is None:
        raise MessageError(
            f"node `{node.name}`",
            f"a topology on pump `{pump}` before the message",
            "none for this instance",
            "Pump the topology with the instance.",
        )
    return topology
