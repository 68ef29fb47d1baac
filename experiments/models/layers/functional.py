"""flax.nnx modules as pure functions of plain dicts: what a loss for `jax.jit`, `jax.grad` and the hybrid runner needs.

A module is split once into its graph, which is static, and its variables, which become a plain nested dict. `merge` puts them together
again inside a trace. This module knows nothing of any model.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, TypeVar

import jax
from flax import nnx

Module = TypeVar("Module", bound=nnx.Module)


def init(
    kind: type[Module],
    config: Hashable,
    seed: int = 0,
) -> Any:
    """The parameters of a new `kind(config, rngs)`.

    Args:
      kind: A class of modules.
      config: Its configuration, hashable.
      seed: Same seed, same parameters.

    Returns:
      A nested dict of arrays.
    """
    return variables(build(kind, config, seed), nnx.Param)


def build(
    kind: type[Module],
    config: Hashable,
    seed: int = 0,
) -> Module:
    """Makes a module. Its values come from XLA's own generator, as threefry would compile for seconds for each shape.

    Args:
      kind: The class of modules.
      config: What it is made of.
      seed: Of the PRNG key.
    """
    rngs = nnx.Rngs(jax.random.key(seed, impl="rbg"))
    return kind(config, rngs=rngs)  # type: ignore[call-arg] # the classes of this package take these


def shapes(kind: type[Module], config: Hashable) -> Any:
    """Computes the shapes of a module's parameters; nothing is allocated.

    Args:
      kind: The class of modules.
      config: What it is made of.

    Returns:
      As `init`, with `jax.ShapeDtypeStruct` in place of arrays.
    """
    return variables(_abstract(kind, config), nnx.Param)


def merge(
    kind: type[Module],
    config: Hashable,
    *states: Any,
) -> Module:
    """The module with these variables.

    Args:
      kind: The class of modules.
      config: As it was given to `init`.
      *states: Nested dicts, each as from `variables`; together they hold all of the module's variables.
    """
    return nnx.merge(
        _graph(kind, config),
        *(nnx.State(state) for state in states),
    )


def variables(
    module: nnx.Module,
    kind: type[nnx.Variable[Any]],
) -> Any:
    """Gives the values of a module's variables of one kind.

    Args:
      module: The module.
      kind: The class of variables, for example `nnx.Param`.

    Returns:
      A nested dict of arrays.
    """
    return nnx.to_pure_dict(nnx.state(module, kind))


def count(params: Any) -> int:
    """Numbers in a pytree of arrays or of their shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _abstract(kind: type[Module], config: Hashable) -> Module:
    return nnx.eval_shape(lambda: build(kind, config))


@lru_cache(maxsize=64)
def _graph(kind: type[Module], config: Hashable) -> Any:
    return nnx.split(_abstract(kind, config))[0]
