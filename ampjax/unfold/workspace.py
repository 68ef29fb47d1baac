"""Tables in which instances are unfolded."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ampjax.ir.instances import Topology
from ampjax.ir.state import Layout
from ampjax.plan.planner import Plan
from ampjax.unfold.rules.groups import Groups
from ampjax.unfold.rules.joins import JoinTable
from ampjax.unfold.rules.message_columns import MessageTable
from ampjax.unfold.rules.pumped import pumps_of
from ampjax.unfold.rules.row_counts import OutputSizes


class WatchedColumns(dict[str, int]):
    """Columns that note whether that of `instance` has been asked for, in `read`."""

    read = False

    def __getitem__(self, name: str, /) -> int:
        if name == "instance":
            self.read = True
        return super().__getitem__(name)


class WatchedLayout(Layout):
    """A layout that notes whether a state function reads the instance's number: two instances may then differ although the same is pumped for both.

    Args:
      fields: The state fields.

    Attributes:
      watched: The column of each field, and of `instance`.
    """

    watched: WatchedColumns

    def __init__(self, fields: Iterable[str]):
        super().__init__(tuple(fields))
        columns = WatchedColumns(Layout(self.fields).columns)
        object.__setattr__(self, "columns", columns)  # of a frozen class
        object.__setattr__(self, "watched", columns)


class Workspace:
    """Tables in which instances are unfolded, used again and again, since filling costs less than making new ones.

    Args:
      plan: The plan.

    Attributes:
      layout: The layout that state functions see.
      pumps: The graph's pumps.
    """

    def __init__(self, plan: Plan):
        self.table = MessageTable()
        self.layout = WatchedLayout(plan.layout.fields)
        self.pumps = pumps_of(plan.graph)
        self.topologies: dict[str, dict[int, Topology]] = {}
        joining = []
        for s in plan.stages:
            if len(s.ports) > 1 and s.kind.is_dispatched:
                joining.append(s)
        self.joins = {s.number: JoinTable(s, self.layout) for s in joining}
        groups = {}
        for s in plan.stages:
            if not s.kind.is_dispatched:
                groups[s.number] = Groups(s, self.layout)
        self.groups = groups
        sizes = {}
        for s in plan.stages:
            sizes[s.number] = OutputSizes(
                s,
                self.layout,
                self.table,
                self.topologies,
            )
        self.sizes = sizes

    @property
    def empty(self) -> bool:
        """Whether no message waits."""
        return not any(table.waiting for table in (*self.joins.values(), *self.groups.values()))

    @property
    def held(self) -> np.ndarray:
        """`[n]` int64: the messages that wait in joins and groups, by their numbers in the table."""
        held = []
        for join in self.joins.values():
            if join.waiting:
                for *_, message in join.pending():
                    held.append(message)
        for collecting in self.groups.values():
            for group in collecting.open.values():
                held += [message for _, message in group.members] + (
                    [group.opener] if group.opener else []
                )
        return np.array(held, np.int64)

    @property
    def reads_instance(self) -> bool:
        """Whether a state function has read an instance's number since the tables were cleared."""
        return self.layout.watched.read

    def clear(self) -> None:
        """Forgets all messages; none may wait."""
        self.table.clear()
        self.layout.watched.read = False
        self.topologies.clear()
        for join in self.joins.values():
            join.forget()
