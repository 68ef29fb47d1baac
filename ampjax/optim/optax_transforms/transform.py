"""Makes optax transforms: optax's types know neither states of a kind of their own nor extra arguments that are needed."""

from __future__ import annotations

from typing import Any

import optax


def transform(init: Any, update: Any) -> optax.GradientTransformationExtraArgs:
    """Makes a transform that takes extra arguments.

    Args:
      init: `init(params) -> state`.
      update: `update(updates, state, params=None, **extra) -> (updates, state)`.
    """
    return optax.GradientTransformationExtraArgs(init, update)
