"""Digests of schedules, printed as JSON: run as a program with NUMBA_DISABLE_JIT=1 it shows what the loops do as plain Python."""

import json
import sys
from itertools import cycle

from support.frozen import digest
from support.models import model
from support.schedules import Scheduled, at_once, by_table, in_virtual_time

from ampjax.plan.affinity import assign
from ampjax.plan.planner import make_plan
from ampjax.sched.choosing.policy_numbers import NUMBERS
from ampjax.sched.decisions.policy import POLICIES
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings

NAMES = "sequences in replicas", "trees", "molecules", "questions, edge by edge", "tagger"
COMPILED = [name for name, policy in POLICIES.items() if policy in NUMBERS]
CASES = [
    (name, policy, size, drive, budget)
    for name, policy in zip(cycle(NAMES), COMPILED, strict=False)
    for size, drive, budget in ((2, at_once, None), (64, in_virtual_time, 1), (3, by_table, 0))
]
"""Each compiled policy with one of the models, with staleness budgets and without."""


def digests():
    """A digest for each case."""
    found = []
    for name, policy, size, drive, budget in CASES:
        graph, data = model(name)
        plan = make_plan(graph, assign(graph, 2), (0, 1))
        intervals = dict.fromkeys(graph.parameterised, 7)
        if budget is None:
            budgets = {}
        else:
            budgets = dict.fromkeys(graph.parameterised, budget)
        limits = {"max_active_keys": 4, "max_dispatch_size": size, "budgets": budgets}
        settings = SchedulerSettings(intervals=intervals, policy=POLICIES[policy], **limits)
        found.append(
            digest(
                list(
                    drive(
                        Scheduled(plan, settings, data),
                        len(data),
                        2,
                    )
                )
            )
        )
    return found


if __name__ == "__main__":
    early = "numba" in sys.modules  # all has been imported, and no scheduler made
    print(json.dumps({"digests": digests(), "numba was imported early": early}))
