"""What every node kind means, message by message: one instance's synchronous run through the static graph.

It shares nothing with the scheduler or the engine, so that agreement of the two says something. It is slow on purpose: one message is one
object, a ragged message's payload is a tuple of rows, and no two rows are ever computed together.

The route backward that the paper's nodes would take (a Phi's recorded origin, an Isu's inverse) is walked explicitly for every message.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DeadlockError, InvariantError, MessageError
from ampjax.ir.control_nodes import Bcast, Cond, Distribute, Flatmap, Group, Isu, Phi, Repeat, Ungroup
from ampjax.ir.graph import Graph, Node
from ampjax.ir.instances import Topology
from ampjax.ir.payload_nodes import Collect, Compute, Key, Loss, Reduce, RouteBy, Sink
from ampjax.ir.state import State, apply, column
from ampjax.ir.wires import Wire
from ampjax.testing.oracles import Oracle

StateDict = dict[str, int]
"""One message's state: `instance` and the fields, by name."""

KeyFn = Callable[[str, StateDict, int], Any]
"""`keys(node, state, row)`: the PRNG key of one row at a node whose body takes one."""


@dataclass(frozen=True)
class _Message:
    """A payload (a tuple of rows if ragged), its state, and where it was made: the wire and its state there."""

    payload: Any
    state: StateDict
    origin: tuple[Wire, StateDict]


_WAY_BACK = "An isu's f_inv does not undo its f for this state."


