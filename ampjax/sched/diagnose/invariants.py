"""Laws that must hold after every event, computed anew from the programs: each message's missing inputs and owed gradients, the throttle, no leaks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampjax.errors import InvariantError
from ampjax.sched import columns as c
from ampjax.sched.decisions.dispatch import DIRECTIONS
from ampjax.sched.diagnose.inflight import (
    AWAITS_GRADIENTS,
    LIFE_OVER,
    NOT_TRAVELLED,
    QUEUED_BACKWARD,
    RUNS_BACKWARD,
    RUNS_FORWARD,
    InFlight,
)
from ampjax.sched.diagnose.snapshot import Snapshot
from ampjax.sched.diagnose.story import STORY_LINES, story
from ampjax.unfold.rules.message_columns import spread

REPORT = "This is a mistake in ampjax: please report it."

NO_MESSAGES = np.zeros(0, np.int64)


def check(s: Snapshot) -> None:
    """Counts the tables' counters anew (the laws of conservation, of update intervals and of the throttle).

    Args:
      s: The scheduler's parts, between two events.

    Raises:
      InvariantError: If a count is off; it has the story of the message.
    """
    found = InFlight(s)
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
        for error in law(s, found):
            raise error


def _queues(s: Snapshot, found: InFlight) -> Iterator[InvariantError]:
    """Checks that each queue holds as many messages and rows as its counters say, of its stage only and none twice, and is among its worker's unless empty."""
    t = s.tables
    workers: dict[int, list[int]] = {}
    for worker in range(len(t.active)):
        for q in t.active_queues(worker).tolist():
            workers.setdefault(q, []).append(worker)
    for q in sorted({*found.queued, *workers}):
        own = found.queued.get(q, NO_MESSAGES)
        stage = q // c.N_DIRECTIONS
        place = found.place[own]
        is_right = (place >= 0).all() and (found.stage[place] == stage).all()
        rows = int(t.lines[found.lines[place], c.IN_ROWS].sum())
        expected = len(own), rows, True, [int(t.stages[stage, c.WORKER])] if len(own) else []
        got = (
            int(t.queues[q, c.ITEMS]),
            int(t.queues[q, c.ITEM_ROWS]),
            bool(is_right),
            workers.get(q, []),
        )
        if got != expected:
            what = f"messages, rows, all of this stage, workers: {expected}"
            yield _broken(
                f"{DIRECTIONS[q % c.N_DIRECTIONS]} queue of `{s.plan.stages[stage].name}`",
                what,
                f"{got}",
            )
    together = np.concatenate([NO_MESSAGES, *found.queued.values()])
    if len(np.unique(together)) < len(together):
        yield _broken(
            "queues",
            "each message once",
            f"{len(together) - len(np.unique(together))} of them again",
        )


def _inputs(s: Snapshot, found: InFlight) -> Iterator[InvariantError]:
    """Checks that each message lacks the inputs whose producers have not travelled on, and is marked when travelling on."""
    consumer, _, _ = found.inputs
    missing = np.bincount(consumer, found.missing, len(found.lines)).astype(np.int64)
    missing[(found.kind != c.ENDS) & ~np.isin(found.phase, NOT_TRAVELLED)] = c.TRAVELLED
    yield from _differing(s, found, missing, found.n_missing, "inputs that are missing")


def _gradients(s: Snapshot, found: InFlight) -> Iterator[InvariantError]:
    """Checks that each message is owed a gradient by each consumer that has not answered, and by each message that waits for ever."""
    consumer, producer, _ = found.inputs
    answered = found.phase == LIFE_OVER
    answered |= (
        ~found.trains & (found.phase == AWAITS_GRADIENTS) & (found.kind != c.GROUPS)
    )  # inference answers on the way forth
    given = np.bincount(producer, answered[consumer], len(found.lines)).astype(np.int64)
    owed = s.tables.lines[found.lines, c.OWED] - given
    yield from _differing(s, found, owed, found.n_owed, "gradients that are owed")


def _alive(s: Snapshot, found: InFlight) -> Iterator[InvariantError]:
    """Checks that an instance is in flight as long as some of its messages with rows are."""
    alive = (found.kind != c.ENDS) & (found.phase != LIFE_OVER)
    counted = np.bincount(found.handle, alive, len(s.tables.instances)).astype(np.int64)
    for i in found.handles.tolist():
        alive = int(s.tables.instances[i, c.N_ALIVE])
        name = f"instance {s.tables.instances[i, c.ID]}"
        if alive - counted[i] not in (0, 1) or not alive:  # one more while it is pumped to
            yield _broken(
                name,
                f"{counted[i]} messages that have not ended, at least one, or one more",
                f"{alive}",
            )


def _under_way(s: Snapshot, found: InFlight) -> Iterator[InvariantError]:
    """Of a stage so many messages are between their dispatches forth and back as its queue says."""
    counts = np.bincount(
        found.stage[_is_between(found)],
        minlength=len(s.plan.stages),
    )
    for stage in s.plan.stages:
        counted = s.tables.queues[c.N_DIRECTIONS * stage.number + c.FORWARD, c.UNDER_WAY]
        if counted != counts[stage.number]:
            yield _broken(
                f"`{stage.name}`", f"{counts[stage.number]} messages under way", f"{counted}"
            )


