"""Explanations of a worker's next choice."""

from __future__ import annotations

from collections.abc import Sequence

from ampjax.sched.choosing.queue_views import Queue
from ampjax.sched.decisions.policy import Policy, Ranked, backward_first
from ampjax.sched.diagnose.inflight import MessagesInFlight
from ampjax.sched.diagnose.missing_inputs import MOST_LISTED, find_lacking
from ampjax.sched.diagnose.snapshot import Snapshot
from ampjax.sched.layout import columns as c


def explain(
    s: Snapshot,
    worker: int,
    queues: Sequence[Queue],
) -> list[str]:
    """Explains a worker's next choice, a line each: the choice, its queues, the messages that lack inputs there.

    Args:
      s: The scheduler's parts.
      worker: The worker.
      queues: Its queues that are not empty, in the order in which they ceased to be.

    Returns:
      A line for the choice, one for each queue in order of rank, and some for messages that lack inputs.
    """
    policy = s.settings.policy
    now = int(s.tables.clock[c.NOW])
    name = getattr(policy, "__name__", repr(policy))
    chosen = policy(queues, now) if queues else None
    if chosen is not None:
        head = f"worker {worker} takes {_words(chosen)} next: `{name}` puts it first"
    elif queues:
        first = backward_first(queues, now)
        head = (
            f"`{name}` lets worker {worker} wait; if nothing else moves, it takes {_words(first)}"
        )
    else:
        head = f"worker {worker} has nothing to take"
    if isinstance(policy, Ranked):
        ordered = sorted(queues, key=policy.rank)
    else:
        ordered = queues
    return [
        head,
        *(f"  {_line(q, policy)}" for q in ordered),
        *(f"  {one}" for one in _lacking(s, worker)),
    ]


def _words(q: Queue) -> str:
    return f"{q.direction} of `{q.stage.name}`"


def _line(q: Queue, policy: Policy) -> str:
    """The numbers of a queue that policies compare."""
    rank = f", rank {policy.rank(q)}" if isinstance(policy, Ranked) else ""
    return f"{_words(q)}: {q.items} message(s), {q.ready} of {q.rows} row(s) in one dispatch, since dispatch {q.born}{rank}"


def _lacking(s: Snapshot, worker: int) -> list[str]:
    """Lists the messages that lack inputs at a worker's stages."""
    lines = []
    for one in find_lacking(s, MessagesInFlight(s)):
        if one.waiting.stage.worker == worker:
            lines.append(str(one.waiting))
    return lines[:MOST_LISTED] + (
        [f"{len(lines) - MOST_LISTED} more wait there"] if len(lines) > MOST_LISTED else []
    )
