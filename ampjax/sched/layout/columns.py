"""The tables that the scheduler's loops work on: the meaning of each of their columns.

Each table is an array `[lines, columns]` of integers, and a constant here is the number of a column. `Tables` has all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FORWARD, BACKWARD, INFER = range(3)
"""Directions, in the order of `decisions.dispatch.DIRECTIONS`."""
N_DIRECTIONS = 3
"""Queue `N_DIRECTIONS * stage + direction` holds the messages that wait for a stage in one direction."""

# `stages` int64: a line for each stage; pump `p` has line `-1 - p`.
(
    KIND,
    WORKER,
    N_PORTS,
    N_OUTPUTS,
    IS_TRANSFER,
    WORKERS_AHEAD,
    PARAMS,
    N_PARAMS,
    STASHES,
    DROPS,
    ASKS,
    RAGGED,
    SIZES,
) = range(13)
"""KIND: `COMPUTES`, `ENDS`, `GROUPS` or `PUMPS`.
WORKER: The worker that runs it.
N_PORTS: Its input ports.
N_OUTPUTS: Its outputs.
IS_TRANSFER: Whether it copies rows to another memory space.
WORKERS_AHEAD: Workers on the way from it to where its messages end, its own included.
PARAMS: The line of `params` where its parameterised nodes begin.
N_PARAMS: How many of these it has.
STASHES: Whether a backward dispatch takes only messages that have seen the same parameter versions.
DROPS: Whether a backward dispatch takes only messages whose gradients are dropped at the same nodes.
ASKS: Whether a payload decides what its messages do next.
RAGGED: Whether a message may hold any number of rows.
SIZES: From here on the sizes that its dispatches are padded to, in rising order; zeros where they are not padded.
"""
N_SIZES = 64
"""Columns for sizes. At least every second size is twice the one before the last, so the sizes reach beyond 2 ** 31 rows."""
ARENA = SIZES + N_SIZES
"""From here on the arena of each output, by number."""

COMPUTES, ENDS, GROUPS, PUMPS = range(4)
"""Values of `KIND`: a stage with outputs; one without (a loss or sink); a group; a pump."""

# `params` int64: the parameterised nodes of all stages, stage by stage; those of a stage that share parameters stand side by side.
NODE, EDGE_TYPE = range(2)
"""NODE: Its line of `nodes`.
EDGE_TYPE: Which rows it works on: the column of `edges` that counts them, `OF_INPUT` or `OF_OUTPUT`.
"""
OF_INPUT = -1
OF_OUTPUT = -2
"""Values of `EDGE_TYPE`: as many rows as its stage's first port has; as many as its stage's outputs have (a node after a chain)."""

# `nodes` int64: a line for each node that has parameters of its own.
COUNT, VERSION, INTERVAL, STALENESS, MEETS, BUDGET, STALEST, HELD_SINCE = range(8)
"""COUNT: Gradient rows since its last update.
VERSION: Updates so far.
INTERVAL: `min_update_interval`; `NEVER` if only the controller updates it.
STALENESS: The summed staleness of the rows in `COUNT`.
MEETS: Whether replicas may be averaged when it updates.
BUDGET: `max_staleness`; `NO_BUDGET` if there is none.
STALEST: `drop_staler_than`; `NO_BUDGET` if nothing is dropped.
HELD_SINCE: The dispatch after which an update was due that is held back; 0 if none is.
"""
UPDATES, STALE_SUM, STALE_MAX, HELD_UPDATES, HELD_FOR, HISTOGRAM = range(8, 14)
"""UPDATES: Statistics: updates.
STALE_SUM: Statistics: the summed staleness of gradient rows.
STALE_MAX: Statistics: the largest staleness.
HELD_UPDATES: Statistics: updates that were held back.
HELD_FOR: Statistics: dispatches until these were made, summed.
HISTOGRAM: Statistics: from here on the gradient rows of each staleness.
"""
N_BINS = 128
"""Columns of the histogram. The last one also counts all rows that are staler."""
DROPPED_ROWS = HISTOGRAM + N_BINS
"""Statistics: gradient rows that were dropped."""
AWAITED = DROPPED_ROWS + 1
"""From here on, for a node with a budget `k`, how many messages that saw each of its latest `k + 1` versions owe it a gradient; a version stands at its remainder by `k + 1`."""
NEVER = -1
"""The interval of nodes that only the controller updates."""
NO_BUDGET = -1
"""The budget and the limit of nodes whose gradients may be as stale as they come."""

# `lines` int32: a line for each invocation of all programs.
STAGE, ROW, OUT_ROWS, IN_ROWS, FIRST_INPUT, N_IN, FIRST_OUTPUT, N_OUT, OWED = range(9)
"""STAGE: What it runs, as in `Programs.stage`.
ROW: Its first output row within its instance.
OUT_ROWS: Rows of each output.
IN_ROWS: Input rows of port 0.
FIRST_INPUT: The line of `inputs` where its inputs begin.
N_IN: Its inputs.
FIRST_OUTPUT: The line of `outputs` where its consumptions begin.
N_OUT: Its consumptions.
OWED: Gradients that come back to it.
"""

# `inputs` int32: a line for each input of each invocation.
PRODUCER, FIRST_ROW, LENGTH = range(3)
"""PRODUCER: The invocation whose rows it holds, by its number within the instance.
FIRST_ROW: The first of these rows, or `~i` where the rows are picks from place `i` on.
LENGTH: How many rows.
"""

# `outputs` int32: a line for each consumption, sorted by rank for each producer.
CONSUMER, RANK = range(2)
"""CONSUMER: The invocation that consumes, by its number within the instance.
RANK: Among the ports that a dispatch's messages reach, those of lower rank are reached first.
"""

# `live` int32: a line for each message of the instances in flight: what one invocation makes.
N_MISSING, N_OWED, HANDLE, INVOCATION, BORN, NEXT, NEXT_TOGETHER, SEEN = range(8)
"""N_MISSING: Inputs that are missing; `TRAVELLED` once it has travelled on.
N_OWED: Gradients that it is owed.
HANDLE: Its instance, as a line of `instances`.
INVOCATION: Its line of `lines`.
BORN: The dispatch that made it ready.
NEXT: The message behind it in its queue, or -1.
NEXT_TOGETHER: The message behind it among those that travel on together, or -1.
SEEN: From here on the parameter versions that it has seen on its way forward.
"""
TRAVELLED = -1
"""`N_MISSING` of a message that has travelled on. For a consumer that becomes known later it is no missing input."""

# `instances` int64: a line for each handle.
FIRST_LINE, FIRST_PICK, FIRST_LIVE, PROGRAM, FIRST_SLOT, AGE = range(6)
"""FIRST_LINE: The line of `lines` where its program begins.
FIRST_PICK: The place in `picks` where its picks begin.
FIRST_LIVE: The line of `live` where its messages begin.
PROGRAM: Its program's line of `ProgramStore.programs`, or `NO_PLACE`.
FIRST_SLOT: The place in `slots` where its rows begin.
AGE: How many instances were admitted before it.
"""
TRAIN, N_ALIVE, N_INVOCATIONS, N_OUT_ROWS, ID, PURPOSE = range(6, 12)
"""TRAIN: Whether it trains.
N_ALIVE: Its messages that have not ended, and one more until it is closed.
N_INVOCATIONS: Its invocations; -1 before anything has been pumped for it.
N_OUT_ROWS: Its output rows.
ID: The instance's number.
PURPOSE: What it is run for, by its place in `plan.passes.PURPOSES`.
"""
NO_PLACE = -1
"""The program of an instance that has none, and of lines that belong to no program."""

# `ProgramStore.programs` int64: a line for each program.
P_LINE, P_LENGTH, P_PICK, P_ROWS, P_ID, WAVE, P_SINCE, KEY = range(8)
"""P_LINE: Its first line of `lines`.
P_LENGTH: Its invocations.
P_PICK: Its first place in `picks`.
P_ROWS: Its output rows.
P_ID: The number of the instance that it was unfolded for.
WAVE: Its wave, or `NO_WAVE`.
P_SINCE: The latest dispatch when it was stored.
KEY: Its key, two columns.
"""
PUMPED = KEY + 2
"""From here on the rows that are pumped into each arena."""
NO_WAVE = -1
"""The wave of programs that came alone."""
NOBODY = -1
DROPPED = -2
"""In the hash table that finds programs: a free entry; an entry whose program has been dropped, which a search passes."""

# `ProgramStore.uses` int64: a line for each wave.
USERS, USED = range(2)
"""USERS: Instances in flight that have one of its programs.
USED: When one of them was last asked for, as `ASKED` counts.
"""

# `queues` int64: a line for each queue.
HEAD, TAIL, ITEMS, ITEM_ROWS, LONGEST, UNDER_WAY, SINCE, ACTIVE_AT = range(8)
"""HEAD: The first message.
TAIL: The last message.
ITEMS: How many messages wait.
ITEM_ROWS: How many input rows they have.
LONGEST: The most messages that have waited.
UNDER_WAY: Forward queues: messages between their forward and their backward dispatch.
SINCE: When it ceased to be empty, as `ENTERED` counts.
ACTIVE_AT: Its place among its worker's queues in `active`, or -1 if it is empty.
"""
SORTED, N_SORTED, SORTED_BORN = range(8, 11)
"""SORTED: The last of the messages that are in order of age; they stand first.
N_SORTED: How many these are.
SORTED_BORN: The dispatch that made the earliest of them ready.
"""
MAX_ROWS, MAX_IN, MAX_ITEMS, MAX_OUT = range(11, 15)
"""MAX_ROWS: Rows from which on a dispatch is full, for policies.
MAX_IN: Input rows that a dispatch may hold.
MAX_ITEMS: Messages that it may hold.
MAX_OUT: Output rows that it may hold.
"""
DISPATCHES, TAKEN, TAKEN_ROWS, MOST_TAKEN, MOST_TAKEN_ROWS = range(15, 20)
"""DISPATCHES: Statistics: dispatches.
TAKEN: Statistics: their messages.
TAKEN_ROWS: Statistics: their rows.
MOST_TAKEN: Statistics: the most messages in one.
MOST_TAKEN_ROWS: Statistics: the most rows in one.
"""
UNLIMITED = 1 << 60
"""More rows or messages than any dispatch has."""

# Policies that loops know by these numbers (`decisions.policy`), and what `balanced` weighs.
BACKWARD_FIRST, LARGEST, BALANCED, WAVEFRONT, ONE_FORWARD_ONE_BACKWARD = range(5)
"""The policies of `choosing.policy_numbers`."""
ROW_WEIGHT = 4
BACKWARD_ROW_WEIGHT = 6
"""`balanced`: dispatches of waiting that one ready row outweighs, forward and backward."""

# Virtual time (`loops.advance`). `moments` int64: one line.
NOW_NS, N_BUSY, N_ASKED, NEXT_ASKED, N_BLOCKED, LOOKS = range(6)
"""NOW_NS: The time.
N_BUSY: Dispatches that have not ended.
N_ASKED: Workers that are asked now.
NEXT_ASKED: How many of these have been asked.
N_BLOCKED: How many of these had messages and could start none.
LOOKS: Whether it must be found out who is asked next.
"""
# `workers` int64: a line for each of these, a column for each worker, and behind those one for each transfer that may be on its way while its worker goes on.
END_NS, RUNS_NUMBER, RUNS_QUEUE, RUNS_FIRST, RUNS_MESSAGES, HEAP, TO_ASK = range(7)
"""END_NS: When its dispatch ends, or `IDLE`.
RUNS_NUMBER: The dispatch's number.
RUNS_QUEUE: The dispatch's queue.
RUNS_FIRST: The dispatch's first message; the others follow through `NEXT`.
RUNS_MESSAGES: The dispatch's messages.
HEAP: A list, not by worker: the columns of dispatches that have not ended, as a heap by `END_NS`.
TO_ASK: A list, not by worker: the workers that are asked; the `N_BLOCKED` blocked ones stand first.
"""
IDLE = -1

# What dispatches cost in virtual time (`DispatchRates`), float64. `queues`: a line for each queue.
FIRST_TERM, N_TERMS, FIXED_NS, ROW_BYTES, OVERLAPS = range(5)
"""FIRST_TERM: The line of the terms where its terms begin.
N_TERMS: How many terms it has.
FIXED_NS: Nanoseconds that each of its dispatches takes.
ROW_BYTES: Bytes of a row that goes to another device.
OVERLAPS: Whether its worker can begin something else meanwhile.
"""
# `terms`: a line for each term.
OF_WHAT, PER_ROW = range(2)
"""OF_WHAT: Which rows count, as in `EDGE_TYPE`.
PER_ROW: Operations for each.
"""
# `machine`: one line.
PER_S, BYTES_PER_S = range(2)
"""PER_S: Operations in a second.
BYTES_PER_S: Bytes in a second.
"""

# `decided` int64: what `loops.decide` and `loops.advance` write about each dispatch.
QUEUE, NUMBER, N_MESSAGES, N_ROWS_IN, N_DUE, DUE, PACK, N_PACK, PADDED_SIZE, DECIDED_FOR = range(10)
"""QUEUE: Its queue; after the last dispatch, why there are no more: 0 or a reason (`NOTHING`, ...).
NUMBER: Its number.
N_MESSAGES: Its messages; with the reason `ARENA_FULL`, the arena.
N_ROWS_IN: Its input rows; with `ARENA_FULL` or `BUFFER_FULL`, what is needed.
N_DUE: Updates that are due after it.
DUE: The line of `due` where these begin.
PACK: The place where its pack begins.
N_PACK: The pack's length.
PADDED_SIZE: The size that it is padded to, or 0.
DECIDED_FOR: Its worker. `loops.decide` leaves it to its caller.
"""
NOTHING, WAITS, ARENA_FULL, BUFFER_FULL, LINKS_FULL = range(
    -1,
    -6,
    -1,
)
"""Why there are no more dispatches: nothing can be dispatched; the policy wants to wait; an arena has too few free slots; a buffer is too short;
there is no column for another transfer that is on its way."""

# A dispatch's pack int32: see `decisions.packs`.
N_HEAD = 3
"""Lines before those of ports: messages, their program lines, the numbers of their instances."""
TRASH = 0
"""The slot that padding is written to, in every arena."""
ALIGNED = 16
"""A pack's length is a multiple of this (64 bytes), so that the next pack begins where XLA can read it in place."""