def _slots(s: Snapshot, found: InFlight) -> Iterator[InvariantError]:
    """Each slot of an arena is free or one row's."""
    t = s.tables
    holds = np.isin(
        found.phase, (RUNS_FORWARD, AWAITS_GRADIENTS, QUEUED_BACKWARD, RUNS_BACKWARD)
    ) & (found.kind != c.GROUPS)
    taken: list[list[np.ndarray]] = []
    for a, n in enumerate(t.n_free.tolist()):
        taken.append([t.free[a, c.FREE : c.FREE + n]])
    for number in np.unique(found.stage[holds]).tolist():
        own = np.flatnonzero(holds & (found.stage == number))
        sizes = t.lines[found.lines[own], c.OUT_ROWS].astype(np.int64)
        for o in range(t.stages[number, c.N_OUTPUTS]):
            first = (
                t.instances[found.handle[own], c.FIRST_SLOT]
                + t.lines[found.lines[own], c.ROW]
                + o * sizes
            )
            taken[t.stages[number, c.ARENA + o]].append(t.slots[spread(first, sizes)])
    for arena, parts in enumerate(taken):
        every = np.sort(np.concatenate(parts))
        if not np.array_equal(every, np.arange(1, s.capacities[arena] + 1)):
            yield _broken(
                f"arena {arena}",
                f"each of {s.capacities[arena]} slots free or one row's",
                f"{len(np.unique(every))} different ones, {len(every)} in all",
            )


def _throttle(s: Snapshot, found: InFlight) -> Iterator[InvariantError]:
    """No more instances are in flight than may be, and as many as the clock says."""
    trains = s.tables.instances[found.handles, c.TRAIN] != 0
    counts = int(trains.sum()), int((~trains).sum())
    counted = tuple(s.tables.clock[[c.N_TRAIN, c.N_INFER]].tolist())
    if counted != counts or max(counts) > s.settings.max_active_keys:
        most = s.settings.max_active_keys
        yield _broken(
            "throttle",
            f"{counts} training and inference instances in flight, at most {most} of each",
            f"{counted}",
        )


def _intervals(s: Snapshot, found: InFlight) -> Iterator[InvariantError]:
    """A node that has as many gradient rows as its interval asks for has been updated, unless that is held back or was taken back."""
    del found
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
        yield _broken(
            f"node `{name}`",
            f"fewer than {nodes[number, c.INTERVAL]} gradient rows, its interval",
            f"{nodes[number, c.COUNT]}",
        )


def _budgets(s: Snapshot, found: InFlight) -> Iterator[InvariantError]:
    """Checks that each node knows the number of messages that owe a gradient for each of its latest versions, and that no message saw an older one."""
    t = s.tables
    budgets = s.tables.nodes[:, c.BUDGET]
    counted = s.tables.nodes[:, c.AWAITED :]
    awaited = np.zeros_like(counted)
    between = _is_between(found)
    for stage in np.unique(found.stage[between]).tolist() if counted.size else ():
        own = found.messages[between & (found.stage == stage)]
        for p in range(t.stages[stage, c.N_PARAMS]):
            node = int(t.params[t.stages[stage, c.PARAMS] + p, c.NODE])
            ages = t.nodes[node, c.VERSION] - t.live[own, c.SEEN + p]
            if 0 <= budgets[node] < ages.max():
                name = list(s.plan.graph.parameterised)[node]
                yield _broken(
                    f"node `{name}`",
                    f"messages at most {budgets[node]} versions old",
                    f"{ages.max()}",
                )
            if budgets[node] >= 0:
                np.add.at(
                    awaited[node],
                    t.live[own, c.SEEN + p] % (budgets[node] + 1),
                    1,
                )
    for node in np.flatnonzero((awaited != counted).any(axis=1)).tolist():
        name = list(s.plan.graph.parameterised)[node]
        expected = f"messages that owe gradients, of `{name}`, by version: {awaited[node].tolist()}"
        yield _broken("staleness budgets", expected, f"{counted[node].tolist()}")


def _is_between(found: InFlight) -> np.ndarray:
    """`[m]`: whether messages are between their dispatches forth and back."""
    phases = RUNS_FORWARD, AWAITS_GRADIENTS, QUEUED_BACKWARD
    return found.trains & (found.kind == c.COMPUTES) & np.isin(found.phase, phases)


def _differing(
    s: Snapshot,
    found: InFlight,
    expected: np.ndarray,
    got: np.ndarray,
    what: str,
) -> Iterator[InvariantError]:
    """Makes errors for messages whose counters are off, with the instance's story."""
    for v in np.flatnonzero(expected != got).tolist():
        number = int(found.stage[v])
        state = found.state(v)
        lines = story(s, int(state.instance[0]), {})[-STORY_LINES:]
        what_to_do = "\n  ".join([REPORT, *(["Its instance's story:", *lines] if lines else [])])
        yield InvariantError(
            f"{s.name(number)} with {state!r}", f"{expected[v]} {what}", f"{got[v]}", what_to_do
        )


def _broken(where: str, expected: str, got: str) -> InvariantError:
    return InvariantError(where, expected, got, REPORT)
