"""Decisions as bytes and in words, and what a journal says of a run."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import graphs
from support.engines import engine

from ampjax.drivers.run import DriverLoop
from ampjax.drivers.virtual_driver import VirtualDriver
from ampjax.trace.journal import (
    CHANGES_ONLY,
    DataEnds,
    Done,
    End,
    Issue,
    Journal,
    PassBegins,
    PassEnds,
    Settle,
    digest,
    pack,
    unpack,
)


def whole(bits):
    return st.integers(0, (1 << bits) - 1)


decisions = st.one_of(
    st.builds(
        PassBegins,
        whole(32),
        st.booleans(),
        whole(32),
    ),
    st.builds(
        Issue,
        whole(16),
        st.integers(-1, 30_000),
        st.integers(0, 3),
        whole(32),
        whole(32),
        whole(32),
        st.integers(-1, 1 << 40),
        whole(32),
    ),
    st.builds(Done, whole(64), whole(32)),
    st.builds(Settle, whole(32), whole(32)),
    st.builds(DataEnds),
    st.builds(PassEnds, st.binary(min_size=16, max_size=16)),
    st.builds(
        End,
        st.integers(0, 2),
        whole(64),
    ),
)


@given(st.lists(decisions))
def test_decisions_round_trip(made):
    data = b"".join(map(pack, made))
    at = 0
    read = []
    while at < len(data):
        decision, at = unpack(data, at)
        read.append(decision)
    assert read == made
    assert list(map(type, read)) == list(map(type, made))


@given(decisions, st.data())
def test_a_decision_that_is_cut_off_is_none(decision, data):
    whole = pack(decision)
    kept = data.draw(st.integers(0, len(whole) - 1))
    assert unpack(whole[:kept]) == (None, 0)


def test_a_dispatch_takes_tens_of_bytes():
    assert (
        len(
            pack(
                Issue(
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                )
            )
        )
        + len(pack(Done(1, 0)))
        == 43
    )


def test_bytes_that_are_no_decision():
    with pytest.raises(ValueError, match="no decision begins with 77"):
        unpack(bytes([77, 0, 0]))


def test_decisions_in_words():
    assert (
        str(PassBegins(9, True, 0xAB))
        == "a pass of training over 9 instance(s) in an order with checksum 000000ab"
    )
    assert str(
        Issue(
            1,
            4,
            1,
            3,
            5,
            2,
            7,
            255,
        )
    ) == (
        "backward of stage 4: 3 message(s) from instance 7 on, 5 row(s), states 000000ff, then 2 parameter change(s), on worker 1"
    )
    assert (
        str(
            Issue(
                1,
                CHANGES_ONLY,
                3,
                0,
                0,
                2,
                0,
                0,
            )
        )
        == "2 parameter change(s) on worker 1"
    )
    assert str(Done(3, 0)) == "the messages of dispatch 3 travelling on"
    assert str(Done(3, 16)) == "the messages of dispatch 3 travelling on, with readings 00000010"
    assert str(Settle(2, 1)) == "2 instance(s) ending and 1 admitted"
    assert str(DataEnds()) == "updates at the end of the data"
    assert str(PassEnds(bytes(2))) == "the end of the pass, with parameters 0000"
    assert str(End(1, 5)) == "the end of the recording (interrupted)"


def journal_of(**settings):
    e = engine(graphs.chain(1), fuse=False, **settings)
    made = []
    e.executor = None
    VirtualDriver(
        DriverLoop(
            e.scheduler,
            None,
            e.sources(graphs.chain_data(3)),
            [Journal(made.append, e.scheduler.contents.messages_of)],
        ),
        lambda d: 1,
    ).run()
    return made


def test_a_journal_tells_all_that_varies():
    kinds = [type(d).__name__ for d in journal_of(max_active_keys=2)]
    assert kinds == ["Settle", *["Issue", "Done"] * 3, "Settle", *["Issue", "Done"] * 3, "Settle"]


def test_dispatches_are_told_by_what_is_in_them():
    first, *_ = (d for d in journal_of() if isinstance(d, Issue))
    assert first[:-1] == (0, 0, 0, 3, 3, 0, 0)
    alone = []
    for d in journal_of(max_dispatch_size=1):
        if isinstance(d, Issue) and (d.stage, d.direction) == (0, 0):
            alone.append(d)
    assert [d.instance for d in alone] == [0, 1, 2]
    assert len({d.states for d in alone}) == 3


def test_updates_at_the_end_of_the_data_are_a_decision():
    assert [d for d in journal_of(flush_every=2, max_active_keys=2) if isinstance(d, DataEnds)] == [
        DataEnds()
    ]


def test_a_digest_tells_every_bit_and_name():
    params = {
        "a": {"w": np.zeros(2, np.float32)},
        "b": jnp.ones(3),
    }
    assert digest(params) == digest(
        {
            "a": {"w": jnp.zeros(2)},
            "b": np.ones(3, np.float32),
        }
    )
    others = [
        {
            "a": {"w": np.array([0, -0.0], np.float32)},
            "b": params["b"],
        },
        {
            "a": {"v": params["a"]["w"]},
            "b": params["b"],
        },
        {
            "a": {"w": np.zeros((2, 1), np.float32)},
            "b": params["b"],
        },
    ]
    assert len({digest(other) for other in [params, *others]}) == 4
