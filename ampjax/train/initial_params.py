"""Parameters by node name: initial values, and checks of the users' values."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import ParameterError
from ampjax.ir.graph import Graph
from ampjax.optim.joint.params_form import UNREAD


def initial_params(
    graph: Graph,
    given: Mapping[str, Any],
    seed: int,
) -> dict[str, Any]:
    """Makes the parameters of every parameterised node: the given ones, else initial ones from the seed and the node's name.

    Replicas of one group start with equal parameters: those of the first, also where each copy of a part makes values of its own.

    Args:
      graph: A closed graph.
      given: A pytree for each of some nodes, by name.
      seed: Of the PRNG keys.

    Returns:
      A pytree of JAX arrays for each parameterised node, by name; `()` for those whose parameters are a table in host memory. Leaves of a
      compiled model's parameters that no node reads are there under the name `UNREAD`.

    Raises:
      ParameterError: If given parameters are of no node, do not fit, or hold values that are not finite.
    """
    _require_known(
        [*graph.parameterised, *([UNREAD] if graph.unread else [])],
        given,
    )
    params = {}
    first_of = dict[str, Any]()
    for name, node in graph.parameterised.items():
        if node.table is not None:
            params[name] = _of_table(name, given.get(name, ()))
            continue
        key = jax.random.fold_in(
            jax.random.key(seed),
            zlib.crc32(node.role.encode()),
        )
        initial = node.op.body.init(key)
        first = first_of.setdefault(node.role, initial)
        if first is initial:
            value = initial
        else:
            value = check_like(name, initial, deepcopy(first))
        params[name] = check_like(name, value, given.get(name, value))
    if graph.unread:
        params[UNREAD] = check_like(
            UNREAD,
            dict(graph.unread),
            given.get(UNREAD, dict(graph.unread)),
        )
    return params


def check_params(
    params: Mapping[str, Any],
    given: Mapping[str, Any],
    tables: Collection[str] = (),
) -> dict[str, Any]:
    """Checks the given parameters of some nodes against the present ones.

    Args:
      params: A pytree for each parameterised node, by name.
      given: The same for some of them.
      tables: Those whose parameters are tables in host memory.

    Returns:
      `given` as JAX arrays of the dtypes of `params`.

    Raises:
      ParameterError: If a node is unknown, or a pytree does not fit or holds values that are not finite.
    """
    if not isinstance(given, Mapping):
        fix = "Begin with `trainer.params`."
        raise ParameterError("parameters", "a tree for each name", type(given).__name__, fix)
    _require_known(params, given)
    of_tables = {}
    for node, value in given.items():
        if node in tables:
            of_tables[node] = _of_table(node, value)
    others = {}
    for node, value in given.items():
        if node not in tables:
            others[node] = check_like(node, params[node], value)
    return others | of_tables


def _of_table(node: str, value: Any) -> tuple[()]:
    """The parameters of a node that has a table: none.

    Raises:
      ParameterError: If any were given.
    """
    if not (isinstance(value, tuple) and not value):
        fix = "Make the table from these values; or `restore` a checkpoint, which holds tables."
        raise ParameterError(f"parameters of `{node}`", "none: its table has its rows", "some", fix)
    return ()


def _require_known(nodes: Collection[str], names: Iterable[str]) -> None:
    unknown = [name for name in names if name not in nodes]
    if unknown:
        raise ParameterError(
            f"parameters of `{unknown[0]}`",
            f"one of the parameterised nodes {list(nodes)}",
            "an unknown node",
            "Use a node's name; `compiled.node_params` gives the parameters of a compiled model by node.",
        )


def check_like(node: str, wanted: Any, value: Any) -> Any:
    """Checks that a pytree has the structure and shapes of another, and only finite values.

    Args:
      node: The node's name, for errors.
      wanted: The pytree to compare with.
      value: The pytree that was given.

    Returns:
      `value` as JAX arrays, with the dtypes of `wanted`.

    Raises:
      ParameterError: If not; names the leaf.
    """
    require_like(node, wanted, value)
    for leaf, old, new in _leaves(node, wanted, value):
        if (
            jnp.issubdtype(jnp.result_type(old), jnp.floating)
            and not np.isfinite(np.asarray(new, np.float64)).all()
        ):
            raise ParameterError(
                leaf, "finite values", "NaN or infinity", "Check where these parameters come from."
            )
    return jax.tree.map(
        lambda old, new: jnp.asarray(new, jnp.result_type(old)),
        wanted,
        value,
    )


def require_like(node: str, wanted: Any, value: Any) -> None:
    """Checks that a pytree has the structure and shapes of another.

    Args:
      node: The node's name, for errors.
      wanted: The pytree to compare with.
      value: The pytree that was given.

    Raises:
      ParameterError: If not; names the leaf.
    """
    if jax.tree.structure(wanted) != jax.tree.structure(value):
        raise ParameterError(
            f"parameters of `{node}`",
            f"the structure {jax.tree.structure(wanted)}",
            f"{jax.tree.structure(value)}",
            "Start from `trainer.params` and change values.",
        )
    for leaf, old, new in _leaves(node, wanted, value):
        if np.shape(old) != np.shape(new):
            raise ParameterError(
                leaf,
                f"shape {np.shape(old)}",
                f"{np.shape(new)}",
                "Give arrays of the node's shapes.",
            )


def _leaves(
    node: str,
    wanted: Any,
    value: Any,
) -> Iterator[tuple[str, Any, Any]]:
    """Yields each leaf's name in errors, and both pytrees' values of the leaf."""
    paths = jax.tree_util.tree_flatten_with_path(wanted)[0]
    for (path, old), new in zip(paths, jax.tree.leaves(value), strict=True):
        yield (
            f"parameters of `{node}`{', leaf ' + jax.tree_util.keystr(path) if path else ''}",
            old,
            new,
        )
