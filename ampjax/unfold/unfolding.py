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
from ampjax.ir.state import INSTANCE, State
from ampjax.plan.passes import stages_left_out
from ampjax.plan.planner import Plan
from ampjax.plan.stages import Stage, StagePort, Targets
from ampjax.unfold.assemble_programs import assemble
from ampjax.unfold.choices import AwaitedChoices, Part, join_parts
from ampjax.unfold.growth import Growth, KnownLines
from ampjax.unfold.invocations import Invocations
from ampjax.unfold.programs import Programs
from ampjax.unfold.rules.arrival_ranks import ArrivalRanks
from ampjax.unfold.rules.groups import CompleteGroup
from ampjax.unfold.rules.invocation_chunks import Chunk, groups
from ampjax.unfold.rules.pumped import PumpedStates
from ampjax.unfold.rules.routes import MessageBatch, Router
from ampjax.unfold.workspace import Workspace

NO_INPUTS = np.zeros(0, np.int64)

WARN_ROUNDS = 50_000
"""Rounds from which on a warning says where instances go round."""

MOST_ROUNDS = 1_000_000
"""Rounds from which on instances are said to be in a loop that they never leave: stages that one message has passed, one after the other."""


class Unfolding:
    """The control flow of some instances, as far as known.

    Args:
      plan: The plan.
      workspace: Empty tables.
      ids: `[n]`: the instances' numbers, which state functions read as `instance`.
      purpose: `train`; or what inference is for: `losses`, `sinks` or `both`. What only another purpose needs is left out.
      assume: True takes for `route_by` what its `assume` says, as a run without payloads does; False stops there until `resume` or `choose`.

    Attributes:
      invocations: What has been run.
    """

    def __init__(
        self,
        plan: Plan,
        workspace: Workspace,
        ids: Sequence[int] | np.ndarray,
        purpose: str = "train",
        assume: bool = False,
    ):
        self._plan = plan
        self.workspace = workspace
        self._ids = np.asarray(ids, np.int64)
        self._assume = assume
        self._left_out = stages_left_out(plan, purpose)
        self._router = Router(
            workspace.layout, workspace.table, workspace.topologies, self._deliver
        )
        self._pumped = PumpedStates(plan.layout, workspace.pumps, self._ids)
        self._ready: dict[int, list[Part]] = {}
        self._choices = AwaitedChoices(plan, workspace.layout, workspace.table)
        self.invocations = Invocations(workspace.table)
        self._round = 0

    # -- events

    def pump(self, batch: Mapping[str, Messages]) -> None:
        """Evaluates the consequences of more messages.

        Args:
          batch: The messages, by pump; `Messages.instance` counts positions among the instances.

        Raises:
          MessageError: If a message, a state function's result or a topology does not fit, or an instance seems never to end.
        """
        # All names are checked before anything changes.
        for name in batch:
            self._pumped.find(name)
        emitted: list[tuple[Targets, MessageBatch]] = []
        for name, messages in batch.items():
            number, wire = self._pumped.find(name)
            # Topologies are no messages, but must be there before messages that need them travel.
            if wire.topology:
                maps = self.workspace.topologies.setdefault(name, {})
                maps.update(zip(messages.instance.tolist(), messages.payload, strict=True))
            elif len(messages.instance):
                states = self._pumped.states(name, messages)
                sizes = np.asarray(messages.sizes) if wire.ragged else None
                numbers = self.invocations.add(
                    Chunk(number, states, 0, NO_INPUTS, rows=sizes, sizes=sizes), 1
                )
                emitted.append(
                    (
                        self._plan.pumps[name],
                        MessageBatch(
                            states,
                            numbers[0],
                        ),
                    )
                )
        # Messages travel when all are numbered, so numbers do not depend on what follows from them.
        for route, messages_there in emitted:
            self._router.route(route, messages_there)
        self._advance()

    def extend(self, ids: Sequence[int] | np.ndarray) -> range:
        """Adds instances, for which all is still to be pumped.

        Args:
          ids: `[n]`: their numbers.

        Returns:
          Their places among the instances.
        """
        start = len(self._ids)
        self._ids = np.append(
            self._ids,
            np.asarray(ids, np.int64),
        )
        self._pumped = PumpedStates(
            self._plan.layout,
            self.workspace.pumps,
            self._ids,
        )
        return range(start, len(self._ids))

    @property
    def asked(self) -> dict[int, np.ndarray]:
        """For each stage that routes by payload, the states `[n, width]` of the messages whose choices are awaited, in order."""
        return self._choices.states

    def resume(self, choices: Mapping[int, np.ndarray]) -> None:
        """Goes on with the choices that payloads have made.

        Args:
          choices: For each stage in `asked`, `[n]` or `[n, names]`, in the same order. Stages that are left out wait on.

        Raises:
          MessageError: As `pump` does.
        """
        self._route_chosen(choices)
        self._advance()

    def choose(
        self,
        number: int,
        invocations: np.ndarray,
        chosen: np.ndarray | None,
    ) -> None:
        """Goes on with the choices for some of the messages that a stage has asked about.

        Args:
          number: The stage.
          invocations: `[n]`: which of its invocations.
          chosen: `[n]` or `[n, names]`; None takes what its node assumes.

        Raises:
          MessageError: As `pump` does, or as `RouteBy.assumed`.
        """
        self._router.route(
            self._plan.stages[number].routes[0],
            self._choices.take(number, invocations, chosen),
        )
        self._advance()

    # -- questions

    def programs(self, ranks: ArrivalRanks) -> Programs:
        """Gives the programs as far as known; later programs are longer, and begin in the same way.

        Returns:
          The programs of all instances.
        """
        space = self.workspace
        return assemble(
            ranks,
            self._ids,
            self.invocations.chunks,
            space.table,
            space.held,
            space.topologies,
        )

    def growth(self, known: KnownLines) -> Growth:
        """Gives the lines that have come since the last call.

        Args:
          known: What has been given before; it is brought up to date.

        Returns:
          The new lines.
        """
        new = self.invocations.chunks[known.n_chunks :]
        return known.add(
            new,
            self.workspace.table,
            self.workspace.held,
            len(self._ids),
        )

    # -- rounds

    def _advance(self) -> None:
        """Runs all stages that can run, and all stages that can run then."""
        self._round = 0
        self._run_rounds()
        while self._assume and self._choices:
            self._route_chosen(
                {n: self._choices.assumed(n, states) for n, states in self.asked.items()}
            )
            self._run_rounds()

    def _run_rounds(self) -> None:
        while self._ready:
            # What becomes ready while this round runs waits for the next.
            ready = self._ready
            self._ready = {}
            self._round += 1
            # In the order of the plan, so nothing depends on the order in which messages came.
            for number in sorted(ready):
                parts = ready[number]
                states, inputs = parts[0] if len(parts) == 1 else join_parts(parts)
                self._run(self._plan.stages[number], states, inputs)
            if self._round >= WARN_ROUNDS and not self._plan.graph.ends:
                self._suspect(min(ready))

    def _run(
        self,
        stage: Stage,
        states: np.ndarray,
        inputs: np.ndarray,
    ) -> None:
        """Runs a stage on messages that belong together: `inputs` `[n, ports]`."""
        rows = sizes = None
        if stage.ragged:
            rows, sizes = self.workspace.sizes[stage.number].of(
                states,
                inputs,
            )
        chunk = Chunk(
            stage.number,
            states,
            len(stage.ports),
            inputs,
            rows=rows,
            sizes=sizes,
        )
        outputs = self.invocations.add(chunk, len(stage.outputs))
        # Outputs travel on, or wait for the choice that their payloads make.
        if stage.route_by is None:
            for route, messages in zip(stage.routes, outputs, strict=True):
                self._router.route(route, MessageBatch(states, messages))
        else:
            self._choices.add(stage.number, states, outputs[0])

    def _route_chosen(self, choices: Mapping[int, np.ndarray]) -> None:
        """Routes the messages whose choices are known, with these in their states."""
        for number, chosen in choices.items():
            self._router.route(
                self._plan.stages[number].routes[0],
                self._choices.take_all(number, chosen),
            )

    def _deliver(self, leaf: StagePort, batch: MessageBatch) -> None:
        """Messages have arrived at a stage's port."""
        if leaf.stage in self._left_out:
            return
        stage = self._plan.stages[leaf.stage]
        states = batch.states
        inputs = batch.messages[:, None]
        if not stage.kind.is_dispatched:
            closed = self.workspace.groups[leaf.stage].put(
                leaf.port,
                states,
                batch.messages,
            )
            if closed:
                self._close(stage, closed)
            return
        if len(stage.ports) > 1:
            states, inputs = self.workspace.joins[leaf.stage].put(
                leaf.port,
                states,
                batch.messages,
            )
        if len(inputs):
            self._ready.setdefault(leaf.stage, []).append((states, inputs))

    def _close(self, stage: Stage, closed: Sequence[CompleteGroup]) -> None:
        """Groups are complete: each is an invocation without rows of its own, whose message holds its members'."""
        states = np.array([group.state for group in closed])
        members = [group.members for group in closed]
        sizes = np.fromiter(
            map(len, members),
            np.int64,
            len(members),
        )
        openers = np.array([group.opener for group in closed], np.int64)
        # The group's message comes first; then it is given its members' rows.
        messages = self.invocations.add(groups(stage.number, states, members, openers), 1)[0]
        self.workspace.table.set_rows(
            messages, self.workspace.table.row[np.concatenate(members)], sizes
        )
        self._router.route(stage.routes[0], MessageBatch(states, messages))

    def _suspect(self, number: int) -> None:
        """Warns of instances that take very long; refuses instances that seem never to end."""
        stage = self._plan.stages[number]
        state = self.invocations.chunks[-1].states[:1]
        shown = State(
            state,
            self._plan.layout,
            stage.ports[0].type.fields,
        )
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
