"""Unfolding: control flow, evaluated for many instances at once, without a schedule.

It goes in rounds: everything that can run runs, stage by stage in the order of the plan, and what comes of it runs in the next round. So what happens to an
instance, and in which order, does not depend on the instances beside it. Messages of one stage are one batch of columns, as long as
all instances' are together.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.instances import Messages
from ampjax.ir.payload_nodes import RouteBy
from ampjax.ir.state import INSTANCE, State
from ampjax.plan.passes import left_out
from ampjax.plan.planner import Plan
from ampjax.plan.stages import Stage, StagePort, Targets
from ampjax.unfold.assemble_programs import assemble
from ampjax.unfold.growth import Growth, KnownLines
from ampjax.unfold.incomplete import find_waiting
from ampjax.unfold.programs import Programs
from ampjax.unfold.rules.arrival_ranks import Ranks
from ampjax.unfold.rules.groups import CompleteGroup
from ampjax.unfold.rules.invocation_chunks import Chunk, groups
from ampjax.unfold.rules.pumped import PumpedStates
from ampjax.unfold.rules.routes import MessageBatch, Router
from ampjax.unfold.workspace import Workspace

NO_INPUTS = np.zeros(0, np.int64)

WARN_ROUNDS = 50_000
"""Rounds from which on somebody who waits is told where instances go round."""

MOST_ROUNDS = 1_000_000
"""Rounds from which on instances are said to be in a loop that they never leave: stages that one message has passed, one after the other."""


class Unfolding:
    """Some instances' control flow, as far as it is known.

    Args:
      plan: The plan.
      workspace: Empty tables.
      ids: `[n]`: the instances' numbers, which state functions read as `instance`.
      purpose: `train`; or what inference is for: `losses`, `sinks` or `both`. What only another purpose needs is left out.
      assume: True takes for `route_by` what its `assume` says, as a run without payloads does; False stops there until `resume`.

    Attributes:
      asked: For each stage that routes by payload, the states `[n, width]` of the messages whose choices are awaited, in order.
    """

    def __init__(
        self,
        plan: Plan,
        workspace: Workspace,
        ids: Sequence[int] | np.ndarray,
        purpose: str = "train",
        assume: bool = False,
    ):
        self._plan, self.workspace, self._ids, self._assume = plan, workspace, np.asarray(ids, np.int64), assume
        self._left_out = left_out(plan, purpose)
        self._table = workspace.table
        self._router = Router(workspace.layout, workspace.table, workspace.topologies, self._deliver)
        self._pumped = PumpedStates(plan.layout, workspace.pumps, self._ids)
        self._ready: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._chunks: list[Chunk] = []
        self._n = self._n_rows = self._round = 0
        self._awaited: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

    # -- events

    def pump(self, batch: Mapping[str, Messages]) -> None:
        """Evaluates what follows from more messages; `Messages.instance` counts positions among the instances.

        Raises:
          MessageError: If a message, a state function's result or a topology does not fit, or an instance seems never to end.
        """
        for name in batch:
            self._pumped.find(name)
        emitted: list[tuple[Targets, MessageBatch]] = []
        for name, messages in batch.items():
            number, wire = self._pumped.find(name)
            if wire.topology:
                maps = self.workspace.topologies.setdefault(name, {})
                maps.update(zip(messages.instance.tolist(), messages.payload, strict=True))
            elif len(messages.instance):
                states = self._pumped.states(name, messages)
                sizes = np.asarray(messages.sizes) if wire.ragged else None
                cells = self._invoke(Chunk(number, states, 0, NO_INPUTS, rows=sizes, sizes=sizes), 1)
                emitted.append((self._plan.pumps[name], MessageBatch(states, cells[0])))
        for route, own in emitted:
            self._router.route(route, own)
        self._advance()

    def extend(self, ids: Sequence[int] | np.ndarray) -> range:
        """More instances, for which all is still to be pumped; returns their places."""
        start = len(self._ids)
        self._ids = np.append(self._ids, np.asarray(ids, np.int64))
        self._pumped = PumpedStates(self._plan.layout, self.workspace.pumps, self._ids)
        return range(start, len(self._ids))

    @property
    def asked(self) -> dict[int, np.ndarray]:
        """See above."""
        return {number: np.concatenate([states for states, _ in own]) for number, own in self._awaited.items()}

    def resume(self, choices: Mapping[int, np.ndarray]) -> None:
        """Goes on with what payloads have decided: for each stage in `asked`, `[n]` or `[n, names]`, in the same order.

        Raises:
          MessageError: As `pump` does.
        """
        self._choose(choices)
        self._advance()

    def choose(self, number: int, invocations: np.ndarray, chosen: np.ndarray | None) -> None:
        """Goes on with what has been decided for some of the messages that a stage has asked about.

        Args:
          number: The stage.
          invocations: `[n]`: which of its invocations.
          chosen: `[n]` or `[n, names]`; None takes what its node assumes.

        Raises:
          MessageError: As `pump` does, or as `RouteBy.assumed`.
        """
        states, cells = _joined(self._awaited.pop(number))
        owners = self._table.owner[cells]
        order = np.argsort(owners)
        mine = order[np.searchsorted(owners, invocations, sorter=order)]
        left = np.delete(np.arange(len(cells)), mine)
        if len(left):
            self._awaited[number] = [(states[left], cells[left])]
        states, cells = states[mine], cells[mine]
        self._route_chosen(number, states, cells, self._assumed(number, states) if chosen is None else chosen)
        self._advance()

    # -- questions

    def waiting(self) -> list[str]:
        """Who waits for what that has not come: one line per message in a join, and per open group."""
        return [str(one) for one in find_waiting(self._plan, self.workspace.joins, self.workspace.groups)]

    def producers(self, messages: np.ndarray) -> np.ndarray:
        """What made messages `[n]` that wait: the numbers of stages, `-1 - p` for pump `p`."""
        first = np.cumsum([0, *(len(chunk.states) for chunk in self._chunks)])
        places = np.searchsorted(first, self._table.owner[messages], side="right") - 1
        return np.array([self._chunks[place].stage for place in places], np.int64)

    def programs(self, ranks: Ranks) -> Programs:
        """The programs as far as they are known; those of later are longer, and begin in the same way.

        Args:
          ranks: Those of the plan.
        """
        return assemble(ranks, self._ids, self._chunks, self._table, self._held(), self.workspace.topologies)

    def growth(self, known: KnownLines) -> Growth:
        """What has come since `known` was last told."""
        return known.add(self._chunks[known.n_chunks :], self._table, self._held(), len(self._ids))

    # -- rounds

    def _advance(self) -> None:
        """Runs what can run, and what that makes possible."""
        self._round = 0
        self._run_rounds()
        while self._assume and self._awaited:
            self._choose({number: self._assumed(number, states) for number, states in self.asked.items()})
            self._run_rounds()

    def _run_rounds(self) -> None:
        while self._ready:
            ready, self._ready = self._ready, {}
            self._round += 1
            for number in sorted(ready):
                parts = ready[number]
                states, inputs = parts[0] if len(parts) == 1 else _joined(parts)
                self._run(self._plan.stages[number], states, inputs)
            if self._round >= WARN_ROUNDS:
                self._suspect(min(ready))

    def _run(self, stage: Stage, states: np.ndarray, inputs: np.ndarray) -> None:
        """Runs a stage on messages that belong together: `inputs` `[n, ports]`."""
        rows = sizes = None
        if stage.ragged:
            rows, sizes = self.workspace.sizes[stage.number].of(states, inputs)
        chunk = Chunk(stage.number, states, len(stage.ports), inputs, rows=rows, sizes=sizes)
        outputs = self._invoke(chunk, len(stage.outputs))
        if stage.route_by is None:
            for route, cells in zip(stage.routes, outputs, strict=True):
                self._router.route(route, MessageBatch(states, cells))
        else:
            self._awaited.setdefault(stage.number, []).append((states, outputs[0]))

    def _choose(self, choices: Mapping[int, np.ndarray]) -> None:
        """Routes the messages whose choices are known, with these in their states."""
        awaited, self._awaited = self._awaited, {}
        for number, chosen in choices.items():
            self._route_chosen(number, *_joined(awaited.pop(number)), chosen)
        for number, left in awaited.items():
            self._awaited.setdefault(number, [])[:0] = left

    def _route_chosen(self, number: int, states: np.ndarray, cells: np.ndarray, chosen: np.ndarray) -> None:
        """Routes messages with what was decided for them in their states."""
        stage = self._plan.stages[number]
        op: RouteBy = stage.nodes[-1].op
        columns = [self._plan.layout.column(name) for name in op.names]
        states[:, columns] = np.asarray(chosen).reshape(len(states), len(columns))
        self._router.route(stage.routes[0], MessageBatch(states, cells))

    def _assumed(self, number: int, states: np.ndarray) -> np.ndarray:
        """What is taken for messages where nothing is computed."""
        stage = self._plan.stages[number]
        op: RouteBy = stage.nodes[-1].op
        return op.assumed(f"node `{stage.name}`", State(states, self.workspace.layout, stage.ports[0].type.fields))

    def _invoke(self, chunk: Chunk, n_outputs: int) -> list[np.ndarray]:
        """Numbers invocations and their rows; returns the messages `[n]` of each output."""
        n, sizes = len(chunk.states), chunk.sizes
        if sizes is None:
            end = self._n_rows + n * n_outputs
            chunk.row = np.arange(self._n_rows, end, n_outputs) if n_outputs else np.zeros(n, np.int64)
        else:
            end = self._n_rows + n_outputs * int(sizes.sum())
            chunk.row = self._n_rows + n_outputs * (np.cumsum(sizes) - sizes)
        self._n_rows = end
        self._chunks.append(chunk)
        owners = np.arange(self._n, self._n + n)
        self._n += n
        each: np.ndarray | int = 1 if sizes is None else sizes
        return [self._table.emit(owners, chunk.row + j * each, each) for j in range(n_outputs)]

    def _deliver(self, leaf: StagePort, batch: MessageBatch) -> None:
        """Messages have arrived at a stage's port."""
        if leaf.stage in self._left_out:
            return
        stage, states, inputs = self._plan.stages[leaf.stage], batch.states, batch.cells[:, None]
        if not stage.kind.is_dispatched:
            closed = self.workspace.groups[leaf.stage].put(leaf.port, states, batch.cells)
            if closed:
                self._close(stage, closed)
            return
        if len(stage.ports) > 1:
            states, inputs = self.workspace.joins[leaf.stage].put(leaf.port, states, batch.cells)
        if len(inputs):
            self._ready.setdefault(leaf.stage, []).append((states, inputs))

    def _close(self, stage: Stage, closed: Sequence[CompleteGroup]) -> None:
        """Groups are complete: each is an invocation without rows of its own, whose message holds its members'."""
        states = np.array([group.state for group in closed])
        members = [group.members for group in closed]
        sizes = np.fromiter(map(len, members), np.int64, len(members))
        openers = np.array([group.opener for group in closed], np.int64)
        cells = self._invoke(groups(stage.number, states, members, openers), 1)[0]
        self._table.set_rows(cells, self._table.row[np.concatenate(members)], sizes)
        self._router.route(stage.routes[0], MessageBatch(states, cells))

    def _held(self) -> np.ndarray:
        """The messages that wait in joins and groups."""
        held = [cell for join in self.workspace.joins.values() if join.waiting for _, _, cell in join.pending()]
        for collecting in self.workspace.groups.values():
            for group in collecting.open.values():
                held += [cell for _, cell in group.members] + ([group.opener] if group.opener else [])
        return np.array(held, np.int64)

    def _suspect(self, number: int) -> None:
        """Warns of instances that take very long; refuses those that seem never to end."""
        stage, state = self._plan.stages[number], self._chunks[-1].states[:1]
        shown = State(state, self._plan.layout, stage.ports[0].type.fields)
        if self._round == WARN_ROUNDS:
            warnings.warn(
                f"instance {int(state[0, INSTANCE])} has passed {WARN_ROUNDS} stages one after the other, the last one `{stage.name}`: instances that take so long may be in a loop that they never leave. Interrupt the run if so.",
                RuntimeWarning,
                stacklevel=2,
            )
        if self._round > MOST_ROUNDS:
            raise MessageError(
                f"node `{stage.name}`",
                "instances that end",
                f"one that goes on after {MOST_ROUNDS} stages one after the other, {shown!r}",
                "Mend the condition that should let it out of the loop.",
            )


def _joined(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """States, and messages, one after the other."""
    return np.concatenate([states for states, _ in parts]), np.concatenate([cells for _, cells in parts])
