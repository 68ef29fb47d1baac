"""Blocks in which one message becomes several, or several become one: flatmaps, groups, and nodes on ragged messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.random_graphs.domains import MAX_WIDTH, OpenWire, flattened
from support.random_graphs.grower import Grower
from support.random_graphs.message_blocks import unary
from support.random_graphs.palette import mean_rows, sum_rows
from support.random_graphs.state_functions import Backwards, Bound, Columns, Number

from ampjax.ir import builders as amp


def exploded(
    grower: Grower,
    wire: OpenWire,
    count: Bound,
    field: str,
) -> OpenWire:
    """Adds a flatmap.

    Args:
      grower: The graph that is being built.
      wire: The messages.
      count: How many each becomes.
      field: The state field that numbers them.

    Returns:
      The flatmap's output.
    """
    several = amp.flatmap(
        wire.wire,
        count,
        Number(field),
        name=grower.name("flatmap"),
    )
    domain = flattened(
        wire.domain,
        ("bound", wire.domain.key, count),
        count.most,
        field,
    )
    return OpenWire(several, domain, wire.rows)


def flatmap(grower: Grower, wire: OpenWire) -> None:
    """A message becomes none or several.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    count = grower.bound(wire.domain, 0)
    if wire.domain.width * count.most <= MAX_WIDTH:
        grower.wires.append(
            exploded(
                grower,
                wire,
                count,
                grower.free_field(wire.domain, "f"),
            )
        )


def repeat(grower: Grower, wire: OpenWire) -> None:
    """A message becomes a ragged one with its payload in every row.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    count = grower.bound(wire.domain, 0)
    rows = amp.repeat(
        wire.wire,
        count,
        name=grower.name("repeat"),
    )
    grower.wires.append(
        OpenWire(
            rows,
            wire.domain,
            ("bound", wire.domain.key, count),
        )
    )


def group(grower: Grower, wire: OpenWire) -> None:
    """Flatmap, a body, group: with an opener sizes may be 0. The members often have another consumer, the group a body right behind.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    chance = grower.chance
    domain = wire.domain
    opened = chance.happens(0.7)
    count = grower.bound(domain, 0 if opened else 1)
    if domain.width * count.most > MAX_WIDTH:
        return
    each = grower.body(
        exploded(
            grower,
            wire,
            count,
            grower.free_field(domain, "f"),
        )
    )
    grower.wires.append(each)
    by = Columns(domain.fields) if opened and chance.happens(0.3) else domain.fields
    if chance.happens(0.5):
        order = Backwards(each.domain.fields[-1])
    else:
        order = None
    opener = None
    if opened:
        opener = grower.mate(wire).wire
        grower.mate(
            wire
        )  # one choice more than is needed: seeds keep the graphs that they have always had
    members = amp.group(
        each.wire,
        by=by,
        size=count,
        order=order,
        opener=opener,
        name=grower.name("group"),
    )
    rows = OpenWire(members, domain, ("bound", domain.key, count))
    grower.wires.append(grower.body(rows) if chance.happens(0.4) else rows)
    if chance.happens(0.3):
        grower.end(each)


def ungroup(grower: Grower, wire: OpenWire) -> None:
    """Each row of a ragged message becomes a message.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    domain = wire.domain
    rows = wire.rows
    most = rows[2].most if rows[0] == "bound" else 6
    if domain.width * most > 2 * MAX_WIDTH:
        return
    field = grower.free_field(domain, "f")
    if grower.chance.happens(0.5):
        options: dict[str, Any] = {"field": field}
    else:
        options = {"state": Number(field)}
    each = amp.ungroup(
        wire.wire,
        **options,
        name=grower.name("ungroup"),
    )
    same = rows[0] == "bound" and rows[1] == domain.key
    if same:
        key = rows
    else:
        key = ("rows", domain.key, rows)
    grower.wires.append(
        OpenWire(
            each,
            flattened(domain, key, most, field),
        )
    )


def reduce(grower: Grower, wire: OpenWire) -> None:
    """The rows of a ragged message become one.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    row = amp.reduce(
        grower.name("reduce"),
        grower.chance.pick([sum_rows, mean_rows]),
        wire.wire,
    )
    grower.wires.append(OpenWire(row, wire.domain))


def distribute(grower: Grower, wire: OpenWire) -> None:
    """Rows go to one wire per edge kind, through a body each, and are collected again, as in a GGNN's step.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    chance = grower.chance
    pumps = grower.pumps
    if wire.rows[0] != "pump" or wire.rows[1] not in pumps.single:
        return unary(grower, wire)
    known = [
        name for name, topology in pumps.topologies.items() if topology.rows_of == wire.rows[1]
    ]
    if not known or chance.happens(0.3):
        name = grower.name("topology")
        pumps.add_topology(name, wire.rows[1])
    else:
        name = chance.pick(known)
    topology = pumps.topologies[name]
    parts = amp.distribute(
        wire.wire, topology.wire, topology.n_kinds, name=grower.name("distribute")
    )
    edges = []
    for kind, part in enumerate(parts):
        edges.append(
            grower.body(
                replace(
                    wire,
                    wire=part,
                    rows=("edge", name, kind),
                )
            )
        )
    grower.wires += [edge for edge in edges if chance.happens(0.2)]
    rows = amp.collect(
        [edge.wire for edge in edges],
        topology.wire,
        name=grower.name("collect"),
    )
    collected = replace(
        wire,
        wire=rows,
        rows=wire.rows if topology.n_rows is None else ("nodes", name),
    )
    is_joined = topology.n_rows is None and chance.happens(0.5)
    grower.wires.append(grower.body(collected, wire) if is_joined else collected)
