"""The graph to be: nodes are noted while the model is lowered, and built when all state fields are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.tracing import type_of
from ampjax.frontend.deduction.edge_plans import EdgePlan
from ampjax.frontend.deduction.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.deduction.node_bodies import NodeNote, PackedBody, as_it_is, unpack
from ampjax.frontend.deduction.params_nodes import ParamsNodes
from ampjax.frontend.deduction.values import Computed, Flow, Static, Value
from ampjax.ir.builders import control_builders, payload_builders, pump_builders, ragged_builders
from ampjax.ir.builders.replicate_builder import replicate
from ampjax.ir.graph import Graph, current_graph
from ampjax.ir.state import State, StateFn
from ampjax.ir.wires import Wire
from ampjax.jaxprs.traced_bodies import traced
from ampjax.nn import TableEmbed
from ampjax.sparse import Table

if TYPE_CHECKING:
    from ampjax.frontend.instance_columns import Columns

_MOST_COPIED = 16
"""Entries of a value of an outer space that are pumped anew for each element at most; larger ones are pumped once and sent to each."""


@dataclass(frozen=True, eq=False)
class PumpPlan:
    """What a pump gets.

    Args:
      region: The rows of which there is a message each.
      payload: Columns whose values a payload packs; none for a message whose payload nobody reads.
      dtype: The payload's dtype.
      told: State fields that have other values than those of their place.
    """

    region: Region
    payload: Sequence[Column]
    dtype: np.dtype
    told: Mapping[str, Column] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a node comes from.

    Args:
      line: The user's line, or the lines that lead to it.
      region: The rows of which there is a message each.
    """

    line: str
    region: Region


