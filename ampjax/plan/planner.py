"""The plan: a graph cut into stages for given workers, with its routes composed once.

Where a route crosses from one memory space to another, a transfer stage stands in it. Pumped payloads lie in host memory, space `HOST`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampjax.ir.graph import Graph
from ampjax.ir.nodes import Node
from ampjax.ir.ops.join_keys import Key
from ampjax.ir.ops.payload_nodes import Collect, Compute, Loss, Pump, Reduce, Sink
from ampjax.ir.ops.ragged_nodes import Distribute, Group
from ampjax.ir.state import Layout
from ampjax.ir.wires import Wire
from ampjax.plan import consumers
from ampjax.plan.edge_stages import Chain, find_chains
from ampjax.plan.stage_kinds import COLLECT, EDGES, GROUP, LOSS, REDUCE, ROWS, SINK, TABLE, TRANSFER
from ampjax.plan.stages import (
    HOST,
    ControlStep,
    Port,
    Stage,
    StagePort,
    Targets,
    input_wire,
    wire_type,
)
from ampjax.utils.counted import count_of

KIND_OF = {
    Loss: LOSS,
    Reduce: REDUCE,
    Collect: COLLECT,
    Sink: SINK,
    Group: GROUP,
}
"""The kind of a stage, by the class of its last node's `op`; of all others it is `ROWS`, or `TABLE` where a table has the parameters."""


@dataclass(eq=False, kw_only=True)
class Plan:
    """A graph prepared for running: stages and routes.

    Args:
      graph: The graph.
      layout: The column of each state field.
      stages: All stages; the routes refer to them by number.
      pumps: The route of each pump's messages.
      workers: Number of workers.
      worker_of: The worker of each payload node.
      spaces: The memory space of each worker.
    """

    graph: Graph
    layout: Layout
    stages: list[Stage]
    pumps: dict[str, Targets]
    workers: int
    worker_of: Mapping[str, int]
    spaces: tuple[int, ...]

    def __repr__(self) -> str:
        lines = [
            f"Plan: {count_of(len(self.stages), 'stage')} on {count_of(self.workers, 'worker')}"
        ]
        return "\n".join([*lines, *(f"  {stage!r}" for stage in self.stages)])


def make_plan(
    graph: Graph,
    worker_of: Mapping[str, int],
    spaces: Sequence[int] = (0,),
    fuse: bool = True,
) -> Plan:
    """Cuts a graph into stages and composes its routes.

    Args:
      graph: A closed graph.
      worker_of: The worker of each payload node, by name.
      spaces: The memory space of each worker; workers that share a device share its memory.
      fuse: False keeps every payload node a stage of its own.

    Returns:
      The plan.
    """
    return _Planner(graph, dict(worker_of), tuple(spaces), fuse).run()


