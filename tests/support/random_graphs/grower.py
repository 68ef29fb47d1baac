"""Grows a random graph, block by block, on the wires that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from support.random_graphs.chance import Chance
from support.random_graphs.domains import Domain, OpenWire
from support.random_graphs.palette import (
    Dense,
    Gate,
    Scale,
    Table,
    distance_loss,
    halves,
    logarithm,
    product,
    square_loss,
    squash,
    token_loss,
)
from support.random_graphs.random_pumps import RandomPumps
from support.random_graphs.state_functions import Bound, Columns

from ampjax.ir import builders as amp
from ampjax.ir.builders import NodeBuilder
from ampjax.ir.wires import Wire

Block = Callable[["Grower", OpenWire], None]
"""Adds a few nodes on a wire, and the wires that they make to the grower's."""

Blocks = Callable[["Grower", OpenWire], Sequence[tuple[float, Block]]]
"""The blocks that can be added on a wire, each with its weight."""


class Grower:
    """A random graph that is being built.

    Args:
      chance: Makes the choices.
      dtype: Of payloads and parameters.
      blocks: What can be added on a wire.
      sharing: Decides which nodes compute with another's parameters; None: none.

    Attributes:
      pumps: The graph's pumps.
      wires: All wires so far.
      depth: How many loops the nodes that are added now are in.
    """

    def __init__(
        self,
        chance: Chance,
        dtype: str,
        blocks: Blocks,
        sharing: Chance | None = None,
    ):
        self.chance = chance
        self.dtype = dtype
        self._blocks = blocks
        self._sharing = sharing
        self.pumps = RandomPumps(chance, dtype)
        self.wires: list[OpenWire] = []
        self.depth = 0
        self._first = 0  # of the wires that may be built on: those of the innermost loop
        self._names: dict[str, int] = {}
        self._alike: dict[str, list[str]] = {}  # PPTs whose parameters look alike

    def name(self, stem: str) -> str:
        """A node's name: the stem and a number."""
        self._names[stem] = self._names.get(stem, 0) + 1
        return f"{stem}{self._names[stem]}"

    def free_field(self, domain: Domain, stem: str) -> str:
        """Finds a name for a new state field.

        Args:
          domain: States that do not have the field.
          stem: What the name begins with.
        """
        return next(name for i in range(99) if (name := f"{stem}{i}") not in domain.fields)

    def known_fields(self, domain: Domain) -> list[str]:
        """The state fields that pumps have set."""
        return [name for name in domain.fields if name in ("a", "b", "i")]

    def bound(
        self,
        domain: Domain,
        base: int,
        most: int = 3,
    ) -> Bound:
        """Makes a random function of states.

        Args:
          domain: The states.
          base: Its least value.
          most: Its largest value.
        """
        known = self.known_fields(domain)
        if not known or self.chance.happens(0.1):
            return Bound(None, 1, self.chance.integer(base, most))
        return Bound(
            self.chance.pick(known),
            self.chance.integer(
                2,
                max(most - base + 1, 2) + 1,
            ),
            base,
        )

    def mate(self, wire: OpenWire) -> OpenWire:
        """A wire that can be joined with this one; the same wire where there is no other."""
        others = []
        for other in self.wires[self._first :]:
            if other.fits(wire) and other.wire is not wire.wire:
                others.append(other)
        return self.chance.pick(others) if others else wire

    def ppt(
        self,
        name: str,
        layer: Any,
        **options: Any,
    ) -> NodeBuilder:
        """A node with a layer; where parameters are shared, often with those of a node before it whose parameters look alike.

        Args:
          name: The node's name.
          layer: The layer.
          **options: As for `amp.graphs.ppt`.
        """
        alike = self._alike.setdefault(
            str(
                jax.eval_shape(
                    layer.init,
                    jax.random.key(0),
                )
            ),
            [],
        )
        if self._sharing is not None and alike and self._sharing.happens(0.6):
            return amp.ppt(
                name,
                layer,
                params_of=self._sharing.pick(alike),
                **options,
            )
        alike.append(name)
        return amp.ppt(name, layer, **options)

    def body(self, wire: OpenWire, other: OpenWire | None = None) -> OpenWire:
        """Adds a node with a random body, on one wire or on two.

        Args:
          wire: The wire.
          other: A wire that fits it, or None.

        Returns:
          The output.
        """
        if other is None:
            ppt = [Dense(dtype=self.dtype), Scale(self.dtype)]
            layer = self.chance.pick([*ppt, *ppt, jax.nn.relu, squash, logarithm])
        else:
            layer = self.chance.pick([Gate(self.dtype), Gate(self.dtype), halves, product])
        name = self.name(
            getattr(
                layer,
                "__name__",
                type(layer).__name__.lower(),
            )
        )
        fields = wire.domain.fields
        if other is None:
            join = None
        else:
            join = self.chance.pick([None, None, Columns(fields), fields or None])
        if hasattr(layer, "init"):
            node = self.ppt(name, layer, join=join)
        else:
            node = amp.npt(name, layer, join=join)
        return wire.like(node(wire.wire) if other is None else node(wire.wire, other.wire))

    def add_pumps(self) -> None:
        """Adds some pumps to each group; tokens are embedded."""
        for group in range(len(self.pumps.groups)):
            for _ in range(self.chance.integer(1, 4)):
                self._add_pump(
                    group,
                    self.chance.pick(["float", "token", "ragged", "ragged"]),
                )

    def grow(self, n: int) -> None:
        """Adds `n` blocks; wires that are not used yet are preferred."""
        for _ in range(n):
            wires = self.wires[self._first :]
            fresh = [wire for wire in wires if not wire.wire.consumers]
            if fresh and self.chance.happens(0.7):
                wire = self.chance.pick(fresh)
            else:
                wire = self.chance.pick(wires)
            self.chance.weighted(self._blocks(self, wire))(self, wire)

    @contextmanager
    def loop(self, start: int) -> Iterator[None]:
        """Blocks that are added in this `with` block are in a loop, and use only the wires from number `start` on, which it has made."""
        around = self._first
        self._first = start
        self.depth = self.depth + 1
        yield
        self._first = around
        self.depth = self.depth - 1

    def loss(self, wire: OpenWire) -> None:
        """A loss: with a label on the instance or the state, with another wire, or alone."""
        domain = wire.domain
        name = self.name("loss")
        chance = self.chance
        kind = chance.pick(["float", "label"])
        body = distance_loss if kind == "float" else token_loss
        if wire.rows is None and domain.base is not None and chance.happens(0.6):
            pumped = self.pumps.groups[domain.base].domain
            unique = ("i",) if "i" in pumped.fields else ()
            same = None if pumped.key == domain.key else unique or ("instance",)
            join = chance.pick([("instance", *unique), Columns(unique), same])
            amp.loss(name, body, join=join)(
                wire.wire,
                self._label(domain.base, kind),
            )
        elif wire.rows is None and domain.single and chance.happens(0.8):
            amp.loss(name, body, join=("instance",))(
                wire.wire,
                self._label(0, kind),
            )
        elif (mate := self.mate(wire)).wire is not wire.wire:
            amp.loss(name, distance_loss)(wire.wire, mate.wire)
        else:
            amp.loss(name, square_loss)(wire.wire)

    def end(self, wire: OpenWire) -> None:
        """Ends a wire with a loss or a sink."""
        if self.chance.happens(0.6):
            amp.loss(self.name("loss"), square_loss)(wire.wire)
        else:
            amp.sink(self.name("sink"), wire.wire)

    def finish(self) -> None:
        """Gives every wire that goes nowhere an end, and the graph at least one loss."""
        for wire in self.wires:
            if wire.wire.consumers:
                continue
            if self.chance.happens(0.75):
                self.loss(wire)
            else:
                amp.sink(self.name("sink"), wire.wire)
        if "loss" not in self._names:
            self.loss(self.wires[-1])

    def _add_pump(self, group: int, kind: str) -> None:
        pump = self.pumps.add(group, kind, self.name(kind))
        if kind == "token":
            pump = pump.like(
                self.ppt(
                    self.name("table"),
                    Table(dtype=self.dtype),
                )(pump.wire)
            )
        self.wires.append(pump)

    def _label(self, group: int, kind: str) -> Wire:
        """A pump of labels, or of targets."""
        return self.pumps.add(group, kind, self.name("label")).wire
