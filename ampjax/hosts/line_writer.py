"""Writes decisions of compiled loops into the hosts' batches, line by line: plain dispatches need no objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ampjax.hosts.host_link import HostLink
from ampjax.hosts.layout import HostLayout
from ampjax.hosts.operations import BRINGS_UPDATES, LAUNCH, PUT, TAKE, Names
from ampjax.plan.planner import Plan
from ampjax.plan.stages import Stage
from ampjax.sched.decisions.decided_lines import Capacities, DecidedLines
from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import BACKWARD, N_DIRECTIONS


class _Operation(NamedTuple):
    """One host's part of a dispatch: a launch, or half of a transfer from or to a peer."""

    host: int
    code: int
    peer: int


class _QueueOperations(NamedTuple):
    """The properties that all dispatches of a queue share.

    Args:
      operations: What hosts do; nothing, where its dispatches do nothing.
      stage: Its stage.
      direction: Its direction, by number.
      n_ports: Ports of the stage.
      n_outputs: Its outputs.
      gradients: For each node whose parameters its stage uses, by number: how many of the stage's nodes do, which is how many gradient rows an input
        row brings.
      is_plain: Whether a line says all about its dispatches that hosts need, and nothing is read back from them.
    """

    operations: tuple[_Operation, ...]
    stage: int
    direction: int
    n_ports: int
    n_outputs: int
    gradients: Mapping[int, int]
    is_plain: bool


class LineWriter:
    """Writes decided lines of one plan.

    Args:
      plan: The plan.
      layout: Which host has what.

    Attributes:
      latest: The number of the dispatch that was written last.
    """

    def __init__(self, plan: Plan, layout: HostLayout):
        number_of = {}
        for number, name in enumerate(Names.of(plan).nodes):
            number_of[name] = number
        self._updated = [number_of[name] for name in plan.graph.parameterised]
        self.latest = -1
        self._queues: dict[int, _QueueOperations] = {}
        for stage in plan.stages:
            if stage.kind.is_dispatched:
                uses = Counter(number_of[node.params_name] for node in stage.parameterised)
                shared = len(stage.ports), len(stage.outputs), uses, _is_plain(stage, layout)
                for direction in range(N_DIRECTIONS):
                    operations = _operations(stage, direction == BACKWARD, layout)
                    queue = stage.number * N_DIRECTIONS + direction
                    self._queues[queue] = _QueueOperations(
                        operations, stage.number, direction, *shared
                    )

    def can_write(self, decided: DecidedLines) -> bool:
        """Whether lines say everything that hosts need about these dispatches, and nothing is read back.

        Args:
          decided: What loops have written about them; and objects made of them would say no more (`Decisions.says_all`).
        """
        return all(self._queues[q].is_plain for q in set(decided.lines[:, c.QUEUE].tolist()))

    def write(
        self, decided: DecidedLines, links: Sequence[HostLink], capacities: Capacities
    ) -> set[int]:
        """Adds dispatches to the batches of the hosts that carry the dispatches out.

        Args:
          decided: What loops have written about them.
          links: The hosts.
          capacities: Of the arenas as they are now.

        Returns:
          The hosts whose batches have got something.
        """
        hosts = set[int]()
        packs = decided.packs
        due = decided.due.tolist()
        for (
            q,
            number,
            n_messages,
            n_rows,
            n_due,
            first,
            at,
            length,
            size,
            worker,
        ) in decided.lines.tolist():
            operations, stage, direction, n_ports, n_outputs, gradients, _ = self._queues[q]
            at += decided.start
            pack = packs[at : at + length]
            shared = (n_messages, n_rows, n_ports, n_outputs, size)
            updates = ()
            rare = 0
            if n_due:
                own_updates = due[first : first + n_due]
                updates = [
                    (self._updated[node], count, stale / count)
                    for node, count, stale, _ in own_updates
                ]
                counts = {node: count for node, count, _ in updates}
                rare = BRINGS_UPDATES * (
                    counts == {node: n * n_rows for node, n in gradients.items()}
                )
            for host, code, peer in operations:
                if code == LAUNCH or n_rows:
                    hosts.add(host)
                    numbers = code, peer, number, worker, stage, direction, *shared
                    links[host].batch.launch_numbers(
                        numbers, pack, capacities(stage), updates, rare
                    )
                    if code == PUT:
                        links[host].needs.add(peer)
            self.latest = number
        return hosts


def _is_plain(stage: Stage, layout: HostLayout) -> bool:
    """Whether a line says everything about a stage's dispatches, nothing is read back, and their updates are of nodes of the same host."""
    has_more = stage.needs_contents or stage.chain is not None
    is_read = stage.kind.is_sink or stage.route_by is not None
    host = layout.host_of_stage[stage.number]
    return not (has_more or is_read) and all(
        layout.host_of_node[node] == host for node in stage.params
    )


def _operations(
    stage: Stage,
    is_back: bool,
    layout: HostLayout,
) -> tuple[_Operation, ...]:
    """The operations of hosts for a stage's dispatches in one direction, in this order."""
    if is_back and stage.number in layout.idle_backward:
        return ()
    ends = layout.ends(stage.number, is_back)
    if ends is None:
        return (_Operation(layout.host_of_stage[stage.number], LAUNCH, 0),)
    start, end = ends
    return _Operation(start, TAKE, end), _Operation(end, PUT, start)
