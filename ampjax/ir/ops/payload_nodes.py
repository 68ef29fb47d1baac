"""Payload nodes, which compute with floats: each a pure function on rows, described here and run by the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from ampjax.errors import GraphError, MessageError
from ampjax.ir.bodies import NodeBody
from ampjax.ir.ops.body_shapes import eval_body, eval_shapes, metric_shapes, structure
from ampjax.ir.ops.join_keys import Key, check_join
from ampjax.ir.ops.op_classes import Op, PayloadOp
from ampjax.ir.ops.ragged_nodes import require_topology
from ampjax.ir.ops.state_trials import try_on_samples
from ampjax.ir.state import State, StateFn, apply, column, sample
from ampjax.ir.wires import WireType

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node


@dataclass(frozen=True)
class Pump(Op):
    """A source that the controller feeds. `topology` pumps hold an instance's integer maps and stay on the host."""

    kind: ClassVar[str] = "Pump"
    type: WireType

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Gives the type of the output, as declared."""
        return (self.type,)


@dataclass(frozen=True)
class Compute(PayloadOp):
    """A row-wise payload transform: PPT, NPT, Concat or Split.

    Args:
      kind: Which of these it is.
      body: The pure function on one row.
      n_out: Number of outputs.
      join: What makes two inputs belong together: fields, or a keying function; None for the whole state.
    """

    kind: str
    body: NodeBody
    n_out: int
    join: Key = None

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the types of the outputs by `jax.eval_shape`.

        Raises:
          GraphError: If the inputs can't be joined, or the body does not take them or does not give `n_out` arrays.
        """
        fields = check_join(node, types, self.join)
        out = eval_body(node, self.body, types)
        outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        if len(outs) != self.n_out or not all(hasattr(o, "shape") for o in outs):
            raise GraphError(
                f"node `{node.name}`",
                f"{self.n_out} output array(s)",
                f"{structure(out)}",
                "Return an array, or a tuple and say `outputs=`.",
            )
        result = []
        for o in outs:
            result.append(WireType(tuple(o.shape), np.dtype(o.dtype), fields, types[0].ragged))
        return tuple(result)


def _first(params: Any, payload: Any, choice: Any) -> Any:
    return payload


@dataclass(frozen=True)
class RouteBy(PayloadOp):
    """Reads small integer payloads back to the host and puts the integers into the state, so that control can depend on payloads.

    The payload of port 0 goes on as it is; port 1 holds what is read: one integer, or one for each name.

    Args:
      names: The state fields that get what was read; they may be there already.
      assume: State function: what to take where nothing is computed, as when arenas are sized; None takes 0.
      join: What makes the two inputs belong together; None for the whole state.
    """

    kind: ClassVar[str] = "RouteBy"
    body: ClassVar[NodeBody] = NodeBody(_first)
    names: tuple[str, ...]
    assume: StateFn | None = None
    join: Key = None

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the type of the output: that of port 0, with the fields that are read.

        Raises:
          GraphError: If the choices do not fit the fields, the message is ragged, or `assume` does not work on sample states.
        """
        where = f"node `{node.name}`"
        fields = check_join(node, types, self.join)
        choice = types[1]
        if not self.names or "instance" in self.names or len(set(self.names)) < len(self.names):
            raise GraphError(
                where,
                "different field names other than `instance`",
                f"{self.names}",
                "Name the state fields behind `choice`: at least one, none twice, and not `instance`.",
            )
        if types[0].ragged:
            raise GraphError(
                f"{where}, port 0",
                "an ordinary message",
                f"{types[0].payload}",
                "Ungroup or reduce the rows first.",
            )
        if len(self.names) == 1:
            wanted = ()
        else:
            wanted = (len(self.names),)
        if choice.is_float or choice.shape != wanted:
            raise GraphError(
                f"{where}, port 1",
                f"integers or truth values of shape {wanted}, for the fields {self.names}",
                f"{choice.payload} from `{node.source_name(1)}`",
                "Let an npt compute the choice, for example by `argmax`.",
            )
        self._try_assume(f"{where}, assume", sample(fields))
        return (replace(types[0], fields=tuple(dict.fromkeys((*fields, *self.names)))),)

    def assumed(self, where: str, state: State) -> np.ndarray:
        """Gives the choices that are assumed where nothing is computed.

        Args:
          where: What an error calls the node.
          state: The states of `n` messages.

        Returns:
          A choice for each message and name, `[n, names]` integers.

        Raises:
          MessageError: If `assume` fails or gives something else.
        """
        where = f"{where}, assume"
        return self._columns(
            where,
            0 if self.assume is None else apply(where, self.assume, state),
            len(state),
        )

    def _try_assume(self, where: str, states: State) -> None:
        if self.assume is None:
            return
        value, states = try_on_samples(where, self.assume, states)
        try:
            self._columns(where, value, len(states))
        except MessageError as error:
            raise GraphError(
                error.where,
                error.expected,
                error.got,
                error.fix,
            ) from None

    def _columns(
        self,
        where: str,
        value: Any,
        n: int,
    ) -> np.ndarray:
        if isinstance(value, tuple):
            parts = value
        else:
            parts = (value,) * (1 if self.assume else len(self.names))
        if len(parts) != len(self.names):
            raise MessageError(
                where, f"{len(self.names)} columns", f"{len(parts)}", "Return one for each field."
            )
        return np.stack(
            [column(where, part, n) for part in parts],
            axis=1,
        )


@dataclass(frozen=True)
class Loss(PayloadOp):
    """A loss, which starts the backward pass. Its body gives a scalar, or a scalar and a dictionary of metrics, per row."""

    kind: ClassVar[str] = "Loss"
    body: NodeBody
    join: Key = None

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Checks the body.

        Returns:
          Nothing, as a loss has no output.

        Raises:
          GraphError: If the inputs can't be joined, or the body does not give a scalar and metrics.
        """
        check_join(node, types, self.join)
        metric_shapes(node, eval_body(node, self.body, types))
        return ()


