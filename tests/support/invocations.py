"""Who ran on what: the invocations of a run of the scheduler and those of programs, in one language, so that they can be compared.

An invocation is its stage, its state and, port by port, the rows that it reads; a row is the invocation that made it, the output and its place there, or, if it was
pumped, the pump and its place among what was pumped for the instance. Equal ones get equal numbers.
"""

from collections import Counter

import numpy as np

from ampjax.ir.state import SLOT
from ampjax.sched.policy import balanced
from ampjax.sched.scheduler import Scheduler, SchedulerSettings
from ampjax.unfold.unfolder import Unfolder


class Names(dict):
    """Numbers for what is hashable, equal for equal."""

    def __missing__(self, key):
        self[key] = number = len(self)
        return number


class Recorder:
    """Writes down what a scheduler runs.

    Args:
      scheduler: The scheduler, with nothing in flight.
      names: Numbers that are shared by all that is compared.
    """

    def __init__(self, scheduler, names):
        self.scheduler, self.names = scheduler, names
        self.found = Counter()
        self._row = {}  # by arena and slot
        self._seen = Counter()
        self._pumps = {name: -1 - i for i, name in enumerate(scheduler.plan.graph.pumps)}

    def pump(self, slots, batch):
        """Pumps, and notes where the rows lie."""
        for feed in self.scheduler.pump(slots, batch):
            own = batch[feed.pump]
            of = np.repeat(own.instance, 1 if own.sizes is None else own.sizes).tolist()
            for slot, place in zip(feed.slots.tolist(), of, strict=True):
                name = ("pumped", self._pumps[feed.pump], int(self.scheduler._inflight.ids[slots[place]]))
                self._row[feed.arena, slot] = (self.names[*name, self._seen[name]], 0, 0)
                self._seen[name] += 1

    def note(self, d):
        """Notes a dispatch that goes forward."""
        if d.stage is None or d.direction == "backward":
            return
        cells = self.scheduler._traffic.cells
        for i, state in enumerate(d.states.tolist()):
            inputs = []
            for port, cell in enumerate(d.inputs[i].tolist()):
                slots = cells.rows[cell].tolist() if d.stage.ragged else [int(cells.row[cell])]
                inputs.append(tuple(self._row[d.stage.ports[port].arena, slot] for slot in slots))
            name = self.names[d.stage.number, state[0], tuple(state[SLOT + 1 :]), tuple(inputs)]
            self.found[d.stage.number, state[0], name] += 1
            self._made(d, i, name)

    def _made(self, d, i, name):
        sizes = np.ones(len(d.states), np.int64) if d.out_sizes is None else d.out_sizes
        start = int(sizes[:i].sum())
        for j, (arena, rows) in enumerate(zip(d.stage.arenas, d.out_rows, strict=True)):
            for r, slot in enumerate(rows[start : start + sizes[i]].tolist()):
                self._row[arena, slot] = (name, j, r)


def scheduled(plan, batches, ids, names, purpose="train", max_dispatch_size=5, policy=balanced):
    """The invocations that a scheduler comes to, as a counter of `(stage, instance, number)`; and the scheduler."""
    settings = SchedulerSettings(max_active_keys=len(ids), max_dispatch_size=max_dispatch_size, policy=policy)
    scheduler = Scheduler(plan, settings)
    slots = scheduler.open(np.asarray(ids), purpose)
    recorder = Recorder(scheduler, names)
    for batch in batches:
        recorder.pump(slots, batch)
        moved = True
        while moved:
            moved = False
            for worker in range(plan.workers):
                while (d := scheduler.next(worker)) is not None:
                    recorder.note(d)
                    scheduler.done(d)
                    moved = True
    scheduler.close(slots)
    return recorder.found, scheduler


def unfolded(plan, programs, names):
    """The invocations of programs, as a counter of `(stage, instance, number)`."""
    found = Counter()
    for k in range(programs.n_instances):
        made, seen = {}, Counter()
        for i in range(int(programs.first[k]), int(programs.first[k + 1])):
            number, instance = int(programs.stage[i]), int(programs.ids[k])
            row, size = int(programs.row[i]), int(programs.size[i])
            if number < 0:
                for r in range(size):
                    made[row + r] = (names["pumped", number, instance, seen[number]], 0, 0)
                    seen[number] += 1
                continue
            stage = plan.stages[number]
            if stage.kind == "group":
                continue
            inputs = tuple(tuple(made[r] for r in rows.tolist()) for rows in programs.input_rows(i))
            name = names[number, instance, tuple(programs.states[i].tolist()), inputs]
            found[number, instance, name] += 1
            for j in range(len(stage.outputs)):
                made.update((row + j * size + r, (name, j, r)) for r in range(size))
    return found


def assert_as_scheduled(plan, batches, ids, purpose="train", **settings):
    """Programs say what the scheduler does: the same invocations on the same rows; the same messages wait in the end. Gives both."""
    names = Names()
    expected, scheduler = scheduled(plan, batches, ids, names, purpose, **settings)
    unfolder = Unfolder(plan)
    unfolding = unfolder.unfold(batches, ids, purpose, assume=True)
    assert sorted(unfolding.waiting()) == sorted(scheduler.waiting())
    programs = unfolder.end(unfolding)
    assert unfolded(plan, programs, names) == expected
    return programs, scheduler
