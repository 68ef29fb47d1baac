"""Packs: the scheduler's loops write them as kernels take them, and they are read where they lie."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import graphs
from support.control import admit, scheduler_for

from ampjax.plan.ladders import is_padded, ladder_for
from ampjax.sched.decisions import packs
from ampjax.sched.layout.columns import ALIGNED, N_HEAD

CASES = {
    "sequences": (
        graphs.rnn(),
        graphs.rnn_data([3, 1, 4, 1, 5, 2, 2]),
    ),
    "groups": (
        graphs.grouping(),
        [graphs.grouping_instance(n) for n in (2, 0, 3)],
    ),
    "flatmap": (
        graphs.flat(),
        [graphs.flat_instance(n) for n in (2, 1, 3, 2)],
    ),
}


def dispatches(name):
    """What a scheduler decides, several ahead, and the stages."""
    graph, data = CASES[name]
    settings = {
        "max_active_keys": 6,
        "max_dispatch_size": 5,
        "intervals": dict.fromkeys(graph.parameterised, 7),
    }
    scheduler = scheduler_for(graph, **settings)
    left = len(data)
    found = []
    while left or not scheduler.idle:
        n = min(left, scheduler.admission.room())
        if n:
            admit(
                scheduler,
                data[len(data) - left :][:n],
                range(len(data) - left, len(data) - left + n),
            )
        left -= n
        more = scheduler.ahead(0, 16)
        assert more or scheduler.admission.take_ended(), "something can't move"
        found += more
    return scheduler.plan.stages, found


@pytest.mark.parametrize("name", CASES)
def test_the_loops_pad_as_kernels_want_it(name):
    stages, found = dispatches(name)
    sizes = set()
    for d in found:
        stage = stages[d.stage]
        assert bool(d.size) == is_padded(stage)
        if d.size:
            sizes.add((d.size, d.n_rows))
            n_ports = len(stage.ports)
            wanted = packs.make_padded(
                d.rows[:n_ports],
                d.rows[n_ports:],
                d.size,
            )
            pack = d.pack.reshape(-1, d.size)
            assert d.size == ladder_for(stage)(d.n_rows)
            assert d.n_rows == d.n_messages
            assert pack.shape == wanted.shape
            lines = slice(N_HEAD, N_HEAD + d.n_sections)
            np.testing.assert_array_equal(pack[lines], wanted[lines])
            assert pack[N_HEAD + d.n_sections, 0] == d.n_rows
    assert any(n < size for size, n in sizes), "nothing was padded"


@given(
    st.integers(1, 7),
    st.integers(1, 40),
)
def test_a_padded_pack_ends_where_the_next_can_begin(n_sections, size):
    n = packs.n_lines(n_sections, size)
    assert n > N_HEAD + n_sections and n * size % ALIGNED == 0
    assert (n - 1) * size % ALIGNED != 0 or n == N_HEAD + n_sections + 1


def kept(memory, first, size=16, n_lines=5, n=3):
    """Some packs that were decided together: each, and where it begins."""
    length = n_lines * size
    whole, start = memory.keep(
        np.arange(
            first,
            first + n * length,
            dtype=np.int32,
        )
    )
    places = [start + i * length for i in range(n)]
    return [whole[place : place + length] for place in places], places


@given(
    st.lists(
        st.integers(0, 5),
        min_size=1,
        max_size=4,
    ),
    st.integers(4, 16),
)
def test_packs_are_stacked_wherever_they_lie(chosen, most):
    memory = packs.PackMemory()
    found, places = kept(memory, 0)
    more, behind = kept(memory, 1000)
    found = [*found, *more]
    places = [*places, *behind]
    own = [found[i] for i in chosen]
    stacked = packs.stack_packs(
        own,
        [places[i] for i in chosen],
        most,
        16,
    )
    assert stacked.shape == (most, 5, 16)
    np.testing.assert_array_equal(
        stacked[: len(own)].reshape(len(own), -1),
        own,
    )


def test_neighbours_are_read_in_place():
    memory = packs.PackMemory()
    found, places = kept(memory, 0)
    assert np.shares_memory(
        packs.stack_packs(found, places, 16, 16),
        found[0],
    )
    assert packs.stack_packs(found, places, 16, 16).ctypes.data % 64 == 0
    assert not np.shares_memory(
        packs.stack_packs(
            found[::2],
            places[::2],
            16,
            16,
        ),
        found[0],
    )


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_packs_that_have_travelled_are_stacked_too(protocol):
    found, places = kept(packs.PackMemory(), 0)
    there = pickle.loads(pickle.dumps(found, protocol))
    np.testing.assert_array_equal(
        packs.stack_packs(there, places, 3, 16).reshape(3, -1),
        found,
    )


def test_what_is_kept_stays():
    memory = packs.PackMemory()
    many = []
    for k in range(60):
        many.append(kept(memory, 1000 * k, n=40))
    for k, (found, places) in enumerate(many):
        assert found[0].ctypes.data % 64 == 0 and len(places) == 40
        np.testing.assert_array_equal(
            np.concatenate(found),
            1000 * k + np.arange(40 * 80),
        )


def test_a_pack_larger_than_a_piece_of_memory():
    whole, start = packs.PackMemory().keep(
        np.ones(
            2 * packs.PIECE_LENGTH,
            np.int32,
        )
    )
    assert whole[start : start + 2 * packs.PIECE_LENGTH].all()
