"""Invocations of one stage that are unfolded together: the columns that programs are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

import numpy as np

NO_ROWS = np.zeros(0, np.int64)


@dataclass(eq=False, slots=True)
class Chunk:
    """Invocations of one stage, or messages of one pump.

    Args:
      stage: What is run; `-1 - p` for pump `p`.
      states: `[n, width]`: of port 0's messages, or as pumped.
      n_ports: Input ports; 0 for a pump.
      inputs: The input messages: `[n, ports]`, or of groups `[e]`, one group after the other.
      fan_in: Of groups: `[n]`: how many each has.
      opened: Of groups: `[n]`: whether the last of them is its opener.
      rows: `[n]`: input rows of port 0; None if each has one.
      sizes: `[n]`: rows of each output; None if each has one.
      row: `[n]`: the first output row of each, counted over the whole unfolding; set where rows are numbered.
    """

    stage: int
    states: np.ndarray
    n_ports: int
    inputs: np.ndarray
    _: KW_ONLY
    fan_in: np.ndarray | None = None
    opened: np.ndarray | None = None
    rows: np.ndarray | None = None
    sizes: np.ndarray | None = None
    row: np.ndarray = field(default_factory=lambda: NO_ROWS)

    @property
    def ports(self) -> np.ndarray:
        """The port of each input, `[e]`."""
        if self.fan_in is None or self.opened is None:
            ports = np.empty(
                (len(self.states), self.n_ports),
                np.int64,
            )
            ports[:] = range(self.n_ports)
            return ports.reshape(-1)
        ports = np.zeros(len(self.inputs), np.int64)
        ports[(np.cumsum(self.fan_in) - 1)[self.opened]] = 1
        return ports


def groups(
    stage: int,
    states: np.ndarray,
    members: Sequence[np.ndarray],
    openers: np.ndarray,
) -> Chunk:
    """Makes the invocations of complete groups, which have no rows of their own.

    Args:
      stage: The group's stage.
      states: `[n, width]`: the groups' states.
      members: For each group its members `[m]`, by their numbers in the table.
      openers: `[n]`: the opener of each, or 0.

    Returns:
      The invocations.
    """
    parts = []
    for of_group, opener in zip(members, openers, strict=True):
        parts.append(np.append(of_group, opener) if opener else of_group)
    fan_in = np.fromiter(
        map(len, parts),
        np.int64,
        len(parts),
    )
    opened = openers > 0
    none = np.zeros(len(parts), np.int64)
    inputs = np.concatenate(parts)
    return Chunk(
        stage,
        states,
        2,
        inputs,
        fan_in=fan_in,
        opened=opened,
        rows=fan_in - opened,
        sizes=none,
    )
