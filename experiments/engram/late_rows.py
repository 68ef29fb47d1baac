"""Training with late gradients of table rows: some steps late, for all rows or for a part.

The library delays whole gradients on purpose (`optim.delayed`), and counts their staleness (`sync=False`), but a table's alone it does not delay. So this
loop does, with the library's table: it pulls rows, computes, and keeps the gradients in a queue.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.optim import rowwise_adagrad
from ampjax.sparse import Table
from experiments.engram.letter_model import Batch, LetterModel, Params, dense_optimizer, with_table

PADDED_TO = 1024
"""The number of pulled rows is a multiple, so that few programs are compiled."""

PLACES = ("rows", "head", "tail", "all")
"""What may be late: the rows of the table; those that are read often, or seldom; or rows and dense parameters."""


@dataclass(frozen=True)
class RowGradients:
    """Gradients on their way to the table.

    Args:
      ids: Rows, `[k]`, each once.
      grads: `[k, features]`.
      updates: Updates of each row when it was pulled, `[k]`.
    """

    ids: np.ndarray
    grads: np.ndarray
    updates: np.ndarray

    def where(self, mask: np.ndarray) -> RowGradients:
        """Chooses gradients.

        Args:
          mask: `[k]`: the chosen ones.
        """
        return RowGradients(
            self.ids[mask],
            self.grads[mask],
            self.updates[mask],
        )


@dataclass
class Missed:
    """Counts of the updates that rows got between a pull and the push of the gradients.

    Args:
      is_head: By row whether it is read often.
    """

    is_head: np.ndarray
    total: Counter[str] = field(default_factory=Counter)
    n: Counter[str] = field(default_factory=Counter)

    def add(self, ids: np.ndarray, missed: np.ndarray) -> None:
        """Counts some gradients.

        Args:
          ids: Rows, `[k]`.
          missed: Updates of each between its pull and now, `[k]`.
        """
        head = self.is_head[ids]
        parts = {
            "head": missed[head],
            "tail": missed[~head],
        }
        for name, part in parts.items():
            self.total[name] += int(part.sum())
            self.n[name] += len(part)

    @property
    def means(self) -> dict[str, float]:
        """For head and tail, the mean over gradients of rows."""
        result = {}
        for name in ("head", "tail"):
            n = max(1, self.n[name])
            result[name] = self.total[name] / n
        return result


class LateTraining:
    """A training with late gradients.

    Args:
      model: The model, with a memory.
      params: Dense parameters.
      table: The first rows, `[n, features]`; copied.
      rates: Learning rates of dense parameters and of the table.
      late: What is late, one of `PLACES`.
      delay: By how many steps.
      is_head: By row whether it is read often, `[n]`.
    """

    def __init__(
        self,
        model: LetterModel,
        params: Params,
        table: np.ndarray,
        rates: tuple[float, float],
        late: str,
        delay: int,
        is_head: np.ndarray,
    ):
        self.model = model
        self.dense = params
        self.table = Table(table, rowwise_adagrad(rates[1]))
        self.late = late
        self.delay = delay
        self.missed = Missed(is_head)
        self._is_head = is_head
        self._updates = np.zeros(len(table), np.int32)
        self._rows: deque[RowGradients] = deque()
        self._dense_grads: deque[Params] = deque()
        self._tx = dense_optimizer(rates[0])
        self._state = self._tx.init(params)
        gradients = jax.value_and_grad(self._loss, argnums=(0, 1))
        self._gradients = jax.jit(gradients)
        self._losses = jax.jit(self._losses_of)
        self._update = jax.jit(self._updated)

    def run(self, batch: Batch) -> float:
        """Takes a step; gives the loss of its batch.

        Args:
          batch: A batch with ids.
        """
        ids, rows, small = self._pull(batch)
        loss, (dense, grads) = self._gradients(
            self.dense,
            rows,
            small,
        )
        new = RowGradients(
            ids,
            np.asarray(grads)[: len(ids)],
            self._updates[ids],
        )
        self._push(new)
        self._dense_grads.append(dense)
        dense_delay = self.delay if self.late == "all" else 0
        if len(self._dense_grads) > dense_delay:
            self._apply_dense()
        return float(loss)

    def finish(self) -> None:
        """Applies the gradients that are under way, the oldest first."""
        while self._rows:
            self._apply_rows([self._rows.popleft()])
        while self._dense_grads:
            self._apply_dense()

    def losses(self, batch: Batch) -> np.ndarray:
        """Losses by position, `[rows, context]`.

        Args:
          batch: A batch with ids.
        """
        _, rows, small = self._pull(batch)
        losses = self._losses(self.dense, rows, small)
        return np.asarray(losses)

    def _pull(self, batch: Batch) -> tuple[np.ndarray, np.ndarray, Batch]:
        """Pulls a batch's rows: the ids, each once; the rows, with zeros behind; the batch with ids that count these rows."""
        ids, inverse = np.unique(batch["ids"], return_inverse=True)
        n_blocks = 1 + (len(ids) - 1) // PADDED_TO
        shape = (n_blocks * PADDED_TO, *self.table.shape[1:])
        rows = np.zeros(shape, np.float32)
        rows[: len(ids)] = self.table.pull(ids)
        inverse = inverse.astype(np.int32)
        small = {**batch, "ids": inverse.reshape(batch["ids"].shape)}
        return ids, rows, small

    def _push(self, new: RowGradients) -> None:
        """Puts late gradients into the queue, and pushes the others together with the gradients whose time has come."""
        head = self._is_head[new.ids]
        waits = np.ones(len(head), bool)
        if self.late == "head":
            waits = head
        elif self.late == "tail":
            waits = ~head
        self._rows.append(new.where(waits))
        due = [new.where(~waits)]
        if len(self._rows) > self.delay:
            due.append(self._rows.popleft())
        self._apply_rows(due)

    def _apply_rows(self, due: Iterable[RowGradients]) -> None:
        """Pushes gradients of different rows in one update."""
        parts = list(due)
        ids = np.concatenate([part.ids for part in parts])
        grads = np.concatenate([part.grads for part in parts])
        before = np.concatenate([part.updates for part in parts])
        self.missed.add(ids, self._updates[ids] - before)
        self.table.push(ids, grads)
        self._updates[ids] += 1

    def _apply_dense(self) -> None:
        """Updates dense parameters from the oldest gradients."""
        self.dense, self._state = self._update(
            self.dense,
            self._state,
            self._dense_grads.popleft(),
        )

    def _updated(
        self,
        params: Params,
        state: Any,
        grads: Params,
    ) -> tuple[Any, Any]:
        updates, state = self._tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def _losses_of(
        self,
        dense: Params,
        rows: jax.Array,
        batch: Batch,
    ) -> jax.Array:
        return self.model.losses(with_table(dense, rows), batch)

    def _loss(
        self,
        dense: Params,
        rows: jax.Array,
        batch: Batch,
    ) -> jax.Array:
        return jnp.mean(self._losses_of(dense, rows, batch))


def head_rows(reads: np.ndarray) -> np.ndarray:
    """Finds the rows that are read most often, and together make half of all reads.

    Args:
      reads: By row how often it is read, `[n]`.

    Returns:
      `[n]` bool.
    """
    order = np.argsort(-reads, kind="stable")
    so_far = np.cumsum(reads[order])
    half = so_far[-1] / 2
    n_head = 1 + int(np.searchsorted(so_far, half))
    result = np.zeros(len(reads), bool)
    result[order[:n_head]] = True
    return result
