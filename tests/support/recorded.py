"""Runs without kernels that are written down decision by decision, and followed."""

import heapq

import numpy as np
from support.schedules import admit

from ampjax.drivers.replay_driver import Follower, ReplayDriver
from ampjax.plan.passes import Pass
from ampjax.trace.journal import FINISHED, Journal
from ampjax.trace.recording import Recorder, Recording


class ControlLoop:
    """What a replay driver asks of `drivers.run.DriverLoop`, over a side of `support.schedules`.

    Args:
      side: The scheduler and its data.
      n: Instances.
      journal: Told of every decision.
    """

    executor = None

    def __init__(self, side, n, journal):
        self.scheduler = side.scheduler
        self._side = side
        self._journal = journal
        self._n = n
        self._left = np.arange(n)
        self.told = []

    def begin(self):
        purpose = "train" if self._side._train else "both"
        self._journal.begins(
            Pass(
                self._side._data,
                np.arange(self._n),
                purpose,
            )
        )
        self.settle()

    def issue(self, worker):
        d = self.scheduler.next(worker)
        if d is not None:
            self._journal.decided(d)
            self.told.append(self._side.tell(d))
        return d

    def done(self, d):
        self._journal.done(d, None)
        self.scheduler.done(d)
        self.settle()

    def ahead(self, worker, most):
        """Several dispatches at once, each done as it is decided."""
        found = self.scheduler.ahead(worker, most)
        for d in found:
            self._journal.decided(d)
            self.told.append(self._side.tell(d))
            self._journal.done(d, None)
        self.settle()
        return found

    def settle(self):
        ended = self.scheduler.admission.take_ended()
        before = len(self._left)
        self._left, _ = admit(self._side, self._left)
        if ended or before > len(self._left):
            self._journal.settled(ended, before - len(self._left))

    def is_finished(self):
        if not len(self._left) and self.scheduler.rounds.end_of_data():
            self._journal.data_ended()
            return False
        return self.scheduler.idle


def in_turn(loop, workers):
    """Dispatches take as long as their rows say."""
    now = 0
    idle = set(range(workers))
    under_way = []
    while True:
        for worker in sorted(idle):
            d = loop.issue(worker)
            if d is not None:
                heapq.heappush(
                    under_way,
                    (now + 3 + d.n_rows, d.number, d),
                )
                idle.remove(worker)
        if not under_way:
            if loop.is_finished():
                return
            continue
        now, _, d = heapq.heappop(under_way)
        loop.done(d)
        idle.add(d.worker)


def on_the_clock(loop, workers):
    """Up to 16 dispatches at a time, each done as it is decided."""
    while not loop.is_finished():
        for worker in range(workers):
            loop.ahead(worker, 16)


def record(path, side, n, drive, workers):
    """Writes a run into a file; gives what was decided."""
    recorder = Recorder(path, {})
    journal = Journal(recorder.take, side.scheduler.contents.messages_of)
    loop = ControlLoop(side, n, journal)
    loop.begin()
    drive(loop, workers)
    journal.ends(None)
    recorder.close(FINISHED)
    return loop.told


async def follow(path, side, n):
    """Does again what a file says; gives what was decided."""
    follower = Follower(Recording(path), side.scheduler.contents.messages_of)
    loop = ControlLoop(side, n, follower.journal)
    loop.begin()
    await ReplayDriver(loop, follower).run()
    follower.journal.ends(None)
    follower.require_end()
    return loop.told
