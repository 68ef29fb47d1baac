"""Laws that must hold after every event, computed anew from the programs: each message's missing inputs and owed gradients, the throttle, no leaks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampjax.errors import InvariantError
from ampjax.sched.decisions.dispatch import DIRECTIONS
from ampjax.sched.diagnose.inflight import (
    AWAITS_GRADIENTS,
    LIFE_OVER,
    NOT_TRAVELLED,
    QUEUED_BACKWARD,
    RUNS_BACKWARD,
    RUNS_FORWARD,
    MessagesInFlight,
)
from ampjax.sched.diagnose.snapshot import Snapshot
from ampjax.sched.diagnose.story import STORY_LINES, story
from ampjax.sched.layout import columns as c
from ampjax.unfold.rules.message_columns import spread

REPORT = "This is a mistake in ampjax: please report it."

NO_MESSAGES = np.zeros(0, np.int64)


def check(s: Snapshot) -> None:
    """Counts the tables' counters anew (the laws of conservation, of update intervals and of the throttle).

    Raises:
      InvariantError: If a count is off; it has the story of the message.
    """
    messages = MessagesInFlight(s)
    for law in (
        _queues,
        _inputs,
        _gradients,
        _alive,
        _under_way,
        _slots,
        _throttle,
        _intervals,
        _budgets,
    ):
        for error in law(s, messages):
            raise error


def _queues(s: Snapshot, messages: MessagesInFlight) -> Iterator[InvariantError]:
    """Checks that each queue holds as many messages and rows as its counters say, of its stage only and none twice, and is among its worker's unless empty."""
    t = s.tables
    workers: dict[int, list[int]] = {}
    for worker in range(len(t.active)):
        for q in t.active_queues(worker).tolist():
            workers.setdefault(q, []).append(worker)
    for q in sorted({*messages.queued, *workers}):
        queued = messages.queued.get(q, NO_MESSAGES)
        stage = q // c.N_DIRECTIONS
        place = messages.place[queued]
        is_right = (place >= 0).all() and (messages.stage[place] == stage).all()
        rows = int(t.lines[messages.lines[place], c.IN_ROWS].sum())
        expected = len(queued), rows, True, [int(t.stages[stage, c.WORKER])] if len(queued) else []
        got = (
            int(t.queues[q, c.ITEMS]),
            int(t.queues[q, c.ITEM_ROWS]),
            bool(is_right),
            workers.get(q, []),
        )
        if got != expected:
            what = f"messages, rows, all of this stage, workers: {expected}"
            yield _law_error(
                f"{DIRECTIONS[q % c.N_DIRECTIONS]} queue of `{s.plan.stages[stage].name}`",
                what,
                f"{got}",
            )
    together = np.concatenate([NO_MESSAGES, *messages.queued.values()])
    if len(np.unique(together)) < len(together):
        yield _law_error(
            "queues",
            "each message once",
            f"{len(together) - len(np.unique(together))} of them again",
        )


def _inputs(s: Snapshot, messages: MessagesInFlight) -> Iterator[InvariantError]:
    """Checks that each message lacks the inputs whose producers have not travelled on, and is marked when travelling on."""
    consumer, _, _ = messages.inputs
    missing = np.bincount(
        consumer,
        messages.missing,
        len(messages.lines),
    ).astype(np.int64)
    missing[(messages.kind != c.ENDS) & ~np.isin(messages.phase, NOT_TRAVELLED)] = c.TRAVELLED
    yield from _differing(s, messages, missing, messages.n_missing, "inputs that are missing")


def _gradients(s: Snapshot, messages: MessagesInFlight) -> Iterator[InvariantError]:
    """Checks that each message is owed a gradient by each consumer that has not answered, and by each message that waits for ever."""
    consumer, producer, _ = messages.inputs
    answered = messages.phase == LIFE_OVER
    answered |= (
        ~messages.trains & (messages.phase == AWAITS_GRADIENTS) & (messages.kind != c.GROUPS)
    )  # inference answers on the way forth
    n_answers = np.bincount(
        producer,
        answered[consumer],
        len(messages.lines),
    ).astype(np.int64)
    owed = s.tables.lines[messages.lines, c.OWED] - n_answers
    yield from _differing(s, messages, owed, messages.n_owed, "gradients that are owed")


def _alive(s: Snapshot, messages: MessagesInFlight) -> Iterator[InvariantError]:
    """Checks that an instance is in flight as long as some of its messages with rows are."""
    alive = (messages.kind != c.ENDS) & (messages.phase != LIFE_OVER)
    counted = np.bincount(
        messages.handle,
        alive,
        len(s.tables.instances),
    ).astype(np.int64)
    for i in messages.handles.tolist():
        alive = int(s.tables.instances[i, c.N_ALIVE])
        name = f"instance {s.tables.instances[i, c.ID]}"
        if alive - counted[i] not in (0, 1) or not alive:  # one more while it is pumped to
            yield _law_error(
                name,
                f"{counted[i]} messages that have not ended, at least one, or one more",
                f"{alive}",
            )


def _under_way(s: Snapshot, messages: MessagesInFlight) -> Iterator[InvariantError]:
    """Of a stage so many messages are between their dispatches forth and back as its queue says."""
    counts = np.bincount(
        messages.stage[_is_between(messages)],
        minlength=len(s.plan.stages),
    )
    for stage in s.plan.stages:
        counted = s.tables.queues[c.N_DIRECTIONS * stage.number + c.FORWARD, c.UNDER_WAY]
        if counted != counts[stage.number]:
            yield _law_error(
                f"`{stage.name}`", f"{counts[stage.number]} messages under way", f"{counted}"
            )


