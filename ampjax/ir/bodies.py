"""The bodies of payload nodes: one calling convention for plain functions, `flax.nnx` modules and `ampjax.nn` layers.

A `Body` is a pure function of parameters and one message's payloads. The engine maps it over messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.errors import GraphError
from ampjax.ir.host_tables import HostTable

Params = Any


@dataclass(frozen=True)
class NodeBody:
    """A pure function on one message.

    Args:
      apply: `apply(params, *inputs)`, or `apply(params, *inputs, key=...)` if `rng`; `params` is `()` where there are none.
      init: `init(key) -> params`, or None for a node without parameters.
      rng: True if it takes a PRNG key per message; the key is the same in forward and backward, another in each epoch, and None outside
        training.
      table: The table in host memory whose rows are its parameters; None where they lie on a device.
    """

    apply: Callable[..., Any]
    init: Callable[[jax.Array], Params] | None = field(
        default=None, compare=False
    )  # arrays in it can't be hashed
    rng: bool = False
    table: HostTable | None = None

    @property
    def param_shapes(self) -> Params:
        """The parameters as a pytree of `jax.ShapeDtypeStruct`, `()` where there are none. A table's rows are not looked at."""
        if self.table is not None:
            return jax.ShapeDtypeStruct(self.table.shape, self.table.dtype)
        if self.init is None:
            return ()
        if isinstance(self.init, _Constant):
            return jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)),
                self.init.params,
            )
        return jax.eval_shape(self.init, jax.random.key(0))


@dataclass(frozen=True)
class _Constant:
    """An `init` that returns given parameters."""

    params: Params

    def __call__(self, key: jax.Array) -> Params:
        return self.params


@dataclass(frozen=True)
class _NoParams:
    """An `apply` for a function that takes no parameters."""

    function: Callable[..., Any]

    def __call__(
        self,
        params: Params,
        *inputs: Any,
        **options: Any,
    ) -> Any:
        return self.function(*inputs, **options)


def make_body(
    name: str,
    body: Any,
    params: Any = None,
    rng: bool = False,
) -> NodeBody:
    """The body of a PPT.

    Args:
      name: The node's name, for messages.
      body: A plain `fn(params, *inputs)`, a `flax.nnx.Module`, or a layer with `init(key)` that is called as `layer(params, *inputs)`.
      params: For a plain function: a pytree, or `init(key) -> pytree`.
      rng: True if the body takes a keyword `key`.

    Raises:
      GraphError: If the body is none of these, or a plain function came without parameters.
    """
    if _is_nnx(body):
        return _nnx_body(body, rng)
    if hasattr(body, "init") and callable(body):
        return NodeBody(body, body.init, rng, getattr(body, "host_table", None))
    if not callable(body):
        raise GraphError(
            f"node `{name}`",
            "a function, a flax.nnx module or an ampjax.nn layer as its body",
            f"{type(body).__name__}",
            "Pass something that can be called.",
        )
    if params is None:
        raise GraphError(
            f"node `{name}`",
            "parameters for a plain function",
            "none",
            "Pass `params=` a pytree or a function of a PRNG key; for a node without parameters use `npt`.",
        )
    return NodeBody(body, params if callable(params) else _Constant(params), rng)


def parameterless(name: str, body: Any, rng: bool = False) -> NodeBody:
    """Makes the body of an NPT.

    Args:
      name: The node's name, for errors.
      body: `fn(*inputs)`, on the payloads of one message.
      rng: True if the body takes a keyword `key`.

    Raises:
      GraphError: If it can't be called.
    """
    if not callable(body):
        raise GraphError(
            f"node `{name}`",
            "a function as its body",
            f"{type(body).__name__}",
            "Pass a function of the payloads.",
        )
    return NodeBody(_NoParams(body), None, rng)


def _is_nnx(body: Any) -> bool:
    return any(cls.__module__.startswith("flax.nnx") for cls in type(body).__mro__)


def _nnx_body(module: Any, rng: bool) -> NodeBody:
    from flax import nnx  # imported late: flax takes a second to import

    graphdef, params, rest = nnx.split(module, nnx.Param, ...)

    def apply(params: Params, *inputs: Any, **options: Any) -> Any:
        return nnx.merge(graphdef, nnx.State(params), rest)(
            *inputs,
            **options,
        )

    return NodeBody(apply, _Constant(nnx.to_pure_dict(params)), rng)


def accepts(function: Callable[..., Any], n: int) -> bool:
    """Tells whether a function can be called with a number of positional arguments.

    Returns:
      Whether it can; True where its signature can't be read.
    """
    try:
        inspect.signature(function).bind(*[None] * n)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def argument_names(function: Any, skip: int) -> list[str]:
    """The names of a body's positional arguments after the first `skip`; empty where the names are unknown.

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


def port_names(
    function: Any,
    n: int,
    skip: int,
) -> list[str]:
    """The names of a body's input ports, from its signature if the signature has names.

    Args:
      function: A body.
      n: Number of ports.
      skip: How many arguments to leave out: 1 for the parameters.

    Returns:
      `n` names: those of the arguments, or numbers where the signature does not have them.
    """
    names = argument_names(function, skip)[:n]
    if len(names) == n:
        return names
    return [str(i) for i in range(n)]
