"""Loops over sequences: a carry's way from element to element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.deduction.lowering import Lowering
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.index_spaces import IndexSpace, Region
from ampjax.frontend.draft.values import Computed, Elements, Flow, Value
from ampjax.frontend.rules.foresight import Foresight
from ampjax.ir.state import State


@dataclass(frozen=True, eq=False)
class Carried:
    """Parts of a carry that travel in one message.

    Args:
      members: Their numbers in the carry; `init`, `types` and the parts of the message are in this order.
      init: The values that start them; of a sequence over a graph's nodes, what is known of a node.
      types: Their types, likewise.
      nodes: The nodes' space outside of the loop, for sequences over a graph's nodes; else None.
    """

    members: list[int]
    init: list[Value]
    types: list[Any]
    nodes: IndexSpace | None

    def name_parts(
        self,
        flow: Flow,
        nodes: IndexSpace | None,
    ) -> dict[int, Value]:
        """Names the parts of a wire by number."""
        parts: list[Value] = [Computed(flow, part) for part in range(len(self.members))]
        return dict(
            zip(
                self.members,
                parts if nodes is None else [Elements(nodes, part) for part in parts],
                strict=True,
            )
        )


@dataclass(frozen=True, eq=False)
class Order:
    """The order in which a loop goes over the elements of a sequence, by their messages' states.

    Args:
      index: The state field that numbers the elements.
      size: The one that says how many there are.
      back: Whether the loop begins with the last one.
    """

    index: str
    size: str
    back: bool

    def first(self, s: State) -> Any:
        """Computes the number of the loop's first element, from a state outside or inside of the loop."""
        if self.back:
            return getattr(s, self.size) - 1
        return 0

    def begins(self, s: State) -> Any:
        """Tells whether the loop begins with an element."""
        return getattr(s, self.index) == self.first(s)

    def ends(self, s: State) -> Any:
        """Tells whether the loop ends with an element."""
        at = getattr(s, self.index)
        if self.back:
            return at == 0
        return at + 1 == getattr(s, self.size)

    def after(self, s: State) -> Any:
        """The number of the element that comes after one."""
        return getattr(s, self.index) + (-1 if self.back else 1)


def group_carry(
    init: Sequence[Value],
    types: Sequence[Any],
) -> list[Carried]:
    """Groups the parts of a carry that travel together: arrays of one dtype; sequences of one dtype over the nodes of one graph."""
    groups: dict[Any, Carried] = {}
    for i, (value, kind) in enumerate(zip(init, types, strict=True)):
        nodes = value.space if isinstance(value, Elements) and value.space.is_ragged else None
        part = groups.setdefault(
            (nodes, kind.dtype),
            Carried([], [], [], nodes),
        )
        part.members.append(i)
        part.init.append(
            value.element if nodes is not None and isinstance(value, Elements) else value
        )
        part.types.append(kind if nodes is None else kind.update(shape=kind.shape[1:]))
    return list(groups.values())


