"""Tables in which instances are unfolded."""

from __future__ import annotations

from ampjax.ir.instances import Topology
from ampjax.sched.group import Groups
from ampjax.sched.plan import Plan
from ampjax.unfold.join import WaveJoin
from ampjax.unfold.messages import MessageTable
from ampjax.unfold.sizes import OutputSizes


class Workspace:
    """Tables in which instances are unfolded. They are used again: to make them anew costs more than to fill them.

    Args:
      plan: The plan.
    """

    def __init__(self, plan: Plan):
        self.table = MessageTable()
        self.topologies: dict[str, dict[int, Topology]] = {}
        joining = [s for s in plan.stages if len(s.ports) > 1 and s.kind != "group"]
        self.joins = {s.number: WaveJoin(s, plan) for s in joining}
        self.groups = {s.number: Groups(s, plan.layout) for s in plan.stages if s.kind == "group"}
        self.sizes = {s.number: OutputSizes(s, plan.layout, self.table, self.topologies) for s in plan.stages}

    @property
    def empty(self) -> bool:
        """Whether no message waits."""
        return not any(table.waiting for table in (*self.joins.values(), *self.groups.values()))

    def clear(self) -> None:
        """Forgets all messages; none may wait."""
        self.table.clear()
        self.topologies.clear()
        for join in self.joins.values():
            join.forget()
