"""Nested plain data as messages: all that goes in comes out, and only agreed classes are made."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from ampjax.cluster.wire.message import Message
from ampjax.cluster.wire.trees import TreeForms, by_fields
from ampjax.errors import WireError


class Pair(NamedTuple):
    first: object
    second: object


class Agreed(NamedTuple):
    value: object


TREES = TreeForms(by_fields(Pair, "first", "second"))
KEYS = st.integers() | st.text() | st.none() | st.booleans()
LEAVES = (
    KEYS
    | st.floats(allow_nan=False)
    | st.binary()
    | st.sampled_from(
        [
            np.dtype("float32"),
            Path("a/b"),
            np.float32(0.1),
            np.int64(3),
        ]
    )
)
DATA = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=examples(100))
@given(DATA)
def test_all_that_goes_in_comes_out(value):
    there = TREES.unpack(TREES.pack("data", value))
    assert there == value and repr(there) == repr(value)


def test_arrays_keep_their_memory_and_what_is_not_agreed_is_refused():
    array = np.arange(4, dtype=np.float16)
    message = TREES.pack("data", {1: [array]})
    assert message.arrays[0] is array
    assert TREES.unpack(message)[1][0] is array
    with pytest.raises(
        WireError, match=re.escape("a message: expected plain data and arrays, got function")
    ):
        TREES.pack("data", [test_all_that_goes_in_comes_out])
    for text in (
        '["o", "Agreed", 1]',
        '["o", "Pair", 1]',
        '["z"]',
        "[]",
        '["a", 7]',
        "{",
        '["y", "object"]',
    ):
        with pytest.raises(WireError, match="expected data in an agreed form"):
            TREES.unpack(Message("data", (), text))
