"""Writes what compiled loops have decided into the hosts' batches, line by line: of a plain dispatch nobody needs an object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ampjax.hosts.host_link import HostLink
from ampjax.hosts.layout import HostLayout
from ampjax.hosts.operations import BRINGS_UPDATES, LAUNCH, PUT, TAKE, Names
from ampjax.plan.planner import Plan
from ampjax.plan.stages import Stage
from ampjax.sched.columns import BACKWARD, N_DIRECTIONS
from ampjax.sched.decisions.decided_lines import Capacities, DecidedLines


class _Operation(NamedTuple):
    """What one host does of a dispatch: a launch, or half of a transfer from or to a peer."""

    host: int
    code: int
    peer: int


class _Queue(NamedTuple):
    """What all dispatches of a queue share.

    Args:
      operations: What hosts do; nothing, where its dispatches do nothing.
      stage: Its stage.
      direction: Its direction, by number.
      n_ports: Ports of the stage.
      n_outputs: Its outputs.
      gradients: How often a row counts as a gradient row, for each of the stage's parameters by node; by that node's number in operations.
    """

    operations: tuple[_Operation, ...]
    stage: int
    direction: int
    n_ports: int
    n_outputs: int
    gradients: Mapping[int, int]


class LineWriter:
    """Writes decided lines of one plan.

    Args:
      plan: The plan.
      layout: Which host has what.

    Attributes:
      can_write: Whether lines say all about the plan's dispatches that hosts need, and nothing is read back from them.
    """

    def __init__(self, plan: Plan, layout: HostLayout):
        number_of = {name: number for number, name in enumerate(Names.of(plan).nodes)}
        self._updated = [number_of[name] for name in plan.graph.parameterised]
        dispatched = [stage for stage in plan.stages if stage.kind.is_dispatched]
        self.can_write = all(_is_plain(stage, layout) for stage in dispatched)
        self._queues: dict[int, _Queue] = {}
        for stage in dispatched:
            uses = Counter(number_of[node.params_name] for node in stage.parameterised)
            for direction in range(N_DIRECTIONS):
                shared = stage.number, direction, len(stage.ports), len(stage.outputs), uses
                queue = stage.number * N_DIRECTIONS + direction
                self._queues[queue] = _Queue(_operations(stage, direction == BACKWARD, layout), *shared)

    def write(self, decided: DecidedLines, links: Sequence[HostLink], capacities: Capacities) -> set[int]:
        """Adds dispatches to the batches of the hosts that carry them out.

        Args:
          decided: What loops have written about them.
          links: The hosts.
          capacities: Of the arenas as they are now.

        Returns:
          The hosts whose batches have got something.
        """
        found, packs, due = set[int](), decided.packs, decided.due.tolist()
        for q, number, n_messages, n_rows, n_due, first, at, length, size, worker in decided.lines.tolist():
            operations, stage, direction, n_ports, n_outputs, gradients = self._queues[q]
            at += decided.start
            pack, shared = packs[at : at + length], (n_messages, n_rows, n_ports, n_outputs, size)
            updates, rare = (), 0
            if n_due:
                own = due[first : first + n_due]
                updates = [(self._updated[node], count, stale / count) for node, count, stale, _ in own]
                counts = {node: count for node, count, _ in updates}
                rare = BRINGS_UPDATES * (counts == {node: n * n_rows for node, n in gradients.items()})
            for host, code, peer in operations:
                if code == LAUNCH or n_rows:
                    found.add(host)
                    numbers = code, peer, number, worker, stage, direction, *shared
                    links[host].batch.plain_launch(numbers, pack, capacities(stage), updates, rare)
                    if code == PUT:
                        links[host].needs.add(peer)
        return found


def _is_plain(stage: Stage, layout: HostLayout) -> bool:
    """Whether a line says all about a stage's dispatches, nothing is read back from them, and their updates are of nodes of the same host."""
    has_more = stage.ragged or stage.random or stage.kind.reads_table or stage.chain is not None
    is_read = stage.kind.is_sink or stage.route_by is not None
    host = layout.host_of_stage[stage.number]
    return not (has_more or is_read) and all(layout.host_of_node[node] == host for node in stage.params)


def _operations(stage: Stage, is_back: bool, layout: HostLayout) -> tuple[_Operation, ...]:
    """What hosts do of a stage's dispatches in one direction, in this order."""
    crossing = layout.crossings.get(stage.number)
    if is_back and stage.number in layout.idle_backward:
        return ()
    if crossing is None:
        return (_Operation(layout.host_of_stage[stage.number], LAUNCH, 0),)
    start, end = (crossing[1], crossing[0]) if is_back else crossing[:2]
    return _Operation(start, TAKE, end), _Operation(end, PUT, start)
