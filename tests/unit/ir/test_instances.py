import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.errors import DataError, MessageError
from ampjax.ir.instances import InstanceList, Instances, Topology, messages

KINDS = st.lists(st.integers(0, 3), max_size=20)


@given(KINDS)
def test_from_kinds_sends_each_row_out_and_back(kinds):
    topology = Topology.from_kinds(kinds, 4)
    rows = np.arange(len(kinds))
    back = np.full(len(kinds), -1)
    for kind, (gather, scatter) in enumerate(
        zip(
            topology.gather,
            topology.scatter,
            strict=True,
        )
    ):
        assert all(kinds[i] == kind for i in gather)
        back[scatter] = rows[gather]
    assert np.array_equal(back, rows) and topology.n_rows == len(kinds)
    assert len(topology.gather) == len(topology.scatter) == 4


@given(st.integers(1, 6), st.data())
def test_from_edges_is_a_sum_over_incoming_edges_of_each_kind(n_node, data):
    node = st.integers(0, n_node - 1)
    edges = data.draw(
        st.lists(
            st.tuples(node, node, st.integers(0, 2)),
            max_size=15,
        )
    )
    if edges:
        senders, receivers, kinds = (list(column) for column in zip(*edges, strict=True))
    else:
        senders = []
        receivers = []
        kinds = []
    topology = Topology.from_edges(senders, receivers, kinds, n_node, 3)
    features = 10.0 ** np.arange(n_node)
    expected = np.zeros(n_node)
    got = np.zeros(n_node)
    for sender, receiver, kind in edges:
        expected[receiver] += (kind + 1) * features[sender]
    for kind in range(3):
        np.add.at(
            got,
            topology.scatter[kind],
            (kind + 1) * features[topology.gather[kind]],
        )
    np.testing.assert_allclose(got, expected)
    assert topology.n_rows == n_node


def test_a_topology_holds_flat_int64_arrays():
    topology = Topology(
        ([1, 0], []),
        (
            [[0], [1]],
            np.zeros(0, np.int32),
        ),
        2,
    )  # type: ignore[arg-type]
    assert [a.dtype for a in (*topology.gather, *topology.scatter)] == [np.int64] * 4
    assert [a.shape for a in (*topology.gather, *topology.scatter)] == [(2,), (0,), (2,), (0,)]


@pytest.mark.parametrize(
    ("gather", "scatter", "text"),
    [
        (
            ([-1],),
            ([0],),
            r"Topology\.gather: expected row numbers of at least 0, got a negative row number\. Count rows from 0, and leave out rows that go nowhere: a negative number does not count from the end\.",
        ),
        (
            ([0],),
            ([-2],),
            r"Topology\.scatter: expected row numbers of at least 0, got a negative row number\. Count rows from 0, and leave out rows that go nowhere: a negative number does not count from the end\.",
        ),
        (
            ([0],),
            ([0, 2],),
            r"Topology\.scatter: expected row numbers below n_rows = 2, got 2\. Give n_rows the number of rows that collect",
        ),
    ],
)
def test_foreign_row_numbers_are_refused(gather, scatter, text):
    with pytest.raises(DataError, match=f"^{text}"):
        Topology(gather, scatter, 2)


def test_bare_payloads_are_one_message_without_fields():
    data = InstanceList(
        [
            {
                "x": [1.0, 2.0],
                "y": 3,
            },
            {"x": [4.0, 5.0], "y": 6},
        ]
    )
    assert isinstance(data, Instances) and len(data) == 2
    columns = data.gather(np.array([1, 0, 1]))
    assert columns["x"].payload.tolist() == [[4, 5], [1, 2], [4, 5]]
    assert columns["y"].payload.tolist() == [6, 3, 6]
    for column in columns.values():
        assert column.instance.tolist() == [0, 1, 2]
        assert column.fields == {}
        assert column.sizes is None


