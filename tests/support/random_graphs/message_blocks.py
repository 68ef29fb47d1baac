"""Blocks that work on messages of any kind: bodies, several outputs, fan-out, branches, copies, changes of the state."""

from __future__ import annotations

from dataclasses import replace

from support.random_graphs.domains import OpenWire
from support.random_graphs.grower import Grower
from support.random_graphs.palette import FEATURES, Cell, Dense, Gate, Largest, halves, twins
from support.random_graphs.state_functions import Columns, Drop, Even, Field, Put, Shift

from ampjax.ir import builders as amp


def unary(grower: Grower, wire: OpenWire) -> None:
    """A body on one wire.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    grower.wires.append(grower.body(wire))


def binary(grower: Grower, wire: OpenWire) -> None:
    """A body on two wires.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    grower.wires.append(grower.body(wire, grower.mate(wire)))


def concat(grower: Grower, wire: OpenWire) -> None:
    """Concatenates two wires, then splits them again or reads all eight features.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    both = amp.concat(
        wire.wire,
        grower.mate(wire).wire,
        name=grower.name("concat"),
    )
    if grower.chance.happens(0.5):
        parts = amp.split(
            both,
            (FEATURES, FEATURES),
            name=grower.name("split"),
        )
        grower.wires += [wire.like(part) for part in parts]
    else:
        dense = amp.ppt(
            grower.name("wide"),
            Dense(2 * FEATURES, grower.dtype),
        )
        grower.wires.append(wire.like(dense(both)))


def two_outputs(grower: Grower, wire: OpenWire) -> None:
    """A body with two outputs, on one wire or on two.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    if grower.chance.happens(0.5):
        outputs = amp.npt(
            grower.name("twins"),
            twins,
            outputs=2,
        )(wire.wire)
    else:
        cell = grower.ppt(
            grower.name("cell"),
            Cell(grower.dtype),
            outputs=2,
        )
        outputs = cell(wire.wire, grower.mate(wire).wire)
    grower.wires += [wire.like(output) for output in outputs]


def fan_out(grower: Grower, wire: OpenWire) -> None:
    """A bcast to two or three wires.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    n = grower.chance.integer(2, 4)
    grower.wires += [wire.like(copy) for copy in amp.bcast(wire.wire, n, name=grower.name("bcast"))]


def shift(grower: Grower, wire: OpenWire) -> None:
    """An isu that shifts a field, and often, after a body, the one that shifts it back; or one that adds a field.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    domain = wire.domain
    known = grower.known_fields(wire.domain)
    if known and grower.chance.happens(0.7):
        name = grower.chance.pick(known)
        forth = Shift(name, 3)
        back = Shift(name, -3)
        fields = domain.fields
        base = None
    else:
        name = grower.free_field(domain, "x")
        forth = Put(name, grower.bound(domain, 0))
        back = Drop(name)
        fields = (*domain.fields, name)
        base = domain.base
    shifted = amp.isu(
        wire.wire,
        forth,
        back,
        name=grower.name("isu"),
    )
    moved = OpenWire(
        shifted,
        replace(
            domain,
            key=("isu", domain.key, forth),
            fields=fields,
            base=base,
        ),
        wire.rows,
    )
    grower.wires.append(moved)
    if isinstance(forth, Shift) and grower.chance.happens(0.6):
        grower.wires.append(
            wire.like(
                amp.isu(
                    grower.body(moved).wire,
                    back,
                    forth,
                    name=grower.name("isu"),
                )
            )
        )


def diamond(grower: Grower, wire: OpenWire) -> None:
    """Cond, different bodies, phi.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    n = grower.chance.integer(2, 4)
    choose = grower.bound(wire.domain, 0, n - 1)
    choose = Even(choose) if n == 2 and grower.chance.happens(0.5) else choose
    branches = []
    for branch in amp.cond(
        wire.wire,
        choose,
        n,
        name=grower.name("cond"),
    ):
        branches.append(wire.like(branch))
    ends = []
    for branch in branches:
        ends.append(grower.body(branch).wire if grower.chance.happens(0.8) else branch.wire)
    grower.wires.append(
        wire.like(
            amp.phi(
                grower.name("phi"),
                *ends,
            )
        )
    )


def dead_branch(grower: Grower, wire: OpenWire) -> None:
    """A cond one of whose outputs ends in a sink or a loss: what goes on has fewer states.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    choose = Even(grower.bound(wire.domain, 0))
    domain = replace(
        wire.domain,
        key=("if", wire.domain.key, choose),
        single=False,
        base=None,
    )
    for each in {id(entry.wire): entry for entry in (wire, grower.mate(wire))}.values():
        kept, dead = amp.cond(
            each.wire,
            choose,
            name=grower.name("cond"),
        )
        grower.end(
            OpenWire(
                dead,
                replace(domain, key=("else", domain.key)),
                each.rows,
            )
        )
        grower.wires.append(OpenWire(kept, domain, each.rows))


def replicas(grower: Grower, wire: OpenWire) -> None:
    """Two or three copies of a node.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    n = grower.chance.integer(2, 4)
    if grower.chance.happens(0.5):
        route = "round_robin"
    else:
        route = grower.bound(wire.domain, 0, n - 1)
    if grower.chance.happens(0.5):
        layer = Dense(dtype=grower.dtype)
        wires = (wire.wire,)
    else:
        layer = Gate(grower.dtype)
        wires = (wire.wire, grower.mate(wire).wire)
    grower.wires.append(
        wire.like(
            amp.replicate(
                amp.ppt(grower.name("replicas"), layer),
                n,
                route,
            )(*wires)
        )
    )


def choice(grower: Grower, wire: OpenWire) -> None:
    """A cond on what is read from a payload, different bodies, phi; joined with the message itself, since nobody knows the new field.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    if wire.rows is not None:
        return diamond(grower, wire)
    field = grower.free_field(wire.domain, "r")
    n = grower.chance.integer(2, 4)
    chosen = amp.npt(
        grower.name("choose"),
        Largest(n),
    )(grower.mate(wire).wire)
    assume = grower.bound(wire.domain, 0, n - 1)
    routed = amp.route_by(
        wire.wire,
        chosen,
        field,
        assume=assume,
        name=grower.name("route"),
    )
    branches = []
    for branch in amp.cond(
        routed,
        Field(field),
        n,
        name=grower.name("cond"),
    ):
        branches.append(wire.like(branch))
    ends = []
    for branch in branches:
        ends.append(grower.body(branch).wire if grower.chance.happens(0.8) else branch.wire)
    joined = amp.phi(grower.name("phi"), *ends)
    both = amp.npt(
        grower.name("halves"),
        halves,
        join=Columns(wire.domain.fields),
    )(wire.wire, joined)
    grower.wires.append(wire.like(both))


def loss(grower: Grower, wire: OpenWire) -> None:
    """A loss in the middle of the graph.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    grower.loss(wire)
