"""Graphs as columns, and the messages that both encodings pump."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.errors import DataError, SettingsError
from experiments.data.graphs import GraphInstances, Graphs


def two() -> Graphs:
    """A path 1 -> 0 -> 2 with two edges side by side, and one node alone."""
    return Graphs.from_edges(
        [0, 3, 4],
        [
            (0, 1, 0, 1),
            (0, 0, 2, 0),
            (0, 0, 2, 1),
        ],
        2,
    )


def test_columns_of_edges() -> None:
    graphs = two()
    assert repr(graphs) == "Graphs(2 graphs, 4 nodes, 3 edges of 2 kinds)"
    assert graphs.out_ptr.tolist() == [0, 2, 3, 3, 3] and graphs.out_degree.tolist() == [2, 1, 0, 0]
    assert graphs.senders.tolist() == [0, 0, 1]
    assert graphs.receivers.tolist() == [2, 2, 0]
    assert graphs.in_degree.tolist() == [1, 0, 2, 0]
    assert graphs.sizes.tolist() == [3, 3, 3, 1]
    topology = graphs.topology(0)
    assert [g.tolist() for g in topology.gather] == [[0], [0, 1]]
    assert [s.tolist() for s in topology.scatter] == [[2], [2, 0]]
    assert topology.n_rows == 3 and graphs.topology(1).n_rows == 1


@given(st.integers(0, 1000))
def test_edges_survive_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ptr = np.concatenate(
        [
            [0],
            np.cumsum(
                rng.integers(
                    1,
                    5,
                    4,
                )
            ),
        ]
    )
    graph = rng.integers(0, 4, 9)
    ends = rng.integers(
        0,
        np.diff(ptr)[graph],
        (2, 9),
    )
    kinds = rng.integers(0, 3, 9)
    graphs = Graphs.from_edges(
        ptr,
        np.stack([graph, *ends, kinds], axis=1),
        3,
    )
    owner = np.searchsorted(ptr, np.repeat(np.arange(ptr[-1]), graphs.out_degree), side="right") - 1
    got = sorted(
        zip(
            owner,
            graphs.senders,
            graphs.receivers,
            graphs.kinds,
            strict=True,
        )
    )
    assert got == sorted(zip(graph, *ends, kinds, strict=True))
    twice = Graphs.joined(graphs, graphs)
    for i in range(4):
        one = twice.topology(i)
        other = twice.topology(i + 4)
        assert all(
            np.array_equal(a, b)
            for a, b in zip(one.gather + one.scatter, other.gather + other.scatter, strict=True)
        )


def test_messages_of_both_encodings() -> None:
    graphs = two()
    x = np.arange(4.0)[:, None]
    y = np.array([5.0, 6.0])
    batch = GraphInstances(
        graphs,
        np.array([1, 0]),
        {"x": x},
        {"y": y},
    ).gather(np.array([0, 1, 1]))
    assert batch["y"].payload.tolist() == [6, 5, 5]
    assert batch["y"].instance.tolist() == [0, 1, 2]
    assert batch["x"].payload[:, 0].tolist() == [3, 0, 1, 2, 0, 1, 2] and list(
        batch["x"].sizes
    ) == [1, 3, 3]  # type: ignore[arg-type]
    assert batch["edges"].payload == [
        graphs.topology(1),
        graphs.topology(0),
        graphs.topology(0),
    ]
    batch = GraphInstances(
        graphs,
        np.array([1, 0]),
        {"x": x},
        {"y": y},
        "flatmap",
    ).gather(np.array([1, 0]))
    assert batch["x"].payload[:, 0].tolist() == [0, 1, 2, 3]
    assert batch["x"].instance.tolist() == [
        0,
        0,
        0,
        1,
    ]
    assert batch["x"].fields["first"].tolist() == [0, 0, 0, 3]
    assert batch["x"].fields["node"].tolist() == [0, 1, 2, 0]
    assert "edges" not in batch


@pytest.mark.parametrize("encoding", ["collect", "flatmap"])
def test_no_instances_give_no_messages(encoding: str) -> None:
    data = GraphInstances(
        two(),
        np.arange(2),
        {"x": np.zeros((4, 1))},
        {"y": np.zeros(2)},
        encoding,
    )
    assert all(
        len(messages.instance) == 0 == len(messages.payload)
        for messages in data.gather(np.zeros(0)).values()
    )


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (
            lambda: Graphs.from_edges(
                [0, 2],
                [(0, 2, 0, 0)],
                1,
            ),
            DataError,
            r"edge 0, sender: .* \[0, 2\), got 2",
        ),
        (
            lambda: Graphs.from_edges(
                [0, 2],
                [(0, 0, -1, 0)],
                1,
            ),
            DataError,
            "edge 0, receiver: .* got -1",
        ),
        (
            lambda: Graphs.from_edges(
                [0, 2],
                [(0, 0, 1, 0), (0, 0, 1, 3)],
                3,
            ),
            DataError,
            r"edge 1, kind: .* \[0, 3\)",
        ),
        (
            lambda: Graphs.joined(
                two(),
                Graphs.from_edges([0, 1], [], 1),
            ),
            DataError,
            "2 kinds of edges",
        ),
        (
            lambda: GraphInstances(
                two(),
                np.arange(2),
                {},
                {},
                "dense",
            ),
            SettingsError,
            "`collect` or `flatmap`",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    make: Any,
    error: type[Exception],
    match: str,
) -> None:
    with pytest.raises(error, match=match):
        make()
