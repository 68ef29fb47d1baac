"""The builder functions: what a user writes inside `with amp.Graph():`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.ir import control_nodes
from ampjax.ir.bodies import Body, accepts, parameterised, parameterless
from ampjax.ir.control_nodes import Key, StateFn
from ampjax.ir.graph import NodeOptions, current_graph, infer
from ampjax.ir.payload_nodes import Collect, Compute, Loss, Pump, Reduce, RouteBy, Sink, argument_names, port_names
from ampjax.ir.state import State
from ampjax.ir.wires import Wire, WireType


def pump(
    name: str, shape: Sequence[int] = (), dtype: Any = "float32", fields: Sequence[str] = (), ragged: bool = False
) -> Wire:
    """A source of messages that the controller feeds.

    Args:
      name: The pump's name; instances name it.
      shape: The payload's shape for one row.
      dtype: The payload's dtype.
      fields: The state fields that each message carries beside `instance`.
      ragged: True if a message holds any number of rows.

    Raises:
      GraphError: If a field is called `instance`, or twice, or the dtype is none that JAX holds now.
    """
    fields = tuple(fields)
    if "instance" in fields or len(set(fields)) != len(fields):
        raise GraphError(
            f"pump `{name}`",
            "different field names other than `instance`, which is always there",
            f"{fields}",
            "Rename the field.",
        )
    return _wire(Pump(WireType(tuple(shape), _held_dtype(name, dtype), fields, ragged)), (), name=name)


def _held_dtype(name: str, dtype: Any) -> np.dtype:
    """A pump's dtype, if JAX has it as it is."""
    where = f"pump `{name}`, dtype"
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        raise GraphError(where, "a dtype, such as `float32` or `int32`", f"{dtype!r}", "Mend its name.") from None
    held = jax.dtypes.canonicalize_dtype(found) if found.kind in "biufcV" else None
    if held is None:
        raise GraphError(where, "a dtype of numbers", f"{found}", "Encode what is no number as integers.")
    if held != found:
        fix = f'Declare it as {held}, or let JAX compute in 64 bits: `jax.config.update("jax_enable_x64", True)`.'
        raise GraphError(where, "a dtype that JAX holds now", f"{found}", fix)
    return found


def topology(name: str) -> Wire:
    """A pump of `Topology` maps, one per instance, for `distribute` and `collect` (ICLR version, figure 3)."""
    return _wire(Pump(WireType((), np.dtype("int64"), topology=True)), (), name=name)


class NodeBuilder:
    """A payload node that waits for its inputs: call it with wires (None leaves a port open)."""

    def __init__(self, name: str, kind: str, body: Body, options: NodeOptions, outputs: int, join: Key):
        self.name, self.kind, self.body, self.options, self.outputs, self.join = (
            name,
            kind,
            body,
            options,
            outputs,
            join,
        )
        self._used = False

    def __call__(self, *inputs: Wire | None) -> Any:
        """Adds the node; returns its output wire, or a tuple of them."""
        if self._used:
            raise GraphError(
                f"node `{self.name}`",
                "one wire into each port",
                "a second call",
                "Join the wires with a phi first, or build a second node.",
            )
        self._used = True
        if not inputs:
            raise GraphError(
                f"node `{self.name}`", "at least one input wire", "none", "Call it with the wires that feed it."
            )
        _check_arity(self.name, self.body, len(inputs), skip=1 if self.kind == "PPT" else 0)
        op = (
            Loss(self.body, self.join)
            if self.kind == "Loss"
            else Compute(self.kind, self.body, self.outputs, self.join)
        )
        ports = tuple(port_names(self.body.apply, len(inputs), 1 if self.kind == "PPT" else 0))
        n_out = 0 if self.kind == "Loss" else self.outputs
        node = current_graph().add(self.name, op, inputs, n_out, self.options, ports)
        return node.outputs[0] if n_out == 1 else node.outputs or None

    def again(self, *inputs: Wire | None) -> Any:
        """Adds another node like this one."""
        return NodeBuilder(self.name, self.kind, self.body, self.options, self.outputs, self.join)(*inputs)

    def __repr__(self) -> str:
        return f"{self.kind} `{self.name}`, waiting for its inputs"