@dataclass(frozen=True)
class Reduce(PayloadOp):
    """A ragged message becomes one row: `function(rows, segment_ids, n_segments)`.

    Args:
      function: From rows `[r, *shape]` and `segment_ids` `[r]` (sorted) to `[n_segments, ...]`. Rows beyond the last message carry
        the segment number `n_segments`: out of range on purpose, so that segment operations drop them.
    """

    kind: ClassVar[str] = "Reduce"
    function: Callable[[jax.Array, jax.Array, int], jax.Array]

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the type of the output by `jax.eval_shape`.

        Raises:
          GraphError: If the input is not ragged, or the function does not give a row for each segment.
        """
        if not types[0].ragged:
            raise GraphError(
                f"node `{node.name}`, port 0",
                "a ragged message",
                f"{types[0].payload} from `{node.source_name(0)}`",
                "Group the messages first.",
            )
        rows = jax.ShapeDtypeStruct(
            (3, *types[0].shape),
            types[0].dtype,
        )
        ids = jax.ShapeDtypeStruct((3,), np.int32)
        out = eval_shapes(
            node,
            types,
            lambda r, i: self.function(r, i, 2),
            rows,
            ids,
        )
        if not hasattr(out, "shape") or out.shape[:1] != (2,):
            raise GraphError(
                f"node `{node.name}`",
                "one row per segment, [n_segments, ...]",
                f"{structure(out)}",
                "Use a segment operation such as `jax.ops.segment_sum`.",
            )
        return (WireType(tuple(out.shape[1:]), np.dtype(out.dtype), types[0].fields),)


@dataclass(frozen=True)
class Collect(PayloadOp):
    """Adds the rows of several ragged messages into one, by the instance's topology (ICLR version, figure 3).

    The last port is the topology pump. Output row `v` is the sum of all input rows whose `scatter` is `v`.
    """

    kind: ClassVar[str] = "Collect"

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the type of the output.

        Raises:
          GraphError: If inputs are not ragged messages of one shape, or the last port is no topology pump.
        """
        require_topology(node, len(types) - 1, types[-1])
        data = types[:-1]
        fields = check_join(node, data, None)
        for port, wire in enumerate(data):
            if not wire.ragged or (wire.shape, wire.dtype) != (data[0].shape, data[0].dtype):
                raise GraphError(
                    f"node `{node.name}`, port {port}",
                    f"rows of shape {data[0].shape} {data[0].dtype}",
                    f"{wire.payload} from `{node.source_name(port)}`",
                    "All inputs of a collect carry rows of one shape.",
                )
        return (replace(data[0], fields=fields),)


@dataclass(frozen=True)
class Sink(PayloadOp):
    """An end: `predict` gives its rows to the user; in training the rows are answered with a zero gradient."""

    kind: ClassVar[str] = "Sink"

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Accepts anything.

        Returns:
          Nothing, as a sink has no output.
        """
        return ()
