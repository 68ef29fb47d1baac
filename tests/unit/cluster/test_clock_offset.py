"""Clocks of other processes, against clocks whose offset and speed are known."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from ampjax.cluster.wire.clock_offset import ClockMap, read_clock

DAYS_NS = 86_400_000_000_000
delays = st.lists(
    st.tuples(
        st.integers(0, 5_000_000),
        st.integers(0, 5_000_000),
    ),
    min_size=16,
    max_size=16,
)


class Two:
    """Two clocks, and messages that take a while each way."""

    def __init__(self, offset_ns, per_million, ways):
        self.now = DAYS_NS
        self.offset_ns = offset_ns
        self.per_million = per_million
        self.ways = iter(ways)

    def here(self):
        return self.now

    def there(self, now):
        return now + self.offset_ns + (now - DAYS_NS) * self.per_million // 1_000_000

    def ask(self):
        forth, back = next(self.ways)
        self.now += forth
        told = self.there(self.now)
        self.now += back
        return told


@settings(max_examples=examples(100))
@given(
    st.integers(-30 * DAYS_NS, 30 * DAYS_NS),
    st.integers(-500, 500),
    delays,
    st.lists(st.integers(0, 10**11), min_size=1),
)
def test_moments_are_right_to_within_the_error_that_is_told(offset_ns, per_million, ways, moments):
    clocks = Two(offset_ns, per_million, ways)
    begin = read_clock(clocks.ask, clocks.here)
    true = sorted(clocks.now + moment for moment in moments)
    clocks.now = true[-1]
    both = ClockMap(begin, read_clock(clocks.ask, clocks.here))
    found = both.here(np.array([clocks.there(moment) for moment in true]))
    assert np.abs(found - true).max() <= both.error_ns + 2  # moments are whole nanoseconds
    assert all(one <= other for one, other in itertools.pairwise(found.tolist()))


def test_the_reading_that_was_soonest_there_and_back_is_taken():
    clocks = Two(
        1_000,
        0,
        [
            (5, 900),
            (700, 7),
            (3, 5),
            (40, 40),
        ],
    )
    reading = read_clock(clocks.ask, clocks.here, tries=4)
    assert (reading.error_ns, reading.offset_ns) == (4, 1_000 - 1)
