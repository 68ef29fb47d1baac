"""A choice of settings, with the results of its simulation and of its trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figures:
    """The results of a simulated pass over some instances.

    Args:
      per_s: Training examples per second.
      staleness: Mean staleness of the gradient rows, in updates.
      updates: Updates of a node per instance, averaged over the parameterised nodes.
    """

    per_s: float
    staleness: float
    updates: float

    @property
    def objectives(self) -> tuple[float, float, float]:
        """The virtues of a choice, larger is better: rate, freshness, updates.

        Updates are one of them, since without them the longest interval would be best: it makes every gradient fresh, and training slow.
        """
        return self.per_s, -self.staleness, self.updates


@dataclass(frozen=True)
class Tried:
    """The results of a trial. Its seconds are seconds of training alone, without compiling and validation.

    Args:
      seconds: Seconds of training.
      examples: Examples that were trained on.
      value: The metric at the end.
      best: The best value on the way.
      staleness: Mean staleness, in updates.
      seconds_to_target: Seconds until the metric reached the target, the geometric mean of all runs; None if it did not.
      examples_to_target: Examples until then, in the first run.
      runs: How often the choice was trained.
    """

    seconds: float
    examples: int
    value: float
    best: float
    staleness: float
    seconds_to_target: float | None
    examples_to_target: float | None
    runs: int = 1

    @property
    def per_s(self) -> float:
        """Training examples per second."""
        return self.examples / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Candidate:
    """A choice of settings.

    Args:
      settings: Settings for `Trainer`, by name.
      knobs: Arguments of the function that builds the graph, by name.
      simulated: The results of its simulation; None if there was no time for it.
      is_on_front: Whether no other choice is at least as good in all simulated figures and better in one.
      tried: The results of its trial; None if there was none.
    """

    settings: Mapping[str, Any]
    knobs: Mapping[str, Any]
    simulated: Figures | None = None
    is_on_front: bool = False
    tried: Tried | None = None

    @property
    def plan_key(self) -> tuple[Any, ...]:
        """The key that choices with the same graph on the same workers share."""
        knobs = tuple(sorted((name, repr(value)) for name, value in self.knobs.items()))
        return (
            knobs,
            self.settings.get("workers", 1),
            repr(self.settings.get("affinity", "default")),
        )

    def label(self, names: tuple[str, ...]) -> str:
        """The choice in few words.

        Args:
          names: The settings and knobs to show.

        Returns:
          A short text.
        """
        values = {**self.settings, **self.knobs}
        return ", ".join(f"{name} {show_value(values[name])}" for name in names)

    def record(self) -> dict[str, Any]:
        """Gives the choice as a dictionary of plain values, for JSON.

        Returns:
          The dictionary.
        """
        if self.simulated:
            simulated = {f"simulated_{name}": value for name, value in vars(self.simulated).items()}
        else:
            simulated = {}
        if self.tried:
            tried = {f"tried_{name}": value for name, value in vars(self.tried).items()}
        else:
            tried = {}
        if self.tried is not None:
            tried["tried_per_s"] = self.tried.per_s
        return {
            **plain_values(self.settings),
            **plain_values(self.knobs),
            **simulated,
            "is_on_front": self.is_on_front,
            **tried,
        }


def show_value(value: Any) -> str:
    """A setting's value as text: of a function its name."""
    return getattr(value, "__name__", None) or str(value)


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts values to JSON's types."""
    result = {}
    for name, value in values.items():
        result[name] = value if isinstance(value, bool | int | float | str) else show_value(value)
    return result
