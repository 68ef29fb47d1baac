"""The tables that loops work on: which column holds what. Each is an array `[lines, columns]` of integers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# `stages` int64: one line for each stage; pump `p` is line `-1 - p`.
KIND, WORKER, N_PORTS, N_OUTPUTS, IS_TRANSFER, AHEAD, PARAMS, N_PARAMS = range(8)
"""What it is; its worker; ports; outputs; whether it copies rows to another memory; workers ahead; its parameterised nodes begin in `params`; how many."""
STASHES, ASKS, RAGGED, SIZES = range(8, 12)
"""Whether messages go back with those of the same parameter versions alone; whether a payload decides what its messages do; whether these hold any number of rows;
from here on the sizes that its dispatches are padded to, in rising order; zeros where they are not."""
N_SIZES = 64
"""So many sizes: at least every second one is twice the one before the last, so they reach beyond 2 ** 31 rows."""
ARENA = SIZES + N_SIZES
"""From here on the arena of each output."""

COMPUTES, ENDS, GROUPS, PUMPS = range(4)
"""Kinds: has outputs; has none (a loss or sink); a group; a pump."""

# `params` int64: the parameterised nodes of all stages; those of a stage that share parameters side by side.
NODE, WAY = range(2)
"""The node whose parameters it has; the column of `edges` that counts its rows, `OF_INPUT` or `OF_OUTPUT`."""
OF_INPUT, OF_OUTPUT = -1, -2
"""It works on as many rows as its stage's first port has, or as its outputs have: what comes after a chain."""

# `nodes` int64: one line for each node that has parameters of its own.
COUNT, VERSION, INTERVAL, STALENESS, MEETS = range(5)
"""Gradient rows since its last update; updates so far; `min_update_interval`; the summed staleness of those rows; whether replicas meet when it updates."""
UPDATES, STALE_SUM, STALE_MAX, HISTOGRAM = range(5, 9)
"""Counted for statistics: updates; the summed and the largest staleness of gradient rows; from here on the gradient rows of each staleness."""
BINS = 128
"""Columns of that histogram; the last one counts all that is staler, too."""

# `lines` int32: one line for each invocation of all programs.
STAGE, ROW, SIZE, ROWS, IN, N_IN, OUT, N_OUT, OWED = range(9)
"""As in `Programs`; inputs begin at `IN` in `inputs`, consumptions at `OUT` in `outputs`."""

# `inputs` int32.
FROM, FIRST, LENGTH = range(3)
"""The invocation whose rows an input holds; its first row, or `~i` for picks; its rows."""

# `outputs` int32.
TO, RANK = range(2)
"""The invocation that consumes; in which order ports are reached."""

# `live` int32: one line for each invocation of the instances in flight.
NEED, LEFT, SLOT, INVOCATION, BORN, NEXT, TOGETHER, SEEN = range(8)
"""Inputs that are missing; gradients that are owed; its instance's slot; its line among all programs; the dispatch that made it ready;
who stands behind it in its queue, and among those that travel on together; from here on the versions that it saw."""

# `instances` int64: one line for each slot.
LINE, PICK, LIVE, PLACE, ROWS_AT, AGE, TRAIN, ALIVE, LENGTH_OF, N_ROWS, ID, PURPOSE = range(12)
"""Its program's first line; its first pick; its first line in `live`; its place among all programs; its first row in `slots`; how many were admitted before; whether it trains; invocations that have not ended; invocations; rows; its number; what it is run for, as a number."""

# `Store.programs` int64: a line for each program.
P_LINE, P_LENGTH, P_PICK, P_ROWS, P_ID, WAVE, P_SINCE, KEY = range(8)
"""Its first line; how many; its first pick; its rows; the number of the instance that it was unfolded for; its wave; the latest dispatch when it came; its key, two numbers."""
PUMPED = KEY + 2
"""From here on the rows that are pumped into each arena."""

NOBODY, DROPPED = -1, -2
"""In the table that finds programs: a free entry; one whose program has been given up, which searches go past."""

# `Store.uses` int64: a line for each wave.
USERS, USED = range(2)
"""Instances in flight that have one of its programs; when one was last asked for, as `ASKED` counts."""

# `queues` int64: line `3 * stage + direction`.
HEAD, TAIL, ITEMS, WAITING, LONGEST, UNDER_WAY, SINCE, AT = range(8)
"""The first and the last message; messages; their rows; the most messages so far; messages that have gone forth and not come back; when it ceased to be empty; its place among its worker's, or -1."""
SORTED, N_SORTED, SORTED_BORN = range(8, 11)
"""The last of the messages that are in order of age; how many these are; when they began to wait."""
MAX_ROWS, MAX_IN, MAX_ITEMS, MAX_OUT = range(11, 15)
"""Rows from which on a dispatch is full, for policies; what it may hold: input rows, messages, output rows."""
DISPATCHES, TAKEN, TAKEN_ROWS, MOST_TAKEN, MOST_ROWS = range(15, 20)
"""Counted for statistics: dispatches, their messages and rows, and the most of these in one."""

FORWARD, BACKWARD, INFER = range(3)
"""Directions."""