def ppt(
    name: str,
    body: Any,
    *,
    params: Any = None,
    tx: Any = None,
    min_update_interval: int | None = None,
    max_dispatch_size: int | None = None,
    weights: str | None = None,
    gradient: str | None = None,
    worker: int | None = None,
    outputs: int = 1,
    join: Key = None,
    rng: bool = False,
) -> NodeBuilder:
    """A parameterised payload transform (AMPNet §4): updates its own parameters from accumulated gradients.

    Args:
      name: The node's name; its parameters are read by it.
      body: A plain `fn(params, *inputs)`, a `flax.nnx` module, or an `ampjax.nn` layer; a function of one message's payloads.
      params: For a plain function: a pytree, or a function of a PRNG key that makes one.
      tx: An optax transform for this node; by default the trainer's.
      min_update_interval: Gradient rows to accumulate at least before an update; by default the trainer's.
      max_dispatch_size: Rows in one dispatch at most; by default the trainer's.
      weights: `current` or `stashed` parameters in the adjoint; by default the trainer's.
      gradient: `mean` or `sum` over the gradient rows; by default the trainer's.
      worker: The worker that hosts the node; by default the affinity rule decides.
      outputs: Number of arrays that the body returns.
      join: What makes several inputs belong together: fields or a keying function; by default the whole state.
      rng: True if the body takes a keyword `key`: a PRNG key per message, the same in forward and backward, another in each epoch.

    Raises:
      GraphError: If the body is none of these, or an option is not one of its values.
    """
    options = NodeOptions(tx, min_update_interval, max_dispatch_size, weights, gradient, worker)
    _check_options(name, options)
    return NodeBuilder(name, "PPT", parameterised(name, body, params, rng), options, outputs, join)


def npt(
    name: str,
    body: Callable[..., Any],
    *,
    worker: int | None = None,
    max_dispatch_size: int | None = None,
    outputs: int = 1,
    join: Key = None,
    rng: bool = False,
) -> NodeBuilder:
    """A non-parameterised payload transform: a pure function `body(*inputs)` of one message's payloads.

    The arguments are those of `ppt`.
    """
    options = NodeOptions(worker=worker, max_dispatch_size=max_dispatch_size)
    _check_options(name, options)
    return NodeBuilder(name, "NPT", parameterless(name, body, rng), options, outputs, join)


def loss(name: str, body: Callable[..., Any], *, join: Key = None, worker: int | None = None) -> NodeBuilder:
    """A loss: the end of the forward pass and the start of the backward pass.

    Args:
      name: The node's name.
      body: `body(*inputs)`: a scalar per message, or `(scalar, metrics)` with metrics `{name: scalar}` (averaged over messages)
        or `{name: (sum, count)}` (sums and counts added up, then divided).
      join: What makes the inputs belong together; by default the whole state.
      worker: The worker that hosts it.
    """
    return NodeBuilder(name, "Loss", parameterless(name, body), NodeOptions(worker=worker), 1, join)


def sink(name: str, wire: Wire) -> Wire:
    """An end without a loss: `predict` returns what arrives here; in training it answers with a zero gradient. Returns the wire."""
    current_graph().add(name, Sink(), (wire,), 0)
    return wire


def concat(*wires: Wire, axis: int = -1, name: str | None = None, join: Key = None) -> Wire:
    """Concatenates payloads (AMPNet §4)."""
    body = Body(_Concat(axis))
    return _wire(Compute("Concat", body, 1, join), wires, name=name)


def split(wire: Wire, sizes: Sequence[int], axis: int = -1, name: str | None = None) -> tuple[Wire, ...]:
    """Splits a payload into parts of the given sizes along an axis (AMPNet §4).

    Raises:
      GraphError: If the sizes do not add up to the axis.
    """
    graph = current_graph()
    node = graph.add(name, Compute("Split", Body(_Split(tuple(sizes), axis)), len(sizes)), (wire,), len(sizes))
    return node.outputs


def cond(wire: Wire, function: StateFn, n: int = 2, name: str | None = None) -> tuple[Wire, ...]:
    """Sends each message to one of `n` wires by its state: a truth value selects wire 0 if true, wire 1 if not."""
    return current_graph().add(name, control_nodes.Cond(function, n), (wire,), n).outputs


