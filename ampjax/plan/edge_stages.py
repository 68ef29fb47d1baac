"""Chains that become one stage: a distribute, the nodes on each type of edge, and the collect that adds up the rows.

    rows of a graph ─▶ distribute ─┬─▶ ppt of type 0 ─┬─▶ collect ─▶ row-wise nodes
                                   └─▶ ppt of type 1 ─┘                    ▲
            └──────────────────────────────────────────────────────────────┘

Fused, a graph's rows are one message that goes in and one that comes out: nothing per edge reaches the control plane or an arena. A chain is
fused where that cannot be seen from outside: one worker runs it all, one topology drives both ends, what is distributed goes nowhere else, and
no adjoint of an edge needs recorded activations, for these would need slots of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampjax.ir.graph import Graph
from ampjax.ir.nodes import Node
from ampjax.ir.ops.payload_nodes import Collect, Compute
from ampjax.ir.ops.ragged_nodes import Distribute
from ampjax.ir.parameter_dependence import records
from ampjax.ir.wires import Wire


@dataclass(frozen=True)
class EdgeType:
    """The edges from one output of the distribute to one port of the collect, and the nodes that the rows pass.

    Args:
      output: The distribute's output: `Topology.gather[output]` are the edges' senders.
      nodes: The row-wise nodes that edges of this type pass, sources first.
      end: The wire that enters the collect.
    """

    output: int
    nodes: tuple[Node, ...]
    end: Wire

    @property
    def random(self) -> bool:
        """Whether a body of these nodes takes a PRNG key, so that edges of one sender carry different rows."""
        return any(node.draws for node in self.nodes)


@dataclass(frozen=True)
class Chain:
    """A distribute and a collect, and the types of edges between the two, in the order of the collect's ports."""

    distribute: Node
    edge_types: tuple[EdgeType, ...]
    collect: Node

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All its nodes, sources first."""
        return (
            self.distribute,
            *(node for edge_type in self.edge_types for node in edge_type.nodes),
            self.collect,
        )

    @property
    def topology(self) -> str:
        """The name of the topology pump that drives the chain."""
        wire = self.collect.inputs[-1]
        assert wire is not None
        return wire.source.name


def find_chains(
    graph: Graph,
    worker_of: Mapping[str, int],
) -> dict[str, Chain]:
    """Finds the chains of a graph that can be fused.

    Args:
      graph: A closed graph.
      worker_of: The worker of each payload node, by name.

    Returns:
      The chains, by the name of each of their nodes.
    """
    collects = []
    for node in graph.nodes.values():
        if isinstance(node.op, Collect):
            collects.append(node)
    chains = [chain for node in collects if (chain := _chain(node, worker_of)) is not None]
    return {node.name: chain for chain in chains for node in chain.nodes}


def _chain(
    collect: Node,
    worker_of: Mapping[str, int],
) -> Chain | None:
    """The chain that ends at a collect, if there is one that can be fused."""
    *inputs, topology = collect.inputs
    traced = []
    for wire in inputs:
        edge_type = None if wire is None else _edge_type(wire)
        if edge_type is None:
            return None
        traced.append(edge_type)
    sources = {source for source, _ in traced}
    if len(sources) != 1:
        return None
    chain = Chain(
        sources.pop(),
        tuple(edge_type for _, edge_type in traced),
        collect,
    )
    fits = (
        chain.distribute.inputs[1] is topology
        and _is_one_kernel(chain, worker_of)
        and _stays_inside(chain)
    )
    return chain if fits else None


def _is_one_kernel(
    chain: Chain,
    worker_of: Mapping[str, int],
) -> bool:
    """Whether one kernel can run a chain: one worker, one choice of weights, each node for one type of edges, and a sum of floats."""
    between = chain.nodes[1:-1]
    workers = {worker_of[node.name] for node in chain.nodes[1:]}
    weights = {node.options.weights for node in between if node.has_params}
    total = chain.collect.outputs[0].type
    if total is None or not total.is_float:
        return False
    return len(set(between)) == len(between) and len(workers) == 1 and len(weights) <= 1


def _edge_type(end: Wire) -> tuple[Node, EdgeType] | None:
    """Goes back from a collect's port to its distribute, through row-wise nodes that can be fused."""
    nodes: dict[Node, None] = {}
    starts: dict[Wire, None] = {}
    stack = [end]
    while stack:
        wire = stack.pop()
        node = wire.source
        if isinstance(node.op, Distribute):
            starts[wire] = None
        elif isinstance(node.op, Compute) and _is_fusable(node, wire is end):
            nodes[node] = None
            stack.extend(w for w in node.inputs if w is not None and w.source not in nodes)
        else:
            return None
    if len(starts) != 1:
        return None
    start = next(iter(starts))
    return start.source, EdgeType(start.port, _in_order(nodes), end)


def _is_fusable(node: Node, last: bool) -> bool:
    """Whether a node on an edge needs no recorded activations: a node with parameters is the last, and linear in the inputs that adjoints need."""
    if not node.has_params:
        return True
    types = []
    for wire in node.inputs:
        if wire is not None and wire.type is not None:
            types.append(wire.type)
    rows = tuple((t.shape, t.dtype.name) for t in types)
    alone = node.options.max_dispatch_size is not None or node.table is not None
    return last and not alone and not records(node.op.body, rows)


def _in_order(nodes: Mapping[Node, None]) -> tuple[Node, ...]:
    """Nodes with sources before consumers."""
    done: dict[Node, None] = {}
    while len(done) < len(nodes):
        for node in nodes:
            if all(w is None or w.source in done or w.source not in nodes for w in node.inputs):
                done[node] = None
    return tuple(done)


def _stays_inside(chain: Chain) -> bool:
    """Whether only the chain consumes the distributed rows and the results on its edges, and no node serves two edge types."""
    homes = {}
    for i, edge_type in enumerate(chain.edge_types):
        for node in edge_type.nodes:
            homes[node] = (i, edge_type)
    for wire in (w for node in (chain.distribute, *homes) for w in node.outputs):
        home = homes.get(wire.source, (-1, None))[0]
        for consumer, port in wire.consumers:
            if consumer is chain.collect:
                if home not in (-1, port):
                    return False
            elif consumer not in homes or home not in (-1, homes[consumer][0]):
                return False
    return True