# What `loops.admit` returns.
STARTED, LACKS_ROOM, PUMPED_BEFORE = range(3)
"""Instances have been started; a table or an arena has no room; something has been pumped for one of them before."""

# `clock` int64: one line.
NOW, ENTERED, ADMITTED, LIVE_TOP, ROWS_TOP, N_ENDED, N_TRAIN, N_INFER = range(8)
"""NOW: The number of the latest dispatch.
ENTERED: Times that a queue has ceased to be empty.
ADMITTED: Instances admitted so far.
LIVE_TOP: The end of what has been given out of `live`.
ROWS_TOP: The end of what has been given out of `slots`.
N_ENDED: Instances that have ended and have not been reported.
N_TRAIN: Training instances in flight.
N_INFER: Inference instances in flight.
"""
N_FINISHED, MOST_IN_FLIGHT, ASKED, N_VACANT, N_HOLDING, N_PUT_OFF, CLOSED, CLOSED_FOR, WOKEN = (
    range(8, 17)
)
"""N_FINISHED: Statistics: instances that have ended and have been reported.
MOST_IN_FLIGHT: Statistics: the most instances in flight.
ASKED: Times that a program was asked for.
N_VACANT: Handles that are free.
N_HOLDING: Nodes that hold back an update.
N_PUT_OFF: Groups of replicas that have put off a meeting.
CLOSED: Whether there were any of these when messages last travelled on: no training instance enters then.
CLOSED_FOR: Statistics: dispatches whose messages have travelled on while that was so.
WOKEN: From here on for each worker whether something has come for it since this was last looked at.
"""

