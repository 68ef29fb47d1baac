"""Arguments of optax's transforms beside updates, states and parameters, such as the staleness."""

from __future__ import annotations

import inspect
from typing import Any

import optax


def with_extra_arguments(
    tx: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Makes a transform that may be given any such argument: `optax.with_extra_args_support`, and arguments are left out that the transform has no place for.

    optax says of its transforms with extra arguments that they take any, but some, such as `optax.contrib.sam`, take only their own.

    Args:
      tx: The transform.
    """
    step = optax.with_extra_args_support(tx)
    arguments = inspect.signature(step.update).parameters
    if any(each.kind is each.VAR_KEYWORD for each in arguments.values()):
        return step

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        **extra: Any,
    ) -> Any:
        known = {}
        for name, value in extra.items():
            if name in arguments:
                known[name] = value
        return step.update(updates, state, params, **known)

    return optax.GradientTransformationExtraArgs(step.init, update)
