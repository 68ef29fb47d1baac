"""Instances that would never end, found before admission: unfolding has shown that some of their messages wait for others that never come."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampjax.errors import DeadlockError
from ampjax.ir.nodes import Node
from ampjax.ir.state import HANDLE, State
from ampjax.plan.planner import Plan
from ampjax.sched.diagnose.missing_inputs import MOST_EXAMINED, MOST_LISTED, in_one_sentence
from ampjax.sched.diagnose.origins import origins, producers_of, unmatched_keys
from ampjax.unfold.incomplete import Waiting, find_waiting
from ampjax.unfold.programs import Programs
from ampjax.unfold.unfolding import Unfolding

LAST_STAGES = 5
"""Stages that ran last for an instance."""


def require_ends(plan: Plan, unfolding: Unfolding, programs: Programs) -> None:
    """Checks that all instances of an unfolding end; to be called when nothing more is pumped or chosen for the instances.

    Raises:
      DeadlockError: If messages wait for others that never come: who waits for what, and what else there is to know.
    """
    if int(programs.owed.sum()) == len(
        programs.out_to
    ):  # nobody is owed a gradient by others than consumers
        return
    waiting = find_waiting(plan, unfolding.workspace.joins, unfolding.workspace.groups)
    report = _WaitingReport(plan, unfolding, programs)
    ids = sorted({int(one.state.instance[0]) for one in waiting})
    raise DeadlockError(
        f"before instance {_list_ids(ids)} is admitted"
        if len(ids) == 1
        else f"before instances {_list_ids(ids)} are admitted",
        "messages that all find their partners",
        "some that wait for ever: " + in_one_sentence([str(one) for one in waiting]),
        "\n  ".join(
            [
                "Pump what the nodes wait for, or mend the conditions that route it.",
                *report.missing(waiting),
                *report.comes_to(waiting[0].state),
            ]
        ),
    )


def expected_sources(
    plan: Plan,
    unfolding: Unfolding,
    programs: Programs,
) -> list[str]:
    """Lists the expected sources of messages that an unfolding waits for: the node that feeds the port, its messages that wait elsewhere, the number of its runs.

    Returns:
      Lines of text.
    """
    waiting = find_waiting(plan, unfolding.workspace.joins, unfolding.workspace.groups)
    if waiting:
        return _WaitingReport(plan, unfolding, programs).missing(waiting)
    return []


def _list_ids(ids: list[int]) -> str:
    more = f" and {len(ids) - MOST_LISTED} more" if len(ids) > MOST_LISTED else ""
    return ", ".join(map(str, ids[:MOST_LISTED])) + more


class _WaitingReport:
    """A report on the messages that wait for ever.

    Args:
      plan: The plan.
      unfolding: The unfolding.
      programs: Its programs.
    """

    def __init__(self, plan: Plan, unfolding: Unfolding, programs: Programs):
        self._plan = plan
        self._programs = programs
        self._held = list(_find_held(plan, unfolding))

    def missing(self, waiting: list[Waiting]) -> list[str]:
        """Lists, for the first few waiting messages, the sources of their missing inputs, a line each, and the keys that do not meet."""
        lines = dict.fromkeys(
            line for one in waiting[:MOST_EXAMINED] for line in self._missing(one)
        )
        return [*lines, *unmatched_keys(waiting[:MOST_LISTED])]

    def _missing(self, one: Waiting) -> Iterator[str]:
        """Lists the nodes from which a waiting message's missing inputs should come, and the doings of these nodes."""
        for port in one.missing:
            for node, way in origins(one.stage, port).items():
                by = f" by way of {', '.join(f'{n.kind} `{n.name}`' for n in way)}" if way else ""
                place = f"port {one.stage.ports[port].name} of `{one.stage.name}`"
                yield f"{place} is fed by {node.kind} `{node.name}`{by}: {self._doings(node, one.state)}"

    def _doings(self, node: Node, of: State) -> str:
        """Tells which of a node's messages wait for an instance, and how often the node runs for the instance."""
        numbers = producers_of(self._plan, node)
        states = []
        for number, state in self._held:
            if number in numbers and _slot(state) == _slot(of):
                states.append(state)
        more = f" and {len(states) - 1} more" if len(states) > 1 else ""
        nothing = f"nothing of instance {int(of.instance[0])} from it waits anywhere"
        waits = f"{states[0]!r}{more} from it waits" if states else nothing
        for n in numbers:
            if n >= 0 and self._runs_kernels(n):
                return waits + self._runs_text(n, of)
        return waits

    def _runs_kernels(self, number: int) -> bool:
        """Whether a stage runs kernels of the user's nodes, so neither groups rows nor moves rows."""
        kind = self._plan.stages[number].kind
        return kind.is_dispatched and not kind.is_transfer

    def _runs_text(self, number: int, of: State) -> str:
        """Tells how often a stage runs for an instance."""
        runs = [line for line in self._lines(of) if self._programs.stage[line] == number]
        if not runs:
            return "; it never runs for it"
        return f"; it runs {len(runs)} time(s) for it, at last with {self._state(runs[-1], of)!r}"

    def comes_to(self, of: State) -> Iterator[str]:
        """Lists the last stages that run for an instance."""
        stages = self._programs.stage
        runs = []
        for n in self._lines(of):
            if stages[n] >= 0 and self._plan.stages[stages[n]].kind.is_dispatched:
                runs.append(n)
        yield f"instance {int(of.instance[0])} " + ("comes to:" if runs else "comes to no stage")
        yield from (
            f"  `{self._plan.stages[stages[n]].name}`, {self._state(n, of)!r}"
            for n in runs[-LAST_STAGES:]
        )

    def _lines(self, of: State) -> range:
        """An instance's invocations."""
        first = self._programs.first
        return range(
            int(first[_slot(of)]),
            int(first[_slot(of) + 1]),
        )

    def _state(self, line: int, of: State) -> State:
        """The state of an invocation of an instance."""
        array = of.array.copy()
        array[0, 2:] = self._programs.states[line]
        return State(
            array,
            self._plan.layout,
            self._plan.stages[self._programs.stage[line]].ports[0].type.fields,
        )


def _slot(state: State) -> int:
    """The place of a message's instance among the unfolded ones."""
    return int(state.array[0, HANDLE])


def _find_held(
    plan: Plan,
    unfolding: Unfolding,
) -> Iterator[tuple[int, State]]:
    """Lists the messages that wait in joins and groups: the producer of each (a stage, or `-1 - p` for pump `p`), and its state."""
    waiting = []
    for j, join in unfolding.workspace.joins.items():
        for p, state, message in join.pending():
            waiting.append((j, p, state, message))
    for g, groups in unfolding.workspace.groups.items():
        for group in groups.open.values():
            waiting += [(g, 0, state, message) for state, message in group.members]
            if group.state is not None:
                waiting += [(g, 1, group.state, group.opener)]
            else:
                waiting += []
    producers = unfolding.invocations.producers(
        np.array([message for *_, message in waiting], np.int64)
    ).tolist()
    for producer, (stage, port, state, _) in zip(producers, waiting, strict=True):
        fields = plan.stages[stage].ports[port].type.fields
        yield producer, State(state[None], plan.layout, fields)
