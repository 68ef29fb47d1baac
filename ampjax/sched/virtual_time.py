"""Virtual time inside the scheduler: when each worker becomes free. A table holds the cost of each dispatch, so no cost model is called."""

from __future__ import annotations

import numpy as np

from ampjax.sched.decisions.dispatch import DIRECTIONS, Dispatch
from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import DispatchRates, Tables


class VirtualClock:
    """Virtual time, the workers that are busy, and the transfers that are on their way; at first there are none.

    Args:
      rates: What dispatches cost.
      workers: How many workers there are.
      now_ns: The time at which it starts.

    Attributes:
      moments, workers: For loops; see `columns`.
    """

    def __init__(self, rates: DispatchRates, workers: int, now_ns: int = 0):
        self.rates = rates
        self.moments = np.zeros(c.LOOKS + 1, np.int64)
        self.moments[c.NOW_NS] = now_ns
        self._n_workers = workers
        self.workers = np.zeros(
            (c.TO_ASK + 1, workers),
            np.int64,
        )
        self.workers[c.END_NS] = c.IDLE
        if rates.queues[:, c.OVERLAPS].any():
            self.make_room()
        self.ask_all()

    def make_room(self) -> None:
        """Makes room for more transfers on their way."""
        more = np.zeros(
            (
                len(self.workers),
                max(16, self.workers.shape[1]),
            ),
            np.int64,
        )
        more[c.END_NS] = c.IDLE
        self.workers = np.hstack([self.workers, more])

    @property
    def now_ns(self) -> int:
        """The time, in nanoseconds."""
        return int(self.moments[c.NOW_NS])

    def under_way(self, t: Tables) -> list[Dispatch]:
        """Gives the dispatches that have not ended, with the fields that stories read.

        Returns:
          Dispatches with their messages, without rows.
        """
        dispatches: list[Dispatch] = []
        for column in np.flatnonzero(self.workers[c.END_NS] != c.IDLE).tolist():
            _, number, q, v, n = self.workers[: c.RUNS_MESSAGES + 1, column].tolist()
            worker = int(t.stages[q // c.N_DIRECTIONS, c.WORKER])
            messages: list[int] = []
            for _ in range(n):
                messages.append(v)
                v = int(t.live[v, c.NEXT])
            pack = np.array(messages, np.int32)
            dispatches.append(
                Dispatch(
                    number,
                    worker,
                    q // c.N_DIRECTIONS,
                    DIRECTIONS[q % c.N_DIRECTIONS],
                    n,
                    0,
                    0,
                    pack,
                )
            )
        return dispatches

    @property
    def next_asked(self) -> int:
        """The worker that is asked next."""
        return int(self.workers[c.TO_ASK, self.moments[c.NEXT_ASKED]])

    def ask_all(self) -> None:
        """Lets every worker be asked; none may be busy."""
        self.workers[c.TO_ASK, : self._n_workers] = np.arange(self._n_workers)
        self.moments[[c.N_ASKED, c.NEXT_ASKED, c.N_BLOCKED]] = self._n_workers, 0, 0
