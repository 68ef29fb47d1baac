"""The graph to be: nodes are noted while the model is lowered, and built when all state fields are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.draw_places import DrawPlace
from ampjax.frontend.draft.edge_plans import EdgePlan
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.params_nodes import ParamsNodes
from ampjax.frontend.draft.values import Computed, Flow, Static, Value
from ampjax.ir.builders import control_builders, pump_builders, ragged_builders
from ampjax.ir.builders.replicate_builder import replicate
from ampjax.ir.graph import Graph, current_graph
from ampjax.ir.state import State, StateFn
from ampjax.ir.wires import Wire

if TYPE_CHECKING:
    from ampjax.frontend.instances.instance_columns import Columns


@dataclass(frozen=True, eq=False)
class PumpPlan:
    """The input of a pump.

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
    """The origin of a node.

    Args:
      line: The user's line, or the lines that lead to it.
      region: The rows of which there is a message each.
    """

    line: str
    region: Region


@dataclass(frozen=True, eq=False)
class Drawing:
    """The place in the model where a node draws random numbers.

    Args:
      space: The space of its messages' rows.
      places: For each step that draws, its number in the node's body, and where it is in the model.
    """

    space: IndexSpace
    places: Sequence[tuple[int, DrawPlace]]


class GraphDraft:
    """Notes of nodes, in the order in which they are to be built.

    Its methods note pumps, and nodes that move messages; `payload_notes` notes nodes that compute. It has more than 15 methods and twelve attributes,
    since there is one for each way in which a rule moves messages, and each thing that a graph must not have twice.

    Args:
      params: The model's parameters, a dictionary.

    Attributes:
      pumps: What each pump gets, by name.
      topologies: Likewise what each topology pump gets.
      params: Which nodes have which of the parameters.
      origins: Where each pump and each node that computes comes from, by name.
      drawings: Where each node that draws random numbers does so, by name.
      anchors: For regions whose rows only the run can tell, a wire with a message for each row: what needs no other message waits for it.
      has_loops: Whether some operations of the model are loops of JAX's that need not have a gradient.
      brought: For a wire and a step on its way to such a region, the wire that follows; with the wire itself, so that it stays.
      checks: What data must fulfil beside the spec: each raises a `DataError` if columns do not.
    """

    def __init__(self, params: Mapping[str, Any]):
        self.params = ParamsNodes(params)
        self.checks: list[Callable[[Columns], object]] = []
        self.pumps: dict[str, PumpPlan] = {}
        self.topologies: dict[str, EdgePlan] = {}
        self.origins: dict[str, Origin] = {}
        self.drawings: dict[str, Drawing] = {}
        self.anchors: dict[Region, Flow] = {}
        self.has_loops = False
        self.brought: dict[Any, tuple[Flow, Flow]] = {}
        self._steps: list[Callable[[], None]] = []
        self._users: set[str] = set()
        self._reserved = set(params)
        self._names = set(params)
        self._pumped: dict[Any, Flow] = {}
        self._carried: dict[tuple[Region, Column], Computed] = {}
        self._places: dict[str, tuple[str, Flow]] = {}
        self._entrances: dict[str, Callable[[], Wire]] = {}
        self._entries: dict[str, Wire] = {}
        self._sinks: set[str] = set()

    def reserve(self, names: Iterable[str]) -> None:
        """Keeps names for the nodes that the user has named, beside the keys of the parameters."""
        reserved = set(names)
        self._users |= reserved
        self._reserved |= reserved
        self._names |= reserved

    def name(self, wanted: str, *, is_users: bool = False) -> str:
        """Finds a free name: the wanted one, with a number if the name is taken.

        Args:
          wanted: The name.
          is_users: Whether the user gave it: as a key of the parameters, or to `amp.node`.
        """
        if is_users and wanted in self._reserved:
            self._reserved.remove(wanted)
            return wanted
        free = wanted
        number = 2
        while free in self._names:
            free = f"{wanted}_{number}"
            number = number + 1
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
        graph.form = self.params.form()
        graph.unread = self.params.unread()
        return graph

    def _build_all(self, *entries: Wire) -> None:
        """Builds all nodes; given wires take the place of the pumps."""
        graph = current_graph()
        before = set(graph.nodes)
        self._entries = dict(zip(self._entrances, entries, strict=False))
        for step in self._steps:
            step()
        built = []
        for name, node in graph.nodes.items():
            if name not in before:
                for wire in node.outputs:
                    built.append(wire)
        for wire in (*entries, *built):
            if not wire.consumers and not wire.is_topology:
                pump_builders.discard(wire)

    def enter(
        self,
        name: str,
        make: Callable[[], Wire],
    ) -> Wire:
        """The wire of a pump, while the graph is built: the pump's own, or the one that leads from there into a copy."""
        self._entrances.setdefault(name, make)
        return self._entries[name] if self._entries else make()

    def pump(
        self,
        name: str,
        region: Region,
        payload: Sequence[Column],
        types: list[Any],
        line: str,
        origin: str = "",
    ) -> Flow:
        """Notes a pump; values that are pumped already get no second pump.

        Args:
          name: Its name.
          region: The rows of which there is a message each; the instances say which these are.
          payload: A column for each value that a payload packs.
          types: The values' types, of one dtype.
          line: The user's line.
          origin: The lines that lead to it, for people; empty where that is the line alone.
        """
        key = (
            region,
            tuple(payload),
            types[0].dtype,
            tuple(tuple(kind.shape) for kind in types),
        )
        if key in self._pumped:
            return self._pumped[key]
        flow = Flow(region, types)
        called = self.name(name)
        self._pumped[key] = flow
        self.origins[called] = Origin(origin or line, region)
        self.pumps[called] = PumpPlan(region, payload, flow.dtype)
        self.then(lambda: self._build_pump(called, flow))
        return flow

    def carry(self, column: Column, region: Region, value: Computed) -> None:
        """Notes that a message carries an instance's values to each row of a region, where only the run decides on the rows.

        Args:
          column: What they say.
          region: The rows.
          value: The message, and which of its parts.
        """
        self._carried[region, column.outer] = value

    def find_carried(self, value: Value, region: Region) -> Value:
        """Replaces a value of the instance by the part of a message that carries it, if there is one; returns other values unchanged."""
        if isinstance(value, Static):
            return self._carried.get((region, value.column.outer), value)
        return value

    def control(
        self,
        region: Region,
        types: list[Any],
        make: Callable[[], Wire],
        is_fresh: bool = True,
    ) -> Flow:
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

    def relabel(
        self,
        flow: Flow,
        region: Region,
        change: Callable[[State], State],
        name: str,
        is_fresh: bool,
    ) -> Flow:
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
            region,
            flow.types,
            lambda: control_builders.relabel(built_wire(flow), change, name=called),
            is_fresh,
        )

    def split(
        self, flow: Flow, choose: StateFn, regions: Sequence[Region], name: str
    ) -> list[Flow]:
        """Notes a Cond.

        Args:
          flow: The messages.
          choose: Gives the output's number.
          regions: Where each output's messages are.
          name: The node's name.
        """
        flows = []
        for region in regions:
            flows.append(
                Flow(
                    region,
                    flow.types,
                    flow.is_fresh,
                    flow.is_late,
                    knows_outer=flow.knows_outer,
                    kept=flow.kept,
                )
            )
        called = self.name(name)

        def step() -> None:
            for out, wire in zip(
                flows,
                control_builders.cond(built_wire(flow), choose, len(flows), name=called),
                strict=True,
            ):
                out.wire = wire

        self.then(step)
        return flows

    def merge(
        self,
        region: Region,
        flows: Sequence[Flow],
        name: str,
    ) -> Flow:
        """Notes a Phi.

        Args:
          region: Where its messages are.
          flows: What it merges.
          name: The node's name.
        """
        called = self.name(name)

        def make():
            return control_builders.phi(called, *(built_wire(flow) for flow in flows))

        merged = self.control(
            region,
            flows[0].types,
            make,
            all(flow.is_fresh for flow in flows),
        )
        merged.knows_outer = all(flow.knows_outer for flow in flows)
        stale = [flow.kept for flow in flows if not flow.is_fresh]
        if stale and all(kept is stale[0] for kept in stale):
            merged.kept = stale[0]
        else:
            merged.kept = ()
        return merged

    def loop(
        self,
        region: Region,
        types: list[Any],
        name: str,
        is_fresh: bool = False,
    ) -> Flow:
        """Notes a Phi whose inputs `close_loop` gives.

        Args:
          region: Where its messages are.
          types: What their payloads pack.
          name: The node's name.
          is_fresh: Whether their states will be those of their place.
        """
        called = self.name(name)
        flow = self.control(
            region,
            types,
            lambda: control_builders.phi(called),
            is_fresh,
        )
        flow.is_late = True
        return flow

    def close_loop(self, loop: Flow, *flows: Flow) -> None:
        """Notes the inputs of a loop's Phi."""

        def step() -> None:
            wire = built_wire(loop)
            assert isinstance(wire, control_builders.PhiWire)
            wire.connect(*(built_wire(flow) for flow in flows))

        self.then(step)

    def reserve_outputs(self, names: Sequence[str]) -> None:
        """Keeps names for outputs of `predict`, so that no node takes one."""
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
        if name in self._sinks or name in self._users or name in self.params.initial:
            if name in self._sinks:
                taken = "an output"
            elif name in self._users:
                taken = "a node"
            else:
                taken = "a key of the parameters"
            raise GraphError(
                line,
                "a name of its own for each output",
                f"`{name}`, as {taken} is called",
                "Rename it.",
            )
        self._sinks.add(name)
        self.then(lambda: (pump_builders.sink(name, built_wire(flow)), None)[1])

    def pair(
        self,
        flow: Flow,
        region: Region,
        fields: tuple[str, str, str],
        name: str,
    ) -> Flow:
        """Notes copies of each element's message for every element of another sequence of the same row.

        Args:
          flow: The messages, one for each element of the first sequence.
          region: The pairs.
          fields: The field that says how many elements the other sequence has, the one that numbers them, and the one that numbers
            the first sequence's.
          name: The node's name.
        """
        size, other, own_index = fields
        inner = region.space
        assert inner.parent is not None
        space = inner.parent
        drop = flow.region.space

        def change(s: State, i: Any) -> State:
            facts = dict.fromkeys([*space.facts, *inner.facts], 0)
            if own_index == inner.index:
                state = s.drop(*drop.facts)
            else:
                state = s.drop(own_index, *drop.facts)
            return state.replace(
                **facts,
                **{inner.index: getattr(s, own_index), other: i},
            )

        def make():
            return ragged_builders.flatmap(
                built_wire(flow), lambda s: getattr(s, size), change, name=name
            )

        pairs = self.control(region, flow.types, make, is_fresh=False)
        pairs.knows_outer = False
        return pairs

    def place_now(
        self,
        region: Region,
        name: str,
        line: str,
        told: Mapping[str, Column],
    ) -> Flow:
        """Builds a pump of places while other nodes are built: the need for one depends on the fields of that moment.

        Args:
          region: The rows.
          name: The node that needs it.
          line: The user's line.
          told: State fields that have other values than those of their place.
        """
        if name not in self._places:
            called = self.name(f"{name}/place")
            place = Flow(
                region,
                [jax.ShapeDtypeStruct((), np.int32)],
                is_fresh=not told,
            )
            self.pumps[called] = PumpPlan(region, (), place.dtype, told)
            self.origins[called] = Origin(line, region)
            self._places[name] = called, place
        self._build_pump(*self._places[name])
        return self._places[name][1]

    def _build_pump(self, name: str, flow: Flow) -> None:
        space = flow.region.space

        def make():
            return pump_builders.pump(
                name,
                flow.shape,
                flow.dtype,
                space.fields,
                space.is_ragged,
            )

        flow.wire = self.enter(name, make)


def built_wire(flow: Flow) -> Wire:
    """Returns a flow's wire, once the wire is built."""
    assert flow.wire is not None
    return flow.wire


def _set(flow: Flow, wire: Wire) -> None:
    flow.wire = wire
