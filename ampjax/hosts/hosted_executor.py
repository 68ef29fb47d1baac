"""The executor of a driver with hosts: it sends launches to the hosts of their stages, in place of carrying them out.

Operations wait in a batch for each host. A host that is to write another's rows waits for them, so before a batch is sent, those that it
needs are sent: everything that a host can ever wait for is under way, whatever the driver waits for. Each host carries its operations out in
the order in which they were decided, which is an order in which nobody waits for what comes later; so nobody waits for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.edge_sizes import EdgeSizes
from ampjax.engine.kernels.launch import CHANGES_ONLY, Launch
from ampjax.engine.kinds.idle_launch import idle_launches
from ampjax.errors import HostError
from ampjax.hosts.hosted_parts import HostedFences, HostedLosses
from ampjax.hosts.hosted_store import HostedStore
from ampjax.hosts.hosts import HostState
from ampjax.hosts.layout import HostLayout
from ampjax.hosts.link import WINDOW, HostLink, RemoteRows, failure_of
from ampjax.hosts.operations import PUT, TAKE, BatchWriter, Names
from ampjax.plan.planner import Plan
from ampjax.plan.stages import ArenaKey, Stage
from ampjax.sched.decisions.dispatch import BACKWARD
from ampjax.sched.decisions.parameter_changes import Average, Change, Merge, Update
from ampjax.sched.programs.feeds import Feed

MOST = 16
"""Operations in a batch, from which on it is sent."""

KEPT = 4096
"""Launches that are remembered, to tell which one has failed."""


class HostedExecutor:
    """Lets hosts carry launches out. It stands in an `Executor`'s place.

    Args:
      plan: The plan.
      layout: Which host has what.
      links: The hosts.
      store: Parameters, optimizer states, accumulators: on the hosts.
      can_update: The stages whose kernels can also update their nodes.
      ended: Called when hosts have been told that it is over.

    Attributes:
      store: The same.
      losses: The sums of losses and metrics, on the hosts.
      fences: How far hosts are.
      sinks: The numbers of the `sink` stages.
      readings: What launches read back, by their numbers.
      epoch: How often all that was in flight has been given up after an error.
    """

    def __init__(
        self,
        plan: Plan,
        layout: HostLayout,
        links: Sequence[HostLink],
        store: HostedStore,
        can_update: Sequence[int],
        ended: Callable[[], None],
    ):
        self.plan, self.layout, self.links, self.store = plan, layout, list(links), store
        self._ended, self._is_closed = ended, False
        self.losses, self.fences = HostedLosses(plan, self), HostedFences(self)
        stages = [stage for stage in plan.stages if stage.kind.is_dispatched]
        self.sinks = frozenset(stage.number for stage in stages if stage.kind.is_sink)
        self._chooses = frozenset(stage.number for stage in stages if stage.route_by is not None)
        self._can_update = frozenset(can_update)
        self.readings: dict[int, Any] = {}
        self.epoch = 0
        self._lock = threading.RLock()
        self._latest: deque[Launch] = deque(maxlen=KEPT)
        store.attach(self)
        for link in self.links:
            link.peers = self.links

    # -- launches

    def feed(self, feeds: Sequence[Feed]) -> None:
        """Sends pumped payloads to the hosts that read them.

        Args:
          feeds: The payloads.
        """
        with self._lock:
            for feed in feeds:
                for host in self.layout.readers(feed.arena):
                    self.links[host].batch.feed(feed)
                    self._send_if_many(host)

    def can_coalesce(self, before: Launch, launch: Launch) -> bool:
        """Whether launches are handed on together: never, as hosts put together what they can."""
        return False

    def issue(self, launches: Coalesced) -> None:
        """Sends a launch, and its parameter changes.

        Args:
          launches: One.
        """
        for change in launches[-1].changes[self.run(launches) :]:
            self.change(change)

    def run(self, launches: Coalesced) -> int:
        """Sends a launch.

        Args:
          launches: One.

        Returns:
          How many of its parameter changes go with it. `change` must follow for the others.

        Raises:
          HostError: If a host has failed.
        """
        (launch,) = launches
        if launch.stage == CHANGES_ONLY:
            return 0
        with self._lock:
            self._latest.append(launch)
            crossing = self.layout.crossings.get(launch.stage)
            if crossing is not None:
                self._cross(launch, *crossing)
                return 0
            host = self.layout.host_of_stage[launch.stage]
            n = self._n_own(launch.changes, host)
            self.links[host].batch.launch(
                launch if n == len(launch.changes) else launch._replace(changes=launch.changes[:n])
            )
            if launch.direction != BACKWARD and (launch.stage in self._chooses or launch.stage in self.sinks):
                self.readings[launch.number] = RemoteRows(self.links[host], launch.number, lambda: self.send([host]))
                if launch.stage in self._chooses:
                    self.send([host])
            self._send_if_many(host)
            return n

    def change(self, change: Change) -> None:
        """Sends a parameter change to the hosts of its nodes.

        Args:
          change: The change.
        """
        with self._lock:
            nodes = change.nodes if isinstance(change, Average | Merge) else (change.node,)
            hosts = list(self.layout.of_nodes(nodes))
            for host in hosts:
                self.links[host].batch.change(change)
                self.links[host].needs.update(other for other in hosts if other != host)
            for host in hosts:
                self._send_if_many(host)

    def choices(self, number: int, n_rows: int) -> np.ndarray:
        """What a launch has read back. Waits for its host; can be asked once.

        Args:
          number: The launch's.
          n_rows: Its rows.
        """
        return np.asarray(self.readings.pop(number))[:n_rows]

    def abandon(self) -> None:
        """Lets all hosts forget what they keep for instances that are given up. After an error they begin anew."""
        with self._lock:
            self.readings.clear()
            for link in self.links:
                link.look()
            if all(link.failure is None for link in self.links):
                for link in self.links:
                    link.batch.forget()
                return
            self.epoch += 1
            for link in self.links:
                link.begin_anew(self.epoch)
            for link in self.links:
                link.wait_for_progress()

    # -- batches

    def send(self, hosts: Sequence[int]) -> None:
        """Sends what waits for some hosts, with all that they need; waits while too much is under way.

        Args:
          hosts: Their numbers.

        Raises:
          HostError: If a host has failed.
        """
        with self._lock:
            wanted = self._needed_by(hosts)
            for host in wanted:
                link = self.links[host]
                link.look()
                link.wait_until(lambda link=link: link.sent - link.done < WINDOW)
                for other in self.links:
                    self._check(other)
            for host in wanted:
                self.links[host].send_batch()

    def ask(
        self, hosts: Sequence[int], name: str, arrays: Mapping[int, Sequence[np.ndarray]] | None = None, **values: Any
    ) -> list[Any]:
        """Asks hosts, behind all that has been decided.

        Args:
          hosts: Their numbers.
          name: What is asked (`hosts.questions`).
          arrays: For some hosts, arrays that go with it.
          **values: Values that JSON can hold.

        Returns:
          For each host what it has said, and arrays.

        Raises:
          HostError: If a host has failed.
        """
        with self._lock:
            self.send(hosts)
            links = [self.links[host] for host in hosts]
            asked = [
                link.ask(name, (arrays or {}).get(host, ()), **values) for host, link in zip(hosts, links, strict=True)
            ]
            found = []
            for link, number in zip(links, asked, strict=True):
                link.wait_for_answer(number)
                for other in self.links:
                    self._check(other)
                found.append(link.answer(number))
            return found

    def _needed_by(self, hosts: Sequence[int]) -> list[int]:
        """Those hosts for which something waits, of some hosts and of all whose rows these need."""
        found, stack = dict[int, None](), list(hosts)
        while stack:
            host = stack.pop()
            if host not in found and self.links[host].batch.n:
                found[host] = None
                stack += self.links[host].needs
        return list(found)

    def _send_if_many(self, host: int) -> None:
        if self.links[host].batch.n >= MOST:
            self.send([host])

    def _cross(self, launch: Launch, source: int, target: int, needs_backward: bool) -> None:
        """Lets one host read rows and send them, and another write them."""
        is_back = launch.direction == BACKWARD
        if not launch.n_rows or (is_back and not needs_backward):
            return
        bare = launch._replace(changes=()) if launch.changes else launch
        start, end = (target, source) if is_back else (source, target)
        self.links[start].batch.launch(bare, TAKE, end)
        self.links[end].batch.launch(bare, PUT, start)
        self.links[end].needs.add(start)
        self._send_if_many(start)
        self._send_if_many(end)

    def _n_own(self, changes: Sequence[Change], host: int) -> int:
        """How many of a launch's changes, from the first on, are updates of nodes of its host."""
        host_of = self.layout.host_of_node
        for n, change in enumerate(changes):
            if not isinstance(change, Update) or host_of[change.node] != host:
                return n
        return len(changes)

    def _check(self, link: HostLink) -> None:
        """Raises the error of a host.

        Raises:
          HostError: If it has failed.
        """
        if link.failure is not None:
            number = link.failure.numbers[2]
            launch = next((launch for launch in self._latest if launch.number == number), None)
            raise failure_of(link, self.plan.stages, launch)

    # -- compiling, and questions

    def expect_edges(self, stages: Mapping[int, EdgeSizes]) -> None:
        """Tells hosts for how many edges their `edges` stages leave room.

        Args:
          stages: The expected edges of each, by its number.
        """
        for host in range(self.layout.n_hosts):
            own = {n: (s.mean, s.spread) for n, s in stages.items() if self.layout.host_of_stage[n] == host}
            if own:
                self.ask([host], "expect edges", stages=own)

    def warm(self, launch: Launch, capacities: Mapping[ArenaKey, int]) -> None:
        """Lets hosts compile what a launch needs.

        Args:
          launch: The launch; its slots are the trash slot.
          capacities: Rows of the arenas that it reads.
        """
        crossing = self.layout.crossings.get(launch.stage)
        if crossing is None:
            self._warm(self.layout.host_of_stage[launch.stage], launch, capacities, "whole")
        elif launch.direction != BACKWARD or crossing[2]:
            start, end = crossing[:2] if launch.direction != BACKWARD else (crossing[1], crossing[0])
            self._warm(start, launch, capacities, "take")
            self._warm(end, launch, capacities, "put")

    def _warm(self, host: int, launch: Launch, capacities: Mapping[ArenaKey, int], half: str) -> None:
        writer = BatchWriter(Names.of(self.plan))
        writer.launch(launch)
        self.ask([host], "warm", {host: writer.take()}, capacities=list(capacities.items()), half=half)

    def idle_launches(
        self, stage: Stage, direction: str, rows: int, messages: int, capacity: Callable[[ArenaKey], int]
    ) -> Iterator[Launch]:
        """Launches that do nothing, one of each size of a stage's dispatches, for `warm`.

        Args:
          stage: The stage.
          direction: `forward`, `backward` or `infer`.
          rows: The rows of the largest dispatch.
          messages: The messages of the largest dispatch.
          capacity: The rows that an arena has.
        """
        return idle_launches(stage, direction, rows, messages, capacity)

    def can_update_at_once(self, launch: Launch) -> bool:
        """Whether a launch's kernel can also update its stage's nodes.

        Args:
          launch: A backward launch, or one of a loss.
        """
        return launch.stage in self._can_update and launch.n_rows > 0

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes on the devices of all hosts."""
        total: dict[str, int] = {}
        for said, _ in self.ask(range(self.layout.n_hosts), "device bytes"):
            for name, n in said.items():
                total[name] = total.get(name, 0) + n
        return total

    def record_row_bytes(self) -> dict[ArenaKey, int]:
        """Bytes of recorded activations beside a row of each arena."""
        total: dict[ArenaKey, int] = {}
        for said, _ in self.ask(range(self.layout.n_hosts), "record row bytes"):
            for (space, shape, dtype), n in said:
                total[space, tuple(shape), dtype] = total.get((space, tuple(shape), dtype), 0) + n
        return total

    def close(self) -> None:
        """Tells hosts that it is over; dead ones are left alone."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for link in self.links:
                    with suppress(OSError, HostError):
                        link.end()
                self._ended()

    @property
    def states(self) -> list[HostState]:
        """What is known of each host."""
        nodes = self.layout.of_nodes(self.plan.graph.parameterised)
        return [link.state_with(nodes.get(host, []), self._is_closed) for host, link in enumerate(self.links)]