class CarryLoop:
    """One wire of a carry: its way around the loop. It has more than twelve attributes: wires of the stations on this way.

    The stations, by their nodes' names (those of a sequence with elements from `any` on):

        init → any → first → (the loop's Phi) → the body → carry → end → next → (the Phi again)
                 └─────────────── no element ──────────────────→ result ←─ leave ←─┘ (of `end`: the last element)

    Args:
      low: The lowering.
      carried: What the wire carries.
      region: Where the loop is.
      space: The space of the elements that the loop goes over.
      call: The scan.
      ahead: What all wires of the carry are told of the elements to come.

    Attributes:
      own: What the wire carries.
      carry: By number in the carry, what enters the body.
    """

    def __init__(
        self,
        low: Lowering,
        carried: Carried,
        region: Region,
        space: IndexSpace,
        call: Call,
        ahead: Foresight,
    ):
        self._low = low
        self.own = carried
        self._space = space
        self._call = call
        self._ahead = ahead
        self._order = Order(
            space.index,
            space.add_size(),
            call.options["reverse"],
        )
        self._name = space.dimension
        self._outer = region
        self._inner = region.within(space)
        self._nodes = None
        if carried.nodes is not None:
            sizes = carried.nodes.sizes
            assert sizes is not None
            self._nodes = space.along(
                carried.nodes.dimension,
                sizes.inside(space),
                is_ragged=True,
            )
            self._outer = region.within(carried.nodes)
            self._inner = region.within(self._nodes)
        index = space.index
        size = space.size
        name = self._name
        start = low.pack(
            carried.init,
            carried.types,
            self._outer,
            f"{name}/init",
            call.line,
        )
        start = payload_notes.refresh_states(low.draft, start, f"{name}/init", call.line)
        some, self._none = low.draft.split(
            start,
            lambda s: getattr(s, size) > 0,
            [self._outer, self._outer],
            f"{name}/any",
        )

        def begin(s: State) -> State:
            facts = dict.fromkeys(space.facts, 0) | ahead.begin(s)
            return s.replace(
                **facts,
                **{index: self._order.first(s)},
            )

        self._enter = low.draft.relabel(
            some,
            self._inner,
            begin,
            f"{name}/first",
            is_fresh=False,
        )
        self._around = low.draft.loop(self._inner, carried.types, name)
        self._around.kept = ahead.fields
        if self._nodes is None and region.is_known:
            self._around.foresees = ahead.note
        self.carry = carried.name_parts(self._around, self._nodes)

    def close(self, results: Sequence[Any]) -> dict[int, Value]:
        """Sends the body's results on to the next element, or out.

        Args:
          results: What the body gave, by number in the carry.

        Returns:
          By number in the carry, the last one outside of the loop.
        """
        draft = self._low.draft
        space = self._space
        name = self._name
        inner = self._inner
        values = [results[i] for i in self.own.members]
        if self._nodes is not None:
            values = [value.element for value in values]
        after = self._low.pack(
            values,
            self.own.types,
            inner,
            f"{name}/carry",
            self._call.line,
        )
        is_kept = after.is_fresh or after.kept is self._ahead.fields
        if not after.knows_outer or (self._ahead.fields and not is_kept):
            after = payload_notes.refresh_states(draft, after, f"{name}/carry", self._call.line)
        last, more = draft.split(
            after,
            self._order.ends,
            [inner, inner],
            f"{name}/end",
        )
        ways = [more]
        # Messages that know the choices of coming elements, as digits of a word, wait for the next word where one is used up (`Foresight`).
        if self._ahead.fields:
            at_end = inner.where(self._ahead.at_end)
            empty, more = draft.split(
                more,
                self._ahead.is_at_end,
                [at_end, inner],
                f"{name}/word",
            )
            ways = [
                more,
                payload_notes.tell(
                    draft, empty, self._ahead.next_words, f"{name}/word", self._call.line
                ),
            ]

        def go_on(s: State) -> State:
            return s.replace(
                **{space.index: self._order.after(s)},
                **self._ahead.go_on(s),
            )

        again = [draft.relabel(way, inner, go_on, f"{name}/next", False) for way in ways]
        draft.close_loop(self._around, self._enter, *again)
        # Whoever chooses among the carries from now on comes too late: the way to the next word is built.
        self._around.foresees = None
        left = leave(self._low, last, space, self._outer, f"{name}/leave")
        return self.own.name_parts(
            draft.merge(self._outer, [left, self._none], f"{name}/result"),
            self.own.nodes,
        )


def leave(
    low: Lowering,
    flow: Flow,
    space: IndexSpace,
    region: Region,
    name: str,
) -> Flow:
    """Takes messages out of the elements of a sequence: the messages lose the element's state fields.

    Args:
      low: The lowering.
      flow: The messages.
      space: The elements' space.
      region: Where they are afterwards.
      name: The node's name.
    """
    return low.draft.relabel(
        flow,
        region,
        lambda s: s.drop(space.index, *space.facts),
        name,
        is_fresh=True,
    )
