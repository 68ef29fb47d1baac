"""The optimizer's state as users see it: read by name, and changed by assignments to the state that was read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.devices.random_keys import copy_leaf, is_key
from ampjax.engine.executor_protocol import AnyStore
from ampjax.errors import ParameterError


class OptimizerState:
    """The optimizer states that a trainer has handed out, so that assignments to them take effect.

    Hyperparameters are entries of a dictionary in the state (`optax.inject_hyperparams`): an assignment to such an entry can't be seen when it is
    made. So it is looked for before the state is needed again.

    Args:
      store: Has the states.
    """

    def __init__(self, store: AnyStore):
        self._store = store
        self._handed_out: dict[str, Any] = {}
        self._leaves: dict[str, list[Any]] = {}

    def read(self) -> dict[str, Any]:
        """The states by name, of nodes that have one: read-only arrays, in trees in whose dictionaries others may be put."""
        self.take_over()
        states = {}
        for name, tree in self._store.opt_state.items():
            if not _is_nothing(tree):
                states[name] = tree
        state = {}
        for name, tree in states.items():
            state[name] = jax.tree.map(_read_only, tree)
        self._handed_out = state
        leaves = {}
        for name, tree in state.items():
            leaves[name] = jax.tree.leaves(tree)
        self._leaves = leaves
        return dict(state)

    def write(self, states: Mapping[str, Any]) -> None:
        """Replaces some states.

        Args:
          states: Trees by name, like those that `read` gives.

        Raises:
          ParameterError: If a name is unknown, or a tree does not fit. Nothing is changed then.
        """
        self.take_over()
        now = self._store.opt_state
        if not isinstance(states, Mapping):
            fix = "Begin with `trainer.opt_state`, which has a tree for each name."
            raise ParameterError(
                "optimizer states", f"a tree by name, of {sorted(now)}", type(states).__name__, fix
            )
        changed = {}
        for name, tree in states.items():
            changed[name] = _like(name, now, tree)
        self._replace(now, changed)

    def take_over(self) -> None:
        """Puts assignments to the entries that `read` returned last into the states; all else keeps its present value.

        Raises:
          ParameterError: If it does not fit.
        """
        handed_out = self._handed_out
        before = self._leaves
        assigned = {}
        for name, tree in handed_out.items():
            leaves = jax.tree.leaves(tree)
            if len(leaves) != len(before[name]) or any(
                a is not b for a, b in zip(leaves, before[name], strict=True)
            ):
                assigned[name] = tree
        if not assigned:
            return
        self._handed_out = {}
        self._leaves = {}
        now = self._store.opt_state
        changed = {}
        for name, tree in assigned.items():
            fitting = _like(name, now, tree)
            new = zip(
                jax.tree.leaves(fitting),
                jax.tree.leaves(tree),
                before[name],
                jax.tree.leaves(now[name]),
                strict=True,
            )
            leaves = [current if leaf is old else value for value, leaf, old, current in new]
            changed[name] = jax.tree.structure(now[name]).unflatten(leaves)
        self._replace(now, changed)

    def _replace(
        self,
        now: Mapping[str, Any],
        changed: Mapping[str, Any],
    ) -> None:
        if changed:
            self._store.restore(
                self._store.params,
                {**now, **changed},
                self._store.accumulators,
            )


def _like(
    name: str,
    now: Mapping[str, Any],
    tree: Any,
) -> Any:
    """A state with the shapes and dtypes of the one that there is.

    Raises:
      ParameterError: If it is another optimizer's, or of other parameters.
    """
    where = f"optimizer state of `{name}`"
    if name not in now:
        raise ParameterError(
            where,
            f"one of the names {sorted(now)}",
            "another name",
            "Begin with `trainer.opt_state`.",
        )
    old = now[name]
    if jax.tree.structure(old) != jax.tree.structure(tree):
        expected, got = (f"{jax.tree.structure(each)}" for each in (old, tree))
        fix = "It must come from a trainer with the same optimizer; begin with `trainer.opt_state`."
        raise ParameterError(where, f"the structure {expected:.300}", f"{got:.300}", fix)
    for one, other in zip(jax.tree.leaves(old), jax.tree.leaves(tree), strict=True):
        if np.shape(one) != np.shape(other):
            raise ParameterError(
                where,
                f"an array of shape {np.shape(one)}",
                f"{np.shape(other)}",
                "Keep the shapes.",
            )
        if is_key(one) != is_key(other):
            kinds = ["random keys" if is_key(each) else "numbers" for each in (one, other)]
            raise ParameterError(where, kinds[0], kinds[1], "Keep the kinds of its leaves.")
        if not is_key(one) and np.asarray(other).dtype.kind in "OSU":
            raise ParameterError(
                where, f"{one.dtype} numbers", f"{other!r:.60}", "Keep the kinds of its leaves."
            )
    return jax.tree.map(
        lambda one, other: other if is_key(one) else jnp.asarray(other, one.dtype),
        old,
        tree,
    )


def _is_nothing(state: Any) -> bool:
    """Tells whether there is no state, as of a table or of a node that others are updated with."""
    return isinstance(state, tuple) and not state and type(state) is tuple


def _read_only(array: Any) -> Any:
    """A copy that can't be written to: such a change would be lost."""
    copy = copy_leaf(array)
    if isinstance(copy, np.ndarray):
        copy.flags.writeable = False
    return copy
