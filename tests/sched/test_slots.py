"""Pools of slots: what is taken is nobody else's, what is given back can be taken again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.errors import InvariantError
from ampjax.sched.slots import SlotPool


@given(st.integers(0, 40), st.integers(0, 200), st.lists(st.integers(-6, 9), max_size=60))
def test_slots_are_never_taken_twice(capacity, limit, moves):
    """A positive move takes that many slots, a negative one gives that many back."""
    pool, taken = SlotPool(capacity, limit), []
    peak = total = 0
    for move in moves:
        if move > 0:
            if pool.room < move:
                continue
            slots = pool.take(move).tolist()
            assert len(slots) == move and not set(slots) & set(taken)
            taken += slots
            total += move
        else:
            back, taken = taken[:-move], taken[-move:]
            pool.give(np.array(back, np.int64))
        peak = max(peak, len(taken))
        assert all(0 < slot < pool.capacity for slot in taken)  # 0 is the trash slot
        assert pool.used == len(taken) and pool.room == pool.limit - 1 - len(taken)
        assert pool.capacity <= pool.limit
    assert (pool.peak, pool.taken) == (peak, total)


def test_a_pool_doubles_up_to_its_limit():
    pool, sizes = SlotPool(4, 21), []
    while pool.room:
        pool.take(1)
        sizes.append(pool.capacity)
    assert list(dict.fromkeys(sizes)) == [4, 8, 16, 21] and pool.used == 20


def test_slots_keep_their_numbers_when_the_pool_grows():
    pool = SlotPool(4, 100)
    first = pool.take(3)
    assert not set(first.tolist()) & set(pool.take(20).tolist())


def test_the_smallest_pool_holds_one_row():
    pool = SlotPool(0, 0)
    assert pool.room == 1 and pool.take(1).tolist() == [1] and pool.room == 0


def test_a_slot_that_was_given_back_is_taken_first():
    """So what is used stays at the front of the arena, in the cache."""
    pool = SlotPool(64, 64)
    slots = pool.take(5)
    pool.give(slots[2:3])
    assert pool.take(1).tolist() == slots[2:3].tolist()


def test_a_pool_never_hangs_and_never_overflows():
    pool = SlotPool(2, 8)
    pool.take(5)
    text = r"slot pool: expected at most 2 slots to be taken, of 7, got 3\. This is a mistake in ampjax: please report it\."
    with pytest.raises(InvariantError, match=text):
        pool.take(3)
    assert pool.take(2).size == 2
