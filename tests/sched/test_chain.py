"""Which chains become one stage, what a dispatch of one holds, and how its gradient rows are counted."""

import numpy as np
import pytest
from support import chains
from support.control import admit, drain, plan_for, scheduler_for

import ampjax.graphs as ag
from ampjax.errors import MessageError
from ampjax.plan.stage_kinds import EDGES

FUSED = "out+edge0+edge1+in+update"


def names(
    graph,
    worker_of=None,
    spaces=(0,),
    fuse=True,
):
    names = []
    for stage in plan_for(graph, worker_of, spaces, fuse).stages:
        names.append(stage.name)
    return names


def two_ends(other_topology=False, seen=False, edge_options=None, kinds=2):
    """A distribute and a collect, perhaps by another topology; perhaps what is distributed goes elsewhere, too."""
    with ag.Graph() as g:
        rows = ag.pump("rows", (2,), ragged=True)
        edges = ag.topology("edges")
        wires = ag.distribute(rows, edges, kinds, name="out")
        sent = []
        for k, w in enumerate(wires):
            sent.append(
                ag.ppt(
                    f"edge{k}",
                    chains.scale,
                    params=chains.one(),
                )(w)
            )
        if seen:
            ag.sink("seen", sent[0])
        ag.sink(
            "all",
            ag.collect(
                sent,
                ag.topology("others") if other_topology else edges,
                name="in",
            ),
        )
    return g


def test_a_chain_and_the_rows_that_it_meets_become_one_stage():
    plan = plan_for(chains.propagation(), fuse=True)
    (stage,) = (s for s in plan.stages if s.kind is EDGES)
    assert (
        stage.name == FUSED
        and stage.topology == "edges"
        and stage.params == ("edge0", "edge1", "update")
    )
    assert [port.name for port in stage.ports] == ["h"] and stage.aligned
    assert [node.name for node in stage.row_nodes] == ["update"]
    assert stage.edge_type_of == {
        "edge0": 0,
        "edge1": 1,
    }
    assert not any(s.kind.collects for s in plan.stages)


def test_without_fusion_every_node_is_a_stage():
    assert {"edge0", "edge1", "in", "update"} <= set(names(chains.propagation(), fuse=False))


def test_a_chain_alone():
    plan = plan_for(two_ends(), fuse=True)
    (stage,) = (s for s in plan.stages if s.kind is EDGES)
    assert stage.name == "out+edge0+edge1+in" and not stage.aligned and not stage.row_nodes


def test_a_chain_whose_edges_need_recorded_activations_stays_apart():
    assert "edge0" in names(chains.propagation(edge=chains.curved))


@pytest.mark.parametrize(
    "options",
    [{"max_dispatch_size": 8}, {"weights": "stashed"}],
)
def test_an_edge_node_with_options_of_its_own_stays_apart(options):
    assert "edge0" in names(chains.propagation(**options))


def test_ends_that_do_not_belong_together_stay_apart():
    assert "edge0" in names(two_ends(other_topology=True)) and "edge0" in names(two_ends(seen=True))


def test_workers():
    """A chain needs one worker; its row-wise nodes may be on another."""
    graph = chains.propagation()
    one_away = {node: int(node == "edge1") for node in graph.nodes}
    assert "edge0" in names(graph, one_away, (0, 1))
    update_away = {node: int(node == "update") for node in graph.nodes}
    assert {"out+edge0+edge1+in", "update"} <= set(names(graph, update_away, (0, 1)))


def test_rows_from_elsewhere_join_the_stage_as_ports():
    with ag.Graph() as g:
        rows, more = (ag.pump(name, (2,), ragged=True) for name in ("rows", "more"))
        edges = ag.topology("edges")
        sent = ag.distribute(rows, edges, 1, name="out")
        a = ag.collect(sent, edges, name="in")
        ag.sink(
            "end",
            ag.npt("meet", lambda a, x: a * x)(a, more),
        )
    (stage,) = (s for s in plan_for(g, fuse=True).stages if s.kind is EDGES)
    assert [port.name for port in stage.ports] == ["rows", "more"]
    assert stage.aligned


