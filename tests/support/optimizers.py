"""Optax transforms that tests of sparse tables share, and plain optax on the whole array as their oracle."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.optim import rowwise_adagrad, rowwise_adam, rowwise_rmsprop
from ampjax.optim.average import parameter_average

ROW_WISE = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "nesterov": optax.sgd(
        optax.cosine_decay_schedule(0.1, 10),
        momentum=0.9,
        nesterov=True,
    ),
    "adagrad": optax.adagrad(0.1),
    "rmsprop": optax.rmsprop(0.1),
    "adam": optax.adam(0.1),
    "adamw": optax.adamw(
        optax.linear_schedule(0.1, 0.01, 8),
        weight_decay=0.1,
    ),
    "clipped": optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.clip(0.1),
        optax.adam(0.1),
    ),
    "scheduled": optax.chain(
        optax.scale_by_rms(),
        optax.scale_by_schedule(lambda count: -0.1 / (1 + count)),
    ),
    "averaged": optax.chain(
        optax.clip_by_global_norm(0.5), optax.sgd(0.1), parameter_average(0.75)
    ),
    "row adagrad": rowwise_adagrad(0.1),
    "row adam": rowwise_adam(0.1),
    "row adam, first moment": rowwise_adam(0.1, b1=0.9),
    "row rmsprop": rowwise_rmsprop(0.1),
}
STILL = ("sgd", "adagrad", "row adagrad")
"""Those that leave rows without gradient as they are."""


def worst(got: Any, wanted: Any) -> float:
    """max |difference| / max |value| over the leaves of two trees of the same structure, shapes and dtypes."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    pairs = list(
        zip(
            jax.tree.leaves(got),
            jax.tree.leaves(wanted),
            strict=True,
        )
    )
    assert [(np.shape(a), jnp.result_type(a)) for a, _ in pairs] == [
        (np.shape(b), jnp.result_type(b)) for _, b in pairs
    ]
    wide = []
    for a, b in pairs:
        wide.append(
            (
                np.asarray(
                    a,
                    np.float64,
                ),
                np.asarray(b, np.float64),
            )
        )
    return max(
        (float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in wide if b.size),
        default=0.0,
    )


class Dense:
    """The whole array under plain optax; in `lazy` mode, rows without gradient keep parameters and state."""

    def __init__(
        self,
        name: str,
        values: np.ndarray,
        lazy: bool = False,
    ):
        self.tx = ROW_WISE[name]
        self.lazy = lazy
        self.params = jnp.asarray(values)
        self.state = None
        self.state = self.tx.init(self.params)

    def update(self, row_ids: np.ndarray, grads: np.ndarray) -> None:
        whole = np.zeros(self.params.shape, np.float32)
        touched = np.zeros(len(self.params), bool)
        np.add.at(whole, row_ids, grads)
        touched[row_ids] = True
        keep = ~touched if self.lazy else np.zeros_like(touched)
        self.params, self.state = _step(
            self.tx,
            self.params,
            self.state,
            whole,
            keep,
        )

    def assign(self, row_ids: np.ndarray, values: np.ndarray) -> None:
        """Begins some rows anew."""
        self.params = self.params.at[row_ids].set(values)
        begun = self.tx.init(self.params)

        def choose(new: Any, old: Any) -> Any:
            if new.shape[:1] != self.params.shape[:1]:
                return old
            return old.at[row_ids].set(new[row_ids])

        self.state = jax.tree.map(choose, begun, self.state)

    def copy(self) -> Dense:
        other = object.__new__(Dense)
        other.__dict__.update(self.__dict__)
        return other


@functools.partial(jax.jit, static_argnums=0)
def _step(
    tx: Any,
    params: Any,
    state: Any,
    grads: Any,
    keep: Any,
) -> Any:
    updates, changed = tx.update(
        grads.astype(params.dtype),
        state,
        params,
    )

    def choose(new: Any, old: Any) -> Any:
        if new.shape[:1] != params.shape[:1]:
            return new
        kept = keep.reshape(
            -1,
            *[1] * (new.ndim - 1),
        )
        return jnp.where(kept, old, new)

    return jax.tree.map(
        choose,
        (optax.apply_updates(params, updates), changed),
        (params, state),
    )