# `free` int32: a line for each arena.
N_FREE, FREE = range(2)
"""N_FREE: How many slots are free.
FREE: From here on these slots; the last one is given out first.
"""

# `active` int32: a line for each worker.
N_ACTIVE, QUEUES = range(2)
"""N_ACTIVE: How many of its queues hold messages.
QUEUES: From here on these queues.
"""

# `idle` int32: two lists of handles.
VACANT, ENDED = range(2)
"""VACANT: Handles that are free, the first `N_VACANT`.
ENDED: Handles of instances that have ended and have not been reported, the first `N_ENDED`.
"""

# `ranges` int64: a line for each of these.
FREE_LIVE, FREE_ROWS, RUNS, RUN_LENGTHS = range(4)
"""FREE_LIVE: For each `k` the first free range of `2 ** k` lines of `live`, or -1.
FREE_ROWS: The same for `slots`.
RUNS: Scratch: the runs of a queue that are in order.
RUN_LENGTHS: Scratch: how long these are.
"""


class DispatchRates(NamedTuple):
    """Costs of dispatches: operations for each row and each update at a rate per second, rounded up to nanoseconds; bytes of transfers likewise; and fixed times.

    Args:
      queues: `[queues, 5]` float64: where a queue's terms begin, how many there are, nanoseconds that any of its dispatches takes, bytes of a row that travels, whether the worker goes on
        meanwhile.
      terms: `[terms, 2]` float64: which rows count, as in `Tables.params`; operations for each.
      updates: `[nodes]` float64: operations of an update of each parameterised node.
      machine: `[2]` float64: operations and bytes in a second.
    """

    queues: np.ndarray
    terms: np.ndarray
    updates: np.ndarray
    machine: np.ndarray


