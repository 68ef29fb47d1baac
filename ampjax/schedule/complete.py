"""A dispatch as the scheduler that routes messages makes it, for what still reads such dispatches."""

from __future__ import annotations

import numpy as np

from ampjax.sched.dispatch import Dispatch as FullDispatch
from ampjax.sched.plan import Plan
from ampjax.schedule.contents import Contents
from ampjax.schedule.dispatch import Dispatch

NONE = np.zeros(0, np.int64)


def completed(plan: Plan, contents: Contents, d: Dispatch) -> FullDispatch:
    """A dispatch with all that is in it; `cells` are its messages, `inputs` are left out."""
    if d.stage < 0:
        states = np.zeros((0, plan.layout.width), np.int64)
        return FullDispatch(d.number, d.worker, None, d.direction, states, NONE, NONE, changes=d.changes)
    stage = plan.stages[d.stage]
    rows, n_ports = d.rows, len(stage.ports)
    states = contents.states(d)
    full = FullDispatch(d.number, d.worker, stage, d.direction, states, d.messages, NONE, rows[:n_ports])
    full.n_rows, full.changes, full.versions = d.n_rows, d.changes, d.versions
    full.drop = tuple((d.stage, versions) for versions in d.drop)
    full.out_rows = rows[n_ports:]
    full.sizes, full.edges, full.scatter = contents.sizes(d), contents.edges(d), contents.scatter(d)
    return full
