"""The static graph: nodes, the wires between them, and the checks when it is closed."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ampjax.errors import GraphError
from ampjax.ir.control_nodes import CONTROL, Phi
from ampjax.ir.payload_nodes import Collect, Compute, Loss, Pump, Reduce, RouteBy, Sink
from ampjax.ir.state import Layout
from ampjax.ir.wires import Wire, WireType

_CURRENT: contextvars.ContextVar[Graph | None] = contextvars.ContextVar("ampjax_graph", default=None)


@dataclass(frozen=True)
class NodeOptions:
    """What the user set for one node; None where the trainer's setting counts.

    Args:
      tx: An optax transform.
      min_update_interval: Gradient rows to accumulate at least before an update.
      max_dispatch_size: Rows in one dispatch at most.
      weights: `current` (AMPNet) or `stashed`: which parameters the adjoint uses.
      gradient: `mean` or `sum` over the accumulated gradient rows.
      worker: The worker that hosts the node.
      replica_of: Name of the replica group that the node belongs to.
    """

    tx: Any = None
    min_update_interval: int | None = None
    max_dispatch_size: int | None = None
    weights: str | None = None
    gradient: str | None = None
    worker: int | None = None
    replica_of: str | None = None


@dataclass(eq=False)
class Node:
    """A node of the graph: what it does (`op`), where its inputs come from, and its outputs.

    A node's input may stay open (None) until `Graph.connect` fills it; every port must be filled when the graph is closed.
    """

    name: str
    op: Any
    inputs: list[Wire | None]
    outputs: tuple[Wire, ...] = ()
    options: NodeOptions = field(default_factory=NodeOptions)
    ports: tuple[str, ...] = ()
    inferred: bool = False
    copies: tuple[Copy, ...] = ()

    @property
    def kind(self) -> str:
        """The node's kind, in the paper's words: PPT, NPT, Cond, Phi, ..."""
        return self.op.kind

    @property
    def is_control(self) -> bool:
        """Whether the node moves states only."""
        return isinstance(self.op, CONTROL)

    @property
    def role(self) -> str:
        """What the user called the node: its name, without the number of a copy."""
        return self.options.replica_of or self.name

    @property
    def part(self) -> str | None:
        """The outermost copy of a part of the graph that the node belongs to; the affinity `default` keeps it on one worker."""
        return f"{self.copies[0].name}/{self.copies[0].number}" if self.copies else None

    @property
    def has_params(self) -> bool:
        """Whether the node has parameters."""
        return isinstance(self.op, Compute) and self.op.body.init is not None

    def source_name(self, port: int) -> str:
        """The name of the wire at a port, for messages."""
        wire = self.inputs[port] if port < len(self.inputs) else None
        return wire.name if wire is not None else "nothing"

    def port_name(self, port: int) -> str:
        """A port's name: the body's argument, or its number."""
        return self.ports[port] if port < len(self.ports) else str(port)

    def __repr__(self) -> str:
        sources = ", ".join(self.source_name(i) for i in range(len(self.inputs)))
        results = ", ".join(str(w.type) for w in self.outputs) or "nothing"
        return f"{self.kind} `{self.name}` ({sources}) -> {results}"


@dataclass(eq=False)
class Copy:
    """A copy of a part of the graph: which wires may cross its border.

    Args:
      name: The part's name.
      number: The copy's number; names of its nodes end in it.
      entries: The wires that lead into it.
      dealt: Among how many copies instances are dealt in turn; 1 if a function of the state routes them.
      exits: The wires that lead out of it, to the phis that join the copies.
    """

    name: str
    number: int
    entries: tuple[Wire, ...]
    dealt: int
    exits: tuple[Wire, ...] = ()


class Graph:
    """A static graph of nodes that executes dynamic, instance-dependent control flow (AMPNet §3, §4).

    Used as a context: nodes made inside belong to it. When the context ends, the graph is checked and closed.

    >>> import ampjax as amp
    >>> with amp.Graph() as g:
    ...     x = amp.pump("x", shape=(3,))
    ...     y = amp.npt("double", lambda x: 2 * x)(x)
    ...     amp.sink("y", y)
    Wire(double: 3 float32)
    >>> print(g)
    Graph: 3 nodes
    └─ x  Pump -> 3 float32
       └─ double  NPT(x) -> 3 float32
          └─ y  Sink(double)
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.closed = False
        self._token: Any = None
        self._copies: tuple[Copy, ...] = ()
        self._parts: dict[str, tuple[str, ...]] = {}

    def __enter__(self) -> Graph:
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        _CURRENT.reset(self._token)
        if kind is None:
            self.close()

    def add(
        self,
        name: str | None,
        op: Any,
        inputs: tuple[Wire | None, ...],
        n_out: int,
        options: NodeOptions | None = None,
        ports: tuple[str, ...] = (),
    ) -> Node:
        """Adds a node; infers its types where its inputs' are known.

        Raises:
          GraphError: If the graph is closed, the name is taken, an input is not a wire of this graph, or the node can't be in a copy.
        """
        options = self._options_in_copy(name, op, options or NodeOptions())
        name = self._free_name(op.kind) if name is None else self._name(name)
        if self.closed:
            raise GraphError(
                f"node `{name}`",
                "an open graph",
                "a graph that has been closed",
                "Add nodes inside the `with amp.Graph()` block.",
            )
        if name in self.nodes:
            raise GraphError(
                f"node `{name}`",
                "a name that no other node has",
                f"the name of a {self.nodes[name].kind}",
                "Give each node its own name.",
            )
        node = Node(name, op, [], options=options, ports=ports, copies=self._copies)
        node.outputs = tuple(Wire(node, i) for i in range(n_out))
        self.nodes[name] = node
        for port, wire in enumerate(inputs):
            node.inputs.append(None)
            if wire is not None:
                self.connect(node, port, wire)
        infer(node)
        return node

    def connect(self, node: Node | str, port: int, wire: Wire) -> None:
        """Connects a wire to an open input port.

        Raises:
          GraphError: If the port has a wire already, does not exist, or the wire is another graph's.
        """
        node = self.nodes[node] if isinstance(node, str) else node
        where = f"node `{node.name}`, port {node.port_name(port)}"
        if self.closed:
            raise GraphError(
                where, "an open graph", "a graph that has been closed", "Connect inside the `with amp.Graph()` block."
            )
        if not isinstance(wire, Wire):
            raise GraphError(where, "a wire", f"{type(wire).__name__}", "Connect what a pump or a node returned.")
        if self.nodes.get(wire.source.name) is not wire.source:
            raise GraphError(
                where,
                "a wire of the same graph",
                f"`{wire.name}` of another graph",
                "Build all nodes inside one `with amp.Graph()` block.",
            )
        _check_border(where, node, wire)
        if port >= len(node.inputs):
            raise GraphError(where, f"one of the {len(node.inputs)} ports", f"port {port}", "Count ports from 0.")
        if node.inputs[port] is not None:
            raise GraphError(
                where,
                "one wire",
                f"a second one, `{wire.name}`, beside `{node.source_name(port)}`",
                "Join the two with a phi.",
            )
        node.inputs[port] = wire
        wire.consumers.append((node, port))

    @contextmanager
    def copy(self, name: str, number: int, entries: Sequence[Wire], dealt: int) -> Iterator[Copy]:
        """Nodes that are made in this block are a copy of a part of the graph; its exits are to be set.

        Their names get the copy's number. Nodes of one name are replicas of each other: their parameters are kept together, they draw the same random numbers, losses add up, and
        what sinks receive is put together.

        Args:
          name: The part's name.
          number: The copy's number.
          entries: The wires that lead into the copy.
          dealt: Among how many copies instances are dealt in turn; 1 if a function of the state routes them.
        """
        around, copy = self._copies, Copy(name, number, tuple(entries), dealt)
        self._copies = (*around, copy)
        try:
            yield copy
        finally:
            self._copies = around

    @property
    def dealt(self) -> int:
        """Among how many copies instances have been dealt in turn where nodes are being built: instance `i` is the `i // dealt`-th here."""
        return math.prod(copy.dealt for copy in self._copies)

    def close(self) -> None:
        """Checks everything that needs the whole graph: open ports, loops, types.

        Raises:
          GraphError: The first mistake, with node and port.
        """
        if not self.nodes:
            raise GraphError(
                "graph", "at least one node", "an empty graph", "Build nodes inside the `with amp.Graph()` block."
            )
        for node in self.nodes.values():
            for port, wire in enumerate(node.inputs):
                if wire is None:
                    raise GraphError(
                        f"node `{node.name}`, port {node.port_name(port)}",
                        "a wire",
                        "an unconnected port",
                        "Connect it before the graph is closed.",
                    )
            if isinstance(node.op, Phi) and not node.inputs:
                raise GraphError(
                    f"node `{node.name}`",
                    "inputs",
                    "an unconnected phi",
                    f"Call `{node.name}.connect(...)` before the graph is closed.",
                )
        self._check_loops()
        self._infer_all()
        for node in self.nodes.values():
            for wire in node.outputs:
                if not wire.consumers:
                    raise GraphError(
                        f"node `{node.name}`, output {wire.port}",
                        "a consumer",
                        "a wire that goes nowhere",
                        "Connect it, or end it with `amp.sink`.",
                    )
        self.closed = True

    @property
    def pumps(self) -> dict[str, Node]:
        """The pumps by name."""
        return {n.name: n for n in self.nodes.values() if isinstance(n.op, Pump)}

    @property
    def layout(self) -> Layout:
        """The state fields of the whole graph."""
        names: dict[str, None] = {}
        for node in self.nodes.values():
            for wire in node.outputs:
                names.update(dict.fromkeys(wire.type.fields if wire.type else ()))
        return Layout(tuple(names))

    @property
    def parameterised(self) -> dict[str, Node]:
        """The nodes that have parameters, by name."""
        return {n.name: n for n in self.nodes.values() if n.has_params}

    def walk(self) -> Iterator[Node]:
        """The nodes in an order in which sources come before consumers, loops aside."""
        seen: set[str] = set()

        def visit(node: Node) -> Iterator[Node]:
            if node.name in seen:
                return
            seen.add(node.name)
            if not isinstance(node.op, Phi):
                for wire in node.inputs:
                    if wire is not None:
                        yield from visit(wire.source)
            yield node

        for node in self.nodes.values():
            yield from visit(node)

    def free_part(self, name: str) -> str:
        """A name that no part has that is copied here, with a number if need be."""
        free, number = name, 2
        while self._name(f"{free}/route") in self.nodes:
            free, number = f"{name}{number}", number + 1
        return free

    def _options_in_copy(self, name: str | None, op: Any, options: NodeOptions) -> NodeOptions:
        """Options that say whose replica a node is, if it is in a copy.

        Raises:
          GraphError: If it is a pump, or a node of another part has its name: these two would be taken for replicas of each other.
        """
        parts = tuple(copy.name for copy in self._copies)
        if name is not None and self._parts.setdefault(name, parts) != parts:
            here, there = (f"in `{'/'.join(p)}`" if p else "outside of all copies" for p in (parts, self._parts[name]))
            raise GraphError(
                f"node `{name}` {here}",
                "a name that no other node has",
                f"the name of one {there}",
                "Give each node its own name.",
            )
        if not self._copies:
            return options
        if isinstance(op, Pump):
            raise GraphError(
                f"replicate `{self._copies[-1].name}`",
                "no pumps in what is copied",
                f"the pump `{name}`",
                "Make it outside, and pass its wire to the function; a topology's can be used as it is.",
            )
        return replace(options, replica_of=name)

    def _name(self, name: str) -> str:
        """A node's name with the numbers of the copies that it is in."""
        return "/".join([name, *(str(copy.number) for copy in reversed(self._copies))])

    def _free_name(self, kind: str) -> str:
        """`concat1`, or in a copy `concat1/0`: the first that is free; copies number their nodes from 1."""
        number = 1 if self._copies else sum(node.kind == kind for node in self.nodes.values()) + 1
        while (name := self._name(f"{kind.lower()}{number}")) in self.nodes:
            number += 1
        return name

    def _check_loops(self) -> None:
        """A loop must pass a phi: depth-first search over the wires that do not enter one."""
        done: set[str] = set()
        for start in self.nodes.values():
            path: list[tuple[Node, Iterator[Node]]] = [(start, iter(_next(start)))]
            on_path = {start.name: None}
            while path:
                node, ahead = path[-1]
                following = next(ahead, None)
                if following is None:
                    path.pop()
                    on_path.pop(node.name, None)
                    done.add(node.name)
                elif following.name in on_path:
                    loop = [*list(on_path)[list(on_path).index(following.name) :], following.name]
                    raise GraphError(
                        f"node `{following.name}`",
                        "a phi wherever a loop closes",
                        "the loop " + " -> ".join(loop),
                        "Merge the loop's entry and its return with `amp.phi`.",
                    )
                elif following.name not in done:
                    path.append((following, iter(_next(following))))
                    on_path[following.name] = None

    def _infer_all(self) -> None:
        """Types go round until nothing changes; then everything is checked once more with all inputs known."""
        progress = True
        while progress:
            progress = any([infer(node) for node in self.nodes.values()])
        for node in self.nodes.values():
            for wire in node.outputs:
                if wire.type is None:
                    raise GraphError(
                        f"node `{node.name}`",
                        "inputs whose shapes are known without it",
                        "a loop whose phi nothing enters from outside, so that its shape would have to tell itself",
                        "Connect the phi to a pump, or to a node before the loop, too.",
                    )
        for node in self.nodes.values():
            if isinstance(node.op, Phi):
                node.op.infer(node, tuple(_type(wire) for wire in node.inputs))

    def __repr__(self) -> str:
        from ampjax.ir.printing import tree  # drawing is not needed to build

        return tree(self)

    def _repr_html_(self) -> str:
        from ampjax.viz.graph_picture import to_svg  # pictures need matplotlib

        return to_svg(self)

    def to_mermaid(self) -> str:
        """The graph as Mermaid text."""
        from ampjax.ir.printing import mermaid

        return mermaid(self)

    def to_dot(self) -> str:
        """The graph as Graphviz DOT text."""
        from ampjax.ir.printing import dot

        return dot(self)


