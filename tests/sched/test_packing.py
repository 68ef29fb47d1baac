"""Packing: what devices hold stays below their limit; nodes stay where they are wanted if they can; what is refused has no room."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampjax.errors import SettingsError
from ampjax.plan.device_packing import DeviceMemory

SIZES = st.lists(
    st.integers(0, 12),
    min_size=1,
    max_size=6,
)
DEVICES = st.lists(
    st.integers(0, 2),
    min_size=1,
    max_size=4,
).map(lambda found: [0, *found[1:]])


def used(memory, placed):
    found = dict.fromkeys(memory.device_of, 0)
    for name, worker in placed.items():
        found[memory.device_of[worker]] += memory.sizes[name]
    return found


@given(
    SIZES,
    DEVICES,
    st.integers(1, 30),
    st.data(),
)
@settings(max_examples=100)
def test_nodes_fit_or_there_is_no_way(sizes, devices, limit, data):
    """Against all ways to place a few nodes, those that are pinned where they are."""
    names = [f"n{i}" for i in range(len(sizes))]
    memory = DeviceMemory(
        limit,
        dict(zip(names, sizes, strict=True)),
        devices,
    )
    workers = st.integers(0, len(devices) - 1)
    wanted = {name: data.draw(workers) for name in names}
    pinned = {}
    for name in names:
        if data.draw(st.integers(0, 3)) == 0:
            pinned[name] = wanted[name]
    free = [name for name in names if name not in pinned]
    ways = itertools.product(
        range(len(devices)),
        repeat=len(free),
    )
    possible = (pinned | dict(zip(free, way, strict=True)) for way in ways)
    there_is_one = any(max(used(memory, placed).values()) <= limit for placed in possible)
    try:
        placed = memory.fit(wanted, pinned)
    except SettingsError:
        assert not there_is_one
        return
    assert there_is_one and max(used(memory, placed).values()) <= limit
    assert list(placed) == names and pinned.items() <= placed.items()
    if max(used(memory, wanted).values()) <= limit:
        assert placed == wanted


def test_a_node_moves_to_the_next_worker_with_room():
    memory = DeviceMemory(
        10,
        {"a": 6, "b": 6, "c": 4},
        (0, 1, 2),
    )
    assert memory.fit({"a": 0, "b": 0, "c": 0}, {}) == {"a": 0, "b": 1, "c": 0}
    assert memory.fit({"a": 0, "b": 0, "c": 0}, {"b": 0}) == {"a": 1, "b": 0, "c": 0}


def test_where_moving_on_leads_nowhere_all_are_packed_anew():
    memory = DeviceMemory(
        10,
        {"a": 3, "b": 3, "c": 7, "d": 7},
        (0, 1),
    )
    placed = memory.fit(
        {"a": 0, "b": 0, "c": 0, "d": 1},
        {},
    )
    assert sorted(used(memory, placed).values()) == [10, 10]


def test_workers_that_share_a_device_share_its_memory():
    memory = DeviceMemory(
        10,
        {"a": 6, "b": 6},
        (0, 0, 1),
    )
    assert memory.fit({"a": 0, "b": 1}, {}) == {"a": 0, "b": 2}


def test_a_thousand_nodes_that_fill_a_thousand_devices():
    names = [f"n{i}" for i in range(1000)]
    memory = DeviceMemory(10, dict.fromkeys(names, 10), range(1000))
    assert sorted(
        memory.fit(
            dict.fromkeys(names, 0),
            {},
        ).values()
    ) == list(range(1000))
    with pytest.raises(SettingsError, match="10010 bytes on 1000 device"):
        DeviceMemory(
            10,
            dict.fromkeys([*names, "more"], 10),
            range(1000),
        ).fit(
            dict.fromkeys([*names, "more"], 0),
            {},
        )


def test_a_node_that_fits_nowhere_is_named():
    with pytest.raises(
        SettingsError, match=r"expected at least 12 bytes, what node `b` keeps.*got 10"
    ):
        DeviceMemory(
            10,
            {"a": 1, "b": 12},
            (0, 1),
        ).fit(
            {"a": 0, "b": 1},
            {},
        )


def test_nodes_and_bytes_are_named_where_there_is_no_room():
    memory = DeviceMemory(
        10,
        {"a": 6, "b": 7, "c": 8},
        (0, 1),
    )
    text = r"expected room for 21 bytes on 2 device\(s\): `c` 8, `b` 7, `a` 6, got 10 bytes on each"
    with pytest.raises(SettingsError, match=text):
        memory.fit(
            {"a": 0, "b": 0, "c": 0},
            {},
        )


def test_a_placement_by_hand_must_fit():
    memory = DeviceMemory(
        10,
        {"a": 6, "b": 7},
        (0, 1),
    )
    memory.check({"a": 0, "b": 1})
    with pytest.raises(
        SettingsError, match=r"on device 1, .*, got 13 bytes: `b` 7, `a` 6\. Place some of them"
    ):
        memory.check({"a": 1, "b": 1})
    with pytest.raises(SettingsError, match="got 13 bytes"):
        memory.fit(
            {"a": 1, "b": 1},
            {"a": 1, "b": 1},
        )
