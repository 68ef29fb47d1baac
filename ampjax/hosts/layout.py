"""The division of a plan among hosts: memory spaces, and with the spaces workers, stages, nodes and arenas of pumped payloads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ampjax.engine.kinds.stage_runner import needs_backward
from ampjax.plan.planner import Plan
from ampjax.plan.stages import HOST, ArenaKey


class HostLayout:
    """The hosts of the parts of a plan.

    Args:
      plan: The plan.
      host_of_space: The host of each memory space.

    Attributes:
      n_hosts: How many hosts there are.
      host_of_stage: The host of each stage's outputs.
      host_of_node: The host of each node's parameters.
      idle_backward: The transfer stages whose backward launches do nothing.
    """

    def __init__(self, plan: Plan, host_of_space: Sequence[int]):
        self.host_of_space = tuple(host_of_space)
        self.n_hosts = max(host_of_space) + 1
        self._host_of_worker = [host_of_space[space] for space in plan.spaces]
        stages = [stage for stage in plan.stages if stage.kind.is_dispatched]
        self.host_of_stage = {stage.number: host_of_space[stage.space] for stage in stages}
        host_of_node = {}
        for node, worker in plan.worker_of.items():
            host_of_node[node] = self._host_of_worker[worker]
        self.host_of_node = host_of_node
        self.idle_backward = frozenset(
            s.number for s in stages if s.kind.is_transfer and not needs_backward(s)
        )
        self._crossings: dict[int, tuple[int, int]] = {}
        readers: dict[ArenaKey, dict[int, None]] = {}
        for stage in stages:
            ends = [host_of_space[space] for space in stage.spaces]
            if ends[0] != ends[-1]:
                self._crossings[stage.number] = ends[0], ends[-1]
            for port in stage.ports:
                if port.space == HOST:
                    readers.setdefault(port.arena, {})[self.host_of_stage[stage.number]] = None
        self._readers = {key: tuple(hosts) for key, hosts in readers.items()}

    def of_worker(self, worker: int) -> int:
        """The host of a worker."""
        return self._host_of_worker[worker]

    def ends(
        self,
        stage: int,
        is_back: bool,
    ) -> tuple[int, int] | None:
        """From which host to which the rows of a transfer stage travel, or their gradients; None for a stage that is on one host."""
        if (crossing := self._crossings.get(stage)) is None:
            return None
        source, target = crossing
        return (target, source) if is_back else crossing

    def readers(self, arena: ArenaKey) -> tuple[int, ...]:
        """The hosts that read the payloads pumped into an arena in host memory."""
        return self._readers.get(arena, ())

    def of_nodes(
        self,
        nodes: Iterable[str],
    ) -> dict[int, list[str]]:
        """Some nodes, by the host that keeps their parameters."""
        names: dict[int, list[str]] = {}
        for node in nodes:
            names.setdefault(self.host_of_node[node], []).append(node)
        return names

    def spaces_of(self, host: int) -> list[int]:
        """The memory spaces of a host."""
        return [space for space, owner in enumerate(self.host_of_space) if owner == host]