class GraphDraft:
    """Notes of nodes, in the order in which they are to be built.

    Args:
      params: The model's parameters, a dictionary.

    Attributes:
      pumps: What each pump gets, by name.
      topologies: Likewise what each topology pump gets.
      params: Which nodes have which of the parameters.
      origins: Where each pump and each node that computes comes from, by name.
      anchors: For regions whose rows only the run can tell, a wire with a message for each row: what needs no other message waits for it.
      checks: What data must fulfil beside the spec: each raises a `DataError` if columns do not.
    """

    def __init__(self, params: Mapping[str, Any]):
        self.params = ParamsNodes(params)
        self.checks: list[Callable[[Columns], None]] = []
        self.pumps: dict[str, PumpPlan] = {}
        self.topologies: dict[str, EdgePlan] = {}
        self.origins: dict[str, Origin] = {}
        self.anchors: dict[Region, Flow] = {}
        self._steps: list[Callable[[], None]] = []
        self._reserved = set(params)
        self._names = set(params)
        self._pumped: dict[Any, Flow] = {}
        self._places: dict[str, tuple[str, Flow]] = {}
        self._entrances: dict[str, Callable[[], Wire]] = {}
        self._entries: dict[str, Wire] = {}
        self._sinks: set[str] = set()

    def reserve(self, names: Iterable[str]) -> None:
        """Keeps names for the nodes that the user has named, beside the keys of the parameters."""
        found = set(names)
        self._reserved |= found
        self._names |= found

    def name(self, wanted: str, *, is_users: bool = False) -> str:
        """A free name: the wanted one, with a number where it is taken.

        Args:
          wanted: The name.
          is_users: Whether the user gave it: as a key of the parameters, or to `amp.node`.
        """
        if is_users and wanted in self._reserved:
            self._reserved.remove(wanted)
            return wanted
        free, number = wanted, 2
        while free in self._names:
            free, number = f"{wanted}_{number}", number + 1
        self._names.add(free)
        return free

    def then(self, step: Callable[[], None]) -> None:
        """Notes a step of building."""
        self._steps.append(step)

    def build(self, copies: int = 1) -> Graph:
        """Builds the graph.

        Args:
          copies: Copies of all of it but the pumps; instances are dealt to them in turn.
        """
        with Graph() as graph:
            self._build_all()
        if copies > 1:  # now it is known which pumps there are
            with Graph() as graph:
                pumps = [make() for make in self._entrances.values()]
                replicate(self._build_all, copies, name="copy")(*pumps)
        self.params.note_copies(graph)
        return graph

    def _build_all(self, *entries: Wire) -> None:
        """Builds all nodes; given wires take the place of the pumps."""
        graph = current_graph()
        before, self._entries = set(graph.nodes), dict(zip(self._entrances, entries, strict=False))
        for step in self._steps:
            step()
        made = [wire for name, node in graph.nodes.items() if name not in before for wire in node.outputs]
        for wire in (*entries, *made):
            if not wire.consumers and not wire.is_topology:
                pump_builders.discard(wire)

    def enter(self, name: str, make: Callable[[], Wire]) -> Wire:
        """The wire of a pump, while the graph is built: the pump's own, or the one that leads from there into a copy.

        Args:
          name: The pump's name.
          make: Builds it.
        """
        self._entrances.setdefault(name, make)
        return self._entries[name] if self._entries else make()

    def pump(
        self, name: str, region: Region, payload: Sequence[Column], types: list[Any], line: str, origin: str = ""
    ) -> Flow:
        """Notes a pump; what is pumped already serves again.

        Args:
          name: Its name.
          region: The rows of which there is a message each.
          payload: A column for each value that a payload packs.
          types: The values' types, of one dtype.
          line: The user's line.
          origin: The lines that lead to it, for people; empty where that is the line alone.

        Raises:
          GraphError: If only the run can tell which rows there are.
        """
        _require_known(region, name, line)
        key = (region, tuple(payload), np.dtype(types[0].dtype), tuple(tuple(kind.shape) for kind in types))
        if key in self._pumped:
            return self._pumped[key]
        flow, called = Flow(region, types), self.name(name)
        self._pumped[key] = flow
        self.origins[called] = Origin(origin or line, region)
        self.pumps[called] = PumpPlan(region, payload, flow.dtype)
        self.then(lambda: self._build_pump(called, flow))
        return flow

    def place(self, region: Region, name: str, line: str) -> Flow:
        """Notes a pump whose messages bring nothing but the state of each row.

        Args:
          region: The rows.
          name: The pump's name.
          line: The user's line.
        """
        return self.pump(f"{name}/place", region, (), [jax.ShapeDtypeStruct((), np.int32)], line)

    def control(self, region: Region, types: list[Any], make: Callable[[], Wire], is_fresh: bool = True) -> Flow:
        """Notes a node that moves messages.

        Args:
          region: Where its messages are.
          types: What their payloads pack.
          make: Builds it.
          is_fresh: Whether their states are those of their place.
        """
        flow = Flow(region, types, is_fresh)
        self.then(lambda: _set(flow, make()))
        return flow

    def relabel(self, flow: Flow, region: Region, change: Callable[[State], State], name: str, is_fresh: bool) -> Flow:
        """Notes a change of states; gradients find the way back by themselves.

        Args:
          flow: The messages.
          region: Where they are afterwards.
          change: From states to states.
          name: The node's name.
          is_fresh: Whether the states are those of their place afterwards.
        """
        called = self.name(name)
        return self.control(
            region, flow.types, lambda: control_builders.relabel(built(flow), change, name=called), is_fresh
        )

    def split(self, flow: Flow, choose: StateFn, regions: Sequence[Region], name: str) -> list[Flow]:
        """Notes a Cond.

        Args:
          flow: The messages.
          choose: Gives the output's number.
          regions: Where each output's messages are.
          name: The node's name.
        """
        flows = [
            Flow(region, flow.types, flow.is_fresh, flow.is_late, knows_outer=flow.knows_outer, kept=flow.kept)
            for region in regions
        ]
        called = self.name(name)

        def step() -> None:
            for out, wire in zip(
                flows, control_builders.cond(built(flow), choose, len(flows), name=called), strict=True
            ):
                out.wire = wire

        self.then(step)
        return flows

    def merge(self, region: Region, flows: Sequence[Flow], name: str) -> Flow:
        """Notes a Phi.

        Args:
          region: Where its messages are.
          flows: What it merges.
          name: The node's name.
        """
        called = self.name(name)
        make = lambda: control_builders.phi(called, *(built(flow) for flow in flows))
        merged = self.control(region, flows[0].types, make, all(flow.is_fresh for flow in flows))
        merged.knows_outer = all(flow.knows_outer for flow in flows)
        stale = [flow.kept for flow in flows if not flow.is_fresh]
        merged.kept = stale[0] if stale and all(kept is stale[0] for kept in stale) else ()
        return merged

    def loop(self, region: Region, types: list[Any], name: str, is_fresh: bool = False) -> Flow:
        """Notes a Phi whose inputs `close_loop` gives.

        Args:
          region: Where its messages are.
          types: What their payloads pack.
          name: The node's name.
          is_fresh: Whether their states will be those of their place.
        """
        called = self.name(name)
        flow = self.control(region, types, lambda: control_builders.phi(called), is_fresh)
        flow.is_late = True
        return flow

    def close_loop(self, loop: Flow, *flows: Flow) -> None:
        """Notes the inputs of a loop's Phi."""

        def step() -> None:
            wire = built(loop)
            assert isinstance(wire, control_builders.PhiWire)
            wire.connect(*(built(flow) for flow in flows))

        self.then(step)

    def reserve_outputs(self, names: Sequence[str]) -> None:
        """Keeps names for outputs of `predict`, so that no node takes one.

        Args:
          names: The names.
        """
        self._names |= {*names}

    def sink(self, flow: Flow, name: str, line: str) -> None:
        """Notes an output of `predict`.

        Args:
          flow: The messages.
          name: Its name.
          line: The user's line.

        Raises:
          GraphError: If another output or a node with parameters has this name.
        """
        if name in self._sinks or name in self.params.initial:
            taken = "an output" if name in self._sinks else "a key of the parameters"
            raise GraphError(line, "a name of its own for each output", f"`{name}`, as {taken} is called", "Rename it.")
        self._sinks.add(name)
        self.then(lambda: (pump_builders.sink(name, built(flow)), None)[1])

    def fresh(self, flow: Flow, name: str, line: str) -> Flow:
        """The same messages with the states of their place."""
        if flow.is_fresh:
            return flow
        copy = self.compute(_copy(flow, name, line))[0]
        copy.is_late = flow.is_late
        return copy

    def tell(self, flow: Flow, told: Mapping[str, Column], name: str, line: str) -> Flow:
        """The same messages with the states of their place, but for some fields.

        Args:
          flow: The messages.
          told: These fields' values.
          name: What the node is called.
          line: The user's line.
        """
        _require_known(flow.region, name, line)
        copy = self.compute(replace(_copy(flow, name, line), told=told))[0]
        copy.is_fresh = False
        return copy

    def pair(self, flow: Flow, region: Region, fields: tuple[str, str, str], name: str) -> Flow:
        """Notes copies of each element's message for every element of another sequence of the same row.

        Args:
          flow: The messages, one for each element of the first sequence.
          region: The pairs.
          fields: The field that says how many elements the other sequence has, the one that numbers them, and the one that numbers
            the first sequence's.
          name: The node's name.
        """
        size, other, own = fields
        inner = region.space
        assert inner.parent is not None
        space, drop = inner.parent, flow.region.space

        def change(s: State, i: Any) -> State:
            facts = dict.fromkeys([*space.facts, *inner.facts], 0)
            kept = s.drop(*drop.facts) if own == inner.index else s.drop(own, *drop.facts)
            return kept.replace(**facts, **{inner.index: getattr(s, own), other: i})

        make = lambda: ragged_builders.flatmap(built(flow), lambda s: getattr(s, size), change, name=name)
        pairs = self.control(region, flow.types, make, is_fresh=False)
        pairs.knows_outer = False
        return pairs

    def compute(self, note: NodeNote) -> list[Flow]:
        """Notes a node that computes, and the pumps of what it needs from the instance.

        Args:
          note: What it computes.

        Returns:
          A wire for each of its groups of results.
        """
        flows = [Flow(note.region, [note.results[i] for i in group]) for group in note.groups]

        def connect(outputs: Any) -> None:
            for flow, wire in zip(flows, outputs if isinstance(outputs, tuple) else (outputs,), strict=True):
                flow.wire = wire

        if note.table is not None:
            builder = self._table_builder(note.table)
        else:
            builder = self._params_builder(note) if note.leaves else self._plain_builder(note.replicas)
        self._noted(note, builder, connect)
        return flows

    def loss(self, note: NodeNote, metrics: Sequence[tuple[str, int, int]]) -> None:
        """Notes a loss.

        Args:
          note: What it computes: its first result is the loss.
          metrics: For each metric, its name and which results are its sum and its count.
        """

        def builder(name: str, body: PackedBody, join: Any) -> Any:
            def with_metrics(*payloads: Any) -> Any:
                results = unpack(body(*payloads), note.results)
                return results[0], {metric: (results[value], results[count]) for metric, value, count in metrics}

            return payload_builders.loss(name, traced(with_metrics, body.payloads, draws=False), join=join)

        self._noted(note, builder, lambda _: None)

    def _plain_builder(self, replicas: int) -> Callable[..., Any]:
        def builder(name: str, body: PackedBody, join: Any) -> Any:
            draws = body.note.draws
            one = traced(body, body.payloads, draws)
            made = payload_builders.npt(name, one, outputs=len(body.note.groups), join=join, rng=draws)
            return replicate(made, replicas)

        return builder

    def _table_builder(self, table: Table) -> Callable[..., Any]:
        return lambda name, body, join: payload_builders.ppt(name, TableEmbed(table), join=join)

    def _params_builder(self, note: NodeNote) -> Callable[..., Any]:
        owner = self.params.owner(note.leaves, note.named_by, note.line)
        owner.users += 1
        owner.options, owner.replicas = owner.options or note.options, max(owner.replicas, note.replicas)
        is_first = owner.users == 1
        if owner.replicas > 1 and not is_first:
            fix = "Give each place a name and parameters of its own, or copy the whole network: `amp.compile(..., copies=n)`."
            raise GraphError(note.line, "one place for a node with replicas", f"another place of `{owner.name}`", fix)

        def builder(name: str, body: PackedBody, join: Any) -> Any:
            tree, leaves = self.params.of(owner)
            own = replace(body, leaves=leaves)
            one = traced(own, [jax.tree.map(type_of, tree), *body.payloads], note.draws)
            same = {"outputs": len(note.groups), "join": join, "rng": note.draws}
            if is_first:
                made = payload_builders.ppt(owner.name, one, params=tree, **same, **owner.options)
            else:
                made = payload_builders.ppt(name, one, params_of=owner.name, **same)
            return replicate(made, owner.replicas)

        return builder

    def _noted(self, note: NodeNote, builder: Callable[..., Any], connect: Callable[[Any], None]) -> None:
        region = note.region
        wanted = next(iter({key for key, _ in note.leaves}), note.name) if note.leaves else note.name
        name = self.name(note.named_by or wanted, is_users=bool(note.leaves or note.named_by))
        self.origins[name] = Origin(note.origin or note.line, region)
        values = [self._sent_in(value, kind, note) for value, kind in zip(note.inputs, note.types, strict=True)]
        places: dict[int, tuple[Flow, int]] = {}
        pumped: dict[np.dtype, list[tuple[int, Column]]] = {}
        for i, value in enumerate(values):
            if isinstance(value, Static):
                pumped.setdefault(np.dtype(note.types[i].dtype), []).append((i, value.column))
            elif isinstance(value, Computed):
                places[i] = (value.flow, value.part)
        computed = {id(flow): flow for flow, _ in places.values()}
        ports: list[Flow] = []
        for members in pumped.values():
            types = [note.types[i] for i, _ in members]
            columns = [column for _, column in members]
            flow = self.pump(f"{name}/in", region, columns, types, note.line, note.origin)
            ports.append(flow)
            places |= {i: (flow, part) for part, (i, _) in enumerate(members)}
        ports += sorted(computed.values(), key=lambda flow: not flow.is_fresh)
        if not ports and region in self.anchors:
            ports.append(self.anchors[region])
        elif not ports:
            _require_known(region, name, note.line)

        def step() -> None:
            entries = list(ports)
            if note.told or not entries or not (entries[0].is_fresh or self._has_no_facts(region.space, entries[0])):
                entries = [self._place_now(region, name, note), *entries]
            numbers = {id(flow): port for port, flow in enumerate(entries)}
            where = {i: (numbers[id(flow)], part) for i, (flow, part) in places.items()}
            body = PackedBody(replace(note, inputs=values), [flow.types for flow in entries], where)
            # Messages with the same states meet by all of them, so that nodes can be fused; others by what tells rows apart.
            is_same = region.space.is_set and not note.told and all(flow.is_fresh for flow in entries)
            join = None if len(entries) < 2 or is_same else region.space.key or ("instance",)
            connect(builder(name, body, join)(*(built(flow) for flow in entries)))

        self.then(step)

    def _has_no_facts(self, space: IndexSpace, flow: Flow) -> bool:
        """Whether messages whose states are not those of their place lack nothing: there are no facts that they do not know."""
        spaces = [] if flow.knows_outer else space.around()[1:]
        own = {name: column for name, column in space.facts.items() if name not in flow.kept}
        return all(column is None for facts in (own, *(each.facts for each in spaces)) for column in facts.values())

    def _place_now(self, region: Region, name: str, note: NodeNote) -> Flow:
        """A pump that is noted while others are built: whether it is needed depends on the fields that there are."""
        if name not in self._places:
            called = self.name(f"{name}/place")
            place = Flow(region, [jax.ShapeDtypeStruct((), np.int32)], is_fresh=not note.told)
            self.pumps[called] = PumpPlan(region, (), place.dtype, note.told)
            self.origins[called] = Origin(note.line, region)
            self._places[name] = called, place
        self._build_pump(*self._places[name])
        return self._places[name][1]

    def _build_pump(self, name: str, flow: Flow) -> None:
        space = flow.region.space
        make = lambda: pump_builders.pump(name, flow.shape, flow.dtype, space.fields, space.is_ragged)
        flow.wire = self.enter(name, make)

    def _sent_in(self, value: Value, kind: Any, note: NodeNote) -> Value:
        """A large value of an outer space is pumped once for each of its own rows and sent in from there."""
        inner = note.region.space
        if not isinstance(value, Static) or value.column.space is inner or int(np.prod(kind.shape)) <= _MOST_COPIED:
            return value
        outer = value.column.space
        flow = self.pump(f"{note.name}/shared", note.region.within(outer), [value.column], [kind], note.line)
        for space in reversed(inner.around()[: inner.around().index(outer)]):
            flow = self.send_in(flow, space, note.name)
        return Computed(flow)

    def send_in(self, flow: Flow, space: IndexSpace, name: str) -> Flow:
        """Notes copies of each message for the elements of a sequence that its row has.

        Args:
          flow: The messages.
          space: The elements' space.
          name: What the node is called after.
        """
        flow = self.fresh(flow, name, "")
        size, index, called = space.size, space.index, self.name(f"{name}/each")
        inner = flow.region.within(space)
        if space.is_ragged:
            repeat = lambda: ragged_builders.repeat(built(flow), lambda s: getattr(s, size), called)
            return self.control(inner, flow.types, repeat)

        def make() -> Wire:
            facts = dict.fromkeys(space.facts, 0)
            return ragged_builders.flatmap(
                built(flow), lambda s: getattr(s, size), lambda s, i: s.replace(**{index: i}, **facts), name=called
            )

        return self.control(inner, flow.types, make, is_fresh=False)


def _copy(flow: Flow, name: str, line: str) -> NodeNote:
    """A node that gives what it gets."""
    parts = [Computed(flow, i) for i in range(len(flow.types))]
    return NodeNote(name, flow.region, parts, flow.types, as_it_is, flow.types, [range(len(parts))], line)


def built(flow: Flow) -> Wire:
    """A flow's wire, once it is built."""
    assert flow.wire is not None
    return flow.wire


def _require_known(region: Region, name: str, line: str) -> None:
    """Refuses what is pumped where only the run can tell which rows there are."""
    if not region.is_known:
        raise GraphError(
            line,
            "values that are computed, where a value that was read decides what runs",
            f"one of the instance's ({name})",
            "Use the instance's value before the choice, or pass it in what is carried.",
        )


def _set(flow: Flow, wire: Wire) -> None:
    flow.wire = wire
