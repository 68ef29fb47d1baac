"""Payload nodes: what touches floats. Each is a pure function on rows, described here and run by the engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError, MessageError
from ampjax.ir.bodies import Body
from ampjax.ir.control_nodes import Key, StateFn, check_key, require_topology, tried
from ampjax.ir.state import State, apply, column, sample
from ampjax.ir.wires import WireType

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node


@dataclass(frozen=True)
class Pump:
    """A source that the controller feeds. `topology` pumps hold an instance's integer maps and stay on the host."""

    kind: ClassVar[str] = "Pump"
    type: WireType

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Gives the type of the output, as declared.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.
        """
        return (self.type,)


@dataclass(frozen=True)
class Compute:
    """A row-wise payload transform: PPT, NPT, Concat or Split.

    Args:
      kind: Which of these it is.
      body: The pure function on one row.
      n_out: Number of outputs.
      join: What makes two inputs belong together: fields, or a keying function; None for the whole state.
    """

    kind: str
    body: Body
    n_out: int
    join: Key = None

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the types of the outputs by `jax.eval_shape`.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

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
                f"{_structure(out)}",
                "Return an array, or a tuple and say `outputs=`.",
            )
        return tuple(WireType(tuple(o.shape), np.dtype(o.dtype), fields, types[0].ragged) for o in outs)


def _first(params: Any, payload: Any, choice: Any) -> Any:
    return payload


@dataclass(frozen=True)
class RouteBy:
    """Reads small integer payloads back to the host and puts them into the state, so that control can depend on payloads.

    The payload of port 0 goes on as it is; port 1 holds what is read: one integer, or one for each name.

    Args:
      names: The state fields that get what was read; they may be there already.
      assume: State function: what to take where nothing is computed, as when arenas are sized; None takes 0.
      join: What makes the two inputs belong together; None for the whole state.
    """

    kind: ClassVar[str] = "RouteBy"
    body: ClassVar[Body] = Body(_first)
    names: tuple[str, ...]
    assume: StateFn | None = None
    join: Key = None

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the type of the output: that of port 0, with the fields that are read.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If the choices do not fit the fields, the message is ragged, or `assume` does not work on sample states.
        """
        where = f"node `{node.name}`"
        fields, choice = check_join(node, types, self.join), types[1]
        if not self.names or "instance" in self.names or len(set(self.names)) < len(self.names):
            raise GraphError(where, "different field names other than `instance`", f"{self.names}", "Name the fields.")
        if types[0].ragged:
            raise GraphError(
                f"{where}, port 0", "an ordinary message", f"{types[0].payload}", "Ungroup or reduce the rows first."
            )
        wanted = () if len(self.names) == 1 else (len(self.names),)
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
        return self._columns(where, 0 if self.assume is None else apply(where, self.assume, state), len(state))

    def _try_assume(self, where: str, states: State) -> None:
        if self.assume is None:
            return
        value, states = tried(where, self.assume, states)
        try:
            self._columns(where, value, len(states))
        except MessageError as error:
            raise GraphError(error.where, error.expected, error.got, error.fix) from None

    def _columns(self, where: str, value: Any, n: int) -> np.ndarray:
        parts = value if isinstance(value, tuple) else (value,) * (1 if self.assume else len(self.names))
        if len(parts) != len(self.names):
            raise MessageError(where, f"{len(self.names)} columns", f"{len(parts)}", "Return one for each field.")
        return np.stack([column(where, part, n) for part in parts], axis=1)