@given(
    st.lists(
        st.lists(
            st.integers(0, 9),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=6,
    ),
    st.data(),
)
def test_columns_hold_every_message_of_every_instance(lists, data):
    instances = InstanceList(
        [{"tokens": messages(L, t=np.arange(len(L)), length=len(L))} for L in lists]
    )
    ids = data.draw(
        st.lists(
            st.integers(0, len(lists) - 1),
            min_size=1,
            max_size=6,
        )
    )
    column = instances.gather(np.array(ids))["tokens"]
    expected = []
    for p, i in enumerate(ids):
        for t, token in enumerate(lists[i]):
            expected.append((p, t, len(lists[i]), token))
    rows = zip(
        column.instance,
        column.fields["t"],
        column.fields["length"],
        column.payload,
        strict=True,
    )
    assert [tuple(map(int, row)) for row in rows] == expected


def test_ragged_pumps_count_rows_for_each_message():
    data = InstanceList(
        [
            {
                "bare": [1, 2, 3],
                "some": messages(
                    [1, 2, 3],
                    sizes=[2, 1],
                    k=[0, 1],
                ),
                "one": messages([5, 6], k=4),
            },
            {
                "bare": [4],
                "some": messages(
                    [7],
                    sizes=[0, 1],
                    k=[5, 6],
                ),
                "one": messages([8], k=9),
            },
        ],
        ragged=("bare", "some", "one"),
    )
    columns = data.gather(np.array([0, 1]))
    bare = columns["bare"]
    some = columns["some"]
    one = columns["one"]
    assert bare.payload.tolist() == [1, 2, 3, 4]
    assert bare.sizes.tolist() == [3, 1]
    assert bare.instance.tolist() == [0, 1]
    assert some.payload.tolist() == [1, 2, 3, 7]
    assert some.sizes.tolist() == [2, 1, 0, 1]
    assert some.instance.tolist() == [0, 0, 1, 1]
    assert some.fields["k"].tolist() == [0, 1, 5, 6]
    assert one.payload.tolist() == [5, 6, 8]
    assert one.sizes.tolist() == [2, 1]
    assert one.fields["k"].tolist() == [4, 9]


@pytest.mark.parametrize(
    "empty",
    [[], messages([], sizes=[0])],
    ids=["bare", "messages"],
)
@pytest.mark.parametrize("place", [0, 1])
def test_an_empty_list_has_the_type_of_the_others(empty, place):
    """NumPy takes it for floats."""
    data = [{"tokens": [1, 2]}]
    data.insert(place, {"tokens": empty})
    tokens = InstanceList(data, ("tokens",)).gather(np.arange(2))["tokens"]
    assert tokens.payload.dtype.kind == "i"
    assert tokens.payload.tolist() == [1, 2]
    assert tokens.sizes.tolist() == ([0, 2] if place == 0 else [2, 0])


@pytest.mark.parametrize(
    "wrap",
    [lambda t: t, messages],
    ids=["bare", "messages"],
)
def test_topologies_stay_objects(wrap):
    first, second = (Topology.from_kinds([0, kind], 2) for kind in (0, 1))
    column = InstanceList([{"map": wrap(first)}, {"map": wrap(second)}]).gather(np.array([1, 0]))[
        "map"
    ]
    assert column.payload[0] is second and column.payload[1] is first
    assert column.instance.tolist() == [0, 1]


def test_a_topology_keeps_its_fields():
    topology = Topology.from_kinds([0], 1)
    column = InstanceList([{"map": messages(topology, t=3)}]).gather(np.array([0]))["map"]
    assert column.fields["t"].tolist() == [3]


def test_a_pump_may_have_no_message_in_some_instances():
    columns = InstanceList(
        [
            {"x": 1},
            {"x": 2, "rare": 5},
            {"x": 3},
        ]
    ).gather(np.array([2, 1, 0]))
    assert columns["rare"].payload.tolist() == [5]
    assert columns["rare"].instance.tolist() == [1]


@pytest.mark.parametrize(
    ("instances", "text"),
    [
        (
            [
                {
                    "x": messages(
                        [1, 2, 3],
                        t=[0, 1],
                    )
                }
            ],
            r"pump `x`, instance 0, state field `t`: expected a scalar or 3 values, one per message, got 2 values\. Give each message one",
        ),
        (
            [
                {
                    "x": messages(
                        [1],
                        t=0,
                    )
                },
                {"x": messages([1], u=0)},
            ],
            r"pump `x`: expected the same state fields in every instance \(\['t'\]\), got \['u'\]\. Give every message the same fields",
        ),
        (
            [
                {
                    "r": messages(
                        [1, 2, 3],
                        sizes=[1, 1],
                    )
                }
            ],
            r"pump `r`, instance 0: expected 2 payload rows, as the sizes say, got 3\. Give `sizes` one number of rows for each message; their sum is the payload's length\.",
        ),
    ],
)
def test_columns_that_disagree_are_refused(instances, text):
    with pytest.raises(MessageError, match=f"^{text}"):
        InstanceList(instances, ragged=("r",)).gather(np.arange(len(instances)))