class _Planner:
    def __init__(
        self,
        graph: Graph,
        worker_of: dict[str, int],
        spaces: tuple[int, ...],
        fuse: bool,
    ):
        self.graph = graph
        self.worker_of = worker_of
        self.spaces = spaces
        self.stages: list[Stage] = []
        self.stages_of: dict[str, list[Stage]] = {}
        self.chains = find_chains(graph, worker_of) if fuse else {}
        self._cut(fuse)
        self._targets: dict[tuple[Wire, int], Targets] = {}
        self._reach: dict[Wire, dict[StagePort, None]] = {}

    def run(self) -> Plan:
        # Groups follow their consumers, and ports follow producers; routes need both.
        self._place_groups()
        self._type_ports()
        for stage in [*self.stages]:
            stage.routes = [self._route(wire, stage.space) for wire in stage.wires]
        pumps = {}
        for name, node in self.graph.pumps.items():
            if not wire_type(node.outputs[0]).topology:
                pumps[name] = self._route(node.outputs[0], HOST)
        # Transfers have been added by now, so all stages are known.
        consumers.find_sole_consumers(self.stages)
        consumers.count_workers_ahead(self.stages)
        return Plan(
            graph=self.graph,
            layout=self.graph.layout,
            stages=self.stages,
            pumps=pumps,
            workers=len(self.spaces),
            worker_of=self.worker_of,
            spaces=self.spaces,
        )

    # -- stages

    def _cut(self, fuse: bool) -> None:
        """Groups payload nodes into stages, consumers first, so that a node can join the stage that consumes all its outputs."""
        groups: list[list[Node]] = []
        of: dict[str, list[Node]] = {}
        for node in reversed(list(self.graph.walk())):
            chain = self.chains.get(node.name)
            if not _opens_a_stage(node, chain):
                continue
            if fuse:
                home = self._fusable_into(node, of, chain)
            else:
                home = None
            if home is None:
                # No stage can take the node, so it begins one of its own.
                home = []
                groups.append(home)
            new = chain.nodes if chain is not None else (node,)
            start = _first_place(home, self.chains)
            home[start:start] = new
            of.update((one.name, home) for one in new)
        # Stages are numbered with sources first; those for sinks alone come last, so numbers of the
        # others do not depend on them.
        for nodes in reversed(groups):
            self._add_stage(nodes)
        for nodes in reversed(groups):
            if isinstance(nodes[-1].op, Loss):
                self._add_seen(nodes)

    def _add_seen(self, fused: Sequence[Node]) -> None:
        """Adds stages for sinks' views of nodes that a loss has fused: predictions leave losses out, and need these nodes all the same."""
        consumers = {}
        for node in fused[:-1]:
            consumers[node] = [c for wire in node.outputs for c, _ in wire.consumers]
        seen = []
        for node, fed in consumers.items():
            if any(isinstance(c.op, Sink) for c in fed):
                seen.append(node)
        for node in seen:
            # What the node itself needs of the fused nodes, sources first.
            needed = [node]
            for before in reversed(fused[: fused.index(node)]):
                if before not in seen and any(c in needed for c in consumers[before]):
                    needed.insert(0, before)
            self._add_stage(needed).trains = False

    def _fusable_into(
        self,
        node: Node,
        of: Mapping[str, list[Node]],
        chain: Chain | None,
    ) -> list[Node] | None:
        """The group of nodes that consumes all outputs of a node (or of a chain), directly and on the same worker, if the node may join that group.

        A loss need not consume what sinks see beside it: where sinks are wanted, it is left out.
        """
        if node.table is not None or (not isinstance(node.op, Compute) and chain is None):
            return None
        home = _home_of_consumers(node, of)
        if home is None or home[-1].table is not None:
            return None
        if chain is None:
            fits = _takes_node(home, node, self.worker_of)
        else:
            fits = self._takes_chain(home, chain)
        return home if fits else None

    def _takes_chain(self, home: list[Node], chain: Chain) -> bool:
        """Whether row-wise nodes that consume a chain's collected rows can be in one stage with the chain."""
        last = home[-1]
        if not isinstance(last.op, Compute) or isinstance(home[0].op, Distribute):
            return False
        options = []
        for n in (*chain.nodes, *home):
            if n.has_params:
                options.append(_kernel_options(n))
        # The states of the stage's outputs will be those of the chain's message: under a join, that must be `last`'s first input as it is.
        wires = (
            chain.collect.outputs[0],
            chain.distribute.inputs[0],
        )
        first = _join(last) is None or input_wire(home[0], 0) in wires
        same_worker = self.worker_of[chain.collect.name] == self.worker_of[last.name]
        return same_worker and len(dict.fromkeys(options)) <= 1 and first

    def _add_stage(self, nodes: list[Node]) -> Stage:
        last = nodes[-1]
        if last.table is None:
            kind = KIND_OF.get(type(last.op), ROWS)
        else:
            kind = TABLE
        worker = self.worker_of.get(last.name, 0)
        stage = Stage(
            len(self.stages),
            kind,
            tuple(nodes),
            worker,
            self.spaces[worker],
            join=_join(last),
            wires=list(last.outputs),
            outputs=tuple(wire_type(w) for w in last.outputs),
        )
        if isinstance(nodes[0].op, Distribute):
            stage.kind = EDGES
            stage.chain = self.chains[nodes[0].name]
            stage.topology = stage.chain.topology
        elif kind.collects:
            stage.topology = input_wire(last, -1).source.name
        stage.trains = not kind.is_sink
        self.stages.append(stage)
        for node in nodes:
            self.stages_of.setdefault(node.name, []).append(stage)
        return stage

    def _routes(self, node: Node) -> bool:
        """Whether a node is part of routes, not of a stage."""
        return node.is_control and node.name not in self.stages_of

    def _ports(self, node: Node, wire: Wire) -> list[StagePort]:
        """The ports at which a wire enters the stages of a node."""
        stages = []
        for stage in self.stages_of[node.name]:
            stages.append((stage, input_wires(stage)))
        result = []
        for stage, wires in stages:
            if wire in wires:
                result.append(StagePort(stage.number, wires.index(wire)))
        return result

    # -- memory spaces

    def _leaves(self, wire: Wire) -> dict[StagePort, None]:
        """All stage ports that a wire's messages can reach through control nodes."""
        if wire in self._reach:
            return self._reach[wire]
        ports: dict[StagePort, None] = {}
        seen = {wire}
        stack = [wire]
        while stack:
            for node, _ in (w := stack.pop()).consumers:
                # Through control nodes to what they lead to, each once: routes may go round.
                if self._routes(node):
                    new = [o for o in node.outputs if o not in seen]
                    seen.update(new)
                    stack.extend(new)
                elif not wire_type(w).topology:
                    ports.update(dict.fromkeys(self._ports(node, w)))
        self._reach[wire] = ports
        return ports

    def _place_groups(self) -> None:
        """Places the rows of groups, which have no kernels, in the space of their first consumer."""
        for stage in reversed(self.stages):
            if not stage.kind.is_dispatched:
                leaves = list(self._leaves(stage.wires[0]))
                if leaves:
                    stage.worker = self.stages[leaves[0].stage].worker
                    stage.space = self.stages[leaves[0].stage].space

    def _type_ports(self) -> None:
        """A port lies in host memory if all its messages come from there; so does a group whose members do."""
        host_ports = _host_ports(self._producers())
        for stage in self.stages:
            if _is_on_host(stage, host_ports):
                stage.space = HOST
        for stage in self.stages:
            ports = []
            for i, wire in enumerate(input_wires(stage)):
                if host_ports.get(StagePort(stage.number, i), True):
                    space = HOST
                else:
                    space = self._home(stage, i)
                ports.append(Port(wire_type(wire), wire.name, space))
            stage.ports = tuple(ports)

    def _producers(self) -> dict[StagePort, list[Stage | None]]:
        """The stages that feed each port; None for a pump."""
        producers: dict[StagePort, list[Stage | None]] = {}
        for node in self.graph.pumps.values():
            for leaf in self._leaves(node.outputs[0]):
                producers.setdefault(leaf, []).append(None)
        for stage in self.stages:
            for wire in stage.wires:
                for leaf in self._leaves(wire):
                    producers.setdefault(leaf, []).append(stage)
        return producers

    def _home(self, stage: Stage, port: int) -> int:
        opener = not stage.kind.is_dispatched and port == 1
        if stage.space != HOST or not opener:
            return stage.space
        return self.spaces[stage.worker]

    # -- routes

    def _route(self, wire: Wire, space: int) -> Targets:
        """The route of a wire's messages, for payloads in `space`."""
        key = (wire, space)
        if key in self._targets:
            return self._targets[key]
        # Entered before it is filled: a loop of control nodes leads back to it.
        targets: Targets = []
        self._targets[key] = targets
        # If all of the ports lie in one other space, rows are copied once, before they are spread.
        wanted = set()
        for leaf in self._leaves(wire):
            wanted.add(self.stages[leaf.stage].ports[leaf.port].space)
        if len(wanted) == 1 and wanted != {space}:
            first = next(iter(self._leaves(wire)))
            targets.append(
                self._transfer(
                    wire,
                    space,
                    self.stages[first.stage].worker,
                    wanted.pop(),
                )
            )
            return targets
        inner: dict[StagePort, None] = {}
        for node, _ in wire.consumers:
            if not self._routes(node):
                if not wire_type(wire).topology:
                    inner.update(dict.fromkeys(self._ports(node, wire)))
            elif not any(isinstance(t, ControlStep) and t.node is node for t in targets):
                targets.append(
                    ControlStep(
                        node,
                        [self._route(out, space) for out in node.outputs],
                    )
                )
        # Else each port gets the rows in its own space.
        for leaf in inner:
            port = self.stages[leaf.stage].ports[leaf.port]
            if port.space == space:
                targets.append(leaf)
            else:
                targets.append(
                    self._transfer(
                        wire,
                        space,
                        self.stages[leaf.stage].worker,
                        port.space,
                        leaf,
                    )
                )
        return targets

    def _transfer(
        self,
        wire: Wire,
        source: int,
        worker: int,
        space: int,
        leaf: StagePort | None = None,
    ) -> StagePort:
        """Adds a transfer stage for a wire's messages, which go on to `leaf` on the other side, or along the wire's whole route."""
        stage = Stage(
            len(self.stages),
            TRANSFER,
            (),
            worker,
            space,
            wires=[wire],
        )
        stage.ports = (Port(wire_type(wire), wire.name, source),)
        stage.outputs = (wire_type(wire),)
        self.stages.append(stage)
        stage.routes = [[leaf] if leaf is not None else self._route(wire, space)]
        return StagePort(stage.number, 0)


