"""The plan: a graph cut into stages for given workers, with its routes composed once.

A *stage* is what one dispatch runs: a payload node, or several that are fused because all messages between them stay inside.
A *route* says what happens to a wire's messages until the next stages: the chain of control nodes. Where a route crosses from one
memory space to another, a transfer stage stands in it. Pumped payloads lie in host memory, space `HOST`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ampjax.ir.control import Bcast, Distribute, Flatmap, Group, Key, Repeat, Ungroup
from ampjax.ir.graph import Graph, Node
from ampjax.ir.payload import Collect, Compute, Loss, Pump, Reduce, RouteBy, Sink
from ampjax.ir.state import Layout
from ampjax.ir.wires import Wire, WireType

MAKES_VIEWS = (Ungroup, Repeat, Distribute)
MAKES_COPIES = (Ungroup, Repeat, Distribute, Flatmap, Bcast)
"""Control nodes after which several messages can share an owner."""

HOST = -1
"""The memory space of pumped payloads."""

ArenaKey = tuple[int, tuple[int, ...], str]
"""An arena: its memory space, the shape of a row, and the dtype's name."""


@dataclass(frozen=True)
class Port:
    """An input of a stage: what it takes and in which memory space that lies."""

    type: WireType
    name: str
    space: int

    @functools.cached_property
    def arena(self) -> ArenaKey:
        """The arena that holds its payloads."""
        return (self.space, self.type.shape, self.type.dtype.name)


@dataclass(frozen=True)
class Leaf:
    """The end of a route: a stage's port."""

    stage: int
    port: int


@dataclass(eq=False)
class Step:
    """A control node in a route; `targets[j]` is where its output `j` goes."""

    node: Node
    targets: list[list[Leaf | Step]] = field(default_factory=list)


Targets = list[Leaf | Step]


@dataclass(eq=False)
class Stage:
    """What one dispatch runs.

    Args:
      number: Its place in `Plan.stages`.
      kind: `rows`, `loss`, `reduce`, `collect`, `sink`, `transfer`, or `group` (which is control and is never dispatched).
      nodes: The payload nodes in it, sources first; empty for a transfer.
      worker: The worker that runs it.
      space: The memory space of its outputs.
      join: What makes its inputs belong together.
      outputs: The wires that leave it.
      topology: Name of the topology pump that drives it, for a collect.
      direct: For each port, whether its messages' cells are owners themselves, never views.
      distinct: Whether no two input messages of a batch can share an owner: then references are counted in one step.
      sole: For each port, whether it is the sole consumer of every message that arrives: its adjoint writes the message's gradient
        rather than adding to it.
      written: For each output, whether all its messages have such a sole consumer: no adjoint rows need to be set to zero.
      workers_ahead: Workers on the way from it to where its messages end, its own included.
    """

    number: int
    kind: str
    nodes: tuple[Node, ...]
    worker: int
    space: int
    join: Key = None
    wires: list[Wire] = field(default_factory=list)
    ports: tuple[Port, ...] = ()
    outputs: tuple[WireType, ...] = ()
    routes: list[Targets] = field(default_factory=list)
    topology: str | None = None
    direct: tuple[bool, ...] = ()
    distinct: bool = False
    sole: tuple[bool, ...] = ()
    written: tuple[bool, ...] = ()
    workers_ahead: int = 1

    @functools.cached_property
    def name(self) -> str:
        """The names of its nodes."""
        if self.kind == "transfer":
            return (
                f"{self.wires[0].name}→{self.worker}"
                if self.ports[0].space != HOST
                else f"feed {self.wires[0].name}→{self.worker}"
            )
        return "+".join(node.name for node in self.nodes)

    @functools.cached_property
    def params(self) -> tuple[str, ...]:
        """Names of its nodes that have parameters."""
        return tuple(node.name for node in self.nodes if node.has_params)

    @functools.cached_property
    def route_by(self) -> RouteBy | None:
        """What reads its second port's payloads back into the states, if anything does."""
        op = self.nodes[-1].op if self.nodes else None
        return op if isinstance(op, RouteBy) else None

    @functools.cached_property
    def ragged(self) -> bool:
        """Whether its messages hold any number of rows."""
        return bool(self.ports) and self.ports[0].type.ragged

    @functools.cached_property
    def arenas(self) -> tuple[ArenaKey, ...]:
        """The arena of each output."""
        return tuple((self.space, out.shape, out.dtype.name) for out in self.outputs)

    def __repr__(self) -> str:
        ins = ", ".join(f"{p.name}: {p.type}{' (host)' if p.space == HOST else ''}" for p in self.ports)
        return f"Stage {self.number} {self.kind} `{self.name}` on worker {self.worker} ({ins}) -> {', '.join(map(str, self.outputs)) or 'nothing'}"


