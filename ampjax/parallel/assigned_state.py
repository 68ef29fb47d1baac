"""An optimizer's state as a tree to which users may assign: their changes are found before the state is used.

`opt_state.hyperparams["learning_rate"] = 0.01` is how optax's users change a learning rate. A runner's state is not in the tree that it gives, so
it looks what has become of the tree. Knows trees; nothing of optimizers and where their states are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from ampjax.devices.random_keys import data_of, is_key, wrapped_like
from ampjax.errors import ParameterError

Tree = Any
_SAME = "Assign values to what is there, or a whole state: `runner.opt_state = state`."


class Stateful(Protocol):
    """A model with an optimizer's state."""

    def opt_state(self) -> Tree:
        """The state; its arrays are nobody else's."""
        ...

    def state_like(self) -> Tree:
        """Its shapes and dtypes."""
        ...


class AssignableState:
    """An optimizer's state that is assigned to.

    Dictionaries of scalars, as `optax.inject_hyperparams` keeps hyperparameters, are the same objects in all trees that are given, so assignments
    to them count at any time. Those to other parts of a tree count until the next step.

    Args:
      model: Gives the model.
      assign: Replaces leaves of its optimizer's state: by path, arrays like them.
    """

    def __init__(
        self,
        model: Callable[[], Stateful],
        assign: Callable[[Mapping[str, Any]], None],
    ):
        self._model = model
        self._assign = assign
        self._scalars: dict[str, dict[Any, Any]] = {}  # by path the dictionary
        self._values: dict[str, dict[Any, Any]] = {}  # what was in it
        self._tree: Tree = None
        self._leaves: dict[str, Any] = {}

    def get(self) -> Tree:
        """Builds the state for the user. Its arrays can't be written to.

        Raises:
          ParameterError: If what was assigned before does not fit.
        """
        self.adopt()
        tree = self._model().opt_state()
        for leaf in jax.tree.leaves(tree):
            if isinstance(leaf, np.ndarray):
                leaf.flags.writeable = False  # what is written into a copy would be lost

        def held(path: Any, node: Any) -> Any:
            if not _are_scalars(node):
                return node
            name = jax.tree_util.keystr(path)
            scalars = self._scalars.setdefault(name, {})
            scalars.clear()
            scalars.update(node)
            self._values[name] = dict(node)
            return scalars

        self._tree = jax.tree_util.tree_map_with_path(held, tree, is_leaf=_are_scalars)
        self._leaves = leaves_of(self._tree)
        return self._tree

    def set(self, state: Tree) -> None:
        """Replaces the whole state.

        Args:
          state: A tree like it.

        Raises:
          ParameterError: If it is not.
        """
        self._assign(_checked_state(self._model().state_like(), state))
        self.accept()

    def adopt(self) -> None:
        """Puts the user's assignments to the trees into the state.

        Raises:
          ParameterError: If it does not fit; then the state is as before.
        """
        try:
            if leaves := self._find_assignments():
                self._assign(_checked_leaves(leaves_of(self._model().state_like()), leaves))
                self.accept()
        except ParameterError:
            self._undo()
            raise

    def _find_assignments(self) -> dict[str, Any]:
        """Collects the user's assignments to leaves since `accept`, by path; a `ParameterError` if there are other leaves than before."""
        result: dict[str, Any] = {}
        for name, scalars in self._scalars.items():
            old = self._values[name]
            _require_same(f"optimizer state, `{name}`", old, scalars)
            for key, value in scalars.items():
                if value is not old[key]:
                    result[f"{name}{jax.tree_util.DictKey(key)}"] = value
        if self._tree is not None:
            leaves = leaves_of(self._tree)
            _require_same("optimizer state", self._leaves, leaves)
            result |= {
                path: leaf for path, leaf in leaves.items() if leaf is not self._leaves[path]
            }
        return result

    def accept(self) -> None:
        """Accepts the present trees, and releases their arrays: the state has the assignments by now, or is another one."""
        self._values = {name: dict(scalars) for name, scalars in self._scalars.items()}
        self._tree = None
        self._leaves = {}

    def _undo(self) -> None:
        """Reverts assignments to dictionaries of scalars, and releases all else."""
        for name, scalars in self._scalars.items():
            scalars.clear()
            scalars.update(self._values[name])
        self._tree = None
        self._leaves = {}


def _require_same(
    where: str,
    old: Mapping[Any, Any],
    new: Mapping[Any, Any],
) -> None:
    if old.keys() != new.keys():
        missing, others = (
            [str(key) for key in a if key not in b] for a, b in ((old, new), (new, old))
        )
        got = f"{', '.join(others) or 'none'} in place of {', '.join(missing) or 'none'}"
        raise ParameterError(where, f"values for {', '.join(map(str, old))}", got, _SAME)


def leaves_of(tree: Tree) -> dict[str, Any]:
    """By path the leaves of a tree."""
    result = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        result[jax.tree_util.keystr(path)] = leaf
    return result


def _checked_state(like: Tree, tree: Tree) -> dict[str, Any]:
    """The leaves of a whole state that a user assigns.

    Returns:
      By path its leaves, of the same shapes and dtypes.

    Raises:
      ParameterError: If it is another tree, or has other shapes.
    """
    wanted = jax.tree.structure(like)
    got = jax.tree.structure(tree)
    if wanted != got:
        raise ParameterError(
            "optimizer state",
            f"{wanted}",
            f"{got}",
            "Give the state of the same optimizer for the same parameters.",
        )
    return _checked_leaves(leaves_of(like), leaves_of(tree))


def _checked_leaves(
    like: Mapping[str, Any],
    leaves: Mapping[str, Any],
) -> dict[str, Any]:
    """Values that a user assigns to leaves of a state.

    Args:
      like: By path the leaves as they are, or their shapes and dtypes.
      leaves: By path, values of some of them.

    Returns:
      By path the values, of the leaves' dtypes.

    Raises:
      ParameterError: If one has another shape, or is no array.
    """
    result = {}
    for path, value in leaves.items():
        old = like[path]
        try:
            data = data_of(value)
        except Exception:  # NumPy may raise anything for an object that is no array
            data = np.asarray(None)
        if is_key(old):
            shape = data_of(old).shape
            dtype = data_of(old).dtype
        else:
            shape = tuple(old.shape)
            dtype = np.dtype(old.dtype)
        if data.dtype.kind in "OUSMm" or data.shape != shape or is_key(old) != is_key(value):
            got = (
                f"{data.dtype}{list(data.shape)}"
                if data.dtype.kind not in "OUSMm"
                else f"{type(value).__name__} {value!r:.60}"
            )
            raise ParameterError(
                f"optimizer state, `{path}`",
                f"{dtype}{list(shape)}",
                got,
                "Assign an array of this shape.",
            )
        if is_key(old):
            result[path] = wrapped_like(old, data.astype(dtype))
        else:
            result[path] = data.astype(dtype)
    return result


def _are_scalars(node: Any) -> bool:
    return (
        type(node) is dict
        and len(node) > 0
        and all(hasattr(each, "dtype") and np.ndim(each) == 0 for each in node.values())
    )