def input_wires(stage: Stage) -> list[Wire]:
    """Lists the wires that enter a stage from outside.

    Returns:
      The wires, each once, in the order of its ports; none for a transfer.
    """
    inside = set()
    for node in stage.nodes:
        for wire in node.outputs:
            inside.add(wire)
    wires = []
    for node in stage.nodes:
        for p in range(len(node.inputs)):
            wires.append(input_wire(node, p))
    result = []
    for w in dict.fromkeys(wires):
        if w not in inside and not wire_type(w).topology:
            result.append(w)
    return result


def _opens_a_stage(node: Node, chain: Chain | None) -> bool:
    """Whether a node, or the chain of a collect, joins a stage or begins one; pumps and control nodes do not, but groups do."""
    if chain is not None:
        return node is chain.collect
    if isinstance(node.op, Pump):
        return False
    return not node.is_control or isinstance(node.op, Group)


def _home_of_consumers(
    node: Node,
    of: Mapping[str, list[Node]],
) -> list[Node] | None:
    """The one group that consumes all outputs of a node, if there is one; sinks may consume beside a group that ends in a loss."""
    consumers = []
    for wire in node.outputs:
        for consumer, _ in wire.consumers:
            consumers.append(consumer)
    # Consumers beside sinks decide; a loss alone may be fused although sinks see its inputs.
    others = [consumer for consumer in consumers if not isinstance(consumer.op, Sink)]
    homes = []
    for consumer in others or consumers:
        homes.append(of.get(consumer.name) if not consumer.is_control else None)
    home = homes[0] if homes else None  # none consumes what is discarded
    if home is None or any(other is not home for other in homes):
        return None
    is_seen = len(others) < len(consumers)
    return home if not is_seen or isinstance(home[-1].op, Loss) else None


