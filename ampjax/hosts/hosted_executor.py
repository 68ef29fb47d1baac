"""The executor of a driver with hosts, which sends launches to the hosts of their stages in place of carrying launches out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.edge_sizes import EdgeSizes
from ampjax.engine.kernels.launch import CHANGES_ONLY, Launch
from ampjax.hosts.fleet import Fleet
from ampjax.hosts.host_link import RemoteRows
from ampjax.hosts.hosted_parts import HostedFences, HostedLosses
from ampjax.hosts.hosted_store import HostedStore
from ampjax.hosts.hosted_timing import HostedTiming
from ampjax.hosts.line_writer import LineWriter
from ampjax.hosts.operations import PUT, TAKE, BatchWriter, Names
from ampjax.plan.planner import Plan
from ampjax.plan.stages import ArenaKey
from ampjax.sched.decisions.decided_lines import Capacities, DecidedLines
from ampjax.sched.decisions.dispatch import BACKWARD
from ampjax.sched.decisions.parameter_changes import Change, JointUpdate, Update, nodes_of
from ampjax.sched.layout import columns as c
from ampjax.sched.programs.feeds import Feed


class HostedExecutor:
    """Lets hosts carry launches out. It stands in an `Executor`'s place.

    It has more than 15 methods and twelve attributes, since it has those of `Executor`.

    Args:
      plan: The plan.
      fleet: The hosts.
      store: Parameters, optimizer states, accumulators: on the hosts.

    Attributes:
      store: The same.
      losses: The sums of losses and metrics, on the hosts.
      fences: How far hosts are.
      timing: Lets hosts time what they carry out.
      sinks: The numbers of the `sink` stages.
      readings: What launches read back, by their numbers.
    """

    is_remote = True
    can_coalesce = None  # hosts put together what they can

    def __init__(self, plan: Plan, fleet: Fleet, store: HostedStore):
        self.plan = plan
        self.fleet = fleet
        self.store = store
        self._names = Names.of(plan)
        self._lines = LineWriter(plan, fleet.layout)
        self.losses = HostedLosses(plan, fleet)
        self.fences = HostedFences(fleet)
        self.timing = HostedTiming(plan, fleet)
        stages = [stage for stage in plan.stages if stage.kind.is_dispatched]
        self.sinks = frozenset(stage.number for stage in stages if stage.kind.is_sink)
        self._chooses = frozenset(stage.number for stage in stages if stage.route_by is not None)
        self._expected: dict[int, EdgeSizes] = {}
        self.readings: dict[int, Any] = {}
        self._latest = -1  # the number of the launch that was sent last
        self._n_changed = 0  # how many of its changes have been sent

    @property
    def n_hosts(self) -> int:
        """Hosts that carry launches out."""
        return self.fleet.layout.n_hosts

    @property
    def for_lines(self) -> HostedExecutor:
        """This executor, which carries dispatches out from the lines of compiled loops."""
        return self

    # -- launches

    def feed(self, feeds: Sequence[Feed]) -> None:
        """Sends pumped payloads to the hosts that read the payloads."""
        with self.fleet.lock:
            for feed in feeds:
                for host in self.fleet.layout.readers(feed.arena):
                    self.fleet.links[host].batch.feed(feed)
                    self.fleet.send_if_many(host)

    def issue(self, launches: Coalesced) -> None:
        """Sends a launch, and its parameter changes."""
        for change in launches[-1].changes[self.run(launches) :]:
            self.change(change)

    def run(self, launches: Coalesced) -> int:
        """Sends a launch.

        Returns:
          How many of its parameter changes go with it. `change` must follow for the others.

        Raises:
          HostError: If a host has failed, in this launch or in an earlier one.
        """
        (launch,) = launches
        with self.fleet.lock:
            self._latest = launch.number
            self._n_changed = 0
            if launch.stage == CHANGES_ONLY:
                return 0
            layout = self.fleet.layout
            is_back = launch.direction == BACKWARD
            if is_back and launch.stage in layout.idle_backward:
                return 0
            ends = layout.ends(launch.stage, is_back)
            if ends is not None:
                self._cross(launch, *ends)
                return 0
            host = layout.host_of_stage[launch.stage]
            link = self.fleet.links[host]
            n = self._n_own(launch.changes, host)
            link.batch.launch(
                launch if n == len(launch.changes) else launch._replace(changes=launch.changes[:n])
            )
            if not is_back and (launch.stage in self._chooses or launch.stage in self.sinks):
                self.readings[launch.number] = RemoteRows(
                    link, launch.number, lambda: self.fleet.send([host])
                )
            if launch.stage in self._chooses:
                self.fleet.send([host])
            self.fleet.send_if_many(host)
            self._n_changed = n
            return n

    def run_lines(self, decided: DecidedLines, capacities: Capacities) -> None:
        """Sends dispatches, with their updates, from the lines of compiled loops (`takes_lines`).

        Args:
          decided: What loops have written.
          capacities: Of the arenas as they are now.

        Raises:
          HostError: If a host has failed, in one of these or earlier.
        """
        with self.fleet.lock:
            self._latest, self._n_changed = decided.lines[-1, [c.NUMBER, c.N_DUE]].tolist()
            for host in self._lines.write(decided, self.fleet.links, capacities):
                self.fleet.send_if_many(host)

    def takes_lines(self, decided: DecidedLines) -> bool:
        """Whether lines say everything that hosts need about some dispatches, and nothing is read back.

        Args:
          decided: What loops have written.
        """
        return self._lines.can_write(decided)

    @property
    def latest_line(self) -> int:
        """The number of the last dispatch that `run_lines` has added to a batch."""
        return self._lines.latest

    def change(self, change: Change) -> None:
        """Sends a parameter change to the hosts of its nodes; makes a change of a group of nodes, as soon as the hosts have done everything sent before."""
        if isinstance(change, JointUpdate):
            wants_loss = self.store.groups.wants_loss(change.group)
            self.store.change_together(
                change, self.losses.of_round(change.examples) if wants_loss else None
            )
            self._n_changed += 1
            return
        with self.fleet.lock:
            hosts = list(self.fleet.layout.of_nodes(nodes_of(change)))
            for host in hosts:
                link = self.fleet.links[host]
                link.batch.change(change, self._latest, self._n_changed)
                link.needs.update(other for other in hosts if other != host)
            self._n_changed += 1
            for host in hosts:
                self.fleet.send_if_many(host)

    def choices(self, number: int, n_rows: int) -> np.ndarray:
        """Gives the rows that a launch has read back, once. Waits for its host."""
        return np.asarray(self.readings.pop(number))[:n_rows]

    def oldest_unfinished(self) -> int | None:
        """The number of the first launch that some host has been sent, or will be, and is not known to have done; None if there is none."""
        numbers = [
            number for link in self.fleet.links if (number := link.oldest_unfinished()) is not None
        ]
        return min(numbers, default=None)

    def take_lost(self) -> dict[int, int | None]:
        """After an error, lets all hosts give up everything in flight, and tells which launches were not carried out.

        Returns:
          For each such launch, by its number, the first of its parameter changes that was not made; None if the launch itself was not.
        """
        lost: dict[int, int | None] = {}
        for number, change in self.fleet.begin_anew():
            first = lost.get(number, change)
            lost[number] = None if first is None or change is None else min(first, change)
        return lost

    def restart(self) -> None:
        """Starts other hosts in place of the present ones, whose arrays are lost: the new hosts begin as the old ones did.

        Raises:
          HostError: If one does not start.
        """
        self.readings.clear()
        self.fleet.restart()
        self.store.send_tables()
        self.expect_edges(self._expected)

    def abandon(self) -> None:
        """Lets all hosts forget the arrays of instances that are given up."""
        with self.fleet.lock:
            self.readings.clear()
            for link in self.fleet.links:
                link.batch.forget()

    def _cross(self, launch: Launch, start: int, end: int) -> None:
        """Lets one host read and send rows, and another write the rows."""
        if not launch.n_rows:
            return
        if launch.changes:
            bare = launch._replace(changes=())
        else:
            bare = launch
        self.fleet.links[start].batch.launch(bare, TAKE, end)
        self.fleet.links[end].batch.launch(bare, PUT, start)
        self.fleet.links[end].needs.add(start)
        self.fleet.send_if_many(start)
        self.fleet.send_if_many(end)

    def _n_own(self, changes: Sequence[Change], host: int) -> int:
        """Counts a launch's changes, from the first on, that are updates of nodes of its host."""
        host_of = self.fleet.layout.host_of_node
        for n, change in enumerate(changes):
            if not isinstance(change, Update) or host_of[change.node] != host:
                return n
        return len(changes)

    # -- compiling, and questions

    def expect_edges(self, stages: Mapping[int, EdgeSizes]) -> None:
        """Tells hosts for how many edges their `edges` stages leave room.

        Args:
          stages: The expected edges of each, by its number.
        """
        self._expected |= stages
        for host in self.fleet.everyone:
            of_host = {}
            for n, s in stages.items():
                if self.fleet.layout.host_of_stage[n] == host:
                    of_host[n] = (s.mean, s.spread)
            if of_host:
                self.fleet.ask([host], "expect edges", stages=of_host)

    def warm(
        self,
        launch: Launch,
        capacities: Mapping[ArenaKey, int],
    ) -> None:
        """Lets hosts compile a launch's kernels.

        Args:
          launch: The launch; its slots are the trash slot.
          capacities: Rows of the arenas that it reads.
        """
        layout = self.fleet.layout
        is_back = launch.direction == BACKWARD
        ends = layout.ends(launch.stage, is_back)
        if ends is None:
            self._warm(layout.host_of_stage[launch.stage], launch, capacities, "whole")
        elif not is_back or launch.stage not in layout.idle_backward:
            start, end = ends
            self._warm(start, launch, capacities, "take")
            self._warm(end, launch, capacities, "put")

    def _warm(
        self,
        host: int,
        launch: Launch,
        capacities: Mapping[ArenaKey, int],
        half: str,
    ) -> None:
        writer = BatchWriter(self._names)
        writer.launch(launch)
        self.fleet.ask(
            [host],
            "warm",
            {host: writer.take()},
            capacities=list(capacities.items()),
            half=half,
        )

    def can_update_at_once(self, launch: Launch) -> bool:
        """Whether a launch's kernel can also update its stage's nodes.

        Args:
          launch: A backward launch, or one of a loss.
        """
        return launch.stage in self.fleet.can_update and launch.n_rows > 0

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes on the devices of all hosts."""
        total: dict[str, int] = {}
        for said, _ in self.fleet.ask(self.fleet.everyone, "device bytes"):
            for name, n in said.items():
                total[name] = total.get(name, 0) + n
        return total

    def record_row_bytes(self) -> dict[ArenaKey, int]:
        """Bytes of recorded activations beside a row of each arena."""
        total: dict[ArenaKey, int] = {}
        for said, _ in self.fleet.ask(self.fleet.everyone, "record row bytes"):
            for (space, shape, dtype), n in said:
                total[space, tuple(shape), dtype] = total.get((space, tuple(shape), dtype), 0) + n
        return total
