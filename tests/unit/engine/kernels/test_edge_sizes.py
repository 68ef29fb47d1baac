"""How much room there is for edges beside so many rows, and how edges are padded to it."""

from itertools import pairwise

import numpy as np

from ampjax.engine.kernels.edge_sizes import LEAST, MULTIPLE, EdgeSizes, padded_edges
from ampjax.unfold.rules.edges import Edges


def ladder(n):
    return 1 << max(4, (n - 1).bit_length())


def test_what_samples_suggest():
    rows = np.array([10, 20])
    sizes = EdgeSizes.of([(rows[:1], np.array([[20, 0]])), (rows[1:], np.array([[40, 3]]))])
    assert sizes.mean == (2.0, 0.1) and sizes.spread[0] == 0.0
    assert np.isclose(sizes.spread[1], np.sqrt((1 + 1) / 30))


def test_room_grows_with_the_rows_and_is_never_nothing():
    sizes = EdgeSizes((2.0, 0.0), (0.5, 0.0))
    room = [sizes.room(n) for n in (16, 64, 256, 1024)]
    assert room[0] == (40, MULTIPLE) and room[-1] == (2096, int(LEAST * 1024))
    assert all(a[k] <= b[k] for a, b in pairwise(room) for k in (0, 1))
    assert all(n % MULTIPLE == 0 for step in room for n in step)


def test_a_dispatch_with_more_edges_takes_the_next_step():
    sizes = EdgeSizes((2.0,), (0.0,))
    assert sizes.fit(ladder, 10, np.array([20])) == (16, (32,))
    assert sizes.fit(ladder, 10, np.array([33])) == (32, (64,))
    assert sizes.fit(ladder, 10, np.array([129]))[0] == 128


def test_padding_repeats_a_real_edge_and_is_received_by_nobody():
    edges = Edges(np.array([3, 1, 2]), np.array([0, 4, 5]), np.array([[2, 0, 0], [0, 0, 1]]), np.array([3, 3]))
    senders, receivers = padded_edges(edges, 16, (3, 2, 2))
    assert senders.tolist() == [3, 1, 3, 0, 0, 2, 2]
    assert receivers.tolist() == [0, 4, 16, 16, 16, 5, 16]