def route_by(
    wire: Wire,
    choice: Wire,
    *fields: str,
    assume: StateFn | None = None,
    join: Key = None,
    name: str | None = None,
) -> Wire:
    """Puts a small payload of integers into the state, so that a `cond` or `flatmap` behind it can act on it.

    AMPNet's control flow depends on states only; this node reads a payload back to the host, which costs a wait for the device.
    No gradient flows through the choice.

    Args:
      wire: The messages that go on, with their payload as it is.
      choice: Their choices: integers or truth values, of shape `()` for one field or `(k,)` for `k`.
      *fields: The state fields that get the choices; they may be there already.
      assume: State function that gives the choices (a tuple of columns for several) where nothing is computed: when arenas are sized and
        kernels compiled ahead, and in simulations without numerics. It should visit every branch and loop as long as instances will; by default 0.
      join: What makes a message and its choice belong together; by default the whole state.
      name: The node's name.

    Raises:
      GraphError: If the choices do not fit the fields, or the message is ragged.
    """
    return _wire(RouteBy(fields, assume, join), (wire, choice), name=name)


class PhiWire(Wire):
    """The output of a phi; `connect` gives it its inputs."""

    def connect(self, *wires: Wire) -> PhiWire:
        """Connects all inputs.

        Raises:
          GraphError: If the phi has been connected already.
        """
        node = self.source
        if node.inputs:
            raise GraphError(
                f"node `{node.name}`", "one call of connect", "a second one", "Give connect all wires at once."
            )
        graph = current_graph()
        for wire in wires:
            node.inputs.append(None)
            graph.connect(node, len(node.inputs) - 1, wire)
        infer(node)
        return self


def phi(name: str | None = None, *wires: Wire) -> PhiWire:
    """Merges several wires into one.

    Wires of a loop are given later: `h = phi("h"); ...; h.connect(start, back)`.
    """
    node = current_graph().add(name, control_nodes.Phi(), (), 1)
    out = PhiWire(node, 0)
    node.outputs = (out,)
    return out.connect(*wires) if wires else out


def isu(
    wire: Wire,
    function: Callable[[State], State],
    inverse: Callable[[State], State],
    name: str | None = None,
    samples: State | None = None,
) -> Wire:
    """Changes the state by `function`; `inverse` undoes it.

    Args:
      wire: The messages.
      function: From states to states, with the same number of rows.
      inverse: `inverse(function(s)) == s`.
      name: The node's name.
      samples: States that can come, `State.of(...)`: the inverse is checked on them. By default on any small integers, which an
        inverse that only works for states that can come would fail.

    Raises:
      GraphError: If the inverse does not invert.
    """
    return _wire(control_nodes.Isu(function, inverse, samples), (wire,), name=name)


def bcast(wire: Wire, n: int = 2, name: str | None = None) -> tuple[Wire, ...]:
    """Sends each message to `n` wires; using a wire several times does the same."""
    return current_graph().add(name, control_nodes.Bcast(n), (wire,), n).outputs


def flatmap(wire: Wire, count: StateFn, state: Callable[[State, np.ndarray], State], name: str | None = None) -> Wire:
    """Emits each message `count(s)` times with states `state(s, i)`, `i = 0 .. count-1` (arXiv version, §4)."""
    return _wire(control_nodes.Flatmap(count, state), (wire,), name=name)


def repeat(wire: Wire, count: StateFn, name: str | None = None) -> Wire:
    """Replicate: a row becomes a ragged message of `count(s)` copies of it."""
    return _wire(control_nodes.Repeat(count), (wire,), name=name)


def group(
    wire: Wire,
    *,
    by: Sequence[str] | StateFn = (),
    size: StateFn,
    order: StateFn | None = None,
    opener: Wire | None = None,
    name: str | None = None,
) -> Wire:
    """Collects messages that share a key into one ragged message.

    Args:
      wire: The members.
      by: The fields that form the key, with the instance; or a keying function of the state.
      size: State function that says how many members a group has: of the opener's state where there is one, else of the members'.
      order: State function that sorts a group's rows; by default the members' whole state.
      opener: A wire whose messages open groups, so that a group of size 0 is emitted at once; its state becomes the group's.
      name: The node's name.

    Raises:
      GraphError: If a field is missing, or a function does not work on the states.
    """
    key = by if callable(by) else tuple(by)
    if opener is wire:
        raise GraphError(
            f"group `{name or 'group'}`",
            "an opener of its own",
            "the members' wire itself",
            "Leave the opener out: then the members' states give the size.",
        )
    wires = (wire,) if opener is None else (wire, opener)
    return _wire(control_nodes.Group(key, size, order, opener is not None), wires, name=name)