class Tables(NamedTuple):
    """All tables that loops read and write, a field for each table (so more than twelve fields).

    Args:
      stages: Int64: a line for each stage and each pump.
      params: Int64: the parameterised nodes of all stages.
      nodes: Int64: a line for each parameterised node.
      lines: Int32: a line for each invocation of all programs.
      inputs: Int32: a line for each input of an invocation.
      outputs: Int32: a line for each consumption.
      edges: `[programs, edge types]` int32: edges of each type of all chains.
      picks: `[p]` int32: rows that do not follow one another, as in `Programs`.
      live: Int32: a line for each message of the instances in flight.
      instances: Int64: a line for each handle.
      queues: Int64: a line for each queue.
      clock: Int64: counters of the scheduler.
      slots: `[rows]` int32: the arena slot of each row of the instances in flight.
      free: Int32: the free slots of each arena.
      active: Int32: the queues of each worker that hold messages.
      idle: `[2, handles]` int32: handles that are free, or whose instances have ended.
      ranges: `[4, 64]` int64: free ranges of `live` and `slots`.
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
        """The handles that are free."""
        return self.idle[VACANT, : self.clock[N_VACANT]]

    @property
    def ended(self) -> np.ndarray:
        """The handles of instances that have ended and have not been reported."""
        return self.idle[ENDED, : self.clock[N_ENDED]]

    def active_queues(self, worker: int) -> np.ndarray:
        """A worker's queues that hold messages, by number.

        Returns:
          `[n]` int32, in no order that counts.
        """
        return self.active[worker, QUEUES : QUEUES + self.active[worker, N_ACTIVE]]