@dataclass(frozen=True)
class Loss:
    """A loss: it starts the backward pass. Its body gives a scalar, or a scalar and a dictionary of metrics, per row."""

    kind: ClassVar[str] = "Loss"
    body: Body
    join: Key = None

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Checks the body.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          Nothing, as a loss has no output.

        Raises:
          GraphError: If the inputs can't be joined, or the body does not give a scalar and metrics.
        """
        check_join(node, types, self.join)
        metric_shapes(node, eval_body(node, self.body, types))
        return ()


@dataclass(frozen=True)
class Reduce:
    """A ragged message becomes one row: `function(rows, segment_ids, n_segments)`.

    Args:
      function: From rows `[r, *shape]` and `segment_ids` `[r]` (sorted) to `[n_segments, ...]`. Rows beyond the last message carry
        the segment number `n_segments`: out of range on purpose, so that segment operations drop them.
    """

    kind: ClassVar[str] = "Reduce"
    function: Callable[[jax.Array, jax.Array, int], jax.Array]

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the type of the output by `jax.eval_shape`.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

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
        rows = jax.ShapeDtypeStruct((3, *types[0].shape), types[0].dtype)
        ids = jax.ShapeDtypeStruct((3,), np.int32)
        out = _eval(node, types, lambda r, i: self.function(r, i, 2), rows, ids)
        if not hasattr(out, "shape") or out.shape[:1] != (2,):
            raise GraphError(
                f"node `{node.name}`",
                "one row per segment, [n_segments, ...]",
                f"{_structure(out)}",
                "Use a segment operation such as `jax.ops.segment_sum`.",
            )
        return (WireType(tuple(out.shape[1:]), np.dtype(out.dtype), types[0].fields),)


@dataclass(frozen=True)
class Collect:
    """Adds the rows of several ragged messages into one, by the instance's topology (ICLR version, figure 3).

    The last port is the topology pump. Output row `v` is the sum of all input rows whose `scatter` is `v`.
    """

    kind: ClassVar[str] = "Collect"

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the type of the output.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

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
class Sink:
    """An end: what arrives is handed to the user by `predict`, and answered with a zero gradient in training."""

    kind: ClassVar[str] = "Sink"

    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Accepts anything.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          Nothing, as a sink has no output.
        """
        return ()


def check_join(node: Node, types: tuple[WireType, ...], join: Key) -> tuple[str, ...]:
    """Checks that the inputs can be joined.

    Args:
      node: The node.
      types: What its inputs carry, by port.
      join: What makes messages belong together.

    Returns:
      The state fields of the result: those of port 0.

    Raises:
      GraphError: If a topology came where payload belongs, ragged and ordinary messages meet, or the states don't fit the key.
    """
    for port, wire in enumerate(types):
        if wire.topology:
            raise GraphError(
                f"node `{node.name}`, port {port}",
                "a payload",
                f"the topology pump `{node.source_name(port)}`",
                "Topologies drive distribute and collect only.",
            )
        if wire.ragged != types[0].ragged:
            raise GraphError(
                f"node `{node.name}`, port {port}",
                f"{'a ragged' if types[0].ragged else 'an ordinary'} message, as on port 0",
                f"{wire.payload} from `{node.source_name(port)}`",
                "Use `amp.repeat` to copy a row to every row of a ragged message.",
            )
        if join is None and not wire.same_schema(types[0]):
            raise GraphError(
                f"node `{node.name}`, port {port}",
                f"the state fields {sorted(types[0].fields)}, as on port 0 from `{node.source_name(0)}`",
                f"{sorted(wire.fields)} from `{node.source_name(port)}`",
                "Pump the missing fields, or say which fields to join on with `join=(...)`.",
            )
        check_key(node, port, join, wire)
    return types[0].fields


def eval_body(node: Node, body: Body, types: tuple[WireType, ...]) -> Any:
    """Evaluates the shapes of a body's result for one row.

    Args:
      node: The node.
      body: Its body.
      types: What its inputs carry, by port.

    Returns:
      The result as a pytree of `jax.ShapeDtypeStruct`.

    Raises:
      GraphError: If the body does not take these payloads; names the port where that can be told.
    """
    if (known := getattr(getattr(body.apply, "function", body.apply), "results", None)) is not None:
        return known  # a body that was traced for these payloads
    structs = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    _check_features(node, body, types)
    params = init_shapes(node, body)
    key = {"key": jax.eval_shape(lambda: jax.random.key(0))} if body.rng else {}
    return _eval(node, types, lambda p, *xs, **k: body.apply(p, *xs, **k), params, *structs, **key)


def init_shapes(node: Node, body: Body) -> Any:
    """Evaluates the shapes of a body's parameters.

    Args:
      node: The node, for errors.
      body: Its body.

    Returns:
      The parameters as a pytree of `jax.ShapeDtypeStruct`; `()` where there are none.

    Raises:
      GraphError: If `init` fails.
    """
    try:
        return body.param_shapes
    except Exception as error:
        raise GraphError(
            f"node `{node.name}`, parameters",
            "an init function of a PRNG key that gives a pytree of arrays",
            f"{type(error).__name__}: {error}",
            "Mend the init function.",
        ) from error


