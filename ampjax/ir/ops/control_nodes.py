"""Control nodes that pass payloads on unchanged, to one wire or to several; the state may change.

Each checks its state functions and infers the type of its outputs. `unfold/rules/routes` applies them to columns of states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ampjax.errors import GraphError, MessageError
from ampjax.ir.ops.op_classes import ControlOp
from ampjax.ir.ops.state_trials import try_column, try_states
from ampjax.ir.state import State, StateFn, apply, column, sample, try_function

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node
    from ampjax.ir.wires import WireType


@dataclass(frozen=True)
class Cond(ControlOp):
    """Sends each message to one of `n` outputs (AMPNet §4: `Cond f`). A truth value selects output 0 if true, output 1 if not.

    Args:
      function: State function that gives the output's number, or a truth value.
      n: Number of outputs.
    """

    kind: ClassVar[str] = "Cond"
    sends_exactly_one: ClassVar[bool] = True
    function_name: ClassVar[str] = "condition"
    function: StateFn
    n: int

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the types of the outputs; tries the condition on sample states.

        Raises:
          GraphError: If the condition fails, or gives neither output numbers nor, for two outputs, truth values.
        """
        chosen = try_column(
            node,
            self.function_name,
            self.function,
            types[0].fields,
        )
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
        chosen = column(
            where,
            apply(where, self.function, state),
            len(state),
        )
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
class Phi(ControlOp):
    """Joins several wires into one (AMPNet §4: `Phi`); needed wherever a loop closes."""

    kind: ClassVar[str] = "Phi"
    sends_exactly_one: ClassVar[bool] = True

    def infer(
        self,
        node: Node,
        types: tuple[WireType | None, ...],
    ) -> tuple[WireType, ...]:
        """Infers the type of the output: that of every input that is known already.

        Raises:
          GraphError: If inputs carry different payloads or state fields.
        """
        known_types = []
        for port, t in enumerate(types):
            if t is not None:
                known_types.append((port, t))
        first_port, first = known_types[0]
        for port, other in known_types[1:]:
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
class Isu(ControlOp):
    """Changes the state: an invertible state update (AMPNet §4: `Isu f`).

    Args:
      function: `f`, from states to states.
      inverse: `f_inv`, with `f_inv(f(s)) == s`.
      samples: States that can come, on which the inverse is checked; by default any small integers.
    """

    kind: ClassVar[str] = "Isu"
    sends_exactly_one: ClassVar[bool] = True
    function: Callable[[State], State]
    inverse: Callable[[State], State]
    samples: State | None = None

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the type of the output; checks the inverse on sample states.

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
                "Make them with `amp.graphs.State.of(...)`.",
            )
        after, before = try_states(node, "f", self.function, samples)
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
class Relabel(ControlOp):
    """Changes the state by a function that need not have an inverse.

    Gradients need no inverse to find their way back: the instance's program says where each message came from.

    Args:
      function: From states to states; it may add and drop fields.
    """

    kind: ClassVar[str] = "Relabel"
    sends_exactly_one: ClassVar[bool] = True
    function: Callable[[State], State]

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the type of the output; tries the function on sample states.

        Raises:
          GraphError: If the function fails, or gives no states of the same instances.
        """
        after, _ = try_states(
            node,
            "f",
            self.function,
            sample(types[0].fields),
        )
        return (replace(types[0], fields=after.fields),)


@dataclass(frozen=True)
class Bcast(ControlOp):
    """Sends each message to all of `n` outputs; their gradients are summed."""

    kind: ClassVar[str] = "Bcast"
    n: int

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the types of the outputs."""
        return (types[0],) * self.n


@dataclass(frozen=True)
class Flatmap(ControlOp):
    """Sends each message `count` times, each time with another state (arXiv version, §4); gradients are summed.

    Args:
      count: State function: how many messages; may be 0.
      state: `state(s, i)`: the states of the emitted messages, from the message's own state and the number `i = 0 .. count-1`.
    """

    kind: ClassVar[str] = "Flatmap"
    function_name: ClassVar[str] = "state"
    count: StateFn
    state: Callable[[State, np.ndarray], State]

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the type of the output; tries both functions on sample states.

        Raises:
          GraphError: If a function fails, or gives no integers or no states.
        """
        try_column(node, "count", self.count, types[0].fields)
        after, _ = try_states(
            node,
            "state",
            lambda s: self.state(s, np.arange(len(s))),
            sample(types[0].fields),
        )
        return (replace(types[0], fields=after.fields),)
