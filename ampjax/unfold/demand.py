"""What programs say of themselves: rows of each arena, rows of work, messages by stage. A dry run's counts, with nothing run."""

from __future__ import annotations

import numpy as np

from ampjax.sched.plan import Plan
from ampjax.sched.stages import ArenaKey
from ampjax.unfold.programs import Programs

Rows = dict[ArenaKey, int]


def demand(plan: Plan, programs: Programs) -> dict[ArenaKey, np.ndarray]:
    """For each device arena, the rows `[k]` that each instance needs if nothing is freed before it has ended."""
    found: dict[ArenaKey, np.ndarray] = {}
    place = programs.instance_of
    for number in np.unique(programs.stage[programs.stage >= 0]).tolist():
        mine = programs.stage == number
        for key in plan.stages[number].arenas if plan.stages[number].kind != "group" else ():
            rows = np.bincount(place[mine], programs.size[mine], programs.n_instances).astype(np.int64)
            found[key] = found.get(key, 0) + rows
    return found


def work(plan: Plan, programs: Programs) -> np.ndarray:
    """`[k]`: the rows that stages take in for each instance."""
    groups = [stage.number for stage in plan.stages if stage.kind == "group"]
    runs = (programs.stage >= 0) & ~np.isin(programs.stage, groups)
    return np.bincount(programs.instance_of[runs], programs.rows[runs], programs.n_instances).astype(np.int64)


def messages(plan: Plan, programs: Programs) -> dict[str, int]:
    """How many messages each stage takes in, by its name; groups, which are never dispatched, are not among them."""
    found = dict.fromkeys((stage.name for stage in plan.stages if stage.kind != "group"), 0)
    counts = np.bincount(programs.stage[programs.stage >= 0], minlength=len(plan.stages)).tolist()
    for stage, n in zip(plan.stages, counts, strict=True):
        if stage.kind != "group":
            found[stage.name] += n  # copies of one wire to several ports share a name
    return found
