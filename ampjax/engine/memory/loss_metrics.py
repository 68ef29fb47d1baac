"""Sums losses and metrics on devices, and reads the sums back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ampjax.devices.allreduce import Device
from ampjax.engine.memory.arenas import copy_array, zeros
from ampjax.ir.graph import Graph
from ampjax.ir.nodes import Node
from ampjax.ir.ops.body_shapes import eval_body, metric_shapes
from ampjax.plan.planner import Plan

ROUNDS = "rounds"
"""Marks the sums of rounds that are over, in `LossMetrics.state`."""


@dataclass(frozen=True)
class LossSums:
    """The sums of one loss node.

    Args:
      names: The metrics that its body returns.
      line: `[2 + 2 * len(names)]`: loss rows, their summed loss, and for each metric a sum and a count.
    """

    names: Sequence[str]
    line: np.ndarray

    @property
    def rows(self) -> float:
        """Loss rows."""
        return float(self.line[0])

    @property
    def loss(self) -> float:
        """Their summed loss."""
        return float(self.line[1])

    def pair(self, name: str) -> tuple[float, float]:
        """Sum and count of a metric.

        Args:
          name: One of `names`.
        """
        i = 2 + 2 * list(self.names).index(name)
        return float(self.line[i]), float(self.line[i + 1])


def loss_sum(sums: Iterable[LossSums]) -> float:
    """The summed loss of all rows of all losses: the function whose gradients are accumulated."""
    return sum(s.loss for s in sums)


def metrics_of(
    sums: Sequence[LossSums],
    n_instances: int,
) -> dict[str, float]:
    """The metrics of some losses.

    Args:
      sums: Those of each loss.
      n_instances: The instances that were run. Not the loss's rows: how many these are depends on where the loss was cut apart.

    Returns:
      `loss`: the summed loss of all rows over the number of instances; and each metric: its sums over its counts, pooled over loss nodes. Empty
      if there is no loss or no instance.
    """
    if not sums or not n_instances:
        return {}
    result = {"loss": loss_sum(sums) / n_instances}
    for name in dict.fromkeys(name for s in sums for name in s.names):
        tops, bottoms = zip(
            *(s.pair(name) for s in sums if name in s.names),
            strict=True,
        )
        if sum(bottoms):
            result[name] = sum(tops) / sum(bottoms)
        else:
            result[name] = float("nan")
    return result


class LossMetrics:
    """The sums that losses keep on their devices, in training and in inference.

    Args:
      plan: The plan.
      devices: The device of each memory space that is kept here.

    Attributes:
      sums: For each loss stage, by number and whether it trained, the line of `LossSums`. Kernels replace these arrays.
    """

    def __init__(self, plan: Plan, devices: Mapping[int, Device]):
        self._plan = plan
        self._devices = devices
        self._names = metric_names(plan)
        self.sums: dict[tuple[int, bool], jax.Array] = {}
        self._rounds: dict[int, np.ndarray] = {}

    def of(self, stage: int, train: bool) -> jax.Array:
        """The sums of a loss so far; zeros at first."""
        sums = self.sums.get((stage, train))
        if sums is None:
            device = self._devices[self._plan.stages[stage].space]
            sums = zeros(
                (2 + 2 * len(self._names[stage]),),
                float,
                device,
            )
        return sums

    def take(self, train: bool) -> list[LossSums]:
        """Takes the sums of the losses since the last call. Waits for devices.

        Returns:
          One entry for each loss node; the copies that replicas have of one node are added up.
        """
        return add_replicas(self._plan, self._names, self.take_lines(train))

    def take_lines(self, train: bool) -> dict[int, np.ndarray]:
        """Takes the sums of this process's loss stages since the last call. Waits for devices.

        Returns:
          For each stage, by number, the line of `LossSums`.
        """
        taken = [number for number, is_train in self.sums if is_train == train]
        lines = {}
        for number in taken:
            lines[number] = np.asarray(
                self.sums.pop((number, train)),
                np.float64,
            )
        if train:
            return add_lines(lines, self._take_rounds())
        return lines

    def of_round(self, n_instances: int) -> float:
        """The mean loss of training since this was last asked, or since `take`. Waits for devices."""
        earlier = self._take_rounds()
        lines = self.take_lines(True)
        self._rounds = add_lines(earlier, lines)
        return sum(float(line[1]) for line in lines.values()) / max(n_instances, 1)

    def _take_rounds(self) -> dict[int, np.ndarray]:
        """The lines of the rounds that are over."""
        rounds = self._rounds
        self._rounds = {}
        return rounds

    def clear(self) -> None:
        """Forgets all sums."""
        self.sums.clear()
        self._rounds.clear()

    def state(self) -> list[list[Any]]:
        """Gives the sums that have not been taken, in a form that JSON can hold. Waits for devices.

        Returns:
          A list for `resume`.
        """
        held: list[tuple[int, Any, np.ndarray]] = []
        for key, sums in self.sums.items():
            held.append((*key, np.asarray(sums)))
        held += [(number, ROUNDS, line) for number, line in self._rounds.items()]
        result = []
        for number, kind, sums in held:
            result.append(
                [
                    number,
                    kind,
                    str(sums.dtype),
                    sums.tobytes().hex(),
                ]
            )
        return result

    def resume(self, state: Sequence[Sequence[Any]]) -> None:
        """Goes on adding up from another's `state`.

        Args:
          state: What `state` gave.
        """
        self.clear()
        for number, kind, dtype, data in state:
            sums = np.frombuffer(bytes.fromhex(data), dtype)
            if kind == ROUNDS:
                self._rounds[number] = sums
            else:
                self.sums[number, kind] = copy_array(
                    sums, self._devices[self._plan.stages[number].space]
                )

    def of_stage(self, stage: int) -> list[jax.Array]:
        """The sums of a stage, by number; none for a stage that is no loss."""
        result = []
        for (number, _), sums in self.sums.items():
            if number == stage:
                result.append(sums)
        return result

    def in_space(self, space: int) -> list[jax.Array]:
        """The sums that lie in a memory space."""
        result = []
        for (number, _), sums in self.sums.items():
            if self._plan.stages[number].space == space:
                result.append(sums)
        return result

    def warm(self) -> list[jax.Array]:
        """Arrays like the sums of all losses, for kernels that are compiled ahead."""
        stages = self._plan.stages
        result = []
        for number in self._names:
            if stages[number].space in self._devices:
                result.append(self.of(number, True))
        return result


def metric_names(plan: Plan) -> dict[int, list[str]]:
    """The metrics that the body of each loss stage returns, by its number."""
    result = {}
    for s in plan.stages:
        if s.kind.starts_backward:
            result[s.number] = _metrics_of(s.nodes[-1])
    return result


def metrics_of_graph(graph: Graph) -> set[str]:
    """The metrics that the bodies of a graph's losses return."""
    result = set()
    for node in graph.nodes.values():
        if node.kind == "Loss":
            for name in _metrics_of(node):
                result.add(name)
    return result


