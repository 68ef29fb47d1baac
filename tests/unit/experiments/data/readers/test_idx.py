import gzip
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.errors import DataError
from experiments.data.readers.idx import MOST_ITEMS, read_idx


def images(n=3, side=28, magic=2051, claimed=None):
    pixels = np.random.default_rng(0).integers(
        0,
        256,
        n * side * side,
        dtype=np.uint8,
    )
    return (
        struct.pack(">IIII", magic, n if claimed is None else claimed, side, side)
        + pixels.tobytes()
    )


def labels(values=(1, 2, 9), magic=2049):
    return struct.pack(">II", magic, len(values)) + bytes(values)


def save(tmp_path, content, name="file.gz"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, bytes],
    ids=["gzip", "plain"],
)
def test_gzipped_and_plain_files_are_read_whatever_their_name(tmp_path, pack):
    path = save(tmp_path, pack(images()), "any-name")
    array = read_idx(path, 3)
    assert array.shape == (3, 28, 28) and array.dtype == np.uint8
    assert array.tobytes() == images()[16:]
    assert read_idx(
        save(tmp_path, pack(labels())),
        1,
    ).tolist() == [1, 2, 9]


@given(
    st.lists(
        st.integers(0, 255),
        min_size=1,
        max_size=40,
    ),
    st.booleans(),
)
def test_what_was_written_is_read(tmp_path_factory, values, packed):
    content = labels(values)
    path = save(
        tmp_path_factory.mktemp("idx"),
        gzip.compress(content) if packed else content,
    )
    assert read_idx(path, 1).tolist() == values


@given(st.data())
def test_no_part_of_a_file_passes_for_the_whole(tmp_path_factory, data):
    content = labels(range(10))
    packed = data.draw(st.booleans())
    whole = gzip.compress(content) if packed else content
    path = save(
        tmp_path_factory.mktemp("idx"),
        whole[: data.draw(st.integers(0, len(whole) - 1))],
    )
    with pytest.raises(DataError, match="byte "):
        read_idx(path, 1)


@pytest.mark.parametrize(
    ("content", "n_axes", "text"),
    [
        (
            labels(),
            3,
            r"byte 0: expected magic number 2051, got 2049\. It is damaged or no MNIST file",
        ),
        (images(), 1, r"byte 0: expected magic number 2049, got 2051\."),
        (b"", 1, r"byte 0: expected magic number 2049, got the file's end\."),
        (images()[:10], 3, r"byte 10: expected a header of 16 bytes, got the file's end\."),
        (images(side=32), 3, r"byte 8: expected images of 28 x 28 pixels, got 32 x 32\."),
        (labels(()), 1, r"byte 4: expected at least one item, got a count of 0\."),
        (images()[:-1], 3, r"byte 2367: expected 2368 bytes for 3 items, got 2367 bytes\."),
        (labels() + b"x", 1, r"byte 11: expected 11 bytes for 3 items, got more\."),
        (
            images(claimed=2**32 - 1),
            3,
            r"byte 4: expected at most 280000 items, got a count of 4294967295\.",
        ),
        (
            images(claimed=MOST_ITEMS),
            3,
            r"byte 2368: expected 219520016 bytes for 280000 items, got 2368 bytes\.",
        ),
    ],
)
@pytest.mark.parametrize(
    "pack",
    [gzip.compress, bytes],
    ids=["gzip", "plain"],
)
def test_foreign_files_are_refused(tmp_path, content, n_axes, text, pack):
    path = save(tmp_path, pack(content))
    with pytest.raises(DataError, match=f"^file {path}, {text}"):
        read_idx(path, n_axes)


def test_a_truncated_gzip_says_how_far_it_came(tmp_path):
    with pytest.raises(
        DataError, match=r"byte \d+: expected a whole gzip stream, got Compressed file ended before"
    ):
        read_idx(
            save(tmp_path, gzip.compress(images(200))[:100_000]),
            3,
        )


def test_a_damaged_gzip_is_refused(tmp_path):
    packed = bytearray(gzip.compress(images(200)))
    packed[-8] ^= 1  # the stream's own checksum
    with pytest.raises(DataError, match="expected a whole gzip stream, got CRC check failed"):
        read_idx(save(tmp_path, bytes(packed)), 3)
    packed[12] = 0xFF  # the first deflate block
    with pytest.raises(DataError, match="expected a whole gzip stream, got Error -3"):
        read_idx(save(tmp_path, bytes(packed)), 3)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=f"file {tmp_path}: expected a file that can be read"):
        read_idx(tmp_path, 3)


def test_of_a_gzip_stream_no_more_is_unpacked_than_its_header_claims(tmp_path):
    path = save(
        tmp_path,
        gzip.compress(images(claimed=10) + bytes(1 << 25)),
    )
    assert path.stat().st_size < 50_000
    tracemalloc.start()
    with pytest.raises(DataError, match=r"byte 7856: expected 7856 bytes for 10 items, got more\."):
        read_idx(path, 3)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_no_memory_is_made_for_items_that_do_not_come(tmp_path):
    path = save(tmp_path, gzip.compress(images(claimed=MOST_ITEMS)))
    tracemalloc.start()
    with pytest.raises(DataError, match="items, got 2368 bytes"):
        read_idx(path, 3)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20  # a piece and what unpacks it
    tracemalloc.stop()
