"""Dense variables with a copy at each worker: the runner asks workers for them, and announces changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ampjax.devices.random_keys import data_of, is_key
from ampjax.optim.row_rule import Values
from ampjax.optim.split_transform import Split, Totals
from ampjax.optim.split_update import Proposal
from ampjax.parallel.workers.process_group import ProcessGroup
from ampjax.parallel.workers.worker import tree_of
from ampjax.parallel.workers.worker_messages import Adopt, Propose, Question, WriteVariables

Tree = Any


class DenseAtWorkers:
    """A home of dense variables (`homes.dense_homes.DenseHome`), whose copies are at workers.

    Args:
      split: The optimizer.
      params: Dense parameters.
      group: The processes.
    """

    def __init__(self, split: Split, params: Tree, group: ProcessGroup):
        self._split = split
        self._group = group
        state = split.init(params)
        self._like = jax.tree.map(_without_memory, (params, state))
        self._shared: Mapping[str, Values] | None = None
        self._is_adopted = False  # an update of which workers will hear with the next step
        self.write(params, state)

    def write(self, params: Tree, state: Tree) -> None:
        """Replaces parameters and state at all workers, which are started if there are none.

        Args:
          params: Dense parameters, None in place of tables.
          state: The optimizer's shared state.
        """
        self._group.start()
        self._is_adopted = False
        leaves = []
        for tree in (params, state):
            leaves.append([data_of(leaf) for leaf in jax.tree.leaves(tree)])
        self._group.tell(WriteVariables(*leaves))

    def read(self) -> tuple[Tree, Tree]:
        """Parameters and shared state as host arrays of their own."""
        with self._group.exchange():
            if self.take_adoption():
                self._group.tell(Adopt())
            params, state = self._group.ask(lambda number: Question(number, "read"))
        return self._make_tree(0, params), self._make_tree(1, state)

    def like(self) -> tuple[Tree, Tree]:
        """Builds trees of the parameters' and the shared state's structure, whatever has become of the workers."""
        return self._like

    def wait(self) -> None:
        """Returns when the parameters have been computed; at once if there are none."""
        if jax.tree.leaves(self._like):
            self.read()

    def pull(self) -> Tree:
        """Nothing: workers have their copies."""

    def push(self, grads: Tree) -> Tree:
        """Returns the gradients unchanged: they stay at the workers, whose AllReduce has reduced them."""
        return grads

    def note_step(self, shared: Mapping[str, Values] | None) -> None:
        """Notes the first worker's report of a step.

        Args:
          shared: By table the values that its update needs, if they are known by now: then an update has been proposed.
        """
        self._shared = shared

    def shared(
        self,
        turn: int,
        grads: Tree,
        totals: Totals,
    ) -> Mapping[str, Values]:
        """The values that tables need for one round of reductions. Usually there are none, and then no worker is asked.

        Args:
          turn: The round.
          grads: Not used: workers have them.
          totals: The reductions of earlier rounds.

        Returns:
          By table, host arrays.
        """
        del grads
        if not any(rule.rounds[turn][1].shared for rule in self._split.rules.values()):
            return {table: [] for table in self._split.rules}
        return self._group.ask(lambda number: Question(number, "shared", turn, totals))

    def propose(self, grads: Tree, totals: Totals) -> Proposal:
        """Lets all workers compute the same update.

        Returns:
          The update, for `adopt`; parameters and state stay at the workers.
        """
        shared = self._shared
        if shared is None:
            shared = self._group.ask(
                lambda number: Propose(number, totals),
                everyone=True,
            )
        return Proposal(grads, None, shared)

    def adopt(self, proposal: Proposal) -> None:
        """Replaces parameters and state by the proposed ones at all workers, before any read.

        Args:
          proposal: What `propose` gave, of the last step.
        """
        del proposal
        self._is_adopted = True

    def take_adoption(self) -> bool:
        """Tells whether there is an update unknown to the workers; the caller then sends it."""
        result = self._is_adopted
        self._is_adopted = False
        return result

    def fetch(self, grads: Tree) -> Tree:
        """Reads reduced gradients.

        Returns:
          A pytree of host arrays.
        """
        del grads
        return self._make_tree(
            0,
            self._group.ask(lambda number: Question(number, "gradients")),
        )

    def _make_tree(
        self,
        which: int,
        leaves: Sequence[np.ndarray],
    ) -> Tree:
        return jax.tree.map(
            lambda leaf: leaf if is_key(leaf) else np.array(leaf),
            tree_of(self._like[which], leaves),
        )


def _without_memory(leaf: Any) -> Any:
    """Makes an array of that shape and dtype that takes no memory; keys stay unchanged."""
    if is_key(leaf):
        return leaf
    return np.broadcast_to(
        np.zeros((), np.asarray(leaf).dtype),
        np.shape(leaf),
    )
