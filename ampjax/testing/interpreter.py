"""Defines the meaning of every node kind, message by message: one instance's synchronous run through the static graph.

It shares no code with the scheduler or the engine, so tests can compare the two. It is simple and slow on purpose: each message is an
object, a ragged message's payload is a tuple of rows, and no two rows are computed together.

For every message it checks the path back that the paper's nodes would take (a Phi's recorded origin, an Isu's inverse). A Relabel has no
inverse, so the path back of the messages that it sends ends there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DeadlockError, MessageError
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Topology
from ampjax.ir.nodes import Node
from ampjax.ir.ops.control_nodes import Bcast, Cond, Flatmap, Isu, Phi, Relabel
from ampjax.ir.ops.payload_nodes import Collect, Compute, Loss, Reduce, RouteBy, Sink
from ampjax.ir.ops.ragged_nodes import Distribute, Group, Repeat, Ungroup
from ampjax.ir.wires import Wire
from ampjax.testing.message_states import StateDict, StateFunctions
from ampjax.testing.oracles import Oracle
from ampjax.testing.way_back import WayBack

KeyFn = Callable[[str, StateDict, int], Any]
"""`keys(node, state, row)`: the PRNG key of one row at a node whose body takes one."""

MOST_STEPS = 1_000_000
"""An instance that takes more messages is taken for one that never ends: it would fill the memory."""


@dataclass(frozen=True)
class _Message:
    """A message: its payload (a tuple of rows if ragged), its state, and its origin (wire and state at its making)."""

    payload: Any
    state: StateDict
    origin: tuple[Wire, StateDict]


@dataclass
class Results:
    """The results and counts of a run.

    Args:
      losses: The loss of each loss row.
      metrics: For each metric of each loss row, its name, its value or sum, and its count.
      outputs: For each message at a sink, the sink's name, the state and the payload.
      rows: Gradient rows, by the node that has the parameters.
      messages: Messages that arrived, by node.
    """

    losses: list[jax.Array] = field(default_factory=list)
    metrics: list[tuple[str, Any, Any]] = field(default_factory=list)
    outputs: list[tuple[str, StateDict, Any]] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)

    def score(self, out: Any) -> None:
        """Records the result of a loss's body for one row.

        Args:
          out: A loss, or a loss and its metrics.
        """
        loss, metrics = out if isinstance(out, tuple) else (out, {})
        self.losses.append(loss)
        for name, value in metrics.items():
            self.metrics.append((name, *value) if isinstance(value, tuple) else (name, value, 1))


class InstanceRun:
    """One instance's run: a queue of messages, and dictionaries of the messages that wait.

    Args:
      graph: A closed graph.
      params: A pytree per parameterised node, by name.
      keys: PRNG keys for bodies that take one; None gives them `key=None`.
      oracle: How bodies are evaluated.

    Attributes:
      results: What it has computed and counted.
    """

    def __init__(
        self,
        graph: Graph,
        params: Mapping[str, Any],
        keys: KeyFn | None,
        oracle: Oracle,
    ):
        self._params = params
        self._keys = keys
        self._oracle = oracle
        self._states = StateFunctions(graph.layout)
        self._way_back = WayBack(self._states)
        self._queue: deque[tuple[Node, int, _Message]] = deque()
        self._joins: dict[tuple[str, Any], dict[int, _Message]] = {}
        self._groups: dict[tuple[str, Any], tuple[list[_Message], list[_Message]]] = {}
        self._topologies: dict[str, Topology] = {}
        self.results = Results()

    def run(
        self,
        pumped: Sequence[tuple[Node, Any, StateDict]],
    ) -> None:
        """Runs until nothing moves.

        Args:
          pumped: A pump, a payload and a state for each message.

        Raises:
          DeadlockError: If messages are left waiting for others that never come.
          MessageError: If two messages with the same state arrive where only one may, rows do not fit, a state function fails, or more than
            `MOST_STEPS` messages have moved.
          InvariantError: If the path back from a node does not lead to the state that was emitted.
        """
        for node, payload, state in pumped:
            if isinstance(payload, Topology):
                self._topologies[node.name] = payload
            else:
                self._emit(node, 0, payload, state)
        n_steps = 0
        while self._queue:
            node, port, message = self._queue.popleft()
            n_steps += 1
            if n_steps > MOST_STEPS:
                got = f"one that goes on after {MOST_STEPS:,} messages, at state {message.state}"
                fix = "Mend the condition that should let it out of the loop."
                raise MessageError(
                    f"reference, node `{node.name}`", "an instance that ends", got, fix
                )
            self._step(node, port, message)
        waiting = [f"`{n}` with {list(m)} for key {key}" for (n, key), m in self._joins.items()]
        waiting += [
            f"`{n}` with {len(m)} members, {len(o)} openers for key {key}"
            for (n, key), (m, o) in self._groups.items()
        ]
        if waiting:
            fix = "Make the keys and sizes fit."
            raise DeadlockError(
                "reference", "every join and group to be complete", "; ".join(waiting), fix
            )

    def _emit(
        self,
        node: Node,
        output: int,
        payload: Any,
        state: StateDict,
    ) -> None:
        """Sends a message that this node made."""
        self._send(
            node.outputs[output],
            _Message(payload, state, (node.outputs[output], state)),
        )

    def _send(self, wire: Wire, message: _Message) -> None:
        """Queues a message for all consumers of a wire."""
        self._queue.extend((node, port, message) for node, port in wire.consumers)

    def _step(self, node: Node, port: int, message: _Message) -> None:
        """Handles one message.

        A cond, bcast, isu or phi passes it on, since the paper's nodes would find the way back through it by the state. All others make new
        messages (`_consume`), after this one's way back to its maker has been checked.
        """
        op = node.op
        where = f"node `{node.name}`"
        state = message.state
        self.results.messages[node.name] += 1
        match op:
            case Cond():
                self._send(
                    node.outputs[int(op.choose(where, self._states.view(state))[0])],
                    message,
                )
            case Bcast():
                for wire in node.outputs:
                    self._send(wire, message)
            case Isu():
                after = self._states.after(where, op.function, state)
                self._send(node.outputs[0], replace(message, state=after))
            case Phi():
                self._way_back.remember(node.name, port, state)
                self._send(node.outputs[0], message)
            case _:
                self._way_back.check(node, port, state, message.origin)
                self._consume(node, port, message)

    def _consume(self, node: Node, port: int, message: _Message) -> None:
        """Handles a message at a node that makes new messages from the old."""
        op = node.op
        where = f"node `{node.name}`"
        state = message.state
        payload = message.payload
        match op:
            case Relabel():
                self._emit(
                    node,
                    0,
                    payload,
                    self._states.after(f"{where}, f", op.function, state),
                )
            case Flatmap():
                for i in range(self._states.integer(where, op.count, state)):
                    self._emit(
                        node,
                        0,
                        payload,
                        self._states.evaluate_numbered(where, op.state, state, i),
                    )
            case Ungroup():
                for i, row in enumerate(payload):
                    self._emit(
                        node,
                        0,
                        row,
                        self._states.evaluate_numbered(where, op.state, state, i),
                    )
            case Repeat():
                self._emit(
                    node,
                    0,
                    (payload,) * self._states.integer(where, op.count, state),
                    state,
                )
            case Reduce():
                segments = jnp.zeros(len(payload), jnp.int32)
                self._emit(
                    node,
                    0,
                    op.function(stack_rows(node.inputs[0], payload), segments, 1)[0],
                    state,
                )
            case Distribute():
                for output, rows in enumerate(self._topology(node).gather):
                    if rows.size and rows.max() >= len(payload):
                        fix = "Make the topology fit the rows."
                        raise MessageError(
                            where, f"row numbers below {len(payload)}", f"{rows.max()}", fix
                        )
                    self._emit(
                        node,
                        output,
                        tuple(payload[row] for row in rows),
                        state,
                    )
            case Sink():
                self.results.outputs.append((node.name, state, payload))
            case Group():
                self._group(node, op, port, message)
            case _:
                self._join(node, op, port, message)

    def _topology(self, node: Node) -> Topology:
        """The map that drives a distribute or collect."""
        pump = node.inputs[-1]
        assert pump is not None
        if pump.source.name not in self._topologies:
            want = f"a topology from `{pump.source.name}`"
            raise DeadlockError(f"node `{node.name}`", want, "none", "Pump one per instance.")
        return self._topologies[pump.source.name]

    def _group(
        self,
        node: Node,
        op: Group,
        port: int,
        message: _Message,
    ) -> None:
        """Gathers a group's messages. A group closes with its opener, if any, and as many members as its size says."""
        key = (
            node.name,
            self._states.join_key(node.name, op.by, message.state),
        )
        members, openers = self._groups.setdefault(key, ([], []))
        (openers if port else members).append(message)
        where = f"node `{node.name}`, size"
        head = openers if op.opened else members
        if len(openers) > 1:
            got = f"a second one with {message.state}"
            fix = "Give each opener its own key."
            raise MessageError(where, "one opener per group", got, fix)
        if not head or len(members) < self._states.integer(where, op.size, head[0].state):
            return
        del self._groups[key]

        def rank(member: _Message) -> tuple[int, ...]:
            where = f"node `{node.name}`, order"
            state = member.state
            if op.order:
                order = self._states.integer(where, op.order, state)
            else:
                order = 0
            return order, *(state.get(name, 0) for name in self._states.layout.fields)

        members.sort(key=rank)
        if node.outputs[0].type:
            names = node.outputs[0].type.fields
        else:
            names = ()
        source = (openers or members)[0].state
        rows = tuple(member.payload for member in members)
        self._emit(
            node,
            0,
            rows,
            {name: source[name] for name in ("instance", *names)},
        )

    def _join(
        self,
        node: Node,
        op: Compute | RouteBy | Loss | Collect,
        port: int,
        message: _Message,
    ) -> None:
        """Waits until every port has the message of one key, then computes; the result's state is port 0's."""
        key = (
            node.name,
            self._states.join_key(
                node.name, None if isinstance(op, Collect) else op.join, message.state
            ),
        )
        joined = self._joins.setdefault(key, {})
        if port in joined:
            where = f"node `{node.name}`, port {node.port_name(port)}"
            raise MessageError(
                where,
                "one message per key",
                f"a second one with {message.state}",
                "Tell them apart by the state.",
            )
        joined[port] = message
        if len(joined) < len(node.inputs) - isinstance(op, Collect):
            return
        del self._joins[key]
        state = joined[0].state
        inputs = [joined[i].payload for i in range(len(joined))]
        match op:
            case Collect():
                self._emit(node, 0, self._collect(node, inputs), state)
            case RouteBy():
                chosen = np.asarray(jax.lax.stop_gradient(inputs[1])).reshape(-1).tolist()
                self._emit(
                    node,
                    0,
                    inputs[0],
                    state | dict(zip(op.names, map(int, chosen), strict=True)),
                )
            case _:
                self._compute(node, op, state, inputs)

    def _compute(
        self,
        node: Node,
        op: Compute | Loss,
        state: StateDict,
        inputs: Sequence[Any],
    ) -> None:
        """Evaluates a body on each row; a loss records the result, another node sends the result on."""
        wire = node.inputs[0]
        assert wire is not None and wire.type is not None
        if not wire.type.ragged:
            inputs = [(x,) for x in inputs]
        if len({len(rows) for rows in inputs}) > 1:
            counts = [len(rows) for rows in inputs]
            raise MessageError(
                f"node `{node.name}`",
                "as many rows on every port",
                f"{counts}",
                "Return as many rows on each port of this node.",
            )
        self.results.rows[node.params_name] += len(inputs[0])
        outs = self._evaluate(node, op, state, inputs)
        if isinstance(op, Loss):
            for out in outs:
                self.results.score(out)
            return
        outs = [out if isinstance(out, tuple | list) else (out,) for out in outs]
        for output in range(op.n_out):
            rows = tuple(out[output] for out in outs)
            self._emit(
                node,
                output,
                rows if wire.type.ragged else rows[0],
                state,
            )

    def _evaluate(
        self,
        node: Node,
        op: Compute | Loss,
        state: StateDict,
        inputs: Sequence[Any],
    ) -> list[Any]:
        """The results of a node's body for each row."""
        params = self._params.get(node.params_name, ())
        body = self._oracle.body(node.name, op.body)
        outs = []
        for number, row in enumerate(zip(*inputs, strict=True)):
            if op.body.rng and self._keys is not None:
                key = self._keys(node.name, state, number)
            else:
                key = None
            outs.append(body(params, key, *row))
        return outs

    def _collect(
        self,
        node: Node,
        inputs: Sequence[tuple[Any, ...]],
    ) -> tuple[Any, ...]:
        """Row `v` is the sum of the input rows whose `scatter` is `v`."""
        topology = self._topology(node)
        wire = node.outputs[0].type
        assert wire is not None
        total: list[Any] = [np.zeros(wire.shape, wire.dtype)] * topology.n_rows
        for places, rows in zip(topology.scatter, inputs, strict=True):
            if len(places) != len(rows):
                where = f"node `{node.name}`"
                want = f"{len(places)} rows, as the topology says"
                raise MessageError(where, want, f"{len(rows)}", "Make the topology fit the rows.")
            for place, row in zip(places, rows, strict=True):
                total[place] = total[place] + row
        return tuple(total)


def stack_rows(wire: Wire | None, payload: Any) -> Any:
    """Stacks the rows of a ragged payload.

    Args:
      wire: The wire that carries it.
      payload: A tuple of rows; or of an ordinary message, an array.

    Returns:
      One array `[n, *shape]`; an ordinary payload as it is.
    """
    assert wire is not None and wire.type is not None
    if not wire.type.ragged:
        return payload
    if payload:
        return jnp.stack(payload)
    return np.zeros(
        (0, *wire.type.shape),
        wire.type.dtype,
    )
