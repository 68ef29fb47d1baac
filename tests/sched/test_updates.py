"""When parameters change (DESIGN, law 4), and how replicas are kept together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.sched.dispatch import Average, Contribute, Merge, Update
from ampjax.sched.stats import NodeStats, Statistics
from ampjax.sched.updates import ReplicaSync, Updates


class Bench:
    """An `Updates` and the changes it asked for."""

    def __init__(self, intervals, groups=None, rule="epoch", every=0, local=True):
        self.updates = Updates(intervals, groups or {}, ReplicaSync(rule, every), local)
        self.stats = Statistics({}, {node: NodeStats() for node in intervals})

    def rows(self, node, versions, sizes=None):
        sizes = None if sizes is None else np.array(sizes)
        return self.updates.gradients(node, np.array(versions), sizes, self.stats.nodes[node])

    def one(self, node, n=1):
        """`n` gradient rows of the newest version."""
        return self.rows(node, [self.updates.versions[node]] * n)


# Law 4


@given(
    st.integers(1, 9),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=20),
    st.booleans(),
    st.booleans(),
)
def test_no_update_has_fewer_rows_than_the_interval_but_at_a_flush(interval, dispatches, ragged, flush):
    bench, waiting, updates = Bench({"n": interval}), 0, 0
    for rows in dispatches:
        version = bench.updates.versions["n"]
        waiting += sum(rows) if ragged else len(rows)
        changes = bench.rows("n", [version] * len(rows), rows if ragged else None)
        if waiting >= interval:  # a dispatch larger than the interval gives one update
            assert changes == [Update("n", waiting, 0.0)]
            waiting, updates = 0, updates + 1
        else:
            assert changes == []
        assert bench.updates.counts["n"] == waiting and bench.updates.versions["n"] == updates
    if flush:
        assert bench.updates.flush(bench.stats) == ({"n": [Update("n", waiting, 0.0)]} if waiting else {})
        updates += waiting > 0
    assert bench.stats.nodes["n"].updates == updates
    assert bench.stats.nodes["n"].gradients == sum(sum(r) if ragged else len(r) for r in dispatches)


def test_the_controllers_modes_update_at_a_flush_only():
    bench = Bench({"a": 1, "b": 1}, local=False)
    assert bench.one("a", 100) == []
    assert bench.updates.flush(bench.stats) == {"a": [Update("a", 100, 0.0)]}  # `b` holds nothing
    assert bench.updates.flush(bench.stats) == {}


def test_nodes_count_for_themselves():
    bench = Bench({"a": 2, "b": 3})
    assert [bench.one("a"), bench.one("b"), bench.one("a"), bench.one("b"), bench.one("b")] == [
        [],
        [],
        [Update("a", 2, 0.0)],
        [],
        [Update("b", 3, 0.0)],
    ]
    assert bench.updates.versions == {"a": 1, "b": 1}


# Staleness


def test_staleness_is_updates_between_forward_and_adjoint():
    bench = Bench({"n": 4})
    for _ in range(2):
        bench.one("n", 4)
    assert bench.rows("n", [2, 1, 0]) == []
    (update,) = bench.rows("n", [0])
    assert update == Update("n", 4, (0 + 1 + 2 + 2) / 4)
    node = bench.stats.nodes["n"]
    assert (node.staleness_sum, node.staleness_max, node.staleness_mean) == (5, 2, 5 / 12)
    assert node.histogram[:4].tolist() == [9, 1, 2, 0]


def test_rows_of_ragged_messages_weigh_their_number():
    bench = Bench({"n": 1})
    bench.one("n")
    (update,) = bench.rows("n", [1, 0, 0], [1, 3, 0])
    assert update == Update("n", 4, 3 / 4)
    assert bench.stats.nodes["n"].histogram[:2].tolist() == [2, 3]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 4)), min_size=1, max_size=30))
def test_the_histogram_counts_every_row_once(rows):
    stats = NodeStats()
    for staleness, size in rows:
        stats.add(300, np.array([300 - staleness]), np.array([size]))
    expected = np.zeros(128, np.int64)
    for staleness, size in rows:
        expected[min(staleness, 127)] += size
    assert stats.histogram.tolist() == expected.tolist() and stats.gradients == sum(n for _, n in rows)
    assert stats.staleness_sum == sum(s * n for s, n in rows)


# Replicas

GROUP = {"g": ["g/0", "g/1", "g/2"]}
NODES = dict.fromkeys(GROUP["g"], 1)
AVERAGE = Average("g", ("g/0", "g/1", "g/2"))


def test_by_default_replicas_meet_at_the_end_of_an_epoch():
    bench = Bench(NODES, GROUP)
    assert bench.one("g/0", 50) == [Update("g/0", 50, 0.0)]
    assert bench.updates.end_of_epoch() == [AVERAGE]


def test_replicas_may_never_meet():
    bench = Bench(NODES, GROUP, "none")
    assert bench.updates.end_of_epoch() == []


def test_every_k_updates_of_one_replica_all_average():
    bench = Bench(NODES, GROUP, "every_k", 2)
    said = [bench.one(node) for node in ("g/0", "g/1", "g/2", "g/1", "g/0", "g/0", "g/1")]
    averaged = [AVERAGE in changes for changes in said]
    assert averaged == [False, False, False, True, False, True, False]
    assert bench.updates.end_of_epoch() == [AVERAGE]


def test_the_message_protocol():
    """arXiv version, §5: one triggers, each hands in at its next update, nobody waits."""
    bench = Bench(NODES, GROUP, "message", 2)
    steps = [
        ("g/0", []),
        ("g/1", []),
        ("g/0", [Contribute("g", "g/0")]),  # the second update of g/0 triggers
        ("g/0", []),  # it goes on meanwhile
        ("g/1", [Contribute("g", "g/1")]),
        ("g/1", []),
        ("g/2", [Contribute("g", "g/2"), Merge("g", ("g/0", "g/1", "g/2"))]),
        ("g/2", []),
        ("g/2", [Contribute("g", "g/2")]),  # counting starts anew
    ]
    for node, expected in steps:
        assert bench.one(node) == [Update(node, 1, 0.0), *expected]


def test_the_end_of_an_epoch_ends_a_round_of_the_message_protocol():
    bench = Bench(NODES, GROUP, "message", 1)
    assert bench.one("g/0")[1:] == [Contribute("g", "g/0")]
    assert bench.updates.end_of_epoch() == [AVERAGE]
    assert bench.one("g/1")[1:] == [Contribute("g", "g/1")]
    assert bench.one("g/0")[1:] == [Contribute("g", "g/0")]
    assert bench.one("g/2")[1:] == [Contribute("g", "g/2"), Merge("g", ("g/0", "g/1", "g/2"))]


@given(st.lists(st.sampled_from(GROUP["g"]), max_size=80), st.integers(1, 4))
def test_every_merge_has_one_contribution_of_each(order, every):
    bench, handed_in = Bench(NODES, GROUP, "message", every), []
    for node in order:
        for change in bench.one(node)[1:]:
            if isinstance(change, Contribute):
                handed_in.append(change.node)
            else:
                assert sorted(handed_in) == GROUP["g"]
                handed_in = []
    assert len(handed_in) == len(set(handed_in))


@pytest.mark.parametrize("rule", ["every_k", "message"])
def test_a_flush_counts_as_an_update(rule):
    bench = Bench(dict.fromkeys(GROUP["g"], 10), GROUP, rule, 1)
    bench.one("g/0", 3)
    (changes,) = bench.updates.flush(bench.stats).values()
    assert changes[0] == Update("g/0", 3, 0.0) and len(changes) == 2
