"""Loops, which may be nested: a loop's counter is reset where it is left, so that its exit has its entry's states again."""

from __future__ import annotations

from dataclasses import replace

from support.random_graphs.domains import MAX_WIDTH, OpenWire, flattened
from support.random_graphs.grower import Grower
from support.random_graphs.ragged_blocks import exploded
from support.random_graphs.state_functions import Below, Bound, Drop, Jump, Put, Shift

from ampjax.ir import builders as amp
from ampjax.ir.wires import Wire


def loop(grower: Grower, wire: OpenWire) -> None:
    """A loop with one or two carried wires, and blocks, perhaps loops, in it: a while loop, or one whose body runs at least once.

    Args:
      grower: The graph that is being built.
      wire: The wire to build on.
    """
    chance = grower.chance
    is_while = chance.happens(0.5)
    bound = grower.bound(wire.domain, 0 if is_while else 1)
    if wire.domain.width * bound.most > MAX_WIDTH:
        return
    counter = grower.free_field(wire.domain, "c")
    inner = flattened(
        wire.domain,
        ("bound", wire.domain.key, bound),
        bound.most,
        counter,
    )
    entries = _entries(grower, wire, counter, inner.fields)
    phis = [amp.phi(grower.name("loop")) for _ in entries]
    exits: list[Wire] = []

    def leave(carried: Wire) -> Wire:
        """Leaves the loop where the counter has reached its bound."""
        again, out = amp.cond(
            carried,
            Below(counter, bound),
            name=grower.name("cond"),
        )
        exits.append(out)
        return again

    start = len(grower.wires)
    for phi, entry in zip(phis, entries, strict=True):
        grower.wires.append(
            OpenWire(
                leave(phi) if is_while else phi,
                inner,
                entry.rows,
            )
        )
    if chance.happens(0.5):
        grower.wires.append(
            exploded(
                grower,
                grower.mate(wire),
                bound,
                counter,
            )
        )
    with grower.loop(start):
        grower.grow(chance.integer(1, 4))
    for phi, entry in zip(phis, entries, strict=True):
        last = next(
            w for w in reversed(grower.wires) if w.domain.key == inner.key and w.rows == entry.rows
        )
        step = amp.isu(
            grower.body(last).wire,
            Shift(counter, 1),
            Shift(counter, -1),
            name=grower.name("isu"),
        )
        phi.connect(entry.wire, step if is_while else leave(step))
    for entry, out in zip(entries, exits, strict=True):
        reset = amp.isu(
            out,
            Jump(counter, bound, -1),
            Jump(counter, bound, 1),
            name=grower.name("isu"),
        )
        grower.wires.append(OpenWire(reset, entry.domain, entry.rows))
    grower.wires += [entry for entry in entries if chance.happens(0.3)]


def _entries(
    grower: Grower, wire: OpenWire, counter: str, fields: tuple[str, ...]
) -> list[OpenWire]:
    """One or two wires on which a loop is entered, with a counter of 0."""
    zero = Put(counter, Bound(None, 1, 0))
    entries = []
    domain = replace(
        wire.domain,
        key=("isu", wire.domain.key, zero),
        fields=fields,
    )
    for each in (wire, grower.mate(wire))[: grower.chance.integer(1, 3)]:
        entry = amp.isu(
            each.wire,
            zero,
            Drop(counter),
            name=grower.name("isu"),
        )
        entries.append(OpenWire(entry, domain, each.rows))
    return entries
