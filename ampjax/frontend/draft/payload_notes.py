"""Notes of nodes that compute, and of the nodes and pumps that bring their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.tracing import type_of
from ampjax.frontend.draft.carried_columns import from_carried
from ampjax.frontend.draft.graph_draft import Drawing, GraphDraft, Origin, built_wire
from ampjax.frontend.draft.index_spaces import Column, Guard, IndexSpace, Region
from ampjax.frontend.draft.node_bodies import NodeNote, PackedBody, as_it_is, unpack
from ampjax.frontend.draft.values import Computed, Flow, OfParams, Static, Value
from ampjax.ir.builders import payload_builders, ragged_builders
from ampjax.ir.builders.replicate_builder import replicate
from ampjax.ir.wires import Wire
from ampjax.jaxprs.traced_bodies import trace_body
from ampjax.nn import TableEmbed
from ampjax.sparse import Table

_Step = IndexSpace | Guard
"""A step on the way of a value: into a space, of elements or of the rounds that a decision makes, or to the rows where a guard holds."""

_MOST_COPIED = 16
"""Entries of a value of an outer space that are pumped anew for each element at most; larger ones are pumped once and sent to each."""


def refresh_states(
    draft: GraphDraft,
    flow: Flow,
    name: str,
    line: str,
) -> Flow:
    """The same messages with the states of their place."""
    if flow.is_fresh:
        return flow
    copy = compute(draft, _copy(flow, name, line))[0]
    copy.is_late = flow.is_late
    return copy


def tell(
    draft: GraphDraft,
    flow: Flow,
    told: Mapping[str, Column],
    name: str,
    line: str,
) -> Flow:
    """The same messages with the states of their place, but for some fields."""
    copy = compute(draft, replace(_copy(flow, name, line), told=told))[0]
    copy.is_fresh = False
    return copy


def compute(draft: GraphDraft, note: NodeNote) -> list[Flow]:
    """Notes a node that computes, and the pumps of its inputs from the instance.

    Returns:
      A wire for each of its groups of results.
    """
    flows = []
    for group in note.groups:
        flows.append(Flow(note.region, [note.results[i] for i in group]))

    def connect(outputs: Any) -> None:
        for flow, wire in zip(
            flows, outputs if isinstance(outputs, tuple) else (outputs,), strict=True
        ):
            flow.wire = wire

    if note.table is not None:
        builder = _table_builder(note.table)
    else:
        builder = _params_builder(draft, note) if note.leaves else _plain_builder(note.replicas)
    _note_node(draft, note, builder, connect)
    return flows


def loss(
    draft: GraphDraft,
    note: NodeNote,
    metrics: Sequence[tuple[str, int, int]],
) -> None:
    """Notes a loss.

    Args:
      draft: The graph to be.
      note: What it computes: its first result is the loss.
      metrics: For each metric, its name and which results are its sum and its count.
    """

    def builder(name: str, body: PackedBody, join: Any) -> Any:
        def with_metrics(*payloads: Any) -> Any:
            results = unpack(body(*payloads), note.results)
            return results[0], {
                metric: (results[value], results[count]) for metric, value, count in metrics
            }

        return payload_builders.loss(
            name, trace_body(with_metrics, body.payloads, draws=False), join=join
        )

    _note_node(draft, note, builder, lambda _: None)


def place(
    draft: GraphDraft,
    region: Region,
    name: str,
    line: str,
) -> Flow:
    """Messages that bring nothing but the state of each row of a region."""
    anchor = draft.anchors.get(region)
    if anchor is not None and anchor.is_fresh:
        return anchor
    return pump_values(
        draft,
        f"{name}/place",
        region,
        (),
        [jax.ShapeDtypeStruct((), np.int32)],
        line,
    )


def pump_values(
    draft: GraphDraft,
    name: str,
    region: Region,
    payload: Sequence[Column],
    types: list[Any],
    line: str,
    origin: str = "",
) -> Flow:
    """Brings the instances' values to each row of a region; where only the run decides on the rows, the values come from outside.

    Args:
      draft: The graph to be.
      name: What new nodes are called.
      region: The rows.
      payload: A column for each value that a payload packs; none for a message whose payload nobody reads.
      types: The values' types, of one dtype.
      line: The user's line.
      origin: The lines that lead to it, for people; empty where that is the line alone.
    """
    if region.is_known:
        return draft.pump(name, region, payload, types, line, origin)
    columns = [column.outer for column in payload]
    spaces = {column.space for column in columns}
    start = spaces.pop() if len(spaces) == 1 else region.space.known
    return _bring(
        draft,
        lambda place: draft.pump(name, place, columns, types, line, origin),
        region,
        start,
        (name, line),
    )


def _bring(
    draft: GraphDraft,
    make: Callable[[Region], Flow],
    region: Region,
    start: IndexSpace,
    where: tuple[str, str],
) -> Flow:
    """Brings values of a space further out, or of the known one, to each row of a region: sent in to elements, along with the run's decisions.

    Args:
      draft: The graph to be.
      make: Notes where they come from, for those rows of their space that may be asked for.
      region: The region.
      start: Their space.
      where: What new nodes are called after, and the user's line.
    """
    before, steps = _way(region, start)
    flow = make(Region(start, before))
    for step in steps:
        key = flow.region, id(flow), step
        if key not in draft.brought:
            draft.brought[key] = flow, _take_step(draft, flow, step, where)
        flow = draft.brought[key][1]
    return flow


def _take_step(
    draft: GraphDraft,
    flow: Flow,
    step: _Step,
    where: tuple[str, str],
) -> Flow:
    """Notes the nodes of one step on the way of a value."""
    name, line = where
    if isinstance(step, IndexSpace):
        if step.decision is None:
            return send_in(draft, flow, step, name)
        return step.decision.send(flow)[-1]
    if step.decision is not None:
        return step.decision.send(flow)[step.decision.guards.index(step)]
    assert step.column is not None
    field = step.column.space.fact(step.field, step.column, f"where it is ({line})")
    known = refresh_states(draft, flow, name, line)
    holds = lambda s: getattr(s, field) == step.value
    return draft.split(known, holds, [flow.region.where(step), flow.region], f"{name}/where")[0]


def _way(
    region: Region,
    start: IndexSpace,
) -> tuple[tuple[Guard, ...], list[_Step]]:
    """Finds the way from a known space to a region: the guards that hold where the way begins, and the steps."""
    chain = region.space.around()[::-1]
    first = next(number for number, space in enumerate(chain) if space.known is start)
    levels = _levels(region, chain)
    before: list[Guard] = []
    steps: list[_Step] = []
    for number, space in enumerate(chain):
        guards = []
        for guard, level in zip(region.guards, levels, strict=True):
            if level == number:
                guards.append(guard)
        decision = space.decision
        if decision is None:
            is_entered = number > first
        else:
            is_entered = not any(guard.decision is decision for guard in guards)
        if is_entered:
            steps.append(space)
        for guard in guards:
            if steps or guard.decision is not None or number > first:
                steps.append(guard)
            else:
                before.append(guard)
    return tuple(before), steps


def _levels(region: Region, chain: Sequence[IndexSpace]) -> list[int]:
    """Finds, for each guard of a region, the number of the space around in which to decide: not before earlier decisions."""
    levels: list[int] = []
    for number, guard in enumerate(region.guards):
        if guard.decision is not None:
            level = chain.index(guard.decision.space or guard.decision.region.space)
        else:
            assert guard.column is not None
            known = guard.column.space
            level = next(i for i, space in enumerate(chain) if space.known is known)
        decided = [
            level
            for level, other in zip(levels, region.guards, strict=False)
            if other.decision is not None
        ]
        rounds = []
        for i, s in enumerate(chain):
            if s.decision and len(s.decision.region.guards) <= number:
                rounds.append(i)
        levels.append(max([level, *decided, *rounds]))
    return levels


def _plain_builder(replicas: int) -> Callable[..., Any]:
    def builder(name: str, body: PackedBody, join: Any) -> Any:
        draws = bool(body.note.draws)
        one = trace_body(body, body.payloads, draws)
        node = payload_builders.npt(
            name,
            one,
            outputs=len(body.note.groups),
            join=join,
            rng=draws,
        )
        return replicate(node, replicas)

    return builder


def _table_builder(table: Table) -> Callable[..., Any]:
    return lambda name, body, join: payload_builders.ppt(name, TableEmbed(table), join=join)


def _params_builder(draft: GraphDraft, note: NodeNote) -> Callable[..., Any]:
    owner = draft.params.owner(note.leaves, note.named_by, note.line)
    owner.users += 1
    owner.options = owner.options or note.options
    owner.replicas = max(owner.replicas, note.replicas)
    is_first = owner.users == 1
    if owner.replicas > 1 and not is_first:
        fix = "Give each place a name and parameters of its own, or copy the whole network: `amp.compile(..., copies=n)`."
        raise GraphError(
            note.line, "one place for a node with replicas", f"another place of `{owner.name}`", fix
        )

    def builder(name: str, body: PackedBody, join: Any) -> Any:
        tree, leaves = draft.params.of(owner)
        of_leaves = replace(body, leaves=leaves)
        one = trace_body(
            of_leaves,
            [jax.tree.map(type_of, tree), *body.payloads],
            bool(note.draws),
        )
        same = {
            "outputs": len(note.groups),
            "join": join,
            "rng": bool(note.draws),
        }
        if is_first:
            initial = (
                (lambda _: tree) if callable(tree) else tree
            )  # a module that is a pytree: not what makes parameters
            built = payload_builders.ppt(
                owner.name,
                one,
                params=initial,
                **same,
                **owner.options,
            )
        else:
            built = payload_builders.ppt(name, one, params_of=owner.name, **same)
        return replicate(built, owner.replicas)

    return builder


def _note_node(
    draft: GraphDraft,
    note: NodeNote,
    builder: Callable[..., Any],
    connect: Callable[[Any], None],
) -> None:
    region = note.region
    if draft.has_loops:
        _refuse_underivable(note)
    if not region.is_known:
        note = from_carried(note, lambda value: draft.find_carried(value, region))
    name = _node_name(draft, note)
    draft.origins[name] = Origin(note.origin or note.line, region)
    if note.draws:
        draft.drawings[name] = Drawing(region.space, note.draws)
    values = []
    for value, kind in zip(note.inputs, note.types, strict=True):
        values.append(_bring_in(draft, value, kind, note))
    sent = replace(note, inputs=values)
    ports, places = _ports(draft, name, sent)
    draft.then(lambda: connect(_build(draft, name, sent, ports, places, builder)))


def _node_name(draft: GraphDraft, note: NodeNote) -> str:
    wanted = note.name
    for key, _ in note.leaves:
        wanted = key
        break
    return draft.name(
        note.named_by or wanted,
        is_users=bool(note.leaves or note.named_by),
    )


_Places = dict[int, tuple[Flow, int]]
"""For each input that a message brings, its wire and which part of the payload it is."""


def _ports(
    draft: GraphDraft,
    name: str,
    note: NodeNote,
) -> tuple[list[Flow], _Places]:
    """The wires that bring a node's inputs, and the place of each input. Wires whose messages have the states of the node's place come first."""
    region = note.region
    places: _Places = {}
    static: dict[Any, list[tuple[int, Column]]] = {}
    for i, value in enumerate(note.inputs):
        if isinstance(value, Static):
            column_space = None if region.is_known else value.column.outer.space
            static.setdefault(
                (note.types[i].dtype, column_space),
                [],
            ).append((i, value.column))
        elif isinstance(value, Computed):
            places[i] = (value.flow, value.part)
    computed = {id(flow): flow for flow, _ in places.values()}
    ports: list[Flow] = []
    for members in static.values():
        flow = pump_values(
            draft,
            f"{name}/in",
            region,
            [column for _, column in members],
            [note.types[i] for i, _ in members],
            note.line,
            note.origin,
        )
        ports.append(flow)
        places |= {i: (flow, part) for part, (i, _) in enumerate(members)}
    ports += computed.values()
    ports.sort(key=lambda flow: not flow.is_fresh)
    # Where only the run decides on the rows, no pump can be noted later that says what such states lack.
    if not region.is_known and not (ports and ports[0].is_fresh):
        ports.insert(0, place(draft, region, name, note.line))
    return ports, places


def _build(
    draft: GraphDraft,
    name: str,
    note: NodeNote,
    ports: Sequence[Flow],
    places: _Places,
    builder: Callable[..., Any],
) -> Any:
    """Builds a node, and a pump of its states if no input brings the states of its place; returns the node's outputs."""
    space = note.region.space
    entries = list(ports)
    has_states = bool(ports) and (
        ports[0].is_fresh
        or _has_no_facts(
            space,
            ports[0],
        )
    )
    if note.told or not has_states:
        entries.insert(
            0,
            draft.place_now(note.region, name, note.line, note.told),
        )
    numbers = {id(flow): port for port, flow in enumerate(entries)}
    where = {}
    for i, (flow, part) in places.items():
        where[i] = (numbers[id(flow)], part)
    body = PackedBody(
        note,
        [flow.types for flow in entries],
        where,
    )
    # Messages with the same states meet by all of them, so that nodes can be fused; others by what tells rows apart.
    is_same = space.is_set and not note.told and all(flow.is_fresh for flow in entries)
    if len(entries) < 2 or is_same:
        join = None
    else:
        join = space.key or ("instance",)
    wires = [built_wire(flow) for flow in entries]
    return builder(name, body, join)(*wires)


