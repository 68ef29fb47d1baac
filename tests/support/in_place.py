"""The scheduler of integers where the engine expects the one that routes messages: what will remain of it when drivers call the new one themselves."""

from types import SimpleNamespace

from ampjax.sched.stats import Statistics
from ampjax.schedule.scheduler import IntegerScheduler


class InPlace:
    """Answers as `sched.Scheduler` does.

    Args:
      plan: The plan.
      settings: Its settings.
      check: Means nothing here.
    """

    def __init__(self, plan, settings, check=False):
        self._scheduler, self.plan, self.settings = IntegerScheduler(plan, settings), plan, settings
        self.stats, self._decided = Statistics(), {}

    def next(self, worker):
        dispatch = self._scheduler.next(worker)
        if dispatch is None:
            return None
        self._decided[dispatch.number] = dispatch
        return self._scheduler.completed(dispatch)

    def reads(self, completed):
        return self._scheduler.reads(self._decided[completed.number])

    def done(self, completed, choices=None):
        self._scheduler.done(self._decided.pop(completed.number), choices)

    def pool(self, arena):
        return SimpleNamespace(capacity=self._scheduler.capacity(arena))

    def __getattr__(self, name):
        return getattr(self._scheduler, name)
