"""The state of hosts other than parameters, as the driver sees that state: sums of losses, and the progress of hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampjax.engine.memory.loss_metrics import (
    ROUNDS,
    LossSums,
    add_lines,
    add_replicas,
    metric_names,
)
from ampjax.hosts.fleet import Fleet
from ampjax.hosts.host_link import Ticket
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.decisions.parameter_changes import Change, nodes_of


class HostedLosses:
    """The sums of losses and metrics that hosts keep.

    Args:
      plan: The plan.
      fleet: The hosts.
    """

    def __init__(self, plan: Plan, fleet: Fleet):
        self._plan = plan
        self._fleet = fleet
        self._names = metric_names(plan)
        self._rounds: dict[int, np.ndarray] = {}

    def take(self, train: bool) -> list[LossSums]:
        """Takes the sums of the losses since the last call. Waits for hosts.

        Returns:
          One entry for each loss node.
        """
        lines = self._take_lines(train)
        if train:
            lines = add_lines(lines, self._rounds)
            self._rounds = {}
        return add_replicas(self._plan, self._names, lines)

    def of_round(self, n_instances: int) -> float:
        """As `LossMetrics.of_round`. Waits for hosts."""
        lines = self._take_lines(True)
        self._rounds = add_lines(self._rounds, lines)
        return sum(float(line[1]) for line in lines.values()) / max(n_instances, 1)

    def _take_lines(self, train: bool) -> dict[int, np.ndarray]:
        host_of = self._fleet.layout.host_of_stage
        lines: dict[int, np.ndarray] = {}
        for stages, arrays in self._fleet.ask(
            sorted({host_of[n] for n in self._names}), "losses", train=train
        ):
            lines |= dict(zip(stages, arrays, strict=True))
        return lines

    def state(self) -> list[list[Any]]:
        """Gives the sums that have not been taken; JSON can hold the result. Waits for hosts."""
        of_hosts = []
        for said, _ in self._fleet.ask(self._fleet.everyone, "losses so far"):
            for line in said:
                of_hosts.append(line)
        return [
            *of_hosts,
            *(
                [
                    n,
                    ROUNDS,
                    str(sums.dtype),
                    sums.tobytes().hex(),
                ]
                for n, sums in self._rounds.items()
            ),
        ]

    def resume(self, state: Sequence[Sequence[Any]]) -> None:
        """Goes on adding up from another's `state`.

        Args:
          state: What `state` gave.
        """
        lines = [line for line in state if line[1] != ROUNDS]
        rounds = {}
        for n, kind, dtype, data in state:
            if kind == ROUNDS:
                rounds[n] = np.frombuffer(bytes.fromhex(data), dtype)
        self._rounds = rounds
        host_of = self._fleet.layout.host_of_stage
        for host in self._fleet.everyone:
            self._fleet.ask(
                [host],
                "resume losses",
                state=[line for line in lines if host_of[line[0]] == host],
            )


class HostedFences:
    """The progress of hosts: a fence is ready when a host has done a batch.

    Args:
      fleet: The hosts.
    """

    def __init__(self, fleet: Fleet):
        self._fleet = fleet

    def of_worker(self, worker: int) -> Ticket:
        """A fence that is ready when a worker's host has done everything sent before."""
        return self._of_host(self._fleet.layout.of_worker(worker))

    def of_kernels(self, dispatch: Dispatch) -> list[Any]:
        """Fences that are ready when the kernels of a dispatch have been done."""
        if dispatch.stage < 0:
            return []
        return [self._of_host(self._fleet.layout.host_of_stage[dispatch.stage])]

    def of_changes(self, changes: Sequence[Change]) -> list[Any]:
        """Fences that are ready when parameter changes have been made."""
        nodes = []
        for change in changes:
            for node in nodes_of(change):
                nodes.append(node)
        result = []
        for host in self._fleet.layout.of_nodes(nodes):
            result.append(self._of_host(host))
        return result

    def warm(self) -> None:
        """Compiles the functions that fences run."""
        self._fleet.ask(self._fleet.everyone, "warm fences")

    def is_idle(self, worker: int) -> bool:
        """Whether a worker's host has done everything sent before."""
        return self.of_worker(worker).is_ready()

    def wait_for(self, worker: int) -> None:
        """Blocks until a worker's host has done everything issued before."""
        self.of_worker(worker).block_until_ready()

    def wait(self) -> None:
        """Blocks until all hosts have done everything that was issued."""
        self._fleet.ask(self._fleet.everyone, "wait")

    def _of_host(self, host: int) -> Ticket:
        return Ticket(
            self._fleet.links[host],
            lambda: self._fleet.send([host]),
        )