def _first_place(
    home: Sequence[Node],
    chains: Mapping[str, Chain],
) -> int:
    """The place of a new node in a stage: before its consumers, but behind the nodes of a chain."""
    if home and home[0].name in chains:
        return len(chains[home[0].name].nodes)
    return 0


def _takes_node(
    home: Sequence[Node],
    node: Node,
    worker_of: Mapping[str, int],
) -> bool:
    """Whether a node can be in one kernel with nodes that consume its rows: one worker, one choice of weights and sizes, and no join in between."""
    last = home[-1]
    if not isinstance(last.op, Compute | Loss) or node.op.join is not None:
        return False
    if worker_of[node.name] != worker_of[last.name]:
        return False
    if (node.has_params or last.has_params) and _kernel_options(node) != _kernel_options(last):
        return False
    if _join(last) is None:
        return True
    # The states of a stage's outputs are those of its first port: under a join of its own that must stay `last`'s first input.
    keeps_first = isinstance(last.op, Loss) or input_wire(home[0], 0).source is node
    return keeps_first and len(dict.fromkeys(node.inputs)) == 1


def _kernel_options(node: Node) -> tuple[object, object]:
    """The options that are the same for all parameters of a kernel."""
    return node.options.weights, node.options.max_dispatch_size


def _host_ports(producers: Mapping[StagePort, list[Stage | None]]) -> dict[StagePort, bool]:
    """Whether all messages of a port come from the host, by port.

    Args:
      producers: The stages that feed each port; None for a pump.
    """
    # From all ports on the host down: a port leaves it as soon as one producer does, until
    # nothing changes.
    on_host = dict.fromkeys(producers, True)
    changed = True
    while changed:
        changed = False
        for leaf, sources in producers.items():
            still = all(s is None or _is_on_host(s, on_host) for s in sources)
            changed |= still != on_host[leaf]
            on_host[leaf] = still
    return on_host


def _is_on_host(
    stage: Stage,
    host_ports: Mapping[StagePort, bool],
) -> bool:
    """Whether a stage is a group of rows in host memory: groups go where their members are."""
    return not stage.kind.is_dispatched and host_ports.get(StagePort(stage.number, 0), True)


def _join(node: Node) -> Key:
    return getattr(node.op, "join", None)
