"""Numbers of keys: different keys have different numbers, however they are found."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.random_graphs.random_case import random_case

import ampjax as amp
from ampjax.ir.state import HANDLE, Layout
from ampjax.unfold.rules.joins import JoinTable
from ampjax.unfold.rules.key_numbers import CODED_LIMIT, DIRECT_LIMIT, FEWEST_CODES, KeyNumbers

LAYOUT = Layout(("t", "k"))


def join_of(room):
    """A join of two ports whose keys have so many numbers at most."""
    ports = tuple(
        SimpleNamespace(name=name, type=SimpleNamespace(fields=("t", "k"))) for name in "ab"
    )
    found = JoinTable(
        SimpleNamespace(name="node", ports=ports, join=None),
        LAYOUT,
    )
    found._keys = KeyNumbers(None, ("t", "k"), LAYOUT, "node", room)
    return found


def states(keys):
    found = np.zeros(
        (len(keys), LAYOUT.width),
        np.int64,
    )
    found[:, [HANDLE, 2, 3]] = keys
    return found


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 5000),
                st.integers(-3, 15),
                st.integers(0, 15),
            ),
            min_size=1,
            max_size=20,
            unique=True,
        ),
        min_size=1,
        max_size=6,
    )
)
@example(
    [[(0, t, k) for t in range(8) for k in range(8)], [(0, 8, 0), (4096, 0, 0)]]
)  # 65, for which there is no room
@settings(max_examples=60)
def test_many_instances_times_few_combinations(batches):
    """5000 handles times 32 times 16 are too many to number directly: combinations are coded as they come, up to half of the room."""
    keys = KeyNumbers(None, ("t", "k"), LAYOUT, "node")
    known = []
    for batch in batches:
        values = keys.values(states(batch), ("t", "k"))
        known = list(dict.fromkeys([*known, *batch]))
        if keys.numbers(values) is None:
            keys.fit(keys.values(states(known), ("t", "k")))
        numbers = keys.numbers(keys.values(states(known), ("t", "k")))
        n_handles = 1 << max(handle for handle, *_ in known).bit_length()
        has_room = 2 * n_handles * len({(t, k) for _, t, k in known}) <= CODED_LIMIT
        assert numbers is not None and not (keys.in_dictionary and has_room)
        assert (
            len(set(numbers.tolist())) == len(known)
            and numbers.min() >= 0
            and numbers.max() < keys.size
        )


def test_numbers_that_were_given_stay_as_codes_are_added():
    keys = KeyNumbers(None, ("t", "k"), LAYOUT, "node")
    keys.fit(states([(4000, 15, 15), (0, 0, 0)])[:, 1:])
    first = keys.numbers(states([(4000, 15, 15)])[:, 1:])
    size = keys.size
    for t in range(10):
        assert keys.numbers(states([(1, t, 9)])[:, 1:]) is not None
    assert first is not None
    assert keys.numbers(states([(4000, 15, 15)])[:, 1:]) == first
    assert size < keys.size <= CODED_LIMIT


def test_too_many_combinations_go_into_a_dictionary():
    keys = KeyNumbers(None, ("t", "k"), LAYOUT, "node")
    many = []
    for t in range(16):
        for k in range(16):
            many.append((4000, t, k))
    keys.fit(states(many)[:, 1:])
    assert keys.in_dictionary


@pytest.mark.parametrize(
    "handle",
    [DIRECT_LIMIT - 1, DIRECT_LIMIT, CODED_LIMIT // 2, CODED_LIMIT],
)
def test_keys_of_instances_alone_have_numbers_however_many_there_are(handle):
    """From few to many they are direct, coded and in a dictionary."""
    keys = KeyNumbers((), ("t", "k"), LAYOUT, "node")
    values = states([(0, 1, 1), (handle, 2, 2)])[:, [HANDLE]]
    keys.fit(values)
    numbers = keys.numbers(values)
    assert len(set(numbers.tolist())) == 2
    assert numbers.min() >= 0
    assert numbers.max() < keys.size
    assert keys.in_dictionary == (handle >= CODED_LIMIT // 2)


@pytest.mark.parametrize(
    ("handles", "room"),
    [
        (4, CODED_LIMIT),
        (4096, CODED_LIMIT),
        (4, 8),
        (4096, 8192),
        (4096, 0),
    ],
)
def test_a_join_of_many_instances_is_as_of_few(handles, room):
    """Each instance's messages of ten steps come wave by wave, at one port in rising and at the other in falling order."""
    join = join_of(room)
    cells = np.arange(1, handles + 1)
    for k in range(10):
        keys = [(handle, k, 10) for handle in range(handles)]
        assert len(join.put(0, states(keys), cells)[0]) == 0
    assert join.waiting == 10 * handles
    for k in reversed(range(10)):
        found, inputs = join.put(
            1,
            states([(handle, k, 10) for handle in range(handles)]),
            cells,
        )
        assert found[:, 2].tolist() == [k] * handles
        assert (inputs[:, 0] == cells).all()
    assert join.waiting == 0


@pytest.mark.parametrize("copies", [1, 10, 40, 1000])
def test_joins_share_their_lines(copies):
    """A thousand joins for as many instances in flight would need a line for each pair; what is coded grows until its part is full."""
    total = 1 << 20
    handles = 1000
    keys = KeyNumbers(None, ("t", "k"), LAYOUT, "node", total // copies)
    keys.fit(states([(0, 0, 0), (handles - 1, 255, 15)])[:, 1:])
    for t in range(256):
        if keys.in_dictionary or keys.numbers(states([(0, t, t % 16)])[:, 1:]) is None:
            break
    assert copies * keys.size <= total and keys.in_dictionary == (copies > 20)


def test_codes_that_have_no_room_left_are_given_anew(monkeypatch):
    """Keys that come and go, of ever other combinations: 32 of them have room."""
    join = join_of(64 * FEWEST_CODES)
    widened = []
    monkeypatch.setattr(
        join,
        "_widen",
        lambda values, widen=join._widen: (widened.append(len(values)), widen(values))[1],
    )
    join.put(
        0,
        states([(63, 31, 15)]),
        np.array([1]),
    )
    join.put(
        1,
        states([(63, 31, 15)]),
        np.array([2]),
    )
    for n in range(1000):
        key = states([(n % 64, n % 31, n % 16)])
        assert len(join.put(0, key, np.array([n + 1]))[0]) == 0
        found, inputs = join.put(
            1,
            key,
            np.array([n + 2]),
        )
        assert found.tolist() == key.tolist()
        assert inputs.tolist() == [[n + 1, n + 2]]
    assert join.waiting == 0 and not join._keys.in_dictionary
    assert 1 < len(widened) <= 1000 / (FEWEST_CODES - 2) + 2


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6))
def test_a_schedule_does_not_depend_on_how_keys_are_numbered(seed, monkeypatch):
    case = random_case(seed)
    found = []
    for room in (CODED_LIMIT, 0):
        monkeypatch.setattr(
            "ampjax.unfold.rules.joins.KeyNumbers", functools.partial(KeyNumbers, room=room)
        )
        run = amp.simulate(
            case.graph,
            case.instances,
            workers=2,
            max_active_keys=4,
            max_dispatch_size=3,
            check=True,
        )
        found.append((run.seconds, run.stats.messages, run.stats.dispatches, run.stats.updates))
    assert found[0] == found[1]