def run(data, **settings):
    scheduler = scheduler_for(chains.propagation(), fuse=True, **settings)
    admit(scheduler, data)
    return scheduler, drain(scheduler)


def test_a_dispatch_holds_its_edges_way_by_way():
    rng = np.random.default_rng(0)
    data = []
    for n in (3, 2):
        data.append(chains.instance(rng, n, 0))
    data[0]["edges"] = ag.Topology.from_edges(
        [0, 2, 1],
        [1, 0, 1],
        [1, 0, 1],
        3,
        2,
    )
    data[1]["edges"] = ag.Topology.from_edges(
        [1, 0],
        [0, 0],
        [0, 1],
        2,
        2,
    )
    _, dispatches = run(data)
    first = next(d for d in dispatches if d.stage.name == FUSED and d.direction == "forward")
    assert (
        first.n_messages == 2
        and first.sizes.tolist() == [3, 2]
        and first.edges.n_rows.tolist() == [3, 2]
    )
    assert first.edges.senders.tolist() == [2, 4, 0, 1, 3]
    assert first.edges.receivers.tolist() == [0, 3, 1, 1, 3]
    assert first.edges.counts.tolist() == [[1, 2], [1, 1]]
    assert [first.rows_at(first.stage, node) for node in ("edge0", "edge1", "update")] == [2, 3, 5]


def test_edges_are_found_once_for_instances_that_stay_together():
    _, dispatches = run(chains.odd_instances(), max_active_keys=7)
    found = [d.edges for d in dispatches if d.stage.name == FUSED]
    assert len(found) == 4
    assert all(edges is found[0] for edges in found)


def test_gradient_rows_are_edges_for_edge_nodes_and_rows_for_others():
    data = chains.odd_instances()
    scheduler, _ = run(
        data,
        max_active_keys=7,
        max_dispatch_size=4,
        intervals=dict.fromkeys(
            ["edge0", "edge1", "update", "encode"],
            1 << 40,
        ),
    )
    counts = []
    for k in (0, 1):
        counts.append(sum(len(d["edges"].gather[k]) for d in data))
    assert scheduler.updates.counts == {
        "edge0": 2 * counts[0],
        "edge1": 2 * counts[1],
        "update": 2 * 18,
        "encode": 18,
    }


def test_an_interval_of_edges_is_kept():
    intervals = {"edge0": 7, "edge1": 5, "update": 11}
    _, dispatches = run(
        chains.odd_instances(), max_active_keys=7, max_dispatch_size=4, intervals=intervals
    )
    due = []
    for d in dispatches:
        for change in d.changes:
            if change.node in intervals:
                due.append(change)
    assert {c.node for c in due} == set(intervals)
    assert all(c.count >= intervals[c.node] for c in due)


@pytest.mark.parametrize(
    "topology, said",
    [
        (
            ag.Topology.from_edges(
                [0],
                [0],
                [0],
                3,
                1,
            ),
            r"2 gather maps, one per output, got 1",
        ),
        (
            ag.Topology(
                (
                    np.array([0]),
                    np.array([], int),
                ),
                (np.array([0]),),
                3,
            ),
            r"scatter maps of \[1, 0\] places",
        ),
        (
            ag.Topology.from_edges(
                [5],
                [0],
                [0],
                3,
                2,
            ),
            r"row numbers below 3, the rows of the message, got 5",
        ),
        (
            ag.Topology.from_edges(
                [0],
                [0],
                [0],
                4,
                2,
            ),
            r"3 rows, as the message that is distributed, got 4",
        ),
    ],
)
def test_a_topology_that_does_not_fit(topology, said):
    data = [chains.instance(np.random.default_rng(0), 3, 0) | {"edges": topology}]
    with pytest.raises(MessageError, match=said):
        run(data)
