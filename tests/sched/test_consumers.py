"""Who consumes what: what the plan knows beforehand, and that counting on the way would say the same."""

import numpy as np
import pytest
from support import graphs
from support.control import admit, assert_empty, drain, plan_for, scheduler_for

from ampjax.sched.cells import Lines


def uses(graph):
    """How often a message of each node and pump is consumed in training."""
    plan = plan_for(graph)
    pumps = {name: plan.pump_uses.get(-1 - i) for i, name in enumerate(graph.pumps)}
    return {stage.name: stage.uses for stage in plan.stages if stage.kind != "transfer"} | pumps


def test_how_often_messages_are_consumed():
    assert uses(graphs.chain(2)) == {"f0": 1, "f1": 1, "loss": 0, "x": 1, "label": 1}
    assert uses(graphs.fan_out(3))["first"] == 3
    assert uses(graphs.diamond())["first"] == 1  # by one branch or the other
    assert uses(graphs.flat())["first"] is None  # as often as the state says
    assert uses(graphs.two_outputs())["parts"] is None  # a sink takes no gradient
    assert uses(graphs.rnn())["tanh"] == 1  # round the loop, or out of it


def test_a_port_is_alone_if_all_that_arrives_is_consumed_nowhere_else():
    alone = {stage.name: stage.alone for stage in plan_for(graphs.fan_out(2)).stages}
    assert alone["b0"] == (False,) and alone["add"] == (True, True)


CASES = {
    "chain": (graphs.chain(2), graphs.chain_data(5)),
    "rnn": (graphs.rnn(), graphs.rnn_data([1, 3, 2, 4])),
    "diamond": (graphs.diamond(), graphs.chain_data(5)),
    "fan_out": (graphs.fan_out(), graphs.chain_data(5)),
    "flat": (graphs.flat(), [graphs.flat_instance(n) for n in (0, 2, 1)]),
    "grouping": (graphs.grouping(), [graphs.grouping_instance(n) for n in (0, 2, 3)]),
    "two_outputs": (graphs.two_outputs(), graphs.two_outputs_data(4)),
    "repeating": (graphs.repeating(), [graphs.repeating_instance(n) for n in (3, 0, 1)]),
    "molecule": (
        graphs.molecule(),
        [graphs.molecule_instance(3, [(0, 1, 0), (1, 2, 1)]), graphs.molecule_instance(1, [])],
    ),
}


def schedule(graph, instances, counted):
    """Every dispatch with its messages and slots; `counted`: references are counted on the way, as if the plan knew nothing."""
    s = scheduler_for(graph, max_active_keys=100, max_dispatch_size=2)
    if counted:
        s.plan.pump_uses = dict.fromkeys(s.plan.pump_uses)
        for stage in s.plan.stages:
            stage.uses, stage.alone = None, (False,) * len(stage.ports)
    even = 2 if graph is graphs.two_outputs() else 1  # whose odd instances end at a sink
    admit(s, instances, ids=even * np.arange(len(instances)))
    said = [f"{d!r} {d.states.tolist()} {d.in_rows} {d.out_rows}" for d in drain(s)]
    assert_empty(s)
    return said


@pytest.mark.parametrize("name", CASES)
def test_counting_on_the_way_gives_the_same_schedule(name):
    assert schedule(*CASES[name], counted=False) == schedule(*CASES[name], counted=True)


def test_lines_are_written_read_cleared_and_kept_when_the_table_grows():
    lines = Lines(4, 3)
    lines.put(np.array([1, 3]), np.arange(10).reshape(2, 5)[:, 1:4])  # a part of wider lines will do
    lines.put(np.array([2]), np.array([[7, 8, 9]]))
    lines.clear(np.array([1]))
    larger = lines.grown(6)
    assert larger.take(np.array([3, 1, 2, 5])).tolist() == [[6, 7, 8], [0, 0, 0], [7, 8, 9], [0, 0, 0]]