def add_replicas(
    plan: Plan,
    names: Mapping[int, Sequence[str]],
    lines: Mapping[int, np.ndarray],
) -> list[LossSums]:
    """Adds up the sums of all replicas of one loss node.

    Args:
      plan: The plan.
      names: What `metric_names` gives.
      lines: The lines of loss stages, by number; one that is missing had nothing to sum.

    Returns:
      One entry for each loss node.
    """
    taken: dict[str, LossSums] = {}
    for number in sorted(names):  # in this order, whichever of several processes was the fastest
        node = plan.stages[number].nodes[-1]
        nothing = np.zeros(2 + 2 * len(names[number]))
        before = taken[node.role].line if node.role in taken else nothing
        taken[node.role] = LossSums(
            names[number],
            before + lines.get(number, nothing),
        )
    return list(taken.values())


def add_lines(
    one: Mapping[int, np.ndarray],
    other: Mapping[int, np.ndarray],
) -> dict[int, np.ndarray]:
    """Adds up lines of loss stages."""
    both = {}
    for number in one.keys() & other.keys():
        both[number] = one[number] + other[number]
    return {**one, **other, **both}


def _metrics_of(node: Node) -> list[str]:
    types = tuple(wire.type for wire in node.inputs if wire is not None and wire.type is not None)
    return list(metric_shapes(node, eval_body(node, node.op.body, types)))
