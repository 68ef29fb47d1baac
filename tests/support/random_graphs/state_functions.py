"""The state functions of random graphs: frozen dataclasses, so that they compare and print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.ir.state import State


@dataclass(frozen=True)
class Bound:
    """`base + s.name % mod`, or the constant `base`: loop bounds, counts, sizes, routes."""

    name: str | None
    mod: int
    base: int

    def __call__(self, s: State) -> Any:
        """The value for each state, `[n]`."""
        if self.name:
            return self.base + getattr(s, self.name) % self.mod
        return self.base

    @property
    def most(self) -> int:
        """The largest value."""
        return self.base + (self.mod - 1 if self.name else 0)


@dataclass(frozen=True)
class Below:
    """`s.counter < bound(s)`."""

    counter: str
    bound: Bound

    def __call__(self, s: State) -> Any:
        """The value for each state, `[n]`."""
        return getattr(s, self.counter) < self.bound(s)


@dataclass(frozen=True)
class Even:
    """`bound(s)` is even: a truth value."""

    bound: Bound

    def __call__(self, s: State) -> Any:
        """The value for each state, `[n]`."""
        return np.asarray(self.bound(s)) % 2 == 0


@dataclass(frozen=True)
class Shift:
    """`name` becomes `name + by`."""

    name: str
    by: int

    def __call__(self, s: State) -> State:
        """The states after it, `[n]`."""
        return s.replace(**{self.name: getattr(s, self.name) + self.by})


@dataclass(frozen=True)
class Jump:
    """`name` becomes `name + sign * bound(s)`: a loop's counter is reset by subtracting its bound, which can be undone."""

    name: str
    bound: Bound
    sign: int

    def __call__(self, s: State) -> State:
        """The states after it, `[n]`."""
        return s.replace(
            **{self.name: getattr(s, self.name) + self.sign * np.asarray(self.bound(s))}
        )


@dataclass(frozen=True)
class Put:
    """`name` becomes `bound(s)`."""

    name: str
    bound: Bound

    def __call__(self, s: State) -> State:
        """The states after it, `[n]`."""
        return s.replace(**{self.name: self.bound(s)})


@dataclass(frozen=True)
class Drop:
    """`name` goes."""

    name: str

    def __call__(self, s: State) -> State:
        """The states after it, `[n]`."""
        return s.drop(self.name)


@dataclass(frozen=True)
class Number:
    """`state(s, i)` of a flatmap or ungroup: `name` becomes `i`."""

    name: str

    def __call__(self, s: State, i: np.ndarray) -> State:
        """The states after it, `[n]`."""
        return s.replace(**{self.name: i})


@dataclass(frozen=True)
class Field:
    """`s.name`."""

    name: str

    def __call__(self, s: State) -> Any:
        """The value for each state, `[n]`."""
        return getattr(s, self.name)


@dataclass(frozen=True)
class Columns:
    """A keying function: the instance and some fields."""

    names: tuple[str, ...]

    def __call__(self, s: State) -> Any:
        """The keys of each state, columns `[n]`."""
        return s.instance, *(getattr(s, name) for name in self.names)


@dataclass(frozen=True)
class Backwards:
    """An order: by `name`, falling."""

    name: str

    def __call__(self, s: State) -> Any:
        """The value for each state, `[n]`."""
        return -getattr(s, self.name)
