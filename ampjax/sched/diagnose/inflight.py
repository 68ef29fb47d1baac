"""The messages of the instances in flight and the progress of each, read anew from the tables, a column for each property."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from ampjax.ir.state import State
from ampjax.sched.decisions.dispatch import DIRECTIONS
from ampjax.sched.diagnose.snapshot import Snapshot
from ampjax.sched.layout import columns as c
from ampjax.unfold.rules.message_columns import spread

(
    LACKS_INPUTS,
    QUEUED_FORWARD,
    RUNS_FORWARD,
    AWAITS_GRADIENTS,
    QUEUED_BACKWARD,
    RUNS_BACKWARD,
    LIFE_OVER,
) = range(7)
"""How far a message has come.

LACKS_INPUTS: Inputs are missing.
QUEUED_FORWARD: It is in a queue.
RUNS_FORWARD: Its forward dispatch is under way.
AWAITS_GRADIENTS: It has travelled on and is owed gradients.
QUEUED_BACKWARD: All who consume it have answered, and it is in a queue again.
RUNS_BACKWARD: Its backward dispatch is under way.
LIFE_OVER: Its life has ended.
"""

NOT_TRAVELLED = LACKS_INPUTS, QUEUED_FORWARD, RUNS_FORWARD
"""The phases of messages that have not travelled on."""

NOT_IN_FLIGHT = -1
"""The place of a line of `live` that holds no message."""


class MessagesInFlight:
    """The `m` messages of all instances in flight.

    Args:
      s: The scheduler's parts.

    Attributes:
      handles: `[k]`: the instances' handles.
      messages: `[m]`: the messages, as lines of `live`, instance by instance.
      handle: `[m]`: each one's instance.
      lines: `[m]`: their program lines.
      stage: `[m]`: what makes them; `-1 - p` for pump `p`.
      kind: `[m]`: what that is: `COMPUTES`, `ENDS`, `GROUPS` or `PUMPS`.
    """

    def __init__(self, s: Snapshot):
        self._s = s
        self.t = s.tables
        t = self.t
        free = np.concatenate([t.vacant, t.ended])
        self.handles = np.setdiff1d(
            np.arange(len(t.instances)),
            free,
        )
        instances = t.instances[self.handles]
        lengths = np.maximum(instances[:, c.N_INVOCATIONS], 0)
        self.messages = spread(instances[:, c.FIRST_LIVE], lengths)
        self.handle = np.repeat(self.handles, lengths)
        self.lines = spread(instances[:, c.FIRST_LINE], lengths)
        self.stage = t.lines[self.lines, c.STAGE].astype(np.int64)
        self.kind = t.stages[self.stage, c.KIND]

    @functools.cached_property
    def place(self) -> np.ndarray:
        """For each line of `live` its message's place here; -1 for none."""
        place = np.full(
            len(self.t.live),
            NOT_IN_FLIGHT,
            np.int64,
        )
        place[self.messages] = np.arange(len(self.messages))
        return place

    @functools.cached_property
    def n_missing(self) -> np.ndarray:
        """`[m]`: inputs that are missing; -1 for messages that have travelled on."""
        return self.t.live[self.messages, c.N_MISSING].astype(np.int64)

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """`[m]`: the numbers of their instances."""
        return self.t.instances[self.handle, c.ID]

    def states(self, places: np.ndarray) -> np.ndarray:
        """Gives the states of messages.

        Args:
          places: `[n]`: their places here.

        Returns:
          `[n, width]` int64.
        """
        return self._s.states(
            self.ids[places],
            self.lines[places],
        )

    def state(self, v: int) -> State:
        """Gives the state of a message, with its field names.

        Returns:
          One state.
        """
        return State(
            self.states(np.array([v])),
            self._s.plan.layout,
            self._s.fields(int(self.stage[v])),
        )

    @functools.cached_property
    def n_owed(self) -> np.ndarray:
        """`[m]`: gradients that are owed."""
        return self.t.live[self.messages, c.N_OWED].astype(np.int64)

    @functools.cached_property
    def trains(self) -> np.ndarray:
        """`[m]`: whether the instance trains."""
        return self.t.instances[self.handle, c.TRAIN] != 0

    @functools.cached_property
    def phase(self) -> np.ndarray:
        """`[m]`: how far each has come."""
        phase = np.where(self.n_owed > 0, AWAITS_GRADIENTS, LIFE_OVER)
        phase[self.n_missing > 0] = LACKS_INPUTS
        for q, places in self.queued.items():
            phase[self.place[places]] = (
                QUEUED_BACKWARD if q % c.N_DIRECTIONS == c.BACKWARD else QUEUED_FORWARD
            )
        for d in self._s.under_way:
            if d.stage >= 0:
                phase[self.place[d.messages]] = (
                    RUNS_BACKWARD if d.direction == DIRECTIONS[c.BACKWARD] else RUNS_FORWARD
                )
        return phase

    @functools.cached_property
    def queued(self) -> dict[int, np.ndarray]:
        """The messages in each queue that is not empty, in order; of one that goes in a circle each once."""
        result = {}
        for q in np.flatnonzero(self.t.queues[:, c.ITEMS]).tolist():
            result[q] = np.fromiter(self._walk(q), np.int64)
        return result

    def _walk(self, q: int) -> Iterator[int]:
        v = int(self.t.queues[q, c.HEAD])
        seen = set[int]()
        while v >= 0 and v not in seen:
            yield v
            seen.add(v)
            v = int(self.t.live[v, c.NEXT])

    @functools.cached_property
    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All inputs, message by message: consumers and producers as places here, and the inputs' numbers among the consumer's, `[e]` each."""
        counts = self.t.lines[self.lines, c.N_IN].astype(np.int64)
        consumer = np.repeat(np.arange(len(self.lines)), counts)
        entries = spread(
            self.t.lines[self.lines, c.FIRST_INPUT].astype(np.int64),
            counts,
        )
        base = self.t.instances[self.handle[consumer], c.FIRST_LIVE]
        number = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts)
        return consumer, self.place[base + self.t.inputs[entries, c.PRODUCER]], number

    @functools.cached_property
    def missing(self) -> np.ndarray:
        """`[e]`: whether each of the inputs has yet to come, since its producer has not travelled on."""
        return np.isin(self.phase[self.inputs[1]], NOT_TRAVELLED)