def ungroup(
    wire: Wire,
    field: str | None = None,
    *,
    state: Callable[[State, np.ndarray], State] | None = None,
    name: str | None = None,
) -> Wire:
    """Emits one message per row of a ragged message.

    Args:
      wire: The ragged message.
      field: A state field that gets the row's number.
      state: Instead of `field`: `state(s, i)` gives the rows' states.
      name: The node's name.

    Raises:
      GraphError: If neither or both of `field` and `state` are given.
    """
    if (field is None) == (state is None):
        raise GraphError(
            "ungroup", "either `field` or `state`", "both" if field else "neither", "Say how the rows' states differ."
        )
    make = state if state is not None else _SetField(str(field))
    return _wire(control_nodes.Ungroup(make), (wire,), name=name)


def distribute(wire: Wire, topology: Wire, n: int, name: str | None = None) -> tuple[Wire, ...]:
    """Sends rows of a ragged message to `n` wires by the instance's topology (ICLR version, figure 3)."""
    return current_graph().add(name, control_nodes.Distribute(n), (wire, topology), n).outputs


def collect(wires: Sequence[Wire], topology: Wire, name: str | None = None) -> Wire:
    """Adds rows of several ragged messages into one by the instance's topology (ICLR version, figure 3)."""
    return _wire(Collect(), (*wires, topology), name=name)


def reduce(name: str, function: Callable[..., Any], wire: Wire) -> Wire:
    """A ragged message becomes one row.

    Args:
      name: The node's name.
      function: `function(rows, segment_ids, n_segments)`, for example `jax.ops.segment_sum`; rows `[r, *shape]`, ids `[r]` sorted.
      wire: The ragged message.
    """
    return _wire(Reduce(function), (wire,), name=name)


def replicate(
    part: NodeBuilder | Callable[..., Any], n: int, route: str | StateFn = "round_robin", name: str | None = None
) -> Callable[..., Any]:
    """Puts `n` copies of a part of the graph behind a cond and a phi (AMPNet, figure 4b); the trainer keeps them together.

    The part is a node, or a function from wires to wires that builds any number of them, loops and losses included. In a copy, names that the
    user gives end in the copy's number (`linear1/0`, `linear1/1`, ...), nodes with parameters start from the same values as in the other copies, losses add up to one, and what sinks receive comes under one name.
    The affinity `default` gives each copy a worker of its own, as far as there are any, and keeps on it what is in the copy, replicas included; a node's `worker` holds for it in all copies.

    Args:
      part: A node, not yet called: `amp.ppt("linear1", layer)`; or a function of wires that returns a wire, a tuple of wires, or None.
      n: Number of copies; 1 leaves the part as it is.
      route: `round_robin` (by instance), or a state function that gives the copy's number.
      name: The part's name; by default the node's, or the function's, with a number where that is taken.

    Returns:
      A function of the input wires that gives the output wire, or a tuple of them if the part has several outputs. Topologies are
      not routed: every copy has all of them.

    Raises:
      GraphError: If n < 1; if a function builds pumps, connects wires from outside that it was not given, or lets wires out that it does not return; or if it returns in one copy what it does not in another.
    """
    build = part.again if isinstance(part, NodeBuilder) else part
    called = name or getattr(part, "name", None) or getattr(part, "__name__", "part").replace("<lambda>", "part")
    own = name is not None or isinstance(part, NodeBuilder)
    where = f"replicate `{called}`"
    if n < 1:
        raise GraphError(where, "n >= 1", f"n = {n}", "1 is no replication.")
    if n == 1:
        return part
    in_turn = route == "round_robin"
    if not in_turn and not callable(route):
        raise GraphError(
            f"{where}, route", "`round_robin` or a state function", f"{route!r}", "Pass a function of the state."
        )

    def copies(*inputs: Wire) -> Wire | tuple[Wire, ...] | None:
        graph = current_graph()
        name, dealt = called if own else graph.free_part(called), graph.dealt
        choose: StateFn = route if callable(route) else lambda s: s.instance // dealt % n
        branches = [
            (wire,) * n if wire.is_topology else cond(wire, choose, n, name=f"{name}/route{i or ''}")
            for i, wire in enumerate(inputs)
        ]
        results = []
        for i in range(n):
            entries = [branch[i] for branch in branches]
            with graph.copy(name, i, entries, n if in_turn else 1) as copy:
                results.append(build(*entries))
                copy.exits = _as_tuple(results[-1])
        outputs = [_as_tuple(result) for result in results]
        if len({len(wires) for wires in outputs}) > 1:
            got = " and ".join(str(len(wires)) for wires in outputs)
            raise GraphError(where, "as many outputs of each copy", got, "Build the same in every call.")
        joined = tuple(phi(f"{name}/join{k or ''}", *wires) for k, wires in enumerate(zip(*outputs, strict=True)))
        return joined if isinstance(results[0], tuple) else (joined or (None,))[0]

    return copies


