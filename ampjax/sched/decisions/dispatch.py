"""A dispatch: the scheduler's decision, in plain data (integers, names and an array), so that a driver may send the dispatch to another process."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ampjax.plan.stages import Stage
from ampjax.sched.decisions.packs import ids_of, rows_of
from ampjax.sched.decisions.parameter_changes import Change

DIRECTIONS = FORWARD, BACKWARD, INFER, UPDATE = "forward", "backward", "infer", "update"
"""The directions of a dispatch: forward, backward, inference, or parameter changes alone. The first three have the numbers of `columns`."""


def brings_gradients(stage: Stage, dispatch: Dispatch) -> bool:
    """Tells whether a dispatch brings gradient rows: a backward one does, and that of a loss in training."""
    return dispatch.stage >= 0 and dispatch.direction == (BACKWARD if stage.outputs else FORWARD)


class Dispatch(NamedTuple):
    """One action for a worker: run a stage on some messages, then change some parameters.

    It has more than twelve fields, because it must hold all that a worker in another process needs. Loops decide on many a millisecond, so it is a
    tuple, and is made from its fields in order.

    Args:
      number: Dispatches are numbered in the order of issue.
      worker: Who runs it.
      stage: The number of the stage that it runs; -1 for parameter changes only.
      direction: One of `DIRECTIONS`.
      n_messages: Messages in it.
      n_rows: Input rows of port 0.
      n_sections: Ports and outputs of the stage together.
      pack: int32: what the properties below show, in the layout that kernels take (see `packs`).
      size: The size that it is padded to; 0 where that waits until it is issued.
      place: Where the pack begins in the array that it shares with those of other dispatches.
      changes: Parameter changes that follow.
      edges: Of a stage that is a chain: its edges of each type.
      versions: Of a stage with stashed weights, the versions of its parameters that its messages see, or saw on their way forth.
      drop: Stashed versions that no message needs after this: of its stage.
      staleness: Of one on the way back whose stage estimates its weights, how many versions ago its messages saw each of the stage's `params`,
        in the mean; None if all are fresh.
      dropped: Those of its stage's `params` to which it brings no gradients, as they are too stale.
    """

    number: int
    worker: int
    stage: int
    direction: str
    n_messages: int
    n_rows: int
    n_sections: int
    pack: np.ndarray
    size: int = 0
    place: int = 0
    changes: tuple[Change, ...] = ()
    edges: tuple[int, ...] = ()
    versions: tuple[int, ...] | None = None
    drop: tuple[tuple[int, ...], ...] = ()
    staleness: tuple[float, ...] | None = None
    dropped: tuple[str, ...] = ()

    @property
    def messages(self) -> np.ndarray:
        """`[n_messages]`: the messages, by their numbers among all messages in flight."""
        return self.pack[: self.n_messages]

    @property
    def lines(self) -> np.ndarray:
        """`[n_messages]`: their invocations, by their lines among all programs."""
        start = self.size or self.n_messages
        return self.pack[start : start + self.n_messages]

    @property
    def ids(self) -> np.ndarray:
        """`[n_messages]`: the numbers of their instances."""
        return ids_of(self.pack, self.n_messages, self.size)

    @property
    def rows(self) -> list[np.ndarray]:
        """The arena slots of the rows of each port, then of each output."""
        return rows_of(self.pack, self.n_messages, self.n_sections, self.size)

    def rows_at(self, stage: Stage, node: str) -> int:
        """Counts the rows that a node of the dispatch's stage works on: edges within a chain, collected rows behind a chain, else input rows.

        Returns:
          How many rows.
        """
        if stage.chain is None:
            return self.n_rows
        edge_type = stage.edge_type_of.get(node)
        if edge_type is None:
            return len(self.rows[len(stage.ports)])
        return self.edges[edge_type]

    def gradient_rows(self, stage: Stage) -> dict[str, int]:
        """Counts the gradient rows for each of the stage's `params`, without dropped ones."""
        rows = {name: 0 for name in stage.params if name not in self.dropped}
        for node in stage.parameterised:
            if node.params_name in rows:
                rows[node.params_name] += self.rows_at(stage, node.name)
        return rows

    def after(self, n: int) -> Dispatch:
        """Gives the rest of the dispatch after its kernels and some of its parameter changes have been carried out.

        Returns:
          A dispatch of parameter changes alone.
        """
        return self._replace(stage=-1, changes=self.changes[n:])

    def __repr__(self) -> str:
        return self.describe(f"stage {self.stage}")

    def describe(self, name: str) -> str:
        """Describes the dispatch in words.

        Returns:
          One line.
        """
        what = f"{self.direction} `{name}` ({self.n_messages} messages, {self.n_rows} rows)"
        changes = f", then {', '.join(map(str, self.changes))}" if self.changes else ""
        return f"Dispatch {self.number} on worker {self.worker}: {'changes only' if self.stage < 0 else what}{changes}"
