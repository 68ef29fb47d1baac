"""The story of an instance: the dispatches that held its messages lately, and the progress of all of its messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.diagnose.inflight import (
    AWAITS_GRADIENTS,
    LACKS_INPUTS,
    LIFE_OVER,
    QUEUED_BACKWARD,
    QUEUED_FORWARD,
    RUNS_BACKWARD,
    RUNS_FORWARD,
    MessagesInFlight,
)
from ampjax.sched.diagnose.snapshot import Snapshot
from ampjax.sched.layout import columns as c

STORY_LINES = 6
"""Lines of the story that an error tells."""

PHASE_WORDS = {
    LIFE_OVER: "ended",
    RUNS_BACKWARD: "on the way back",
    QUEUED_BACKWARD: "in queues, backward",
    AWAITS_GRADIENTS: "owed gradients",
    RUNS_FORWARD: "on the way forth",
    QUEUED_FORWARD: "in queues, forward",
    LACKS_INPUTS: "without all inputs",
}
"""How far messages have come, in words, the furthest first."""


def story(
    s: Snapshot,
    instance: int,
    fields: Mapping[str, int],
    until: int | None = None,
) -> list[str]:
    """One line for each dispatch that held messages of an instance with these state fields, as far back as the log goes.

    Args:
      s: The scheduler's parts.
      instance: The instance's number.
      fields: Values of state fields.
      until: The last dispatch that counts; None for the latest.

    Returns:
      The lines, oldest dispatch first.
    """
    lines = []
    for d in s.log:
        is_of_instance = d.ids == instance
        if d.stage < 0 or (until is not None and d.number > until) or not is_of_instance.any():
            continue
        mine = s.states_of(d)[is_of_instance]
        for name, value in fields.items():
            mine = mine[mine[:, s.plan.layout.column(name)] == value]
        if len(mine):
            more = f" and {len(mine) - 1} more" if len(mine) > 1 else ""
            what = f"{d.direction} `{s.plan.stages[d.stage].name}` on worker {d.worker}"
            lines.append(f"dispatch {d.number}: {what}, {s.first_of(d, mine)!r}{more}")
    return lines


def describe(s: Snapshot, d: Dispatch) -> str:
    """Tells where an error happened: the dispatch, and the first message with its story.

    Returns:
      Some lines of text.
    """
    if d.stage < 0:
        return f"in {d!r}"
    first = s.first_of(d, s.states_of(d))
    lines = story(s, int(first.instance[0]), {}, until=d.number)[-STORY_LINES:]
    head = f"in {d.describe(s.plan.stages[d.stage].name)}; first message {first!r}; its story:"
    return "\n".join([head, *(f"  {line}" for line in lines)])


def progress(
    s: Snapshot,
    messages: MessagesInFlight,
    instance: int,
) -> list[str]:
    """Tells how many of an instance's messages have come how far.

    Returns:
      A line for each time that the instance is in flight.
    """
    lines = []
    for handle in messages.handles[s.tables.instances[messages.handles, c.ID] == instance].tolist():
        counts = Counter(messages.phase[messages.handle == handle].tolist())
        if not counts:
            continue
        parts = ", ".join(
            f"{counts[phase]} {words}" for phase, words in PHASE_WORDS.items() if counts[phase]
        )
        lines.append(
            f"of instance {instance}'s {counts.total()} invocations and pumped messages are {parts}"
        )
    return lines