def _refuse_underivable(note: NodeNote) -> None:
    """Checks that a node has a gradient, which fails for a JAX loop whose number of rounds is computed.

    Raises:
      GraphError: If it has none.
    """
    free = []
    for number, (value, kind) in enumerate(zip(note.inputs, note.types, strict=True)):
        if isinstance(value, OfParams | Computed) and jnp.issubdtype(kind.dtype, jnp.inexact):
            free.append(number)
    kinds = [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in note.types]

    def pull_rows(*inputs: Any) -> Any:
        def function(*arrays: Any) -> list[Any]:
            values = list(inputs)
            for number, value in zip(free, arrays, strict=True):
                values[number] = value
            results = []
            for result in note.function(None, *values):
                if jnp.issubdtype(result.dtype, jnp.inexact):
                    results.append(result)
            return results

        results, pull = jax.vjp(
            function,
            *(inputs[number] for number in free),
        )
        return pull(results)

    try:
        jax.eval_shape(pull_rows, *kinds)
    except ValueError as error:
        if "Reverse-mode" not in str(error):
            raise
        fix = "Use `amp.fori_loop`, or `amp.while_loop` with `amp.read`; or give JAX's loop a constant number of rounds."
        got = "`jax.lax.while_loop`, or `fori_loop` with a number of rounds that is computed"
        raise GraphError(note.line, "operations that have a gradient", got, fix) from None


