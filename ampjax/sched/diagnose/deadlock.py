"""Deadlock reports: the messages that wait and their missing inputs, the throttle, queues, the oldest instance's story."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampjax.errors import DeadlockError, LimitError
from ampjax.sched.decisions.dispatch import DIRECTIONS
from ampjax.sched.diagnose.inflight import MessagesInFlight
from ampjax.sched.diagnose.missing_inputs import (
    MOST_EXAMINED,
    MOST_LISTED,
    Lacking,
    explain_missing,
    find_lacking,
    in_one_sentence,
)
from ampjax.sched.diagnose.never_ends import expected_sources
from ampjax.sched.diagnose.no_room import no_room
from ampjax.sched.diagnose.snapshot import Snapshot
from ampjax.sched.diagnose.story import progress, story
from ampjax.sched.layout import columns as c
from ampjax.unfold.incomplete import Waiting, find_waiting
from ampjax.unfold.rules.arrival_ranks import ArrivalRanks

LAST_STORY_LINES = 5
"""Lines of the oldest instance's story."""


def standstill(s: Snapshot) -> LimitError | DeadlockError:
    """Finds out why nothing can move.

    Returns:
      The error to be raised: a `LimitError` if an arena's limit is the reason, else a `DeadlockError`.
    """
    for worker in range(s.plan.workers):
        for q in s.tables.active_queues(worker).tolist():
            if q % c.N_DIRECTIONS != c.BACKWARD and s.plan.stages[q // c.N_DIRECTIONS].outputs:
                return no_room(s, q)
    return deadlock(s)


def deadlock(s: Snapshot) -> DeadlockError:
    """Makes the error that nothing can move, with each waiting node and a report of everything in flight.

    Returns:
      The error to be raised.
    """
    messages = MessagesInFlight(s)
    lacking = find_lacking(s, messages)
    who = [str(one.waiting) for one in lacking] + [str(one) for one in _for_more(s)]
    return DeadlockError(
        f"{len(messages.handles)} instance(s) in flight",
        "messages that can move",
        "none: " + (in_one_sentence(who) or "an instance whose pumping has not ended"),
        "\n  ".join(
            [
                "Pump what the nodes wait for, or mend the conditions that route it.",
                *report(s, messages, lacking),
            ]
        ),
    )


def waiting(s: Snapshot) -> list[str]:
    """Lists the nodes that wait and the inputs that each one lacks.

    Returns:
      A line for each message that has some of its inputs, and for each group that has some of its members.
    """
    return [str(one.waiting) for one in find_lacking(s, MessagesInFlight(s))] + [
        str(one) for one in _for_more(s)
    ]


def report(
    s: Snapshot,
    messages: MessagesInFlight | None = None,
    lacking: list[Lacking] | None = None,
) -> list[str]:
    """Reports the state of everything in flight.

    Args:
      s: The scheduler's parts.
      messages: The messages in flight, if they have been found already.
      lacking: Those that wait for others, if they have been found already.

    Returns:
      Lines of text.
    """
    messages = MessagesInFlight(s) if messages is None else messages
    lacking = find_lacking(s, messages) if lacking is None else lacking
    lines = dict.fromkeys(
        line for one in lacking[:MOST_EXAMINED] for line in explain_missing(s, messages, one)
    )
    growing = []
    for u in s.unfoldings:
        for line in expected_sources(s.plan, u, u.programs(ArrivalRanks(s.plan))):
            growing.append(line)
    return [
        *lines,
        *growing,
        *_throttle(s),
        *_latest_story(s, messages),
    ]


def _for_more(s: Snapshot) -> list[Waiting]:
    """Lists the nodes that wait for messages still to be pumped or chosen, which no program has yet."""
    result = []
    for u in s.unfoldings:
        for one in find_waiting(s.plan, u.workspace.joins, u.workspace.groups):
            result.append(one)
    return result


def _throttle(s: Snapshot) -> Iterator[str]:
    clock = s.tables.clock
    throttle = s.settings
    yield (
        f"in flight: {clock[c.N_TRAIN]} training and {clock[c.N_INFER]} inference instance(s), at most {throttle.max_active_keys} of each; "
        f"they enter {throttle.min_admission} at once at least"
    )
    items = s.tables.queues[:, c.ITEMS]
    held = np.flatnonzero(items).tolist()
    queues = [
        f"{DIRECTIONS[q % c.N_DIRECTIONS]} of `{s.plan.stages[q // c.N_DIRECTIONS].name}` {items[q]}"
        for q in held
    ]
    yield "queues: " + (", ".join(queues[:MOST_LISTED]) if queues else "empty")


def _latest_story(s: Snapshot, messages: MessagesInFlight) -> Iterator[str]:
    """Tells the oldest instance's known story and its progress."""
    if not len(messages.handles):
        return
    instances = s.tables.instances[messages.handles]
    oldest = int(instances[instances[:, c.AGE].argmin(), c.ID])
    lines = story(s, oldest, {})
    yield f"instance {oldest} is the oldest; " + (
        "lately:" if lines else "nothing of it has been dispatched lately"
    )
    yield from (f"  {line}" for line in lines[-LAST_STORY_LINES:])
    yield from progress(s, messages, oldest)
