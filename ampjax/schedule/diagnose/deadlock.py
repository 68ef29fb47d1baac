"""Why nothing moves, and what there is to know about what is in flight: who waits for what, the throttle, queues, the oldest instance's story."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampjax.errors import DeadlockError, LimitError
from ampjax.schedule import columns as c
from ampjax.schedule.diagnose.inflight import GONE, InFlight
from ampjax.schedule.diagnose.room import no_room
from ampjax.schedule.diagnose.snapshot import Snapshot
from ampjax.schedule.diagnose.story import standing, story
from ampjax.schedule.diagnose.waiting import Lacking, find_lacking, ways_to
from ampjax.schedule.dispatch import DIRECTIONS

SHOWN = 8
"""Who waits, at most, in the error's sentence."""

EXAMINED = 3
"""Of how many of these it is told where what they lack is."""

LATELY = 5
"""Lines of the oldest instance's story."""


def standstill(s: Snapshot) -> LimitError | DeadlockError:
    """Why nothing can move."""
    for worker in range(s.plan.workers):
        for q in s.tables.active[worker, : s.tables.n_active[worker]].tolist():
            error = no_room(s, q)
            if error is not None:
                return error
    return deadlock(s)


def deadlock(s: Snapshot) -> DeadlockError:
    """That nothing can move: who waits for what, and below it what there is to know."""
    found = InFlight(s)
    lacking, forgotten = find_lacking(s, found), list(_forgotten(s, found))
    return DeadlockError(
        f"{len(found.slots)} instance(s) in flight",
        "messages that can move",
        "none: "
        + (shown([str(one.waiting) for one in lacking] + forgotten) or "an instance whose pumping has not ended"),
        "\n  ".join(
            ["Pump what the nodes wait for, or mend the conditions that route it.", *report(s, found, lacking)]
        ),
    )


def waiting(s: Snapshot) -> list[str]:
    """Who waits for what: one line for each message that has some of its inputs, and for each group that has some of its members."""
    return [str(one.waiting) for one in find_lacking(s, InFlight(s))]


def report(s: Snapshot, found: InFlight | None = None, lacking: list[Lacking] | None = None) -> list[str]:
    """What there is to know about what is in flight, a line each."""
    found = InFlight(s) if found is None else found
    lacking = find_lacking(s, found) if lacking is None else lacking
    lines = dict.fromkeys(line for one in lacking[:EXAMINED] for line in ways_to(s, found, one))
    return [*lines, *_throttle(s), *_lately(s, found)]


def shown(lines: list[str]) -> str:
    """Lines as one sentence, not too long."""
    more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return "; ".join(lines[:SHOWN]) + more


def _forgotten(s: Snapshot, found: InFlight) -> Iterator[str]:
    """Messages that are owed more gradients than there are consumers: what has been made of them waits for others that never come."""
    t = s.tables
    spare = t.lines[found.lines, c.OWED] > t.lines[found.lines, c.N_OUT]
    for v in np.flatnonzero(spare & (found.phase == GONE)).tolist():
        number, line = int(found.stage[v]), int(found.lines[v])
        yield f"{s.name(number)} with {s.state(number, line)!r} sent a message whose partners never come"


def _throttle(s: Snapshot) -> Iterator[str]:
    clock, throttle = s.tables.clock, s.settings
    yield (
        f"in flight: {clock[c.N_TRAIN]} training and {clock[c.N_INFER]} inference instance(s), at most {throttle.max_active_keys} of each; "
        f"they enter {throttle.min_admission} at once at least"
    )
    items = s.tables.queues[:, c.ITEMS]
    held = np.flatnonzero(items).tolist()
    found = [f"{DIRECTIONS[q % 3]} of `{s.plan.stages[q // 3].name}` {items[q]}" for q in held]
    yield "queues: " + (", ".join(found[:SHOWN]) if found else "empty")


def _lately(s: Snapshot, found: InFlight) -> Iterator[str]:
    """The oldest instance's story, as far as it is known, and how far it has come."""
    if not len(found.slots):
        return
    own = s.tables.instances[found.slots]
    oldest = int(own[own[:, c.AGE].argmin(), c.ID])
    lines = story(s, oldest, {})
    yield f"instance {oldest} is the oldest; " + ("lately:" if lines else "nothing of it has been dispatched lately")
    yield from (f"  {line}" for line in lines[-LATELY:])
    yield from standing(s, found, oldest)
