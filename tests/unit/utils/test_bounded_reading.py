"""Reading what nobody has checked yet."""

from pathlib import Path

import pytest

from ampjax.utils.bounded_reading import (
    ALWAYS_ALLOWED,
    MOST_TIMES,
    allowed_bytes,
    parse_json,
    read_json,
    read_whole,
)


def test_a_packed_file_may_unpack_to_some_times_its_size() -> None:
    assert allowed_bytes(0) == allowed_bytes(1000) == ALWAYS_ALLOWED
    assert allowed_bytes(ALWAYS_ALLOWED) == MOST_TIMES * ALWAYS_ALLOWED
    assert allowed_bytes(ALWAYS_ALLOWED, 2) == 2 * ALWAYS_ALLOWED


def test_a_file_is_read_if_it_is_small(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"[1]")
    assert read_whole(path, 3) == b"[1]" and read_json(path) == [1]
    with pytest.raises(ValueError, match="more than 2 bytes"):
        read_whole(path, 2)
    with path.open("r+b") as file:
        file.truncate(1 << 43)
    with pytest.raises(ValueError, match="more than 67108864 bytes"):
        read_json(path)
    with pytest.raises(ValueError, match="more than 9 bytes"):
        read_whole("/dev/zero", 9)  # a device tells no size
    path.write_bytes(b"")
    assert read_whole(path, 0) == b""


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "", "[1", b"\xff\xfe\xfd"],
)
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)
