"""Joins against a dictionary: any order, any batches, any ranges; nothing lost, nothing twice."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampjax.errors import MessageError
from ampjax.ir.state import SLOT, Layout
from ampjax.sched.join import Join

LAYOUT = Layout(("t", "k"))
SMALL = st.integers(-3, 6)
WIDE = st.integers(-(2**62), 2**62) | st.sampled_from(
    [0, 1, -1, 1 << 18, (1 << 21) + 1, -(1 << 40), 2**63 - 1, -(2**63)]
)
NARROW_OR_WIDE = st.sampled_from([SMALL, st.integers(0, 400), WIDE])


def join(n_ports=2, by=None, fields=("t", "k")):
    return Join("node", tuple("abc"[:n_ports]), by, (fields,) * n_ports, LAYOUT)


def rows(keys):
    """States of keys `(slot, t, k)`."""
    states = np.zeros((len(keys), LAYOUT.width), np.int64)
    for i, (slot, t, k) in enumerate(keys):
        states[i, SLOT], states[i, 2], states[i, 3] = slot, t, k
    return states


@st.composite
def arrivals(draw, n_ports):
    """Every key once on every port or on some, in any order, cut into batches of one port."""
    values = draw(NARROW_OR_WIDE)
    key = st.tuples(st.integers(0, 20), values, values)
    keys = draw(st.lists(key, min_size=1, max_size=12, unique=True))
    messages = [(port, key) for key in keys for port in range(n_ports) if draw(st.integers(0, 9))]
    messages = draw(st.permutations(messages))
    batches, start = [], 0
    while start < len(messages):
        length = draw(st.integers(1, 5))
        part = messages[start : start + length]
        start += length
        for port in range(n_ports):
            if of_port := [key for p, key in part if p == port]:
                batches.append((port, of_port))
    return batches


@given(st.integers(2, 3), st.data())
@settings(max_examples=300)
def test_a_join_is_a_dictionary_of_keys(n_ports, data):
    batches = data.draw(arrivals(n_ports))
    j, there, completed = join(n_ports), {}, []
    cell = 0
    for port, keys in batches:
        cells = np.arange(cell + 1, cell + 1 + len(keys))
        cell += len(keys)
        expected = []
        for key, number in zip(keys, cells.tolist(), strict=True):
            there.setdefault(key, {})[port] = number
            if len(there[key]) == n_ports:
                waiting = there.pop(key)
                expected.append((key, [waiting[p] for p in range(n_ports)]))
        states, inputs = j.put(port, rows(keys), cells)
        got = [(tuple(s[[SLOT, 2, 3]].tolist()), i.tolist()) for s, i in zip(states, inputs, strict=True)]
        assert got == expected
        completed += got
        assert j.waiting == sum(map(len, there.values()))
    assert len(completed) + len(there) == len({key for _, keys in batches for key in keys})


@pytest.mark.parametrize("value", [2**63 - 1, 2**40, 5])
def test_ranges_that_span_all_integers(value):
    """The span of the range does not fit into 64 bits."""
    j = join()
    for key in [(0, -value - 1, 0), (0, value, 0), (0, -1, 0), (0, 0, 0)]:
        assert len(j.put(0, rows([key]), np.array([1]))[0]) == 0
    for key in [(0, 0, 0), (0, -value - 1, 0), (0, -1, 0), (0, value, 0)]:
        states, _ = j.put(1, rows([key]), np.array([2]))
        assert states[:, [SLOT, 2, 3]].tolist() == [list(key)]
    assert j.waiting == 0


def test_the_state_is_that_of_the_first_port():
    j = join(by=("t",))
    j.put(1, rows([(0, 4, 9)]), np.array([7]))
    states, inputs = j.put(0, rows([(0, 4, 2)]), np.array([8]))
    assert states[:, 2:].tolist() == [[4, 2]] and inputs.tolist() == [[8, 7]]


def test_instances_never_meet():
    j = join(by=())
    assert len(j.put(0, rows([(0, 0, 0), (1, 0, 0)]), np.array([1, 2]))[0]) == 0
    states, inputs = j.put(1, rows([(1, 5, 5)]), np.array([3]))
    assert states[:, SLOT].tolist() == [1] and inputs.tolist() == [[2, 3]]


def test_the_instance_may_be_named_in_the_key():
    a, b = join(by=("instance",)), join(by=())
    for j in (a, b):
        j.put(0, rows([(3, 1, 1)]), np.array([1]))
        assert len(j.put(1, rows([(3, 2, 2)]), np.array([2]))[0]) == 1


@pytest.mark.parametrize("key", [lambda s: s.t // 2, lambda s: (s.t // 2, s.k * 0)], ids=["a column", "a tuple"])
def test_a_keying_function(key):
    j = join(by=key)
    j.put(0, rows([(0, 4, 1), (0, 8, 1)]), np.array([1, 2]))
    states, inputs = j.put(1, rows([(0, 9, 3), (0, 5, 3)]), np.array([3, 4]))
    assert inputs.tolist() == [[2, 3], [1, 4]] and states[:, 2].tolist() == [8, 4]


def test_a_keying_function_may_give_truth_values():
    j = join(by=lambda s: s.t > 3)
    j.put(0, rows([(0, 1, 0), (0, 7, 0)]), np.array([1, 2]))
    assert j.put(1, rows([(0, 4, 0)]), np.array([3]))[1].tolist() == [[2, 3]]


def test_a_key_may_come_again_when_its_messages_have_met():
    j = join()
    for _ in range(3):
        j.put(0, rows([(0, 1, 1)]), np.array([1]))
        assert len(j.put(1, rows([(0, 1, 1)]), np.array([2]))[0]) == 1


@pytest.mark.parametrize("t", [1, 1 << 40], ids=["dense", "dictionary"])
@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "one after the other"])
def test_duplicates_are_refused(t, together):
    j = join()
    text = (
        r"node `node`, port a: expected one message per key, got a second one with "
        rf"State\(instance=0, t={t}, k=2\)\. Make states unique with an isu, or join on more fields\."
    )
    if together:
        with pytest.raises(MessageError, match=text):
            j.put(0, rows([(0, t, 2), (0, 0, 0), (0, t, 2)]), np.array([1, 2, 3]))
        return
    j.put(0, rows([(0, t, 2)]), np.array([1]))
    with pytest.raises(MessageError, match=text):
        j.put(0, rows([(0, t, 2)]), np.array([2]))


@pytest.mark.parametrize("span", [10, 1 << 30], ids=["dense", "dictionary"])
def test_keys_that_are_done_make_room_for_others(span):
    """The numbers of keys that are done are used again; only the ranges' product or what waits costs memory."""
    j = join()
    for start in range(0, 50_000, 500):
        keys = [(0, (start + i) % span if span == 10 else start + i, i % 50) for i in range(10)]
        cells = np.arange(1, 11)
        j.put(0, rows(keys), cells)
        assert len(j.put(1, rows(keys), cells)[0]) == 10
    assert j.waiting == 0