def _slots(s: Snapshot, messages: MessagesInFlight) -> Iterator[InvariantError]:
    """Each slot of an arena is free or one row's."""
    t = s.tables
    holds = np.isin(
        messages.phase, (RUNS_FORWARD, AWAITS_GRADIENTS, QUEUED_BACKWARD, RUNS_BACKWARD)
    ) & (messages.kind != c.GROUPS)
    taken: list[list[np.ndarray]] = []
    for a, n in enumerate(t.n_free.tolist()):
        taken.append([t.free[a, c.FREE : c.FREE + n]])
    for number in np.unique(messages.stage[holds]).tolist():
        holders = np.flatnonzero(holds & (messages.stage == number))
        sizes = t.lines[messages.lines[holders], c.OUT_ROWS].astype(np.int64)
        for o in range(t.stages[number, c.N_OUTPUTS]):
            first = (
                t.instances[messages.handle[holders], c.FIRST_SLOT]
                + t.lines[messages.lines[holders], c.ROW]
                + o * sizes
            )
            taken[t.stages[number, c.ARENA + o]].append(t.slots[spread(first, sizes)])
    for arena, parts in enumerate(taken):
        every = np.sort(np.concatenate(parts))
        if not np.array_equal(
            every,
            np.arange(1, s.capacities[arena] + 1),
        ):
            yield _law_error(
                f"arena {arena}",
                f"each of {s.capacities[arena]} slots free or one row's",
                f"{len(np.unique(every))} different ones, {len(every)} in all",
            )


def _throttle(s: Snapshot, messages: MessagesInFlight) -> Iterator[InvariantError]:
    """No more instances are in flight than may be, and as many as the clock says."""
    trains = s.tables.instances[messages.handles, c.TRAIN] != 0
    counts = int(trains.sum()), int((~trains).sum())
    counted = tuple(s.tables.clock[[c.N_TRAIN, c.N_INFER]].tolist())
    if counted != counts or max(counts) > s.settings.max_active_keys:
        most = s.settings.max_active_keys
        yield _law_error(
            "throttle",
            f"{counts} training and inference instances in flight, at most {most} of each",
            f"{counted}",
        )


def _intervals(s: Snapshot, messages: MessagesInFlight) -> Iterator[InvariantError]:
    """A node that has as many gradient rows as its interval asks for has been updated, unless that is held back or was taken back."""
    del messages
    nodes = s.tables.nodes
    due = (
        (nodes[:, c.INTERVAL] >= 0)
        & (nodes[:, c.COUNT] >= nodes[:, c.INTERVAL])
        & (nodes[:, c.HELD_SINCE] == 0)
    )
    for number in np.flatnonzero(due).tolist():
        name = list(s.plan.graph.parameterised)[number]
        if s.overdue.get(name) == nodes[number, c.VERSION]:
            continue  # its next gradient brings the update
        yield _law_error(
            f"node `{name}`",
            f"fewer than {nodes[number, c.INTERVAL]} gradient rows, its interval",
            f"{nodes[number, c.COUNT]}",
        )


def _budgets(s: Snapshot, messages: MessagesInFlight) -> Iterator[InvariantError]:
    """Checks that each node knows the number of messages that owe a gradient for each of its latest versions, and that no message saw an older one."""
    t = s.tables
    budgets = s.tables.nodes[:, c.BUDGET]
    counted = s.tables.nodes[:, c.AWAITED :]
    awaited = np.zeros_like(counted)
    between = _is_between(messages)
    for stage in np.unique(messages.stage[between]).tolist() if counted.size else ():
        owing = messages.messages[between & (messages.stage == stage)]
        for p in range(t.stages[stage, c.N_PARAMS]):
            node = int(t.params[t.stages[stage, c.PARAMS] + p, c.NODE])
            ages = t.nodes[node, c.VERSION] - t.live[owing, c.SEEN + p]
            if 0 <= budgets[node] < ages.max():
                name = list(s.plan.graph.parameterised)[node]
                yield _law_error(
                    f"node `{name}`",
                    f"messages at most {budgets[node]} versions old",
                    f"{ages.max()}",
                )
            if budgets[node] >= 0:
                np.add.at(
                    awaited[node],
                    t.live[owing, c.SEEN + p] % (budgets[node] + 1),
                    1,
                )
    for node in np.flatnonzero((awaited != counted).any(axis=1)).tolist():
        name = list(s.plan.graph.parameterised)[node]
        expected = f"messages that owe gradients, of `{name}`, by version: {awaited[node].tolist()}"
        yield _law_error("staleness budgets", expected, f"{counted[node].tolist()}")


def _is_between(messages: MessagesInFlight) -> np.ndarray:
    """`[m]`: whether messages are between their dispatches forth and back."""
    phases = RUNS_FORWARD, AWAITS_GRADIENTS, QUEUED_BACKWARD
    return messages.trains & (messages.kind == c.COMPUTES) & np.isin(messages.phase, phases)


def _differing(
    s: Snapshot,
    messages: MessagesInFlight,
    expected: np.ndarray,
    got: np.ndarray,
    what: str,
) -> Iterator[InvariantError]:
    """Makes errors for messages whose counters are off, with the instance's story."""
    for v in np.flatnonzero(expected != got).tolist():
        number = int(messages.stage[v])
        state = messages.state(v)
        lines = story(s, int(state.instance[0]), {})[-STORY_LINES:]
        what_to_do = "\n  ".join([REPORT, *(["Its instance's story:", *lines] if lines else [])])
        yield InvariantError(
            f"{s.name(number)} with {state!r}", f"{expected[v]} {what}", f"{got[v]}", what_to_do
        )


def _law_error(where: str, expected: str, got: str) -> InvariantError:
    return InvariantError(where, expected, got, REPORT)