# Virtual time (`loops.advance`), int64: `moments`, and `workers` with a line for each of these and a column for each worker.
NOW_NS, N_BUSY, N_ASKED, NEXT_ASKED, N_IN_VAIN, LOOKS = range(6)
"""The time; workers that have a dispatch; workers that are asked now, and how many of them have been; of these, how many have something that must wait; whether it must be found out who is asked next."""
END_NS, BY, DOES, FIRST_OF, N_OF, HEAP, TO_ASK = range(7)
"""When its dispatch ends, or `IDLE`; that one's number, queue, first message (others follow through `NEXT`) and messages. Then two lists: busy workers, a heap by the ends of their dispatches; workers that are asked, before which those stand that have asked in vain."""
IDLE = -1

# What a dispatch costs in virtual time (`sched.virtual_time.Rates`), float64: a line for each queue, and one for each of its terms.
FIRST_TERM, N_TERMS, FIXED_NS, ROW_BYTES = range(4)
"""Its terms begin there; how many; nanoseconds that any dispatch takes; bytes of a row that go to another device."""
OF_WHAT, PER_ROW = range(2)
"""Which rows count: as `WAY` has it; operations for each."""
PER_S, BYTES_PER_S = range(2)
"""Of the machine: operations and bytes in a second."""

# What `loops.decide` and `loops.advance` tell of a dispatch, int64.
Q, NUMBER, N_MESSAGES, N_ROWS_IN, N_DUE, DUE, PACK, N_PACK, PADDED = range(9)
"""Its queue, or why there is none; its number; messages; input rows; updates that are due, and where they begin in `due`; where it begins in `pack`, and its length there; the size that it is padded to, or 0."""
ASKER = 9
"""Its worker, which `loops.advance` tells, too."""

# A dispatch's pack int32: see `packs`.
N_HEAD = 3
"""Lines before those of ports: messages, their program lines, the numbers of their instances."""
TRASH = 0
"""The slot that padding is written to."""
ALIGNED = 16
"""A pack has a multiple of so many numbers, 64 bytes, so that the next one begins where XLA can read it in place."""

NOTHING, WAITS, NO_SLOTS, NO_ROOM = range(-1, -5, -1)
"""Nothing can be dispatched; the policy wants to wait; an arena has too few slots; the buffers are too small."""

# What `loops.admit` returns.
STARTED, LACKS_ROOM, PUMPED_BEFORE = range(3)
"""Instances have been started; a table or an arena has no room; something has been pumped for one of them before."""

# `clock` int64.
NOW, ENTERED, ADMITTED, LIVE_TOP, ROWS_TOP, N_ENDED, N_TRAIN, N_INFER = range(8)
"""The latest dispatch; times that a queue has ceased to be empty; instances admitted; ends of what `live` and `slots` have given out; instances that have ended and not been told of; those in flight."""
N_FINISHED, MOST_IN_FLIGHT, ASKED, N_VACANT = range(8, 12)
"""Counted for statistics: instances that have ended and been told of; the most in flight. Times that a program was asked for; slots for instances that are free."""
STIRRED = 12
"""From here on for each worker whether something has come for it since somebody last looked."""

# `free` int32: one line for each arena.
N_FREE, FREE = range(2)
"""How many slots are free; from here on these, the last of which is given out first."""

# `active` int32: one line for each worker.
N_ACTIVE, QUEUES = range(2)
"""How many queues hold messages; from here on these queues."""

# `idle` int32 and `ranges` int64: lines.
VACANT, ENDED = range(2)
"""Slots for instances that are free, the first `N_VACANT`; those of instances that have ended, the first `N_ENDED`."""
FREE_LIVE, FREE_ROWS, RUNS, RUN_LENGTHS = range(4)
"""Of `live` and of `slots`, the first free range of `2 ** k` lines, or -1; where loops note runs of a queue that are in order, and how long these are."""


NO_LIMIT = 1 << 60
"""So many rows that they are no limit."""


class Tables(NamedTuple):
    """All that loops read and write.

    Args:
      stages, params, nodes, lines, inputs, outputs, live, instances, queues, clock, free, active: See above.
      edges: `[places, ways]` int32: edges of each instance's chains.
      picks: `[p]` int32: as in `Programs`.
      slots: `[rows]` int32: the arena slot of each row of the instances in flight.
      idle: `[2, slots]`: see above.
      ranges: `[4, 64]`: see above.
    """

    stages: np.ndarray
    params: np.ndarray
    nodes: np.ndarray
    lines: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    edges: np.ndarray
    picks: np.ndarray
    live: np.ndarray
    instances: np.ndarray
    queues: np.ndarray
    clock: np.ndarray
    slots: np.ndarray
    free: np.ndarray
    active: np.ndarray
    idle: np.ndarray
    ranges: np.ndarray

    @property
    def n_free(self) -> np.ndarray:
        """`[arenas]`: how many slots are free."""
        return self.free[:, N_FREE]

    @property
    def vacant(self) -> np.ndarray:
        """The slots for instances that are free."""
        return self.idle[VACANT, : self.clock[N_VACANT]]

    @property
    def ended(self) -> np.ndarray:
        """The slots of instances that have ended, of which nobody has been told."""
        return self.idle[ENDED, : self.clock[N_ENDED]]

    def active_queues(self, worker: int) -> np.ndarray:
        """A worker's queues that hold messages."""
        return self.active[worker, QUEUES : QUEUES + self.active[worker, N_ACTIVE]]
