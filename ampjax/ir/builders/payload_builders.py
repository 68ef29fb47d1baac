"""Nodes that compute: a body on the payloads of one message, or of several that belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.ir.bodies import NodeBody, accepts, argument_names, make_body, parameterless, port_names
from ampjax.ir.builders.add_node import add_with_one_output
from ampjax.ir.builders.shared_params import (
    check_no_table,
    check_sharing,
    find_owner,
    options_at_table,
    shared_options,
    with_own_transform,
)
from ampjax.ir.graph import current_graph
from ampjax.ir.nodes import WEIGHTS, NodeOptions
from ampjax.ir.ops.join_keys import Key
from ampjax.ir.ops.payload_nodes import Compute, Loss
from ampjax.ir.wires import Wire


class NodeBuilder:
    """A payload node without inputs yet: call the builder with wires (None leaves a port open)."""

    def __init__(
        self,
        name: str,
        kind: str,
        body: NodeBody,
        options: NodeOptions,
        outputs: int,
        join: Key,
        *,
        params_of: Any = None,
    ):
        self.name = name
        self.kind = kind
        self.body = body
        self.options = options
        self.outputs = outputs
        self.join = join
        self.params_of = params_of
        self._used = False

    def __call__(self, *inputs: Wire | None) -> Any:
        """Adds the node to the graph.

        Args:
          *inputs: The wires that feed it; None leaves a port open, for `Graph.connect`.

        Returns:
          Its output wire; a tuple of wires if it has several; None for a loss.

        Raises:
          GraphError: If it has been called before, or the body does not take these payloads.
        """
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
                f"node `{self.name}`",
                "at least one input wire",
                "none",
                "Call it with the wires that feed it.",
            )
        _check_arity(
            self.name,
            self.body,
            len(inputs),
            skip=1 if self.kind == "PPT" else 0,
        )
        body = self.body
        options = self.options
        if self.params_of is not None:
            body, options = self._with_shared_params()
        elif body.table is not None:
            options = options_at_table(current_graph(), self.name, body.table, options)
        if self.kind == "Loss":
            op = Loss(body, self.join)
        else:
            op = Compute(self.kind, body, self.outputs, self.join)
        ports = tuple(
            port_names(
                self.body.apply,
                len(inputs),
                1 if self.kind == "PPT" else 0,
            )
        )
        n_out = 0 if self.kind == "Loss" else self.outputs
        node = current_graph().add(
            self.name,
            op,
            inputs,
            n_out,
            options,
            ports,
        )
        return node.outputs[0] if n_out == 1 else node.outputs or None

    def again(self, *inputs: Wire | None) -> Any:
        """Adds another node like this one."""
        like = self.name, self.kind, self.body, self.options, self.outputs, self.join
        return NodeBuilder(*like, params_of=self.params_of)(*inputs)

    def _with_shared_params(self) -> tuple[NodeBody, NodeOptions]:
        """The body and the options of a node that computes with another's parameters."""
        graph = current_graph()
        owner = find_owner(graph, self.name, self.params_of)
        check_no_table(self.name, self.body, owner)
        options = shared_options(
            owner,
            self.name,
            self.options,
            graph.users[owner.name],
        )
        return replace(self.body, init=owner.op.body.init), options

    def __repr__(self) -> str:
        return f"{self.kind} `{self.name}`, waiting for its inputs"


def ppt(
    name: str,
    body: Any,
    *,
    params: Any = None,
    params_of: str | Wire | NodeBuilder | None = None,
    tx: Any = None,
    min_update_interval: int | None = None,
    max_dispatch_size: int | None = None,
    weights: str | None = None,
    gradient: str | None = None,
    worker: int | str | None = None,
    outputs: int = 1,
    join: Key = None,
    rng: bool = False,
) -> NodeBuilder:
    """Makes a parameterised payload transform (AMPNet §4): a node that updates its own parameters from accumulated gradients.

    Args:
      name: The node's name, under which its parameters are found.
      body: A plain `fn(params, *inputs)`, a `flax.nnx` module, or an `ampjax.nn` layer; a function of one message's payloads.
      params: For a plain function: a pytree, or a function of a PRNG key that makes one.
      params_of: A PPT that has been called before, its name, or one of its wires: this node computes with that node's parameters. These
        have one optimizer state and one version, and the gradients of all nodes that use them are added up. `tx`,
        `min_update_interval` (which counts the gradient rows of all these nodes), `weights` and `gradient` are set at the other node.
      tx: An optax transform for this node; by default the trainer's. A layer with an optimizer of its own (`choose_embed`) takes none.
      min_update_interval: Gradient rows to accumulate at least before an update; by default the trainer's.
      max_dispatch_size: Rows in one dispatch at most; by default the trainer's.
      weights: `current`, `stashed` or `estimated` parameters in the adjoint; by default the trainer's.
      gradient: `mean` or `sum` over the gradient rows; by default the trainer's.
      worker: The worker that hosts the node, or the name of its host; by default the affinity rule decides.
      outputs: Number of arrays that the body returns.
      join: What makes several inputs belong together: fields or a keying function; by default the whole state.
      rng: True if the body takes a keyword `key`: a PRNG key per message, the same in forward and backward, another in each epoch.

    Returns:
      The node; call it with the wires that feed it.

    Raises:
      GraphError: If the body is none of these, an option is not one of its values, or one that belongs to shared parameters.
    """
    options = NodeOptions(tx, min_update_interval, max_dispatch_size, weights, gradient, worker)
    _check_options(name, options)
    own_tx = getattr(body, "own_tx", None)
    if own_tx is not None:
        options = with_own_transform(name, options, own_tx, getattr(body, "host_table", None))
    if params_of is not None:
        check_sharing(name, params, options)
        params = ()  # the owner's come in their place, when the node is called
    return NodeBuilder(
        name,
        "PPT",
        make_body(name, body, params, rng),
        options,
        outputs,
        join,
        params_of=params_of,
    )


