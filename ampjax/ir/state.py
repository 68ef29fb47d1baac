"""Message states: integer columns with names.

A state is what control reads: the instance and the loop counters, positions and sizes that the user declared. Many messages'
states are one 2-D integer array, a row per message; `State` is the view of it that user functions get, so that
`lambda s: s.replace(t=s.t + 1)` is written once and runs on a column as on a scalar.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.errors import GraphError, MessageError

INSTANCE = 0
HANDLE = 1
"""Columns of every state array: the instance's number, and its slot among the instances in flight (recycled)."""


@dataclass(frozen=True)
class Layout:
    """The column of each state field of a graph in the state array; columns 0 and 1 are `INSTANCE` and `HANDLE`."""

    fields: tuple[str, ...]

    @property
    def width(self) -> int:
        """Columns of a state array."""
        return 2 + len(self.fields)

    @functools.cached_property
    def columns(self) -> dict[str, int]:
        """The column of each field, and of `instance`."""
        return {"instance": INSTANCE} | {name: 2 + i for i, name in enumerate(self.fields)}

    def column(self, name: str) -> int:
        """The column of a field, or of `instance`.

        Raises:
          KeyError: If the graph has no such field.
        """
        return self.columns[name]


class State:
    """The states of `n` messages, by field name; immutable. State functions take and return a `State`.

    Reading a field, such as `s.t`, gives its column, an integer array `[n]`. The field `instance` always exists.

    Args:
      array: `[n, layout.width]` integers.
      layout: The column of each state field.
      fields: The fields that these messages carry.

    >>> s = State.of(t=[0, 1], length=2)
    >>> s.replace(t=s.t + 1).t.tolist()
    [1, 2]
    """

    __slots__ = ("_array", "_fields", "_layout")

    def __init__(
        self,
        array: np.ndarray,
        layout: Layout,
        fields: tuple[str, ...],
    ):
        self._array = array
        self._layout = layout
        self._fields = fields

    @classmethod
    def of(cls, **columns: Any) -> State:
        """Makes states from columns.

        Args:
          **columns: By field name, integers `[n]`, or a scalar for all rows. `instance` is 0 unless given.

        Returns:
          The states, `n` rows.
        """
        names = tuple(name for name in columns if name != "instance")
        n = max(
            (np.size(value) for value in columns.values()),
            default=1,
        )
        layout = Layout(names)
        array = np.zeros((n, layout.width), np.int64)
        for name, value in columns.items():
            array[:, layout.column(name)] = value
        return cls(array, layout, names)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that these messages carry, without `instance`."""
        return self._fields

    @property
    def array(self) -> np.ndarray:
        """The columns as one array `[n, width]`, read-only. Asking for the array counts as reading `instance`."""
        self._layout.column("instance")
        return self._array

    def __len__(self) -> int:
        return len(self._array)

    def __getattr__(self, name: str) -> np.ndarray:
        if name != "instance" and name not in self._fields:
            raise AttributeError(
                f"no state field `{name}`; there are {('instance', *self._fields)}"
            )
        return self._array[:, self._layout.columns[name]]

    def replace(self, **columns: Any) -> State:
        """Makes the same states with some fields changed or added.

        Args:
          **columns: By field name, the new values: integers or truth values `[n]`, or a scalar.

        Returns:
          The new states; these do not change.

        Raises:
          AttributeError: If `instance` is to be replaced: a message belongs to its instance for good.
          TypeError: If a value is not made of integers or truth values.
        """
        # Not `copy`: some processors' memory copies are many times slower where sizes are powers of two.
        array = np.positive(self._array)
        fields = self._fields
        layout = self._layout
        for name, value in columns.items():
            if name == "instance":
                raise AttributeError(
                    "`instance` can't be replaced: a message belongs to its instance for good"
                )
            if name not in layout.columns:
                layout = Layout((*layout.fields, name))
                array = np.concatenate(
                    [
                        array,
                        np.zeros((len(array), 1), np.int64),
                    ],
                    axis=1,
                )
            if name not in fields:
                fields = (*fields, name)
            if (kind := np.asarray(value).dtype).kind not in "iub":
                raise TypeError(
                    f"field `{name}` takes integers, not {kind}: use `//` instead of `/`, or cast"
                )
            array[:, layout.columns[name]] = value
        return State(array, layout, fields)

    def drop(self, *names: str) -> State:
        """Makes the same states without some fields.

        Args:
          *names: The fields that the result does not have.

        Returns:
          The new states; these do not change.

        Raises:
          KeyError: If the graph has no such field.
        """
        array = self._array.copy()
        for name in names:
            array[:, self._layout.column(name)] = 0
        return State(
            array,
            self._layout,
            tuple(f for f in self._fields if f not in names),
        )

    def take(self, rows: np.ndarray) -> State:
        """Selects some of the states.

        Args:
          rows: `[m]` row numbers, or `[n]` truth values.

        Returns:
          The `m` states, or those where it is true.
        """
        return State(self._array[rows], self._layout, self._fields)

    def __repr__(self) -> str:
        shown = ("instance", *self._fields)
        if len(self) == 1:
            return (
                "State("
                + ", ".join(f"{name}={int(getattr(self, name)[0])}" for name in shown)
                + ")"
            )
        return f"State({len(self)} rows: " + ", ".join(shown) + ")"


StateFn = Callable[[State], Any]
"""A state function: from the states of `n` messages, as columns, to a value for each: most often a column of integers or truth values."""


def columns_of(state: State) -> np.ndarray:
    """`State.array` for callers that move states and read none."""
    return state._array


def sample(
    fields: Sequence[str],
    n: int = 16,
    seed: int = 0,
) -> State:
    """Makes states on which a state function is tried when a graph is built: small non-negative integers, the first row all zero.

    Returns:
      `n` states, whose instances are `0 ... n - 1`.
    """
    rng = np.random.default_rng(seed)
    columns = {}
    for name in fields:
        columns[name] = np.concatenate(
            [
                [0],
                rng.integers(
                    0,
                    50,
                    n - 1,
                ),
            ]
        )
    return State.of(instance=np.arange(n), **columns)


def try_function(
    where: str,
    function: Callable[[State], Any],
    state: State,
) -> Any:
    """Runs a user's state function on sample states.

    Returns:
      What the function returns.

    Raises:
      GraphError: If it fails, or reads a field that is not there.
    """
    try:
        return function(state)
    except AttributeError as error:
        raise GraphError(
            where,
            f"a function of the state fields {('instance', *state.fields)}",
            f"`{error}`",
            "Pump the field, or set it in an isu before.",
        ) from error
    except Exception as error:
        raise GraphError(
            where,
            "a function that works on columns of integers",
            f"{type(error).__name__}: {error}",
            "Write it in NumPy style, for example `np.where(...)` instead of `if`.",
        ) from error


def apply(
    where: str,
    function: Callable[[State], Any],
    state: State,
) -> Any:
    """Runs a user's state function on real messages' states.

    Returns:
      What the function returns.

    Raises:
      MessageError: If it fails, with the states it failed on.
    """
    try:
        return function(state)
    except Exception as error:
        raise MessageError(
            where,
            "a state function that works for every state",
            f"{type(error).__name__}: {error}, for {state!r}",
            "Let the function give a result for this state: it is called for all states that reach the node.",
        ) from error


def column(where: str, value: Any, n: int) -> np.ndarray:
    """Checks that a state function has given integers or truth values, one for each state.

    Args:
      where: What an error calls the function.
      value: What it gave: a scalar, or `[n]`.
      n: Number of states.

    Returns:
      The values as an array `[n]`.

    Raises:
      MessageError: If it is of another length, or not made of integers.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "iub":
        raise MessageError(
            where,
            "integers or truth values",
            f"{array.dtype}",
            "States are integers: use `//` instead of `/`, or cast.",
        )
    if array.ndim == 0:
        return np.broadcast_to(array, (n,))
    if array.shape != (n,):
        raise MessageError(
            where,
            f"a scalar or {n} values, one per message",
            f"shape {array.shape}",
            "Return one value per message.",
        )
    return array
