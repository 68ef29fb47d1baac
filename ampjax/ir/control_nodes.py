"""Control nodes: relational operations on states.

Each operation infers the type of its outputs (`infer`) and has a pure function of state columns. None touches a payload;
`unfold/rules/routes` applies them to columns of states. `makes_copies` says whether several messages can have the same payload rows after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ampjax.errors import GraphError, MessageError
from ampjax.ir.state import State, apply, column, sample, try_function

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node
    from ampjax.ir.wires import WireType

StateFn = Callable[[State], Any]
Key = tuple[str, ...] | StateFn | None
"""The key by which messages are joined or grouped: fields, a keying function, or (None) the whole state."""


def tried(where: str, function: Callable[[State], Any], states: State) -> tuple[Any, State]:
    """Runs a state function on sample states; if that raises an IndexError, only on the first one, which is all zero.

    A state function may look up a table that is too small for the other samples.

    Args:
      where: What an error calls the function.
      function: The state function.
      states: The samples.

    Returns:
      The function's result, and the samples that it is the result of.

    Raises:
      GraphError: If the function fails.
    """
    try:
        return try_function(where, function, states), states
    except GraphError as error:
        if not isinstance(error.__cause__, IndexError):
            raise
    first = states.take(np.array([0]))
    return try_function(where, function, first), first


def _column(node: Node, role: str, function: StateFn, fields: tuple[str, ...]) -> np.ndarray:
    """Tries a state function on samples and checks that it gives an integer column."""
    where = f"node `{node.name}`, {role}"
    value, states = tried(where, function, sample(fields))
    try:
        return column(where, value, len(states))
    except MessageError as error:
        raise GraphError(error.where, error.expected, error.got, error.fix) from None


def _new_states(node: Node, role: str, function: Callable[..., Any], states: State) -> tuple[State, State]:
    """Tries a function from states to states on samples; returns its result, and the samples that it is the result of."""
    where = f"node `{node.name}`, {role}"
    value, states = tried(where, function, states)
    if not isinstance(value, State) or len(value) != len(states):
        raise GraphError(
            where,
            "a State with as many rows as it was given",
            f"{type(value).__name__}",
            "Return `s.replace(...)` or `s.drop(...)`.",
        )
    if (value.instance != states.instance).any():
        raise GraphError(
            where,
            "states of the same instances, row by row",
            f"instances {value.instance.tolist()} for {states.instance.tolist()}",
            "Keep the rows in their order, and `instance` as it is.",
        )
    return value, states


@dataclass(frozen=True)
class Cond:
    """Sends each message to one of `n` outputs (AMPNet §4: `Cond f`). A truth value selects output 0 if true, output 1 if not.

    Args:
      function: State function that gives the output's number, or a truth value.
      n: Number of outputs.
    """

    kind: ClassVar[str] = "Cond"
    makes_copies: ClassVar[bool] = False
    function: StateFn
    n: int

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the types of the outputs; tries the condition on sample states.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If the condition fails, or gives neither output numbers nor, for two outputs, truth values.
        """
        chosen = _column(node, "condition", self.function, types[0].fields)
        if chosen.dtype.kind == "b" and self.n != 2:
            raise GraphError(
                f"node `{node.name}`, condition",
                f"an output's number in [0, {self.n})",
                "truth values",
                "Return integers, or use two outputs.",
            )
        return (types[0],) * self.n

    def choose(self, where: str, state: State) -> np.ndarray:
        """Chooses an output for each message.

        Args:
          where: What an error calls the condition.
          state: The states of `n` messages.

        Returns:
          The number of each message's output, `[n]` integers.

        Raises:
          MessageError: If the condition fails, or a number is outside the outputs.
        """
        chosen = column(where, apply(where, self.function, state), len(state))
        if chosen.dtype.kind == "b":
            return (~chosen).view(np.int8)
        if np.count_nonzero((chosen < 0) | (chosen >= self.n)):
            bad = int(np.flatnonzero((chosen < 0) | (chosen >= self.n))[0])
            raise MessageError(
                where,
                f"an output's number in [0, {self.n})",
                f"{int(chosen[bad])} for {state.take(np.array([bad]))!r}",
                "Mend the condition, or give the cond more outputs.",
            )
        return chosen