def npt(
    name: str,
    body: Callable[..., Any],
    *,
    worker: int | str | None = None,
    max_dispatch_size: int | None = None,
    outputs: int = 1,
    join: Key = None,
    rng: bool = False,
) -> NodeBuilder:
    """Makes a non-parameterised payload transform (AMPNet §4): a pure function of one message's payloads.

    Args:
      name: The node's name.
      body: `body(*inputs)`, on the payloads of one message.
      worker: The worker that hosts the node, or the name of its host; by default the affinity rule decides.
      max_dispatch_size: Rows in one dispatch at most; by default the trainer's.
      outputs: Number of arrays that the body returns.
      join: What makes several inputs belong together: fields or a keying function; by default the whole state.
      rng: True if the body takes a keyword `key`: a PRNG key per message, the same in forward and backward, another in each epoch.

    Returns:
      The node; call it with the wires that feed it.

    Raises:
      GraphError: If the body can't be called, or an option is not one of its values.
    """
    options = NodeOptions(worker=worker, max_dispatch_size=max_dispatch_size)
    _check_options(name, options)
    return NodeBuilder(
        name,
        "NPT",
        parameterless(name, body, rng),
        options,
        outputs,
        join,
    )


def loss(
    name: str,
    body: Callable[..., Any],
    *,
    join: Key = None,
    worker: int | str | None = None,
) -> NodeBuilder:
    """Makes a loss: the end of the forward pass and the start of the backward pass.

    Args:
      name: The node's name.
      body: `body(*inputs)`: a scalar per message, or `(scalar, metrics)` with metrics `{name: scalar}` (averaged over messages)
        or `{name: (sum, count)}` (sums and counts added up, then divided).
      join: What makes the inputs belong together; by default the whole state.
      worker: The worker that hosts it, or the name of its host.

    Returns:
      The node; call it with the wires that feed it.

    Raises:
      GraphError: If the body can't be called.
    """
    return NodeBuilder(
        name,
        "Loss",
        parameterless(name, body),
        NodeOptions(worker=worker),
        1,
        join,
    )


def concat(
    *wires: Wire,
    axis: int = -1,
    name: str | None = None,
    join: Key = None,
) -> Wire:
    """Concatenates payloads (AMPNet §4).

    Args:
      *wires: The payloads.
      axis: The axis along which they are joined.
      name: The node's name.
      join: What makes messages of several wires belong together; by default the whole state.

    Returns:
      The joined payloads, with the states of the first wire's messages.

    Raises:
      GraphError: If the payloads do not fit each other.
    """
    body = NodeBody(_Concat(axis))
    return add_with_one_output(Compute("Concat", body, 1, join), wires, name=name)


def split(
    wire: Wire,
    sizes: Sequence[int],
    axis: int = -1,
    name: str | None = None,
) -> tuple[Wire, ...]:
    """Splits a payload into parts of the given sizes along an axis (AMPNet §4).

    Args:
      wire: The messages.
      sizes: Sizes of the parts along the axis.
      axis: The axis.
      name: The node's name.

    Returns:
      A wire for each part.

    Raises:
      GraphError: If the sizes do not add up to the axis.
    """
    graph = current_graph()
    node = graph.add(
        name,
        Compute(
            "Split",
            NodeBody(_Split(tuple(sizes), axis)),
            len(sizes),
        ),
        (wire,),
        len(sizes),
    )
    return node.outputs


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
        parts = jnp.split(
            x,
            np.cumsum(self.sizes)[:-1].tolist(),
            axis=self.axis,
        )
        return parts[0] if len(parts) == 1 else tuple(parts)


def _check_arity(
    name: str,
    body: NodeBody,
    n: int,
    skip: int,
) -> None:
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
    if options.weights not in (None, *WEIGHTS):
        raise GraphError(
            where,
            f"weights one of {list(WEIGHTS)}",
            f"{options.weights!r}",
            "Pass `weights=` with one of these; without it the trainer's `weights` holds.",
        )
    if options.gradient not in (None, "mean", "sum"):
        raise GraphError(
            where, "gradient `mean` or `sum`", f"{options.gradient!r}", "Choose one of the two."
        )
    for field in ("min_update_interval", "max_dispatch_size"):
        value = getattr(options, field)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise GraphError(
                where,
                f"{field} an integer of at least 1",
                f"{value!r}",
                "Give a positive number of gradient rows.",
            )
    if options.tx is not None and not (
        hasattr(options.tx, "init") and hasattr(options.tx, "update")
    ):
        raise GraphError(
            where,
            "an optax transform as `tx`",
            f"{type(options.tx).__name__}",
            "Pass for example `optax.adam(1e-3)`.",
        )