PAYLOAD = (Compute, RouteBy, Loss, Reduce, Collect, Sink)


def current_graph() -> Graph:
    """The graph whose `with` block we are in.

    Raises:
      GraphError: If there is none.
    """
    graph = _CURRENT.get()
    if graph is None:
        raise GraphError(
            "ampjax",
            "a graph to build in",
            "a node outside any graph",
            "Build nodes inside a `with amp.Graph() as g:` block.",
        )
    return graph


def infer(node: Node) -> bool:
    """Types a node's outputs if its inputs' types are known and its own are not; says whether it did."""
    done = node.inferred
    types = tuple(_type(wire) for wire in node.inputs)
    ready = any(t is not None for t in types) if isinstance(node.op, Phi) else all(t is not None for t in types)
    if done or not ready or None in node.inputs:
        return False
    for wire, wire_type in zip(node.outputs, node.op.infer(node, types), strict=True):
        wire.type = wire_type
    node.inferred = True
    return True


def _check_border(where: str, node: Node, wire: Wire) -> None:
    """Wires lead into a copy, and out of it, where `replicate` puts a cond or a phi only: all else would reach every copy, or come from one of them.

    Raises:
      GraphError: If one does not.
    """
    source = wire.source
    enters = bool(node.copies) and any(wire is entry for entry in node.copies[-1].entries)
    leaves = bool(source.copies) and any(wire is out for out in source.copies[-1].exits) and isinstance(node.op, Phi)
    if source.copies == node.copies or wire.is_topology or enters or leaves:
        return
    if len(node.copies) >= len(source.copies):
        got = f"`{wire.name}`, which is outside of it"
        fix = f"Pass it to what `replicate` of `{node.copies[-1].name}` gives, so that it is routed with the others."
    else:
        got = f"`{wire.name}`, which is inside of one"
        fix = f"Let the function of `{source.copies[-1].name}` return it, so that the copies' wires are joined."
    raise GraphError(where, "a wire of the same copy", got, fix)


def _type(wire: Wire | None) -> WireType | None:
    return wire.type if wire is not None else None


def _next(node: Node) -> list[Node]:
    return [consumer for wire in node.outputs for consumer, _ in wire.consumers if not isinstance(consumer.op, Phi)]
