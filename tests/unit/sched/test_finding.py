"""Programs are found by what is pumped: the same numbers give the same program, other numbers another, whatever has been entered and removed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ampjax.sched import loops
from ampjax.sched.layout import columns as c

COLUMNS = 5
"""Of what is pumped: the instance's position, and four numbers."""


def keys_of(numbers, ids, salt=1):
    """Keys, of instances that nobody knows."""
    keys = np.zeros((len(ids), 2), np.int64)
    places = np.zeros(len(ids), np.int64)
    nobody = (
        np.zeros(
            (0, c.PUMPED),
            np.int64,
        ),
        np.full(4, -1, np.int64),
    )
    assert loops.find(
        numbers,
        np.asarray(ids, np.int64),
        salt,
        *nobody,
        keys,
        places,
    ) == len(ids)
    assert (places == -1).all()
    return keys


NUMBERS = st.lists(
    st.tuples(*[st.sampled_from([0, 1, 2, -1, -2, 1 << 32, -(1 << 63)])] * (COLUMNS - 1)),
    max_size=3,
)


@given(
    st.lists(NUMBERS, min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_keys_are_the_same_where_the_same_is_pumped_in_the_same_order(pumped, random):
    """However the lines of different instances are mixed."""
    lines = []
    for k, own in enumerate(pumped):
        for line in own:
            lines.append((k, line))
    order = sorted(
        range(len(lines)),
        key=lambda _: random.random(),
    )
    taken = [iter(own) for own in pumped]
    mixed = []
    for i in order:
        mixed.append(
            (
                lines[i][0],
                next(taken[lines[i][0]]),
            )
        )
    table = np.array(
        [(k, *line) for k, line in mixed],
        np.int64,
    ).reshape(
        -1,
        COLUMNS,
    )
    keys = []
    for key in keys_of(
        table,
        np.zeros(len(pumped)),
    ).tolist():
        keys.append(tuple(key))
    for a in range(len(pumped)):
        for b in range(a):
            assert (keys[a] == keys[b]) == (pumped[a] == pumped[b])


def test_small_numbers_in_any_order_differ_in_either_half_of_a_key():
    """Each half is as good as 64 random bits: of a quarter of a million alike instances no two have the same."""
    n = 1 << 18
    digits = (np.arange(n)[:, None] >> np.arange(0, 18, 3)) & 7  # six numbers of 0 to 7
    lines = np.concatenate(
        [
            digits.reshape(n, 2, 3),
            np.ones(
                (n, 2, 1),
                np.int64,
            ),
        ],
        axis=2,
    ).reshape(-1, 4)
    keys = keys_of(
        np.column_stack(
            [
                np.repeat(np.arange(n), 2),
                lines,
            ]
        ),
        np.zeros(n),
    )
    assert len(np.unique(keys[:, 0])) == len(np.unique(keys[:, 1])) == n
    for bits in (keys, keys >> 48):  # low and high bits come equally often
        counts = np.bincount(
            (bits[:, 0] & 0xFF),
            minlength=256,
        )
        assert (abs(counts - n / 256) < 8 * (n / 256) ** 0.5).all()


def test_an_instances_number_and_the_salt_tell_apart():
    numbers = np.array(
        [
            [0, -1, 1, 5, 0],
            [1, -1, 1, 5, 0],
        ],
        np.int64,
    )
    same = keys_of(numbers, [0, 0])
    by_id = keys_of(numbers, [3, 4])
    salted = keys_of(numbers, [0, 0], salt=2)
    assert (
        (same[0] == same[1]).all() and (by_id[0] != by_id[1]).all() and (same[0] != salted[0]).all()
    )


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 40)),
        max_size=120,
    )
)
def test_what_is_entered_is_found_until_it_is_removed(events):
    """A dictionary is the oracle. Of 128 entries up to 120 get used, so that searches go past others, and past removed ones."""
    numbers = np.array(
        [[k, -1, 1, k % 7, k // 7] for k in range(41)],
        np.int64,
    )
    programs = np.zeros((41, c.PUMPED), np.int64)
    table = np.full(128, -1, np.int64)
    programs[:, c.KEY : c.KEY + 2] = keys_of(
        numbers,
        np.zeros(41),
    )
    known = dict.fromkeys(range(41), -1)
    for enters, place in events:
        if enters and known[place] < 0:
            loops.insert(programs, np.array([place]), table)
            known[place] = place
        elif not enters:
            loops.remove(programs, np.array([place]), table)
            known[place] = -1
    places = np.zeros(41, np.int64)
    keys = np.zeros((41, 2), np.int64)
    missing = loops.find(
        numbers,
        np.zeros(41, np.int64),
        1,
        programs,
        table,
        keys,
        places,
    )
    assert places.tolist() == [*known.values()]
    assert missing == (places < 0).sum()
