"""The missing inputs of the instances in flight: invocations of which some inputs have come and others have not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ampjax.ir.state import State
from ampjax.plan.stages import Stage
from ampjax.sched.diagnose.inflight import (
    QUEUED_FORWARD,
    RUNS_BACKWARD,
    RUNS_FORWARD,
    MessagesInFlight,
)
from ampjax.sched.diagnose.snapshot import Snapshot
from ampjax.sched.layout import columns as c
from ampjax.unfold.incomplete import Waiting, missing_members, missing_ports

MOST_LISTED = 8
"""The most waiting nodes that an error lists."""

MOST_EXAMINED = 3
"""For how many of these an error says where what they lack should come from."""

MOST_STEPS = 8
"""Messages that wait for one another, of which an error tells at most."""


@dataclass(frozen=True, eq=False)
class Lacking:
    """A message that waits, and the places of the messages whose rows the waiting message lacks.

    Args:
      waiting: The message in words, as they are the same wherever messages wait.
      missing: Places in `MessagesInFlight` of the messages whose rows it lacks.
    """

    waiting: Waiting
    missing: tuple[int, ...]


def in_one_sentence(lines: list[str]) -> str:
    """Joins lines to one sentence.

    Args:
      lines: The lines; more than `MOST_LISTED` are only counted.

    Returns:
      The sentence.
    """
    more = f"; and {len(lines) - MOST_LISTED} more" if len(lines) > MOST_LISTED else ""
    return "; ".join(lines[:MOST_LISTED]) + more


def find_lacking(s: Snapshot, messages: MessagesInFlight) -> list[Lacking]:
    """Finds the messages that wait and for which something has come.

    Returns:
      These messages, instance by instance.
    """
    consumer, producer, number = messages.inputs
    some = np.bincount(consumer, ~messages.missing, len(messages.lines)) > 0
    waiting = np.flatnonzero((messages.n_missing > 0) & some)
    starts = np.searchsorted(consumer, waiting), np.searchsorted(consumer, waiting, side="right")
    lacking = []
    for v, begin, end in zip(waiting.tolist(), *(of.tolist() for of in starts), strict=True):
        lacks = messages.missing[begin:end]
        tell = _group if messages.kind[v] == c.GROUPS else _join
        one = tell(
            s,
            messages,
            v,
            number[begin:end][lacks],
            number[begin:end][~lacks],
        )
        lacking.append(
            Lacking(
                one,
                tuple(producer[begin:end][lacks].tolist()),
            )
        )
    return lacking


def _join(
    s: Snapshot,
    messages: MessagesInFlight,
    v: int,
    lacks: np.ndarray,
    has: np.ndarray,
) -> Waiting:
    """Describes a message that has come to a port and waits for other ports."""
    stage = s.plan.stages[messages.stage[v]]
    port = int(has[0])
    missing = tuple(lacks.tolist())
    return Waiting(
        stage,
        _known_state(s, messages, v, stage, port),
        port,
        missing,
        missing_ports(stage, missing),
    )


def _group(
    s: Snapshot,
    messages: MessagesInFlight,
    v: int,
    lacks: np.ndarray,
    has: np.ndarray,
) -> Waiting:
    """Describes a group of which some members, or the opener, have come, and the missing ones."""
    stage = s.plan.stages[messages.stage[v]]
    n = len(lacks) + len(has)
    size = int(s.tables.lines[messages.lines[v], c.IN_ROWS])
    opens = n > size and n - 1 in lacks  # the opener stands last
    what = missing_members(len(lacks), None if opens else size)
    port = 0 if len(has[has < size]) else 1
    return Waiting(
        stage,
        messages.state(v),
        port,
        (1,) if opens else (0,),
        what,
    )


def _known_state(
    s: Snapshot,
    messages: MessagesInFlight,
    v: int,
    stage: Stage,
    port: int,
) -> State:
    """Gives the known part of the state of the message at a port: all of the state at port 0, the key's fields at others."""
    state = messages.state(v)
    if port == 0:
        return state
    if isinstance(stage.join, tuple):
        names = stage.join
    elif callable(stage.join):
        names = ()
    else:
        names = state.fields
    fields = tuple(name for name in stage.ports[port].type.fields if name in names)
    return State(state.array, s.plan.layout, fields)


def explain_missing(
    s: Snapshot,
    messages: MessagesInFlight,
    one: Lacking,
) -> Iterator[str]:
    """Tells for each missing message where that message is, and which inputs the missing message lacks in turn.

    Yields:
      A line for each message that is missing.
    """
    for v in dict.fromkeys(one.missing):
        yield f"what `{one.waiting.stage.name}` lacks comes from {where_is(s, messages, v)}"


def where_is(
    s: Snapshot,
    messages: MessagesInFlight,
    v: int,
    steps: int = 0,
) -> str:
    """Tells where a message is that has not travelled on.

    Args:
      s: The scheduler's parts.
      messages: The messages in flight.
      v: Its place in `messages`.
      steps: How many messages that wait for one another have been told of.

    Returns:
      Its state, and its queue, its dispatch, or what it lacks.
    """
    number = int(messages.stage[v])
    who = f"{s.name(number)} with {messages.state(v)!r}"
    phase = messages.phase[v]
    if phase == QUEUED_FORWARD:
        return f"{who}, which waits in its queue"
    if phase in (RUNS_FORWARD, RUNS_BACKWARD):
        return f"{who}, which is under way"
    if steps >= MOST_STEPS:
        return f"{who}, which lacks something, too"
    consumer, producer, _ = messages.inputs
    lacks = producer[(consumer == v) & messages.missing]
    if not len(lacks):
        return f"{who}, which lacks nothing"
    return f"{who}, which lacks what comes from {where_is(s, messages, int(lacks[0]), steps + 1)}"
