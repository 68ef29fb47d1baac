"""Two large tables in plain JAX, trained as one does by hand who knows that a step touches few rows: only those rows are updated.

NumPy finds the different ids of a batch (1.4 ms for 32,768 ids on one core, where `jnp.unique` takes 20) and fills them up to a few sizes, for
which the step is compiled. The step gathers their rows, differentiates the loss by them, and scatters the updated rows and their
optimizer state into donated arrays. Two devices hold a copy of the tables each; an AllReduce adds up the gradients of the joined batch's rows.

A rival has to train what ours trains: Adagrad leaves rows without a gradient alone, and this is the lazy Adam, which does too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.devices.per_replica import AXIS, replica_entry, replicate, spread
from ampjax.parallel.shard import split_batch

Optimizer = Literal["adagrad", "adam"]
Tables = Mapping[str, jax.Array]
Batch = Mapping[str, Any]

FILLED_TO = 2048
"""The number of different ids is filled up to a multiple of this."""


class State(NamedTuple):
    """All that a step changes: parameters, and the optimizer's state for them."""

    tables: Tables
    slots: Mapping[str, Sequence[jax.Array]]
    dense: Any
    dense_state: optax.OptState
    count: jax.Array


class HandWritten:
    """A `measure.Program`.

    Args:
      loss: `loss(dense, rows, batch)`, the mean over examples; `rows` has, for each table, a row for each id of the batch.
      params: Parameters; leaves whose names are those of `ids` are tables.
      ids: For each table the column of a batch that has its ids.
      optimizer: Of tables; `tx` is the same for other parameters.
      tx: For other parameters.
      learning_rate: Of tables.
      devices: One, or several with a copy each.
    """

    def __init__(
        self,
        loss: Any,
        params: Mapping[str, Any],
        ids: Mapping[str, str],
        optimizer: Optimizer,
        tx: optax.GradientTransformation,
        *,
        learning_rate: float,
        devices: Sequence[Any],
    ):
        self._devices = list(devices)
        self._ids = ids
        self._n_rows = {name: len(params[name]) for name in ids}
        tables = {name: jnp.asarray(params[name]) for name in ids}
        dense = {name: leaf for name, leaf in params.items() if name not in ids}
        slots = {}
        for name, t in tables.items():
            slots[name] = [jnp.full_like(t, v) for v in _FIRST[optimizer]]
        state = State(
            tables,
            slots,
            dense,
            tx.init(dense),
            jnp.zeros((), jnp.int32),
        )
        step = partial(_step, loss, optimizer, tx, learning_rate)
        if len(self._devices) == 1:
            self._state = jax.tree.map(jnp.array, state)
            self._step = jax.jit(
                partial(step, joined=False),
                donate_argnums=0,
            )
        else:
            self._state = replicate(state, self._devices)
            step = partial(step, joined=True)
            self._step = jax.pmap(
                step,
                AXIS,
                in_axes=(0, None, 0, 0),
                devices=self._devices,
                donate_argnums=0,
            )

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The parameters, host arrays."""
        state = self._state if len(self._devices) == 1 else replica_entry(self._state)
        return jax.tree.map(
            np.asarray,
            {**state.tables, **state.dense},
        )

    def step(self, batch: Batch) -> jax.Array:
        """One step; gives the loss, a copy for each device."""
        rows = {}
        places = {}
        for name, column in self._ids.items():
            rows[name], places[name] = _distinct(
                batch[column],
                self._n_rows[name],
            )
        if len(self._devices) > 1:
            parts = split_batch(
                {"batch": batch, "places": places},
                len(self._devices),
            )
            joined = spread(parts, self._devices)
            self._state, loss = self._step(
                self._state,
                rows,
                joined["places"],
                joined["batch"],
            )
        else:
            self._state, loss = self._step(self._state, rows, places, batch)
        return loss

    def wait(self) -> None:
        """Until the parameters are there."""
        jax.block_until_ready(self._state)


def _distinct(
    ids: np.ndarray,
    n_rows: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The different ids, filled up with `n_rows`, and where each of `ids` stands among them."""
    rows, places = np.unique(ids, return_inverse=True)
    filled = np.full(
        -(-len(rows) // FILLED_TO) * FILLED_TO,
        n_rows,
        np.int32,
    )
    filled[: len(rows)] = rows
    return filled, places.reshape(ids.shape).astype(np.int32)


def _step(
    loss: Any,
    optimizer: Optimizer,
    tx: optax.GradientTransformation,
    learning_rate: float,
    state: State,
    rows: Mapping[str, jax.Array],
    places: Mapping[str, jax.Array],
    batch: Batch,
    *,
    joined: bool,
) -> tuple[State, jax.Array]:
    def of_pulled(dense: Any, pulled: Tables) -> jax.Array:
        return loss(
            dense,
            {name: pulled[name][place] for name, place in places.items()},
            batch,
        )

    pulled = {}
    for name, own in rows.items():
        pulled[name] = (
            state.tables[name]
            .at[own]
            .get(
                mode="clip",
                indices_are_sorted=True,
            )
        )
    value, grads = jax.value_and_grad(of_pulled, argnums=(0, 1))(
        state.dense,
        pulled,
    )
    if joined:
        value, grads = jax.lax.pmean((value, grads), AXIS)
    updates, dense_state = tx.update(
        grads[0],
        state.dense_state,
        state.dense,
    )
    new = {}
    for name, table in state.tables.items():
        new[name] = _update(
            optimizer,
            learning_rate,
            table,
            state.slots[name],
            rows[name],
            grads[1][name],
            state.count,
        )
    tables = {name: table for name, (table, _) in new.items()}
    slots = {name: own for name, (_, own) in new.items()}
    return State(
        tables,
        slots,
        optax.apply_updates(state.dense, updates),
        dense_state,
        state.count + 1,
    ), value


_FIRST = {"adagrad": [0.1], "adam": [0.0, 0.0]}
"""What fills each array of a table's state at first, as in optax."""


def _update(
    optimizer: Optimizer,
    learning_rate: float,
    table: jax.Array,
    slots: Sequence[jax.Array],
    rows: jax.Array,
    grad: jax.Array,
    count: jax.Array,
) -> tuple[jax.Array, Sequence[jax.Array]]:
    """The table and its state after an update of some rows; what lies outside of the table is dropped."""
    own = [slot.at[rows].get(mode="clip") for slot in slots]
    if optimizer == "adagrad":
        new = [own[0] + grad**2]
        change = learning_rate * grad * jax.lax.rsqrt(new[0] + 1e-7)
    else:
        new = [
            0.9 * own[0] + 0.1 * grad,
            0.999 * own[1] + 0.001 * grad**2,
        ]
        t = count + 1
        change = (
            learning_rate * (new[0] / (1 - 0.9**t)) / (jnp.sqrt(new[1] / (1 - 0.999**t)) + 1e-8)
        )
    flags: Any = {"mode": "drop", "unique_indices": True, "indices_are_sorted": True}
    written = []
    for slot, value in zip(slots, new, strict=True):
        written.append(slot.at[rows].set(value, **flags))
    return table.at[rows].add(-change, **flags), written