def _has_no_facts(space: IndexSpace, flow: Flow) -> bool:
    """Tells whether messages with states from another place lack no fact: there are none that the messages do not know."""
    if flow.knows_outer:
        spaces = []
    else:
        spaces = space.around()[1:]
    columns = {}
    for name, column in space.facts.items():
        if name not in flow.kept:
            columns[name] = column
    return all(
        column is None
        for facts in (columns, *(each.facts for each in spaces))
        for column in facts.values()
    )


def _bring_in(
    draft: GraphDraft,
    value: Value,
    kind: Any,
    note: NodeNote,
) -> Value:
    """Brings a value to a node. A large value of an outer space is pumped once for each of its own rows and sent in from there."""
    region = note.region
    if not isinstance(value, Static) or not region.is_known:
        return value
    if value.column.space is region.space or int(np.prod(kind.shape)) <= _MOST_COPIED:
        return value

    def make(inside):
        return draft.pump(
            f"{note.name}/shared",
            inside,
            [value.column],
            [kind],
            note.line,
        )

    return Computed(
        _bring(
            draft,
            make,
            region,
            value.column.space,
            (note.name, note.line),
        )
    )


def send_in(
    draft: GraphDraft,
    flow: Flow,
    space: IndexSpace,
    name: str,
) -> Flow:
    """Notes copies of each message for the elements of a sequence that its row has."""
    flow = refresh_states(draft, flow, name, "")
    size = space.add_size()
    index = space.index
    called = draft.name(f"{name}/each")
    inner = flow.region.within(space)
    if space.is_ragged:

        def repeat():
            return ragged_builders.repeat(
                built_wire(flow),
                lambda s: getattr(s, size),
                called,
            )

        return draft.control(inner, flow.types, repeat)

    def make() -> Wire:
        facts = dict.fromkeys(space.facts, 0)
        return ragged_builders.flatmap(
            built_wire(flow),
            lambda s: getattr(s, size),
            lambda s, i: s.replace(**{index: i}, **facts),
            name=called,
        )

    return draft.control(inner, flow.types, make, is_fresh=False)


def _copy(flow: Flow, name: str, line: str) -> NodeNote:
    """Notes a node that copies its input."""
    parts = [Computed(flow, i) for i in range(len(flow.types))]
    return NodeNote(
        name,
        flow.region,
        parts,
        flow.types,
        as_it_is,
        flow.types,
        [range(len(parts))],
        line,
    )
