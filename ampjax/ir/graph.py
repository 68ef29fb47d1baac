"""The static graph: nodes, the wires between nodes, and the checks on closing."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ampjax.errors import GraphError
from ampjax.ir.copies import CopyStack, check_border
from ampjax.ir.flat_graph import flatten, unflatten
from ampjax.ir.graph_checks import check_whole
from ampjax.ir.nodes import Node, NodeOptions, infer
from ampjax.ir.ops.control_nodes import Phi
from ampjax.ir.ops.payload_nodes import Pump
from ampjax.ir.state import Layout
from ampjax.ir.wires import Wire
from ampjax.optim.joint.params_form import ParamsForm

PICTURE: list[Callable[[Graph], str]] = []
"""How a graph is drawn in notebooks: at most one function, from the graph to SVG. Importing `ampjax` puts it here, so that graphs need no library for drawing."""

_CURRENT: contextvars.ContextVar[Graph | None] = contextvars.ContextVar(
    "ampjax_graph", default=None
)


class Graph:
    """A static graph of nodes that executes dynamic, instance-dependent control flow (AMPNet §3, §4).

    Use it in a `with` block: nodes that are made inside belong to it. At the end of the block, the graph is checked and closed.
    It has more than 15 methods: eleven of them only list its nodes, draw it, or make it work in `with` and in other processes.

    Attributes:
      nodes: The nodes by name, in the order in which they were made.
      closed: Whether the graph has been checked, so that no more nodes can be added.
      copies: The copies of parts that nodes are being added to; see `replicate`.
      remake: Makes the same graph in another process, if its nodes' functions can't be sent there, but the model that they were made from
        can; else None.
      batched: Gives the model that the graph was compiled from as one function of a batch; None if it was not.
      batches_only: Whether that function alone is the model: the nodes only hold its parameters.
      form: The pytree in which users see the nodes' parameters, if it is not a dictionary of them.
      unread: The initial values of leaves of that pytree that no node reads, by path.

    >>> import ampjax.graphs as ag
    >>> with ag.Graph() as g:
    ...     x = ag.pump("x", shape=(3,))
    ...     y = ag.npt("double", lambda x: 2 * x)(x)
    ...     ag.sink("y", y)
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
        self.copies = CopyStack()
        self.remake: Callable[[], Graph] | None = None
        self.batched: Callable[[], Any] | None = None
        self.batches_only = False
        self.form: ParamsForm | None = None
        self.unread: Mapping[str, Any] = {}

    @property
    def ends(self) -> bool:
        """Whether every instance ends for sure: instances of a compiled model whose loops all have a bound, loops that read values included."""
        return self.remake is not None

    def __enter__(self) -> Graph:
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        _CURRENT.reset(self._token)
        if kind is None:
            self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.remake is None:
            return super().__reduce_ex__(protocol)
        return (_remade, (self.remake,))

    def __getstate__(self) -> dict[str, Any]:
        return {"closed": self.closed, **flatten(self.nodes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Graph.__init__(self)
        self.nodes = unflatten(state)
        self.closed = state["closed"]

    def add(
        self,
        name: str | None,
        op: Any,
        inputs: tuple[Wire | None, ...],
        n_out: int,
        options: NodeOptions | None = None,
        ports: tuple[str, ...] = (),
    ) -> Node:
        """Adds a node, and infers its types if the types of its inputs are known.

        Args:
          name: Its name; None for its kind and a number.
          op: What it does.
          inputs: The wires that feed it; None leaves a port open.
          n_out: Number of its outputs.
          options: What the user set for it.
          ports: Names of its input ports.

        Returns:
          The node.

        Raises:
          GraphError: If the graph is closed, the name is taken, an input is not a wire of this graph, or the node can't be in a copy.
        """
        options = self.copies.options_for(name, op, options or NodeOptions())
        if name is None:
            name = self._free_name(op.kind)
        else:
            name = self.copies.full_name(name)
        if self.closed:
            raise GraphError(
                f"node `{name}`",
                "an open graph",
                "a graph that has been closed",
                "Add nodes inside the `with amp.graphs.Graph()` block.",
            )
        if name in self.nodes:
            raise GraphError(
                f"node `{name}`",
                "a name that no other node has",
                f"the name of a {self.nodes[name].kind}",
                "Give each node its own name.",
            )
        node = Node(
            name,
            op,
            [],
            options=options,
            ports=ports,
            copies=self.copies.around,
        )
        node.outputs = tuple(Wire(node, i) for i in range(n_out))
        self.nodes[name] = node
        for port, wire in enumerate(inputs):
            node.inputs.append(None)
            if wire is not None:
                self.connect(node, port, wire)
        infer(node)
        return node

    def connect(
        self,
        node: Node | str,
        port: int,
        wire: Wire,
    ) -> None:
        """Connects a wire to an open input port.

        Args:
          node: The node, or its name.
          port: The port's number, from 0.
          wire: The wire.

        Raises:
          GraphError: If the port has a wire already, does not exist, or the wire is another graph's.
        """
        node = self.nodes[node] if isinstance(node, str) else node
        where = f"node `{node.name}`, port {node.port_name(port)}"
        if self.closed:
            raise GraphError(
                where,
                "an open graph",
                "a graph that has been closed",
                "Connect inside the `with amp.graphs.Graph()` block.",
            )
        if not isinstance(wire, Wire):
            raise GraphError(
                where, "a wire", f"{type(wire).__name__}", "Connect what a pump or a node returned."
            )
        if self.nodes.get(wire.source.name) is not wire.source:
            raise GraphError(
                where,
                "a wire of the same graph",
                f"`{wire.name}` of another graph",
                "Build all nodes inside one `with amp.graphs.Graph()` block.",
            )
        check_border(where, node, wire)
        if port >= len(node.inputs):
            raise GraphError(
                where,
                f"one of the {len(node.inputs)} ports",
                f"port {port}",
                "Pass a port that the node has; ports count from 0.",
            )
        if node.inputs[port] is not None:
            raise GraphError(
                where,
                "one wire",
                f"a second one, `{wire.name}`, beside `{node.source_name(port)}`",
                "Join the two with a phi.",
            )
        node.inputs[port] = wire
        wire.consumers.append((node, port))

    def close(self) -> None:
        """Checks everything that needs the whole graph: open ports, loops, types.

        Raises:
          GraphError: The first mistake, with node and port.
        """
        if not self.nodes:
            raise GraphError(
                "graph",
                "at least one node",
                "an empty graph",
                "Build nodes inside the `with amp.graphs.Graph()` block.",
            )
        check_whole(self.nodes.values())
        self.closed = True

    @property
    def pumps(self) -> dict[str, Node]:
        """The pumps by name."""
        result = {}
        for n in self.nodes.values():
            if isinstance(n.op, Pump):
                result[n.name] = n
        return result

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
        """The nodes that have parameters of their own, by name."""
        result = {}
        for n in self.nodes.values():
            if n.owns_params:
                result[n.name] = n
        return result

    @property
    def users(self) -> dict[str, list[Node]]:
        """The users of each node's parameters, by the name of the node: the node first."""
        users: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            if node.has_params:
                users.setdefault(node.params_name, []).append(node)
        return users

    def walk(self) -> Iterator[Node]:
        """Goes through the nodes in an order in which sources come before consumers, except in loops.

        Returns:
          The nodes, one at a time.
        """
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

    def _free_name(self, kind: str) -> str:
        """`concat1`, or in a copy `concat1/0`: the first that is free; copies number their nodes from 1."""
        if self.copies.around:
            number = 1
        else:
            number = sum(node.kind == kind for node in self.nodes.values()) + 1
        while (name := self.copies.full_name(f"{kind.lower()}{number}")) in self.nodes:
            number += 1
        return name

    def __repr__(self) -> str:
        from ampjax.ir.printing import tree  # drawing is not needed to build

        return tree(self.nodes)

    def _repr_html_(self) -> str | None:
        return PICTURE[0](self) if PICTURE else None

    def to_mermaid(self) -> str:
        """Exports the graph as Mermaid text.

        Returns:
          The text, for Mermaid's renderers.
        """
        from ampjax.ir.printing import mermaid

        return mermaid(self.nodes)

    def to_dot(self) -> str:
        """Exports the graph as Graphviz DOT text.

        Returns:
          The text, for Graphviz.
        """
        from ampjax.ir.printing import dot

        return dot(self.nodes)


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
            "Build nodes inside a `with amp.graphs.Graph() as g:` block.",
        )
    return graph


def _remade(remake: Callable[[], Graph]) -> Graph:
    return remake()