def metric_parts(out: Any) -> tuple[Any, Mapping[str, Any]]:
    """Takes a loss body's result apart.

    Args:
      out: What the body gave: a loss, or a loss and its metrics.

    Returns:
      The loss, and the metrics by name.
    """
    return out if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], Mapping) else (out, {})


def metric_shapes(node: Node, out: Any) -> dict[str, bool]:
    """Checks what a loss's body gives, and lists its metrics.

    Args:
      node: The node, for errors.
      out: The body's result, as shapes.

    Returns:
      By metric name, whether it is a pair (sum, count).

    Raises:
      GraphError: If the loss is not a float scalar, or a metric is neither a scalar nor a pair of scalars.
    """
    loss, metrics = metric_parts(out)
    if not hasattr(loss, "shape") or loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise GraphError(
            f"node `{node.name}`",
            "a scalar float loss, or (loss, {name: metric})",
            f"{_structure(out)}",
            "Reduce the loss to one number per message, for example with `.mean()`.",
        )
    result = {}
    for name, value in metrics.items():
        parts = value if isinstance(value, tuple) else (value,)
        if len(parts) > 2 or any(not hasattr(p, "shape") or p.shape != () for p in parts):
            raise GraphError(
                f"node `{node.name}`, metric `{name}`",
                "a scalar, or a pair (sum, count) of scalars",
                f"{_structure(value)}",
                "Reduce it to one number per message.",
            )
        result[name] = len(parts) == 2
    return result


def argument_names(function: Any, skip: int) -> list[str]:
    """The names of a body's positional arguments after the first `skip`; empty where they can't be told.

    Args:
      function: A body.
      skip: How many arguments to leave out: 1 for the parameters.

    Returns:
      The names; empty where the signature can't be read.
    """
    function = getattr(function, "function", function)
    try:
        names = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        names = []
    return names[skip:]


def port_names(function: Any, n: int, skip: int) -> list[str]:
    """The names of a body's input ports, from its signature where that has them.

    Args:
      function: A body.
      n: Number of ports.
      skip: How many arguments to leave out: 1 for the parameters.

    Returns:
      `n` names: those of the arguments, or numbers where the signature does not have them.
    """
    names = argument_names(function, skip)[:n]
    return names if len(names) == n else [str(i) for i in range(n)]


def _check_features(node: Node, body: Body, types: tuple[WireType, ...]) -> None:
    """Layers of `ampjax.nn` say how many features they take: the most common mistake gets the clearest message."""
    expected = getattr(body.apply, "n_in", None)
    if expected is None or not types:
        return
    shape = types[0].shape
    if not shape or shape[-1] != expected:
        wanted = (*shape[:-1], expected)
        raise GraphError(
            f"node `{node.name}`, port 0",
            f"a payload of shape {wanted} {types[0].dtype}",
            f"{shape} {types[0].dtype} from node `{node.source_name(0)}`",
            f"Give `{node.source_name(0)}` {expected} features, or put a Linear({shape[-1] if shape else 1}, {expected}) between them.",
        )


def _eval(node: Node, types: tuple[WireType, ...], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return jax.eval_shape(function, *args, **kwargs)
    except Exception as error:
        came = (
            ", ".join(f"port {i}: {t.payload} from `{node.source_name(i)}`" for i, t in enumerate(types)) or "no inputs"
        )
        text = str(error).strip().splitlines()
        raise GraphError(
            f"node `{node.name}`",
            "payloads that its body takes",
            f"{came}; the body raised {type(error).__name__}: {text[0] if text else ''}",
            "Mend the body, or what feeds it.",
        ) from error


def _structure(out: Any) -> str:
    return str(jax.tree.map(lambda o: f"{o.dtype}{list(o.shape)}" if hasattr(o, "shape") else type(o).__name__, out))


PAYLOAD = (Compute, RouteBy, Loss, Reduce, Collect, Sink)
"""The kinds of nodes that payloads come to; a pump is none, as nothing comes to it."""