@dataclass(eq=False)
class Plan:
    """A graph prepared for running: stages and routes.

    Args:
      graph: The graph.
      layout: Where state fields stand.
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
        lines = [f"Plan: {len(self.stages)} stages on {self.workers} worker(s)"]
        return "\n".join([*lines, *(f"  {stage!r}" for stage in self.stages)])


def make_plan(graph: Graph, worker_of: Mapping[str, int], spaces: Sequence[int] = (0,), fuse: bool = True) -> Plan:
    """Cuts a graph into stages and composes its routes.

    Args:
      graph: A closed graph.
      worker_of: The worker of each payload node, by name.
      spaces: The memory space of each worker; workers that share a device share its memory.
      fuse: False keeps every payload node a stage of its own.
    """
    return _Planner(graph, dict(worker_of), tuple(spaces), fuse).run()


class _Planner:
    def __init__(self, graph: Graph, worker_of: dict[str, int], spaces: tuple[int, ...], fuse: bool):
        self.graph, self.worker_of, self.spaces = graph, worker_of, spaces
        self.stages: list[Stage] = []
        self.stage_of: dict[str, Stage] = {}
        self._cut(fuse)
        self._targets: dict[tuple[Wire, int], Targets] = {}
        self._reach: dict[Wire, dict[Leaf, None]] = {}

    def run(self) -> Plan:
        self._place_groups()
        self._type_ports()
        for stage in [*self.stages]:
            stage.routes = [self._route(wire, stage.space) for wire in stage.wires]
        pumps = {
            name: self._route(node.outputs[0], HOST)
            for name, node in self.graph.pumps.items()
            if not _type(node.outputs[0]).topology
        }
        self._trace_owners()
        self._find_sole_consumers()
        self._count_workers_ahead()
        return Plan(self.graph, self.graph.layout, self.stages, pumps, len(self.spaces), self.worker_of, self.spaces)

    # -- stages

    def _cut(self, fuse: bool) -> None:
        """Groups payload nodes into stages, consumers first, so that a node can join the stage that consumes all its outputs."""
        groups: list[list[Node]] = []
        of: dict[str, list[Node]] = {}
        for node in reversed(list(self.graph.walk())):
            if isinstance(node.op, Pump) or (node.is_control and not isinstance(node.op, Group)):
                continue
            home = self._fusable_into(node, of) if fuse else None
            if home is None:
                home = []
                groups.append(home)
            home.insert(0, node)
            of[node.name] = home
        for nodes in reversed(groups):
            self._add_stage(nodes)

    def _fusable_into(self, node: Node, of: Mapping[str, list[Node]]) -> list[Node] | None:
        """The group of nodes that consumes all of a node's outputs, directly and on the same worker, if it may join it."""
        if not isinstance(node.op, Compute):
            return None
        homes = [
            of.get(consumer.name) if not consumer.is_control else None
            for wire in node.outputs
            for consumer, _ in wire.consumers
        ]
        home = homes[0]
        if home is None or any(other is not home for other in homes):
            return None
        last = home[-1]
        same_worker = self.worker_of[node.name] == self.worker_of[last.name]
        same_options = (node.options.weights, node.options.max_dispatch_size) == (
            last.options.weights,
            last.options.max_dispatch_size,
        ) or not (node.has_params or last.has_params)
        plain_join = node.op.join is None and (_join(last) is None or len(dict.fromkeys(node.inputs)) == 1)
        # The states of a stage's outputs are those of its first port: under a join of its own that must stay `last`'s first input.
        first = isinstance(last.op, Loss) or _join(last) is None or _wire(home[0], 0).source is node
        fits = isinstance(last.op, (Compute, Loss)) and same_worker and same_options and plain_join and first
        return home if fits else None

    def _add_stage(self, nodes: list[Node]) -> None:
        last = nodes[-1]
        kinds = {Loss: "loss", Reduce: "reduce", Collect: "collect", Sink: "sink", Group: "group"}
        kind = kinds.get(type(last.op), "rows")
        worker = self.worker_of.get(last.name, 0)
        stage = Stage(
            len(self.stages), kind, tuple(nodes), worker, self.spaces[worker], _join(last), list(last.outputs)
        )
        stage.outputs = tuple(_type(w) for w in last.outputs)
        if kind == "collect":
            stage.topology = _wire(last, -1).source.name
        self.stages.append(stage)
        for node in nodes:
            self.stage_of[node.name] = stage

    def _entries(self, stage: Stage) -> list[Wire]:
        """The wires that enter a stage from outside, each once."""
        inside = {wire for node in stage.nodes for wire in node.outputs}
        wires = [_wire(node, p) for node in stage.nodes for p in range(len(node.inputs))]
        return [w for w in dict.fromkeys(wires) if w not in inside and not _type(w).topology]

    # -- memory spaces

    def _leaves(self, wire: Wire) -> dict[Leaf, None]:
        """All stage ports that a wire's messages can reach through control nodes."""
        if wire in self._reach:
            return self._reach[wire]
        found: dict[Leaf, None] = {}
        seen, stack = {wire}, [wire]
        while stack:
            for node, _ in (w := stack.pop()).consumers:
                if node.is_control and not isinstance(node.op, Group):
                    new = [o for o in node.outputs if o not in seen]
                    seen.update(new)
                    stack.extend(new)
                elif not _type(w).topology:
                    stage = self.stage_of[node.name]
                    found[Leaf(stage.number, self._entries(stage).index(w))] = None
        self._reach[wire] = found
        return found

    def _place_groups(self) -> None:
        """A group has no kernel: its rows lie where its first consumer wants them."""
        for stage in reversed(self.stages):
            if stage.kind == "group":
                leaves = list(self._leaves(stage.wires[0]))
                if leaves:
                    stage.worker, stage.space = self.stages[leaves[0].stage].worker, self.stages[leaves[0].stage].space

    def _type_ports(self) -> None:
        """A port lies in host memory if all its messages come from there; so does a group whose members do."""
        producers: dict[Leaf, list[Stage | None]] = {}
        for wire in [node.outputs[0] for node in self.graph.pumps.values()]:
            for leaf in self._leaves(wire):
                producers.setdefault(leaf, []).append(None)
        for stage in self.stages:
            for wire in stage.wires:
                for leaf in self._leaves(wire):
                    producers.setdefault(leaf, []).append(stage)
        on_host = dict.fromkeys(producers, True)
        changed = True
        while changed:
            changed = False
            for leaf, sources in producers.items():
                still = all(s is None or (s.kind == "group" and on_host.get(Leaf(s.number, 0), True)) for s in sources)
                changed |= still != on_host[leaf]
                on_host[leaf] = still
        for stage in self.stages:
            if stage.kind == "group" and on_host.get(Leaf(stage.number, 0), True):
                stage.space = HOST
        for stage in self.stages:
            stage.ports = tuple(
                Port(_type(w), w.name, HOST if on_host.get(Leaf(stage.number, i), True) else self._home(stage, i))
                for i, w in enumerate(self._entries(stage))
            )

    def _home(self, stage: Stage, port: int) -> int:
        opener = stage.kind == "group" and port == 1
        return stage.space if stage.space != HOST or not opener else self.spaces[stage.worker]

    # -- owners

    def _trace_owners(self) -> None:
        """Finds out for each port whether views can arrive there, and whether two messages can share an owner."""
        arrivals: dict[Leaf, list[tuple[int, bool, bool]]] = {}
        for stage in self.stages:
            for j in range(len(stage.routes)):
                self._follow(stage.routes[j], stage.number, len(stage.routes) > 1 and j > 0, arrivals)
        for number, wire in enumerate(node.outputs[0] for node in self.graph.pumps.values()):
            if not _type(wire).topology:
                self._follow(self._route(wire, HOST), -1 - number, False, arrivals)
        for stage in self.stages:
            ports = [arrivals.get(Leaf(stage.number, p), []) for p in range(len(stage.ports))]
            stage.direct = tuple(not any(view for _, view, _ in port) for port in ports)
            producers = [producer for port in ports for producer, _, _ in port]
            stage.distinct = len(set(producers)) == len(producers) and not any(
                again for port in ports for _, _, again in port
            )

    def _follow(
        self, targets: Targets, producer: int, view: bool, arrivals: dict[Leaf, list[tuple[int, bool, bool]]]
    ) -> None:
        """Notes each leaf that a producer's messages reach: whether as views, and whether several of one owner can."""
        found: dict[Leaf, tuple[bool, bool]] = {}
        seen: dict[int, tuple[bool, bool]] = {}
        stack = [(targets, view, False)]
        while stack:
            targets, view, again = stack.pop()
            for target in targets:
                if isinstance(target, Leaf):
                    old = found.get(target)
                    found[target] = (view, again) if old is None else (old[0] or view, True)
                    continue
                views, copies = isinstance(target.node.op, MAKES_VIEWS), isinstance(target.node.op, MAKES_COPIES)
                old = seen.get(id(target))
                flags = (view or views, again or copies) if old is None else (old[0] or view or views, True)
                if flags != old:
                    seen[id(target)] = flags
                    stack.extend((t, flags[0], flags[1]) for t in target.targets)
        for leaf, (is_view, is_again) in found.items():
            arrivals.setdefault(leaf, []).append((producer, is_view, is_again))

    def _find_sole_consumers(self) -> None:
        """Finds the outputs whose every message is consumed exactly once, and the ports that get such messages only."""
        outputs = {(s.number, j): _reached(route) for s in self.stages for j, route in enumerate(s.routes)}
        # A group's rows are its members', which others may consume too.
        good = {key: once and self.stages[key[0]].kind != "group" for key, (_, once) in outputs.items()}
        while True:
            shared = {leaf for key, (leaves, _) in outputs.items() if not good[key] for leaf in leaves}
            refused = {
                leaf for leaves, _ in outputs.values() for leaf in leaves if leaf in shared or not self._pays(leaf)
            }
            now = {
                key: good[key] and not any(leaf in refused for leaf in leaves) for key, (leaves, _) in outputs.items()
            }
            if now == good:
                break
            good = now
        reached = {leaf for key, (leaves, _) in outputs.items() if good[key] for leaf in leaves}
        for stage in self.stages:
            stage.written = tuple(good[stage.number, j] for j in range(len(stage.routes)))
            stage.sole = tuple(Leaf(stage.number, p) in reached for p in range(len(stage.ports)))

    def _pays(self, leaf: Leaf) -> bool:
        """Whether the adjoint at a port computes a gradient for each message, row by row."""
        stage = self.stages[leaf.stage]
        port = stage.ports[leaf.port]
        comes_back = stage.kind == "loss" or any(out.is_float for out in stage.outputs)
        return stage.kind in ("rows", "loss", "transfer") and port.space != HOST and port.type.is_float and comes_back

    def _count_workers_ahead(self) -> None:
        for stage in self.stages:
            seen, stack = {stage.number}, [stage]
            while stack:
                ahead = [leaf.stage for route in stack.pop().routes for leaf in _reached(route)[0]]
                new = [number for number in dict.fromkeys(ahead) if number not in seen]
                seen.update(new)
                stack.extend(self.stages[number] for number in new)
            stage.workers_ahead = len({self.stages[number].worker for number in seen})

    # -- routes

    def _route(self, wire: Wire, space: int) -> Targets:
        """Where a wire's messages go, for payloads that lie in `space`."""
        key = (wire, space)
        if key in self._targets:
            return self._targets[key]
        targets: Targets = []
        self._targets[key] = targets
        wanted = {self.stages[leaf.stage].ports[leaf.port].space for leaf in self._leaves(wire)}
        if len(wanted) == 1 and wanted != {space}:
            first = next(iter(self._leaves(wire)))
            targets.append(self._transfer(wire, space, self.stages[first.stage].worker, wanted.pop()))
            return targets
        inner: dict[Leaf, None] = {}
        for node, _ in wire.consumers:
            if not node.is_control or isinstance(node.op, Group):
                if _type(wire).topology:
                    continue
                stage = self.stage_of[node.name]
                if wire not in self._entries(stage):
                    continue
                inner[Leaf(stage.number, self._entries(stage).index(wire))] = None
            elif not any(isinstance(t, Step) and t.node is node for t in targets):
                targets.append(Step(node, [self._route(out, space) for out in node.outputs]))
        for leaf in inner:
            port = self.stages[leaf.stage].ports[leaf.port]
            if port.space == space:
                targets.append(leaf)
            else:
                targets.append(self._transfer(wire, space, self.stages[leaf.stage].worker, port.space, leaf))
        return targets

    def _transfer(self, wire: Wire, source: int, worker: int, space: int, leaf: Leaf | None = None) -> Leaf:
        """A new transfer stage for a wire's messages; on the other side they go on to `leaf`, or along the wire's whole route."""
        stage = Stage(len(self.stages), "transfer", (), worker, space, None, [wire])
        stage.ports = (Port(_type(wire), wire.name, source),)
        stage.outputs = (_type(wire),)
        self.stages.append(stage)
        stage.routes = [[leaf] if leaf is not None else self._route(wire, space)]
        return Leaf(stage.number, 0)


def _reached(targets: Targets) -> tuple[dict[Leaf, None], bool]:
    """The ports that a route's messages can reach, and whether each message certainly reaches exactly one."""
    leaves: dict[Leaf, None] = {}
    once, seen, stack = True, set(), [targets]
    while stack:
        targets = stack.pop()
        once &= len(targets) == 1
        for target in targets:
            if isinstance(target, Leaf):
                leaves[target] = None
                continue
            once &= not isinstance(target.node.op, MAKES_COPIES)
            if id(target) not in seen:
                seen.add(id(target))
                stack.extend(target.targets)
    return leaves, once


def _join(node: Node) -> Key:
    return getattr(node.op, "join", None)


def _type(wire: Wire) -> WireType:
    assert wire.type is not None
    return wire.type


def _wire(node: Node, port: int) -> Wire:
    wire = node.inputs[port]
    assert wire is not None
    return wire
