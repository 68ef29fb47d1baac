"""Messages as frames: all that goes in comes out, and nothing else comes out of anything else."""

import re
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.effort import examples

from ampjax.cluster.wire import message as wire
from ampjax.cluster.wire.message import DTYPES, Message, decode, encode
from ampjax.errors import WireError

INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def arrays(draw):
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    values = draw(
        st.binary(
            min_size=int(np.prod(shape)),
            max_size=int(np.prod(shape)),
        )
    )
    return (
        np.frombuffer(
            values,
            np.uint8,
        )
        .reshape(shape)
        .astype(np.int32)
        .astype(dtype)
    )


MESSAGES = st.builds(
    Message,
    st.text(max_size=9),
    st.lists(INT64, max_size=5).map(tuple),
    st.text(),
    st.lists(arrays(), max_size=4).map(tuple),
)


def same(a: Message, b: Message) -> bool:
    pairs = zip(a.arrays, b.arrays, strict=True)
    bits = all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs
    )
    return (a.kind, a.numbers, a.text) == (b.kind, b.numbers, b.text) and bits


def sent(message, epoch=3, sequence=4):
    return [bytes(frame) for frame in encode(message, epoch, sequence)]


@settings(max_examples=examples(100))
@given(
    MESSAGES,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_all_that_goes_in_comes_out(message, epoch, sequence):
    there, *numbers = decode(sent(message, epoch, sequence))
    assert same(message, there) and numbers == [epoch, sequence]


@settings(max_examples=examples(200))
@given(MESSAGES, st.data())
def test_damaged_frames_are_refused_or_still_a_message_of_their_size(message, data):
    """A cut is always found. A changed byte may be another number, which is why whole connections are authenticated."""
    frames = sent(message)
    which = data.draw(st.integers(0, len(frames) - 1))
    frame = frames[which]
    if data.draw(st.booleans()):
        frames[which] = frame[: data.draw(st.integers(0, max(len(frame) - 1, 0)))]
        with pytest.raises(WireError):
            decode(frames)
    else:
        at = data.draw(st.integers(0, len(frame) - 1))
        frames[which] = frame[:at] + bytes([data.draw(st.integers(0, 255))]) + frame[at + 1 :]
        try:
            there = decode(frames)[0]
        except WireError:
            return
        assert there.nbytes <= sum(map(len, frames))


@settings(max_examples=examples(100))
@given(st.lists(st.binary(max_size=64), max_size=3))
def test_garbage_is_refused(frames):
    with pytest.raises(WireError):
        decode(frames)


def header(*described: bytes, n_arrays: int = 1) -> bytes:
    return struct.pack(
        "<4sBxHHIIQQ",
        b"AMPW",
        1,
        n_arrays,
        0,
        0,
        0,
        0,
        1,
    ) + b"".join(described)


def described(name: bytes, *shape: int) -> bytes:
    return bytes([len(name), len(shape)]) + name + struct.pack(f"<{len(shape)}Q", *shape)


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([], "expected a header, got no frame"),
        ([b"GET / HTTP/1.1\r\n\r\n" + bytes(60)], "expected the magic word b'AMPW', got b'GET '"),
        ([b"AMPW\x02" + bytes(60)], "expected version 1 of the format, got version 2"),
        (
            [header(described(b"object", 1)), bytes(8)],
            "expected an array of numbers, got dtype 'object'",
        ),
        (
            [
                header(
                    described(
                        b"float32",
                        *33 * [1],
                    )
                ),
                bytes(4),
            ],
            "with 33 dimensions",
        ),
        (
            [header(described(b"float32", 2**63, 2**63)), bytes(4)],
            "expected an array that fits into memory",
        ),
        ([header(described(b"float32", 2**63, 0))], "expected an array that fits into memory"),
        (
            [header(described(b"float32", 2**40)), bytes(4)],
            "bytes of arrays, as the header says, got 4",
        ),
        (
            [
                header(
                    described(b"int8", 2),
                    described(b"int8", 2),
                    n_arrays=2,
                ),
                bytes(1),
                bytes(3),
            ],
            "frames of [2] bytes",
        ),
        (
            [header(described(b"int8", 2)), bytes(2), b""],
            "as many frames as the header says, got more",
        ),
        ([header(n_arrays=0) + b"!"], "a header of the length that it says, got 1 bytes more"),
    ],
)
def test_what_is_wrong_is_said(frames, text):
    with pytest.raises(WireError, match=re.escape(text)):
        decode(frames)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("m", (2**63,)), "message 'm': expected integers and lengths that fit"),
        (
            Message("m", arrays=(np.array([None]),)),
            "message 'm', array 0: expected numbers or booleans, got dtype object",
        ),
        (
            Message(
                "m",
                arrays=(np.array(["a"]),),
            ),
            "got dtype <U1",
        ),
        (Message("m", arrays=([1],)), "message 'm', array 0: expected a NumPy array, got list"),
        (
            Message(
                "m",
                arrays=(np.zeros(33 * [1]),),
            ),
            "expected at most 32 dimensions, got 33",
        ),
    ],
)
def test_what_cannot_travel_is_said(message, text):
    with pytest.raises(WireError, match=re.escape(text)):
        encode(message, 0, 1)


def test_arrays_travel_without_a_copy_in_frames_of_a_bounded_size(monkeypatch):
    monkeypatch.setattr(wire, "CHUNK_BYTES", 64)
    array = np.arange(50, dtype=np.int32)
    _, *body = encode(
        Message("m", arrays=(array,)),
        0,
        1,
    )
    assert [frame.nbytes for frame in body] == [64, 64, 64, 8]
    assert all(np.shares_memory(array, np.frombuffer(frame, np.uint8)) for frame in body)
    strided = Message(
        "m",
        arrays=(
            array[::2],
            array.astype(">i4"),
            np.array(7.5),
        ),
    )
    there = decode(sent(strided))[0].arrays
    assert (there[0] == array[::2]).all()
    assert (there[1] == array).all()
    assert there[2] == 7.5


def test_a_message_is_readable():
    assert repr(
        Message(
            "rows",
            (3,),
            "x" * 50,
            (np.zeros((2, 3), np.float32),),
        )
    ) == (f"Message('rows', 3, '{'x' * 37}...', float32[2, 3])")


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_arrays_of_other_classes_travel_as_plain_ones():
    """`len` of a matrix's memory is its rows, and a masked array has none."""
    values = np.arange(6.0).reshape(2, 3)
    frames = encode(
        Message(
            "m",
            arrays=(
                np.matrix(values),
                np.ma.masked_array(values, values > 2),
            ),
        ),
        1,
        1,
    )
    assert [len(frame) for frame in frames[1:]] == [48, 48]
    for array in decode(frames)[0].arrays:
        assert type(array) is np.ndarray and (array == values).all()
