"""Compiles the scheduler's loops and ends: run as a program beside test processes that start, each of which would compile them itself."""

from support import graphs
from support.schedules import Scheduled, at_once, by_table

from ampjax.ir.instances import InstanceList
from ampjax.plan.affinity import assign
from ampjax.plan.planner import make_plan
from ampjax.sched.decisions.policy import POLICIES
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings

if __name__ == "__main__":
    graph = graphs.chain()
    data = InstanceList(graphs.chain_data(8))
    plan = make_plan(graph, assign(graph, 2), (0, 1))
    intervals = dict.fromkeys(graph.parameterised, 2)
    settings = SchedulerSettings(
        intervals=intervals, policy=POLICIES["balanced"], max_active_keys=4, max_dispatch_size=2
    )
    for drive in (at_once, by_table):
        list(
            drive(
                Scheduled(plan, settings, data),
                len(data),
                2,
            )
        )