@dataclass(frozen=True)
class Phi:
    """Joins several wires into one (AMPNet §4: `Phi`); needed wherever a loop closes."""

    kind: ClassVar[str] = "Phi"
    makes_copies: ClassVar[bool] = False

    def infer(self, node: Node, types: tuple[WireType | None, ...]) -> tuple[WireType, ...]:
        """Infers the type of the output: that of every input that is known already.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If inputs carry different payloads or state fields.
        """
        known = [(port, t) for port, t in enumerate(types) if t is not None]
        first_port, first = known[0]
        for port, other in known[1:]:
            if (other.shape, other.dtype, other.ragged, other.topology) != (
                first.shape,
                first.dtype,
                first.ragged,
                first.topology,
            ):
                raise GraphError(
                    f"node `{node.name}`, port {port}",
                    f"{first.payload}, as on port {first_port} from `{node.source_name(first_port)}`",
                    f"{other.payload} from `{node.source_name(port)}`",
                    "All inputs of a phi carry the same payload.",
                )
            if not other.same_schema(first):
                raise GraphError(
                    f"node `{node.name}`, port {port}",
                    f"the state fields {sorted(first.fields)}, as on port {first_port} from `{node.source_name(first_port)}`",
                    f"{sorted(other.fields)} from `{node.source_name(port)}`",
                    "Pump the missing fields, or drop the extra ones in an isu.",
                )
        return (first,)


@dataclass(frozen=True)
class Isu:
    """Changes the state: an invertible state update (AMPNet §4: `Isu f`).

    Args:
      function: `f`, from states to states.
      inverse: `f_inv`, with `f_inv(f(s)) == s`.
      samples: States that can come, on which the inverse is checked; by default any small integers.
    """

    kind: ClassVar[str] = "Isu"
    makes_copies: ClassVar[bool] = False
    function: Callable[[State], State]
    inverse: Callable[[State], State]
    samples: State | None = None

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the type of the output; checks the inverse on sample states.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If a function fails, or the inverse does not invert.
        """
        fields = types[0].fields
        samples = self.samples if self.samples is not None else sample(fields)
        if set(samples.fields) != set(fields):
            raise GraphError(
                f"node `{node.name}`, samples",
                f"states with the fields {sorted(fields)}",
                f"{sorted(samples.fields)}",
                "Make them with `amp.State.of(...)`.",
            )
        after, before = _new_states(node, "f", self.function, samples)
        back = try_function(f"node `{node.name}`, f_inv", self.inverse, after)
        if not isinstance(back, State) or set(back.fields) != set(fields):
            got = sorted(back.fields) if isinstance(back, State) else type(back).__name__
            raise GraphError(
                f"node `{node.name}`, f_inv",
                f"states with the fields {sorted(fields)} back",
                f"{got}",
                "Let f_inv undo f: drop what f added.",
            )
        for name in ("instance", *fields):
            wrong = np.flatnonzero(getattr(back, name) != getattr(before, name))
            if len(wrong):
                row = wrong[:1]
                raise GraphError(
                    f"node `{node.name}`, f_inv",
                    f"f_inv(f(s)) == s = {before.take(row)!r}",
                    f"{back.take(row)!r} with f(s) = {after.take(row)!r}",
                    "Let f_inv undo f for every state.",
                )
        return (replace(types[0], fields=after.fields),)


@dataclass(frozen=True)
class Relabel:
    """Changes the state by a function that need not have an inverse.

    Gradients need no inverse to find their way back: the instance's program says where each message came from.

    Args:
      function: From states to states; it may add and drop fields.
    """

    kind: ClassVar[str] = "Relabel"
    makes_copies: ClassVar[bool] = False
    function: Callable[[State], State]

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the type of the output; tries the function on sample states.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If the function fails, or gives no states of the same instances.
        """
        after, _ = _new_states(node, "f", self.function, sample(types[0].fields))
        return (replace(types[0], fields=after.fields),)


@dataclass(frozen=True)
class Bcast:
    """Sends each message to all of `n` outputs; their gradients are summed."""

    kind: ClassVar[str] = "Bcast"
    makes_copies: ClassVar[bool] = True
    n: int

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the types of the outputs.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.
        """
        return (types[0],) * self.n


@dataclass(frozen=True)
class Flatmap:
    """Sends each message `count` times, each time with another state (arXiv version, §4); gradients are summed.

    Args:
      count: State function: how many messages; may be 0.
      state: `state(s, i)`: the states of the emitted messages, from the message's own state and the number `i = 0 .. count-1`.
    """

    kind: ClassVar[str] = "Flatmap"
    makes_copies: ClassVar[bool] = True
    count: StateFn
    state: Callable[[State, np.ndarray], State]

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the type of the output; tries both functions on sample states.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If a function fails, or gives no integers or no states.
        """
        _column(node, "count", self.count, types[0].fields)
        after, _ = _new_states(node, "state", lambda s: self.state(s, np.arange(len(s))), sample(types[0].fields))
        return (replace(types[0], fields=after.fields),)


