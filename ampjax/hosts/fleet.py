"""All hosts of a run: batches sent to hosts, questions to hosts, and the consequences of a host's failure.

Operations wait in a batch for each host. A host that is to write another's rows waits for them, so before a batch is sent, those that it
needs are sent: everything that a host can ever wait for is under way, whatever the driver waits for. Each host carries its operations out in
the order in which they were decided. In this order no operation waits for a later one, so no host waits for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from ampjax.errors import HostError
from ampjax.hosts.host_link import WINDOW, HostLink, failure_of
from ampjax.hosts.hosts import HostState
from ampjax.hosts.layout import HostLayout
from ampjax.hosts.operations import MadeFor
from ampjax.plan.planner import Plan

FEW = 32
MOST = 64
"""Operations in a batch, from which on it is sent: to a host that has nothing else to do, and to one that has."""


class Ready(NamedTuple):
    """Hosts that have said hello and wait for work.

    Args:
      links: The hosts.
      can_update: The stages whose kernels can also update their nodes.
      end: Ends them, once they have been told that it is over.
    """

    links: Sequence[HostLink]
    can_update: frozenset[int]
    end: Callable[[], None]


class Fleet:
    """The hosts.

    Args:
      plan: The plan.
      layout: Which host has what.
      start: Starts them.

    Attributes:
      links: The hosts.
      can_update: The stages whose kernels can also update their nodes.
      lock: Held by who adds operations or sends them.
    """

    def __init__(
        self,
        plan: Plan,
        layout: HostLayout,
        start: Callable[[], Ready],
    ):
        self.layout = layout
        self.lock = threading.RLock()
        self._plan = plan
        self._start = start
        self._begin()

    def _begin(self) -> None:
        self.links, self.can_update, self._end = self._start()
        self._is_closed = False
        self._has_died = False
        self._epoch = 0
        for link in self.links:
            link.peers = self.links

    @property
    def everyone(self) -> list[int]:
        """The numbers of all hosts."""
        return list(range(len(self.links)))

    # -- batches

    def send_if_many(self, host: int) -> None:
        """Sends a host's batch if the batch is large."""
        link = self.links[host]
        n = link.batch.n
        if n < FEW or self._has_died:  # once a host has died, nothing more can be carried out
            return
        if n >= MOST or link.is_idle:
            self.send([host])

    def send(self, hosts: Sequence[int]) -> None:
        """Sends the waiting batches of some hosts, together with the batches that these hosts depend on; waits while too much is under way.

        Raises:
          HostError: If a host has failed.
        """
        with self.lock:
            wanted = self._find_needed(hosts)
            # Wait for room before anything is sent: batches that need each other then go out
            # together.
            for host in wanted:
                link = self.links[host]
                link.look()
                link.wait_until(lambda link=link: link.sent - link.done < WINDOW)
            # A host that has failed would wait for ever for what it can't carry out.
            self.require_health()
            for host in wanted:
                self.links[host].send_batch()

    def _find_needed(self, hosts: Sequence[int]) -> list[int]:
        """The hosts with waiting batches, among some hosts and all whose rows these hosts need."""
        needed = dict[int, None]()
        stack = list(hosts)
        while stack:
            host = stack.pop()
            if host not in needed and self.links[host].batch.n:
                needed[host] = None
                stack += self.links[host].needs
        return list(needed)

    # -- questions

    def ask(
        self,
        hosts: Sequence[int],
        name: str,
        arrays: Mapping[int, Sequence[np.ndarray]] | None = None,
        **values: Any,
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
        with self.lock:
            self.send(hosts)
            asked = []
            # All are asked before any answer is awaited, so they work at the same time.
            for host in hosts:
                asked.append(
                    (
                        self.links[host],
                        self.links[host].ask(
                            name,
                            (arrays or {}).get(host, ()),
                            **values,
                        ),
                    )
                )
            answers = []
            for link, number in asked:
                link.wait_for_answer(number)
                self.require_health()
                answers.append(link.answer(number))
            return answers

    @property
    def states(self) -> list[HostState]:
        """The known state of each host."""
        nodes = self.layout.of_nodes(self._plan.graph.parameterised)
        result = []
        for host, link in enumerate(self.links):
            result.append(link.state_with(nodes.get(host, []), self._is_closed))
        return result

    @property
    def is_closed(self) -> bool:
        """Whether the hosts have been told to end."""
        return self._is_closed

    # -- failures, and the end

    def require_health(self) -> None:
        """Checks hosts' reports so far.

        Raises:
          HostError: If one has failed; names what it was to carry out.
        """
        for link in self.links:
            if link.failure is not None:
                raise failure_of(link, self._plan.stages)

    def begin_anew(self) -> list[MadeFor]:
        """If a host has failed, lets all hosts give up everything in flight and go on with their present parameters.

        Returns:
          For each operation that was added to a batch and has not been carried out, what it was made for. Nothing, if a host has died: then all is
          lost.
        """
        with self.lock:
            try:
                if not any([link.has_failed for link in self.links]):
                    return []
                self._epoch += 1
                # All give up before progress is asked for: a host may wait for rows of another.
                unfinished = [link.begin_anew(self._epoch) for link in self.links]
                progress = [link.wait_for_progress() for link in self.links]
            except HostError:
                self._has_died = True
                return []
            result = []
            # An operation is lost if its batch and place lie behind what its host has carried out.
            for operations, carried_out in zip(unfinished, progress, strict=True):
                for batch, place, made_for in operations:
                    if made_for is not None and (batch, place) >= carried_out:
                        result.append(made_for)
            return result

    def close(self) -> None:
        """Tells hosts to end; dead hosts are left alone."""
        with self.lock:
            if not self._is_closed:
                self._is_closed = True
                for link in self.links:
                    with suppress(OSError, HostError):
                        link.end()
                self._end()

    def restart(self) -> None:
        """Ends all hosts, and starts others in their place, which begin as the first did.

        Raises:
          HostError: If one does not start.
        """
        with self.lock:
            self.close()
            self._begin()