class Run:
    """One instance's run: a queue of messages, and the dictionaries of those that wait.

    Args:
      graph: A closed graph.
      params: A pytree per parameterised node, by name.
      keys: PRNG keys for bodies that take one; None gives them `key=None`.
      oracle: How bodies are evaluated.

    Attributes:
      losses: The loss node's role and the loss of each loss row.
      metrics: A metric's name, its value or sum, and its count, for each metric of each loss row.
      outputs: A sink's name, the state and the payload of each message that arrived there.
      rows: Gradient rows by parameterised node.
      messages: Messages that arrived, by node.
    """

    def __init__(self, graph: Graph, params: Mapping[str, Any], keys: KeyFn | None, oracle: Oracle):
        self.graph, self.params, self.keys, self.oracle, self.layout = graph, params, keys, oracle, graph.layout
        self.queue: deque[tuple[Node, int, _Message]] = deque()
        self.joins: dict[tuple[str, Any], dict[int, _Message]] = {}
        self.groups: dict[tuple[str, Any], tuple[list[_Message], list[_Message]]] = {}
        self.phi_ports: dict[tuple[str, Any], int] = {}
        self.topologies: dict[str, Topology] = {}
        self.losses: list[tuple[str, jax.Array]] = []
        self.metrics: list[tuple[str, Any, Any]] = []
        self.outputs: list[tuple[str, StateDict, Any]] = []
        self.rows: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()

    def run(self, pumped: Sequence[tuple[Node, Any, StateDict]]) -> None:
        """Runs until nothing moves."""
        for node, payload, state in pumped:
            if isinstance(payload, Topology):
                self.topologies[node.name] = payload
            else:
                self.emit(node, 0, payload, state)
        while self.queue:
            self.step(*self.queue.popleft())
        waiting = [f"`{n}` with {list(m)} for key {key}" for (n, key), m in self.joins.items()]
        waiting += [
            f"`{n}` with {len(m)} members, {len(o)} openers for key {key}" for (n, key), (m, o) in self.groups.items()
        ]
        if waiting:
            fix = "Make the keys and sizes fit."
            raise DeadlockError("reference", "every join and group to be complete", "; ".join(waiting), fix)

    def emit(self, node: Node, output: int, payload: Any, state: StateDict) -> None:
        """Sends a message that this node made."""
        self.send(node.outputs[output], _Message(payload, state, (node.outputs[output], state)))

    def send(self, wire: Wire, message: _Message) -> None:
        """Puts a message before all consumers of a wire."""
        self.queue.extend((node, port, message) for node, port in wire.consumers)

    def view(self, state: StateDict) -> State:
        """A state as user functions get it: one row."""
        fields = tuple(name for name in state if name != "instance")
        array = np.zeros((1, self.layout.width), np.int64)
        for name, value in state.items():
            array[0, self.layout.column(name)] = value
        return State(array, self.layout, fields)

    def number(self, where: str, function: Callable[[State], Any], state: StateDict) -> int:
        """A state function's integer for one message."""
        return int(column(where, apply(where, function, self.view(state)), 1)[0])

    def step(self, node: Node, port: int, message: _Message) -> None:
        """Handles one message. Routing nodes pass it on; at the others its way back is checked first."""
        op, where, state = node.op, f"node `{node.name}`", message.state
        self.messages[node.name] += 1
        match op:
            case Cond():
                self.send(node.outputs[int(op.choose(where, self.view(state))[0])], message)
            case Bcast():
                for wire in node.outputs:
                    self.send(wire, message)
            case Isu():
                after = _as_dict(apply(where, op.function, self.view(state)))
                self.send(node.outputs[0], replace(message, state=after))
            case Phi():
                if self.phi_ports.setdefault((node.name, _key(state)), port) != port:
                    want, fix = "states that are unique at a phi", "Tell the messages apart by an isu."
                    raise MessageError(where, want, f"{state} again, on port {port}", fix)
                self.send(node.outputs[0], message)
            case _:
                self.check_way_back(node, port, message)
                self.consume(node, port, message)

    def check_way_back(self, node: Node, port: int, message: _Message) -> None:
        """Walks as a backward message does, by the state alone, and checks that it ends where this message was made."""
        wire, state = node.inputs[port], message.state
        assert wire is not None
        while isinstance(wire.source.op, Cond | Bcast | Isu | Phi):
            source, back = wire.source, 0
            if isinstance(source.op, Isu):
                state = _as_dict(apply(f"node `{source.name}`, f_inv", source.op.inverse, self.view(state)))
            elif isinstance(source.op, Phi):
                back = self.phi_ports.get((source.name, _key(state)), -1)
            if back < 0 or (wire := source.inputs[back]) is None:
                raise InvariantError(f"node `{source.name}`", "a message seen before", f"{state}", _WAY_BACK)
        made, emitted = message.origin
        if wire is not made or _key(state) != _key(emitted):
            where = f"node `{node.name}`, port {node.port_name(port)}"
            want = f"the way back of {message.state} to end at `{made.name}` with {emitted}"
            raise InvariantError(where, want, f"`{wire.name}` with {state}", _WAY_BACK)

    def consume(self, node: Node, port: int, message: _Message) -> None:
        """Handles a message at a node that makes new messages of it."""
        op, where, state, payload = node.op, f"node `{node.name}`", message.state, message.payload
        match op:
            case Flatmap():
                for i in range(self.number(where, op.count, state)):
                    self.emit(node, 0, payload, self.numbered(where, op.state, state, i))
            case Ungroup():
                for i, row in enumerate(payload):
                    self.emit(node, 0, row, self.numbered(where, op.state, state, i))
            case Repeat():
                self.emit(node, 0, (payload,) * self.number(where, op.count, state), state)
            case Reduce():
                segments = jnp.zeros(len(payload), jnp.int32)
                self.emit(node, 0, op.function(stack_rows(node.inputs[0], payload), segments, 1)[0], state)
            case Distribute():
                for output, rows in enumerate(self.topology(node).gather):
                    if rows.size and rows.max() >= len(payload):
                        fix = "Make the topology fit the rows."
                        raise MessageError(where, f"row numbers below {len(payload)}", f"{rows.max()}", fix)
                    self.emit(node, output, tuple(payload[row] for row in rows), state)
            case Sink():
                self.outputs.append((node.name, state, payload))
            case Group():
                self.group(node, op, port, message)
            case _:
                self.join(node, op, port, message)

    def numbered(self, where: str, function: Callable[..., State], state: StateDict, i: int) -> StateDict:
        """`function(state, i)` for one message."""
        return _as_dict(apply(where, lambda s: function(s, np.array([i])), self.view(state)))

    def topology(self, node: Node) -> Topology:
        """The map that drives a distribute or collect."""
        pump = node.inputs[-1]
        assert pump is not None
        if pump.source.name not in self.topologies:
            want = f"a topology from `{pump.source.name}`"
            raise DeadlockError(f"node `{node.name}`", want, "none", "Pump one per instance.")
        return self.topologies[pump.source.name]

    def key(self, node: Node, by: Key, state: StateDict) -> Any:
        """What makes messages belong together: the whole state, fields, or what a keying function gives."""
        if by is None:
            return _key(state)
        if not callable(by):
            return tuple(state[name] for name in by)
        where = f"node `{node.name}`, key"
        value = apply(where, by, self.view(state))
        return tuple(int(column(where, part, 1)[0]) for part in (value if isinstance(value, tuple) else (value,)))

    def group(self, node: Node, op: Group, port: int, message: _Message) -> None:
        """A group closes when it has its opener, where there is one, and as many members as its size says."""
        key = (node.name, self.key(node, op.by, message.state))
        members, openers = self.groups.setdefault(key, ([], []))
        (openers if port else members).append(message)
        where, head = f"node `{node.name}`, size", (openers if op.opened else members)
        if len(openers) > 1:
            got, fix = f"a second one with {message.state}", "Give each opener its own key."
            raise MessageError(where, "one opener per group", got, fix)
        if not head or len(members) < self.number(where, op.size, head[0].state):
            return
        del self.groups[key]

        def rank(member: _Message) -> tuple[int, ...]:
            order = self.number(f"node `{node.name}`, order", op.order, member.state) if op.order else 0
            return order, *(member.state.get(name, 0) for name in self.layout.fields)

        members.sort(key=rank)
        names = node.outputs[0].type.fields if node.outputs[0].type else ()
        source = (openers or members)[0].state
        rows = tuple(member.payload for member in members)
        self.emit(node, 0, rows, {name: source[name] for name in ("instance", *names)})

    def join(self, node: Node, op: Compute | RouteBy | Loss | Collect, port: int, message: _Message) -> None:
        """Waits until every port has the message of one key, then computes; the result's state is port 0's."""
        key = (node.name, self.key(node, None if isinstance(op, Collect) else op.join, message.state))
        have = self.joins.setdefault(key, {})
        if port in have:
            where = f"node `{node.name}`, port {node.port_name(port)}"
            raise MessageError(
                where, "one message per key", f"a second one with {message.state}", "Tell them apart by the state."
            )
        have[port] = message
        if len(have) < len(node.inputs) - isinstance(op, Collect):
            return
        del self.joins[key]
        state, inputs = have[0].state, [have[i].payload for i in range(len(have))]
        if isinstance(op, Collect):
            self.emit(node, 0, self.collect(node, inputs), state)
            return
        if isinstance(op, RouteBy):
            chosen = np.asarray(jax.lax.stop_gradient(inputs[1])).reshape(-1).tolist()
            self.emit(node, 0, inputs[0], state | dict(zip(op.names, map(int, chosen), strict=True)))
            return
        wire = node.inputs[0]
        assert wire is not None and wire.type is not None
        if not wire.type.ragged:
            inputs = [(x,) for x in inputs]
        if len({len(rows) for rows in inputs}) > 1:
            counts = [len(rows) for rows in inputs]
            raise MessageError(f"node `{node.name}`", "as many rows on every port", f"{counts}", "Make the rows fit.")
        self.rows[node.name] += len(inputs[0])
        params = self.params.get(node.name, ())
        body, outs = self.oracle.body(node.name, op.body), []
        for number, row in enumerate(zip(*inputs, strict=True)):
            key = self.keys(node.name, state, number) if op.body.rng and self.keys is not None else None
            outs.append(body(params, key, *row))
        if isinstance(op, Loss):
            for out in outs:
                self.score(node.role, out)
            return
        outs = [out if isinstance(out, tuple | list) else (out,) for out in outs]
        for output in range(op.n_out):
            column = tuple(out[output] for out in outs)
            self.emit(node, output, column if wire.type.ragged else column[0], state)

    def collect(self, node: Node, inputs: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Row `v` is the sum of the input rows whose `scatter` is `v`."""
        topology, wire = self.topology(node), node.outputs[0].type
        assert wire is not None
        total: list[Any] = [np.zeros(wire.shape, wire.dtype)] * topology.n_rows
        for places, rows in zip(topology.scatter, inputs, strict=True):
            if len(places) != len(rows):
                where, want = f"node `{node.name}`", f"{len(places)} rows, as the topology says"
                raise MessageError(where, want, f"{len(rows)}", "Make the topology fit the rows.")
            for place, row in zip(places, rows, strict=True):
                total[place] = total[place] + row
        return tuple(total)

    def score(self, role: str, out: Any) -> None:
        """Notes one row's loss and metrics."""
        loss, metrics = out if isinstance(out, tuple) else (out, {})
        self.losses.append((role, loss))
        for name, value in metrics.items():
            self.metrics.append((name, *value) if isinstance(value, tuple) else (name, value, 1))


def stack_rows(wire: Wire | None, payload: Any) -> Any:
    """A ragged payload as one array `[n, *shape]`; another payload as it is."""
    assert wire is not None and wire.type is not None
    if not wire.type.ragged:
        return payload
    return jnp.stack(payload) if payload else np.zeros((0, *wire.type.shape), wire.type.dtype)


def _key(state: StateDict) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(state.items()))


def _as_dict(state: State) -> StateDict:
    return {name: int(getattr(state, name)[0]) for name in ("instance", *state.fields)}