@dataclass(frozen=True)
class Repeat:
    """Turns a row into a ragged message of `count` equal rows (the paper's Replicate); gradients are summed.

    Args:
      count: State function: how many rows; may be 0.
    """

    kind: ClassVar[str] = "Repeat"
    makes_copies: ClassVar[bool] = True
    count: StateFn

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the type of the output; tries the count on sample states.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If the count fails or gives no integers, or the input is ragged already.
        """
        _require_ragged(node, types[0], False)
        _column(node, "count", self.count, types[0].fields)
        return (replace(types[0], ragged=True),)


@dataclass(frozen=True)
class Ungroup:
    """Turns a ragged message into one message for each row (AMPNet §4).

    Args:
      state: `state(s, i)`: the rows' states, from the ragged message's state and the row's number in it.
    """

    kind: ClassVar[str] = "Ungroup"
    makes_copies: ClassVar[bool] = True
    state: Callable[[State, np.ndarray], State]

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the type of the output; tries the state function on sample states.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If it fails or gives no states, or the input is not ragged.
        """
        _require_ragged(node, types[0], True)
        after, _ = _new_states(node, "state", lambda s: self.state(s, np.arange(len(s))), sample(types[0].fields))
        return (replace(types[0], ragged=False, fields=after.fields),)


@dataclass(frozen=True)
class Group:
    """Collects the messages that share a key into one ragged message (AMPNet §4).

    A group closes when it holds as many messages as its size says; a message on the opener's port opens it and gives the size,
    so that a group of size 0 is emitted at once. Without an opener the members' own states give the size.

    Args:
      by: Fields that form the key (with the instance), or a keying function of the state.
      size: State function of the opener's state (of the members' where there is no opener).
      order: State function that sorts the rows of a group; by default the members' whole state does.
      opened: True if port 1 is an opener.
    """

    kind: ClassVar[str] = "Group"
    makes_copies: ClassVar[bool] = False
    by: tuple[str, ...] | StateFn
    size: StateFn
    order: StateFn | None
    opened: bool

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the type of the output: its state is the opener's, or the key's.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If a key, size or order does not work on the states, or the input is ragged already.
        """
        _require_ragged(node, types[0], False)
        for port, wire in enumerate(types):
            check_key(node, port, self.by, wire)
        if self.order is not None:
            _column(node, "order", self.order, types[0].fields)
        _column(node, "size", self.size, types[-1].fields)
        fields = types[1].fields if self.opened else self.by if isinstance(self.by, tuple) else types[0].fields
        return (replace(types[0], ragged=True, fields=tuple(f for f in fields if f != "instance")),)


@dataclass(frozen=True)
class Distribute:
    """Picks rows of a ragged message for each of `n` outputs, by the instance's topology (ICLR version, figure 3).

    Port 0 is the ragged message, port 1 the topology pump; a row picked several times gets the sum of the gradients.
    """

    kind: ClassVar[str] = "Distribute"
    makes_copies: ClassVar[bool] = True
    n: int

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the types of the outputs.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If port 0 is not ragged, or port 1 no topology pump.
        """
        _require_ragged(node, types[0], True)
        require_topology(node, 1, types[1])
        return (types[0],) * self.n


def require_topology(node: Node, port: int, wire: WireType) -> None:
    """Checks that a port is fed by a topology pump.

    Args:
      node: The node.
      port: Its port.
      wire: What the port's wire carries.

    Raises:
      GraphError: If not.
    """
    source = node.inputs[port]
    if not wire.topology or source is None or source.source.op.kind != "Pump":
        raise GraphError(
            f"node `{node.name}`, port {port}",
            "the wire of a topology pump",
            f"{wire.payload} from `{node.source_name(port)}`",
            "Make one with `amp.topology(name)` and connect it directly.",
        )


def _require_ragged(node: Node, wire: WireType, ragged: bool) -> None:
    if wire.ragged == ragged and not wire.topology:
        return
    fix = "Group the messages first, or pump them with `ragged=True`." if ragged else "Ungroup it first."
    raise GraphError(
        f"node `{node.name}`, port 0",
        "a ragged message" if ragged else "an ordinary message",
        f"{wire.payload} from `{node.source_name(0)}`",
        fix,
    )


def check_key(node: Node, port: int, by: tuple[str, ...] | StateFn | None, wire: WireType) -> None:
    """Checks a join's or group's key against one port's state fields.

    Args:
      node: The node.
      port: Its port.
      by: The key: fields, a keying function, or None for the whole state.
      wire: What the port's wire carries.

    Raises:
      GraphError: If a field is missing, or the keying function does not work.
    """
    if callable(by):
        states = sample(wire.fields)
        where = f"node `{node.name}`, port {port}, key"
        value = try_function(where, by, states)
        for part in value if isinstance(value, tuple) else (value,):
            try:
                column(where, part, len(states))
            except MessageError as error:
                raise GraphError(error.where, error.expected, error.got, error.fix) from None
        return
    missing = [f for f in by or () if f != "instance" and f not in wire.fields]
    if missing:
        raise GraphError(
            f"node `{node.name}`, port {port}",
            f"a state with the field `{missing[0]}`, which the key names",
            f"the fields {('instance', *wire.fields)} from `{node.source_name(port)}`",
            "Pump the field, or take it out of the key.",
        )


CONTROL = (Cond, Phi, Isu, Relabel, Bcast, Flatmap, Repeat, Ungroup, Group, Distribute)
"""The kinds of nodes that move states only."""
