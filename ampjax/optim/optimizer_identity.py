"""The identity of an optimizer for checkpoints: the parts of its state in words, and the operations that make updates of gradients.

Adam and NAdam, or momentum and Nesterov's, keep the same state, so that only the operations tell them apart. What depends on counts alone is left
out, so that another schedule of the learning rate is no other optimizer.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import DataError
from ampjax.jaxprs.inlining import inline_calls
from ampjax.jaxprs.primitives import depending
from ampjax.optim.optax_transforms.transform_arguments import with_extra_arguments

Tree = Any

_FORMS = {"broadcast_in_dim", "convert_element_type", "copy", "reshape"}
"""Operations that change the form of numbers alone, which may depend on how a setting was written."""


def parts_of(state: Any) -> str:
    """The parts of an optimizer's state in words: `ScaleByAdamState, EmptyState`.

    Args:
      state: What a transform's `init` gives.
    """
    if isinstance(state, tuple) and not hasattr(state, "_fields"):
        return ", ".join(map(parts_of, state)) or "no state"
    if isinstance(state, Mapping):
        return ", ".join(map(parts_of, state.values()))
    name = type(state).__name__
    if hasattr(state, "_fields"):
        inner = [parts_of(part) for part in state if isinstance(part, tuple)]
    else:
        inner = []
    return f"{name}({', '.join(inner)})" if inner else name


def require_same_parts(
    where: str,
    expected: str,
    saved: Any,
    fix: str,
) -> None:
    """Checks, by the parts, that a saved state is of the optimizer that shall continue with the state.

    Raises:
      DataError: If it is of another.
    """
    if f"{saved}" != expected:
        raise DataError(where, f"the state {expected:.120}", f"{saved:.120}", fix)


def operations_of(tx: optax.GradientTransformation, params: Tree) -> str:
    """The versions of JAX and optax, and a digest of the operations on gradients.

    Args:
      tx: An optax transform.
      params: The parameters that it updates, or their shapes; None in place of those that it does not.
    """
    leaves, structure = jax.tree.flatten(params)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    try:
        hash(tx)
    except TypeError:  # made of a mutable object, which another call may find changed
        return _digest.__wrapped__(tx, structure, shapes)
    return _digest(tx, structure, shapes)


@functools.lru_cache(maxsize=256)
def _digest(
    tx: optax.GradientTransformation,
    structure: Any,
    shapes: tuple[tuple[Any, Any], ...],
) -> str:
    """The digest, traced once for parameters of the same shapes."""
    params = structure.unflatten([jax.ShapeDtypeStruct(*shape) for shape in shapes])
    step = with_extra_arguments(tx)

    def update(
        gradient: Tree,
        state: Tree,
        params: Tree,
    ) -> Tree:
        extra = {
            "staleness": jnp.float32(0),
            "value": jnp.float32(0),
        }
        return step.update(gradient, state, params, **extra)[0]

    state = jax.eval_shape(tx.init, params)
    closed = jax.make_jaxpr(update)(params, state, params)
    flat = inline_calls(closed.jaxpr)
    equations = flat.eqns
    from_gradients = depending(equations, flat.invars[: len(shapes)])
    names = []
    for equation in equations:
        name = equation.primitive.name
        if name not in _FORMS and not from_gradients.isdisjoint(equation.outvars):
            names.append(name)
    digest = hashlib.sha256(" ".join(names).encode()).hexdigest()
    return f"JAX {jax.__version__}, optax {optax.__version__}: {digest[:16]}"


def require_same_operations(
    where: str,
    expected: Mapping[str, str],
    saved: Any,
) -> None:
    """Checks that a saved state's updates are made by the operations of the optimizer that shall continue with the state.

    Other versions of JAX or optax may have other operations for the same rule: then nothing is checked.

    Args:
      where: What an error calls the checkpoint.
      expected: The present operations by the name of a state, as `operations_of` gives them.
      saved: What a checkpoint says; older ones say nothing.

    Raises:
      DataError: If they are others.
    """
    if not isinstance(saved, Mapping):
        return
    for name, here in expected.items():
        versions, _, digest = here.partition(": ")
        then = f"{saved.get(name, here)}"
        saved_versions, _, saved_digest = then.partition(": ")
        if versions == saved_versions and digest != saved_digest:
            of_node = f" of `{name}`" if name else ""
            raise DataError(
                f"{where}{of_node}",
                "an optimizer that makes updates by the same operations",
                "one with a state of this form that computes otherwise (as Adam and NAdam do)",
                "Use the optimizer that it was saved with; to go on with another one, assign `opt_state`.",
            )