def _as_tuple(result: Wire | tuple[Wire, ...] | None) -> tuple[Wire, ...]:
    return result if isinstance(result, tuple) else () if result is None else (result,)


class _SetField:
    """`state(s, i)` that puts the row's number into a field."""

    def __init__(self, field: str):
        self.field = field

    def __call__(self, s: State, i: np.ndarray) -> State:
        return s.replace(**{self.field: i})


class _Concat:
    """Concatenation as a body; equal for equal axes, so that compiled kernels are shared."""

    def __init__(self, axis: int):
        self.axis = axis

    def __call__(self, params: Any, *inputs: Any) -> Any:
        return jnp.concatenate(inputs, axis=self.axis)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))


class _Split(_Concat):
    """A split as a body."""

    def __init__(self, sizes: tuple[int, ...], axis: int):
        super().__init__(axis)
        self.sizes = sizes

    def __call__(self, params: Any, *inputs: Any) -> Any:
        (x,) = inputs
        if sum(self.sizes) != x.shape[self.axis]:
            raise ValueError(
                f"sizes {self.sizes} add up to {sum(self.sizes)}, not to axis {self.axis} of shape {x.shape}"
            )
        parts = jnp.split(x, np.cumsum(self.sizes)[:-1].tolist(), axis=self.axis)
        return parts[0] if len(parts) == 1 else tuple(parts)


def _wire(op: Any, inputs: tuple[Wire | None, ...], name: str | None) -> Wire:
    return current_graph().add(name, op, inputs, 1).outputs[0]


def _check_arity(name: str, body: Body, n: int, skip: int) -> None:
    function = getattr(body.apply, "function", body.apply)
    if not accepts(function, n + skip) and not body.rng:
        raise GraphError(
            f"node `{name}`",
            f"as many wires as its body takes inputs ({', '.join(argument_names(body.apply, skip)) or 'see its signature'})",
            f"{n} wires",
            "Connect one wire per input.",
        )


def _check_options(name: str, options: NodeOptions) -> None:
    where = f"node `{name}`"
    if options.weights not in (None, "current", "stashed"):
        raise GraphError(where, "weights `current` or `stashed`", f"{options.weights!r}", "Choose one of the two.")
    if options.gradient not in (None, "mean", "sum"):
        raise GraphError(where, "gradient `mean` or `sum`", f"{options.gradient!r}", "Choose one of the two.")
    for field in ("min_update_interval", "max_dispatch_size"):
        value = getattr(options, field)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise GraphError(
                where, f"{field} an integer of at least 1", f"{value!r}", "Give a positive number of gradient rows."
            )
    if options.tx is not None and not (hasattr(options.tx, "init") and hasattr(options.tx, "update")):
        raise GraphError(
            where, "an optax transform as `tx`", f"{type(options.tx).__name__}", "Pass for example `optax.adam(1e-3)`."
        )


__all__ = [
    "NodeBuilder",
    "bcast",
    "collect",
    "concat",
    "cond",
    "distribute",
    "flatmap",
    "group",
    "isu",
    "loss",
    "npt",
    "phi",
    "ppt",
    "pump",
    "reduce",
    "repeat",
    "replicate",
    "route_by",
    "sink",
    "split",
    "topology",
    "ungroup",
]
