"""Notes of nodes that compute, and of what they need to have their inputs where they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.tracing import type_of
from ampjax.frontend.draft.graph_draft import Drawing, GraphDraft, Origin, built, require_known
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.node_bodies import NodeNote, PackedBody, as_it_is, unpack
from ampjax.frontend.draft.values import Computed, Flow, Static, Value
from ampjax.ir.builders import payload_builders, ragged_builders
from ampjax.ir.builders.replicate_builder import replicate
from ampjax.ir.wires import Wire
from ampjax.jaxprs.traced_bodies import traced
from ampjax.nn import TableEmbed
from ampjax.sparse import Table

_MOST_COPIED = 16
"""Entries of a value of an outer space that are pumped anew for each element at most; larger ones are pumped once and sent to each."""


def fresh(draft: GraphDraft, flow: Flow, name: str, line: str) -> Flow:
    """The same messages with the states of their place."""
    if flow.is_fresh:
        return flow
    copy = compute(draft, _copy(flow, name, line))[0]
    copy.is_late = flow.is_late
    return copy


def tell(draft: GraphDraft, flow: Flow, told: Mapping[str, Column], name: str, line: str) -> Flow:
    """The same messages with the states of their place, but for some fields.

    Args:
      draft: The graph to be.
      flow: The messages.
      told: These fields' values.
      name: What the node is called.
      line: The user's line.
    """
    require_known(flow.region, name, line)
    copy = compute(draft, replace(_copy(flow, name, line), told=told))[0]
    copy.is_fresh = False
    return copy


def compute(draft: GraphDraft, note: NodeNote) -> list[Flow]:
    """Notes a node that computes, and the pumps of what it needs from the instance.

    Args:
      draft: The graph to be.
      note: What it computes.

    Returns:
      A wire for each of its groups of results.
    """
    flows = [Flow(note.region, [note.results[i] for i in group]) for group in note.groups]

    def connect(outputs: Any) -> None:
        for flow, wire in zip(flows, outputs if isinstance(outputs, tuple) else (outputs,), strict=True):
            flow.wire = wire

    if note.table is not None:
        builder = _table_builder(note.table)
    else:
        builder = _params_builder(draft, note) if note.leaves else _plain_builder(note.replicas)
    _noted(draft, note, builder, connect)
    return flows


def loss(draft: GraphDraft, note: NodeNote, metrics: Sequence[tuple[str, int, int]]) -> None:
    """Notes a loss.

    Args:
      draft: The graph to be.
      note: What it computes: its first result is the loss.
      metrics: For each metric, its name and which results are its sum and its count.
    """

    def builder(name: str, body: PackedBody, join: Any) -> Any:
        def with_metrics(*payloads: Any) -> Any:
            results = unpack(body(*payloads), note.results)
            return results[0], {metric: (results[value], results[count]) for metric, value, count in metrics}

        return payload_builders.loss(name, traced(with_metrics, body.payloads, draws=False), join=join)

    _noted(draft, note, builder, lambda _: None)


def _plain_builder(replicas: int) -> Callable[..., Any]:
    def builder(name: str, body: PackedBody, join: Any) -> Any:
        draws = bool(body.note.draws)
        one = traced(body, body.payloads, draws)
        made = payload_builders.npt(name, one, outputs=len(body.note.groups), join=join, rng=draws)
        return replicate(made, replicas)

    return builder


def _table_builder(table: Table) -> Callable[..., Any]:
    return lambda name, body, join: payload_builders.ppt(name, TableEmbed(table), join=join)


def _params_builder(draft: GraphDraft, note: NodeNote) -> Callable[..., Any]:
    owner = draft.params.owner(note.leaves, note.named_by, note.line)
    owner.users += 1
    owner.options, owner.replicas = owner.options or note.options, max(owner.replicas, note.replicas)
    is_first = owner.users == 1
    if owner.replicas > 1 and not is_first:
        fix = (
            "Give each place a name and parameters of its own, or copy the whole network: `amp.compile(..., copies=n)`."
        )
        raise GraphError(note.line, "one place for a node with replicas", f"another place of `{owner.name}`", fix)

    def builder(name: str, body: PackedBody, join: Any) -> Any:
        tree, leaves = draft.params.of(owner)
        own = replace(body, leaves=leaves)
        one = traced(own, [jax.tree.map(type_of, tree), *body.payloads], bool(note.draws))
        same = {"outputs": len(note.groups), "join": join, "rng": bool(note.draws)}
        if is_first:
            made = payload_builders.ppt(owner.name, one, params=tree, **same, **owner.options)
        else:
            made = payload_builders.ppt(name, one, params_of=owner.name, **same)
        return replicate(made, owner.replicas)

    return builder


def _noted(draft: GraphDraft, note: NodeNote, builder: Callable[..., Any], connect: Callable[[Any], None]) -> None:
    region = note.region
    wanted = next(iter({key for key, _ in note.leaves}), note.name) if note.leaves else note.name
    name = draft.name(note.named_by or wanted, is_users=bool(note.leaves or note.named_by))
    draft.origins[name] = Origin(note.origin or note.line, region)
    if note.draws:
        draft.drawings[name] = Drawing(region.space, note.draws)
    values = [_sent_in(draft, value, kind, note) for value, kind in zip(note.inputs, note.types, strict=True)]
    places: dict[int, tuple[Flow, int]] = {}
    pumped: dict[Any, list[tuple[int, Column]]] = {}
    for i, value in enumerate(values):
        if isinstance(value, Static):
            pumped.setdefault(note.types[i].dtype, []).append((i, value.column))
        elif isinstance(value, Computed):
            places[i] = (value.flow, value.part)
    computed = {id(flow): flow for flow, _ in places.values()}
    ports: list[Flow] = []
    for members in pumped.values():
        types = [note.types[i] for i, _ in members]
        columns = [column for _, column in members]
        flow = draft.pump(f"{name}/in", region, columns, types, note.line, note.origin)
        ports.append(flow)
        places |= {i: (flow, part) for part, (i, _) in enumerate(members)}
    ports += sorted(computed.values(), key=lambda flow: not flow.is_fresh)
    if not ports and region in draft.anchors:
        ports.append(draft.anchors[region])
    elif not ports:
        require_known(region, name, note.line)

    def step() -> None:
        entries = list(ports)
        if note.told or not entries or not (entries[0].is_fresh or _has_no_facts(region.space, entries[0])):
            entries = [draft.place_now(region, name, note.line, note.told), *entries]
        numbers = {id(flow): port for port, flow in enumerate(entries)}
        where = {i: (numbers[id(flow)], part) for i, (flow, part) in places.items()}
        body = PackedBody(replace(note, inputs=values), [flow.types for flow in entries], where)
        # Messages with the same states meet by all of them, so that nodes can be fused; others by what tells rows apart.
        is_same = region.space.is_set and not note.told and all(flow.is_fresh for flow in entries)
        join = None if len(entries) < 2 or is_same else region.space.key or ("instance",)
        connect(builder(name, body, join)(*(built(flow) for flow in entries)))

    draft.then(step)


def _has_no_facts(space: IndexSpace, flow: Flow) -> bool:
    """Whether messages whose states are not those of their place lack nothing: there are no facts that they do not know."""
    spaces = [] if flow.knows_outer else space.around()[1:]
    own = {name: column for name, column in space.facts.items() if name not in flow.kept}
    return all(column is None for facts in (own, *(each.facts for each in spaces)) for column in facts.values())


def _sent_in(draft: GraphDraft, value: Value, kind: Any, note: NodeNote) -> Value:
    """A large value of an outer space is pumped once for each of its own rows and sent in from there."""
    inner = note.region.space
    if not isinstance(value, Static) or value.column.space is inner or int(np.prod(kind.shape)) <= _MOST_COPIED:
        return value
    outer = value.column.space
    flow = draft.pump(f"{note.name}/shared", note.region.within(outer), [value.column], [kind], note.line)
    for space in reversed(inner.around()[: inner.around().index(outer)]):
        flow = send_in(draft, flow, space, note.name)
    return Computed(flow)


def send_in(draft: GraphDraft, flow: Flow, space: IndexSpace, name: str) -> Flow:
    """Notes copies of each message for the elements of a sequence that its row has.

    Args:
      draft: The graph to be.
      flow: The messages.
      space: The elements' space.
      name: What the node is called after.
    """
    flow = fresh(draft, flow, name, "")
    size, index, called = space.size, space.index, draft.name(f"{name}/each")
    inner = flow.region.within(space)
    if space.is_ragged:
        repeat = lambda: ragged_builders.repeat(built(flow), lambda s: getattr(s, size), called)
        return draft.control(inner, flow.types, repeat)

    def make() -> Wire:
        facts = dict.fromkeys(space.facts, 0)
        return ragged_builders.flatmap(
            built(flow), lambda s: getattr(s, size), lambda s, i: s.replace(**{index: i}, **facts), name=called
        )

    return draft.control(inner, flow.types, make, is_fresh=False)


def _copy(flow: Flow, name: str, line: str) -> NodeNote:
    """A node that gives what it gets."""
    parts = [Computed(flow, i) for i in range(len(flow.types))]
    return NodeNote(name, flow.region, parts, flow.types, as_it_is, flow.types, [range(len(parts))], line)
