"""What travels over edges: one row for each way and sender, unless each edge carries its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import chains
from support.control import plan_for

from ampjax.plan.stage_kinds import EDGES
from ampjax.unfold.rules.edges import DispatchEdges, EdgeIndex


@st.composite
def edges(draw):
    """Some messages of up to five rows, and up to eight edges on each of three ways of each; their rows."""
    sizes = np.array(
        draw(
            st.lists(
                st.integers(1, 5),
                min_size=1,
                max_size=4,
            )
        )
    )
    counts = np.array(
        draw(
            st.lists(
                st.lists(
                    st.integers(0, 8),
                    min_size=3,
                    max_size=3,
                ),
                min_size=len(sizes),
                max_size=len(sizes),
            )
        )
    )
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    first = np.cumsum(sizes) - sizes
    ends = []
    for way in range(3):
        for m in range(len(sizes)):
            ends.append(first[m] + rng.integers(0, sizes[m], (2, counts[m, way])))
    senders, receivers = np.concatenate(ends, axis=1)
    return DispatchEdges(
        senders,
        receivers,
        counts,
        sizes,
        draw(st.booleans()),
    ), sizes


def senders_of(edges, sizes):
    """For each message, the senders of the edges of each way."""
    of_message = np.repeat(np.arange(len(sizes)), sizes)
    way = np.repeat(np.arange(3), edges.totals)
    result = []
    for m in range(len(sizes)):
        result.append(
            [edges.senders[(way == w) & (of_message[edges.senders] == m)] for w in range(3)]
        )
    return result


@given(edges())
def test_edges_carry_their_senders_rows_and_no_row_is_sent_twice_on_a_way(drawn):
    edges, _ = drawn
    sent = edges.sent
    way = np.repeat(np.arange(3), edges.totals)
    way_sent = np.repeat(np.arange(3), sent.totals)
    assert np.array_equal(sent.senders[sent.of_edge], edges.senders)
    assert np.array_equal(way_sent[sent.of_edge], way)
    pairs = {
        *zip(
            way.tolist(),
            edges.senders.tolist(),
            strict=True,
        )
    }
    assert len(sent.senders) == (len(edges.senders) if edges.random else len(pairs))


@given(edges())
def test_loads_are_counted_message_by_message(drawn):
    edges, sizes = drawn
    if edges.random:
        number = len
    else:
        number = lambda senders: len(set(senders.tolist()))
    expected = []
    for ways in senders_of(edges, sizes):
        expected.append(
            [
                *map(number, ways),
                sum(map(len, ways)),
            ]
        )
    assert edges.loads(sizes).tolist() == expected


@pytest.mark.parametrize("random", [False, True])
def test_no_edges_send_nothing(random):
    nothing = np.zeros(0, np.int32)
    edges = DispatchEdges(
        nothing,
        nothing,
        np.zeros((2, 3), np.int64),
        np.ones(2, np.int64),
        random,
    )
    assert len(edges.sent.senders) == 0
    assert edges.sent.totals.tolist() == [0, 0, 0]
    assert edges.loads(np.ones(2, np.int64)).tolist() == [[0, 0, 0, 0]] * 2


def test_remembered_edges_are_those_of_the_topologies_not_of_the_slots():
    (stage,) = (s for s in plan_for(chains.propagation(), fuse=True).stages if s.kind is EDGES)
    first, other = (chains.instance(np.random.default_rng(seed), 3, 5)["edges"] for seed in (0, 1))
    maps = {0: first, 1: other}
    handles = np.array([0])
    sizes = np.array([3])
    index = EdgeIndex(stage, {"edges": maps})
    found = index.of(handles, sizes)
    assert index.of(handles, sizes) is found
    maps[0] = other
    assert np.array_equal(
        index.of(handles, sizes).senders,
        index.of(np.array([1]), sizes).senders,
    )
    assert index.of(handles, sizes) is not found
