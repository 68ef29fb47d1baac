"""How much room there is for edges, and for what is sent over them, beside so many rows, and how both are padded to it."""

from itertools import pairwise

import numpy as np

from ampjax.engine.kernels.edge_sizes import LEAST, MULTIPLE, EdgeSizes, pad_edges
from ampjax.unfold.rules.edges import DispatchEdges


def ladder(n):
    return 1 << max(4, (n - 1).bit_length())


def ring(n, edges_each):
    """`n` rows of one way, each of which sends over so many edges."""
    senders = np.repeat(np.arange(n), edges_each)
    return DispatchEdges(
        senders,
        (senders + 1) % n,
        np.array([[len(senders)]]),
        np.array([n]),
    )


def test_what_samples_suggest():
    rows = np.array([10, 20])
    sizes = EdgeSizes.of(
        [
            (rows[:1], np.array([[8, 0, 20]])),
            (rows[1:], np.array([[16, 3, 43]])),
        ]
    )
    assert sizes.mean == (0.8, 0.1, 2.1)
    assert sizes.spread[0] == 0.0
    assert np.isclose(
        sizes.spread[1],
        np.sqrt((1 + 1) / 30),
    )


def test_room_grows_with_the_rows_and_is_never_nothing():
    sizes = EdgeSizes((2.0, 0.0), (0.5, 0.0))
    room = []
    for n in (16, 64, 256, 1024):
        room.append(sizes.room(n))
    assert room[0] == (40, MULTIPLE)
    assert room[-1] == (2096, int(LEAST * 1024))
    assert all(a[k] <= b[k] for a, b in pairwise(room) for k in (0, 1))
    assert all(n % MULTIPLE == 0 for step in room for n in step)


def test_a_dispatch_with_more_edges_takes_the_next_step():
    sizes = EdgeSizes((1.0, 2.0), (0.0, 0.0))
    assert sizes.fit(ladder, 10, ring(10, 2)) == (16, (16, 32))
    assert sizes.fit(ladder, 10, ring(10, 4)) == (32, (32, 64))
    assert sizes.fit(ladder, 10, ring(10, 13))[0] == 128


def test_padding_repeats_a_sender_and_is_received_by_nobody():
    edges = DispatchEdges(
        np.array([3, 1, 3, 2]),
        np.array([0, 4, 2, 5]),
        np.array([[3, 0, 0], [0, 0, 1]]),
        np.array([4, 3]),
    )
    padded = pad_edges(edges, 16, (3, 2, 2, 5))
    assert padded.senders.tolist() == [1, 3, 1, 0, 0, 2, 2]
    assert padded.totals.tolist() == [2, 0, 1]
    assert padded.ends.tolist() == [[1, 0, 1, 5, 0], [0, 4, 2, 5, 16]]
