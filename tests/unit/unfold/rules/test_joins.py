"""Joins of a wave against a dictionary."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.ir.state import Layout
from ampjax.unfold.rules.joins import JoinTable

LAYOUT = Layout(("a", "b"))


def join(n=2, by=None):
    ports = tuple(
        SimpleNamespace(name=str(i), type=SimpleNamespace(fields=("a", "b"))) for i in range(n)
    )
    stage = SimpleNamespace(name="node", ports=ports, join=by)
    return JoinTable(stage, LAYOUT)


def states(keys):
    """Instance and handle are the key's first number; `a` and `b` its others."""
    return np.array(
        [[7 + s, s, a, b] for s, a, b in keys],
        np.int64,
    ).reshape(
        -1,
        4,
    )


KEYS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from([-3, 0, 1, 2, 900, 1 << 40]),
        st.integers(0, 2),
    ),
    unique=True,
    max_size=12,
)


@given(
    n=st.integers(2, 3),
    keys=KEYS,
    data=st.data(),
)
def test_messages_meet_once_each_port_has_one(n, keys, data):
    events = data.draw(st.permutations([(port, key) for key in keys for port in range(n)]))
    cuts = sorted(
        data.draw(
            st.lists(
                st.integers(0, len(events)),
                max_size=4,
            )
        )
    )
    table = join(n)
    here = {}
    cell = 0
    for start, end in zip(
        [0, *cuts],
        [*cuts, len(events)],
        strict=True,
    ):
        for port in range(n):
            own = [key for p, key in events[start:end] if p == port]
            if not own:
                continue
            copies = data.draw(st.booleans())  # of one message, which share its number
            if copies:
                cells = np.full(len(own), cell + 1)
            else:
                cells = np.arange(cell + 1, cell + 1 + len(own))
            cell += len(own)
            expected = []
            for key, number in zip(own, cells.tolist(), strict=True):
                here.setdefault(key, {})[port] = number
                if len(here[key]) == n:
                    found = here.pop(key)
                    expected.append(
                        (
                            key,
                            [found[p] for p in range(n)],
                        )
                    )
            joined, inputs = table.put(port, states(own), cells)
            assert joined.tolist() == states([key for key, _ in expected]).tolist()
            assert inputs.tolist() == [numbers for _, numbers in expected]
    waiting = {(port, key): number for key, found in here.items() for port, number in found.items()}
    assert table.waiting == len(waiting)
    assert {(p, (int(s[1]), int(s[2]), int(s[3]))): c for p, s, c in table.pending()} == waiting


def test_of_copies_of_one_message_those_that_are_gone_do_not_wait():
    """They share its number. Room for other keys is made of what still waits."""
    table = join()
    table.put(
        0,
        states([(0, 0, 0), (0, 0, 1)]),
        np.array([1, 1]),
    )
    table.put(
        1,
        states([(0, 0, 1)]),
        np.array([2]),
    )
    for _ in range(2):
        assert next((port, state[1:].tolist(), cell) for port, state, cell in table.pending()) == (
            0,
            [0, 0, 0],
            1,
        )
        table.put(
            1,
            states([(5, 1 << 40, table.waiting)]),
            np.array([3]),
        )
    assert table.waiting == 3


def test_what_waits_is_told_in_the_order_of_keys():
    table = join()
    table.put(
        1,
        states([(1, 2, 0), (0, 5, 1)]),
        np.array([1, 2]),
    )
    table.put(
        0,
        states([(3, 0, 0)]),
        np.array([3]),
    )
    assert [(port, int(state[1]), cell) for port, state, cell in table.pending()] == [
        (0, 3, 3),
        (1, 0, 2),
        (1, 1, 1),
    ]
    assert table.key(
        1,
        states([(1, 2, 0)])[0],
    ) == (1, 2, 0)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(
    "keys",
    [[(0, 1, 1), (1, 0, 0), (1, 0, 0)], [(2, 0, 0)]],
)
def test_two_messages_of_one_key_at_a_port(keys, copies):
    table = join()
    table.put(
        0,
        states([(2, 0, 0)]),
        np.array([1]),
    )
    with pytest.raises(
        Exception,
        match=r"node `node`, port 0: expected one message per key, got a second one with State\(instance=",
    ):
        table.put(
            0,
            states(keys),
            np.full(len(keys), 2)
            if copies
            else np.arange(
                2,
                2 + len(keys),
            ),
        )
