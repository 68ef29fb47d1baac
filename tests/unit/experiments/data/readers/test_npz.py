"""Archives of columns: headers that lie, archives that unpack to a thousand times their size, and nothing that needs a pickle."""

import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ampjax.errors import DataError
from ampjax.utils.bounded_reading import ALWAYS_ALLOWED
from experiments.data import qm9
from experiments.data.readers.npz import Column, read_columns

COLUMNS = {
    "mu": Column("f", 1),
    "pairs": Column("iu", 2),
}
GOOD = {
    "mu": np.array([1.5, 2.5], np.float32),
    "pairs": np.arange(6, dtype=np.uint8).reshape(3, 2),
}


def header(
    shape: tuple[int, ...],
    dtype: str = "<f4",
    length: int | None = None,
) -> bytes:
    """The beginning of a `.npy` file; with `length`, one of version 2.0 that claims a header so long."""
    file = io.BytesIO()
    facts = {"descr": dtype, "fortran_order": False, "shape": shape}
    if length is None:
        np.lib.format.write_array_header_1_0(file, facts)
        return file.getvalue()
    return np.lib.format.magic(2, 0) + length.to_bytes(4, "little")


def archive(
    path: Path,
    packing: int = zipfile.ZIP_DEFLATED,
    **members: bytes,
) -> Path:
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def refused(path: Path, match: str) -> int:
    """Reads an archive that must be refused; the most bytes that this took."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=match) as error:
            read_columns(path, {"mu": COLUMNS["mu"]}, "Get it again.")
        assert str(error.value).startswith(f"file {path}") and error.value.fix == "Get it again."
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_columns_have_64_bits(tmp_path: Path, save) -> None:
    save(tmp_path / "a.npz", **GOOD, other=np.array(["text"]))
    columns = read_columns(tmp_path / "a.npz", COLUMNS, "")
    assert {name: column.dtype.name for name, column in columns.items()} == {
        "mu": "float64",
        "pairs": "int64",
    }
    assert all((columns[name] == GOOD[name]).all() for name in COLUMNS)
    save(
        tmp_path / "a.npz",
        mu=GOOD["mu"][:0],
        pairs=np.asfortranarray(GOOD["pairs"].astype(">i2")),
    )
    columns = read_columns(tmp_path / "a.npz", COLUMNS, "")
    assert len(columns["mu"]) == 0
    assert (columns["pairs"] == GOOD["pairs"]).all()


def test_an_array_larger_than_a_piece_is_read_whole(tmp_path: Path) -> None:
    values = np.arange(300_001, dtype=np.float32)
    np.savez_compressed(tmp_path / "a.npz", mu=values)
    assert (
        read_columns(
            tmp_path / "a.npz",
            {"mu": COLUMNS["mu"]},
            "",
        )["mu"]
        == values
    ).all()


@pytest.mark.parametrize(
    ("members", "match"),
    [
        (
            {"mu": header((2**40,)) + bytes(8)},
            r"array `mu`: expected as many bytes as .*, 4398046511104, got 8 bytes",
        ),
        ({"mu": header((3,)) + bytes(8)}, r"shape \(3,\) takes, 12, got 8 bytes"),
        ({"mu": header((1,)) + bytes(8)}, r"shape \(1,\) takes, 4, got 8 bytes"),
        (
            {"mu": header((-2,)) + bytes(8)},
            r"expected floats with 1 axes, got float32 of shape \(-2,\)",
        ),
        (
            {"mu": header((1, 2)) + bytes(8)},
            r"expected floats with 1 axes, got float32 of shape \(1, 2\)",
        ),
        (
            {"mu": header((8,), "|O") + bytes(64)},
            "a readable .npz archive of arrays, got ValueError: objects",
        ),
        (
            {"mu": header((), length=2**32 - 1) + bytes(1 << 25)},
            "a readable .npz archive of arrays, got ValueError",
        ),
        (
            {"mu": header((2,)).replace(b"(2,)", b"(" * 4) + bytes(8)},
            "a readable .npz archive of arrays",
        ),
        (
            {"mu": np.lib.format.magic(3, 0) + bytes(99)},
            r"version 1.0 or 2.0 of NumPy's format, got 3\.0",
        ),
        ({"mu": b"text"}, "expected an array of floats, got something else"),
        ({"nu": header((2,)) + bytes(8)}, "expected an array of floats, got no such array"),
    ],
    ids=[
        "tera",
        "short",
        "long",
        "negative",
        "axes",
        "objects",
        "header",
        "brackets",
        "version",
        "text",
        "missing",
    ],
)
def test_a_header_that_lies_is_told_before_memory_is_made_for_it(
    tmp_path: Path, members: dict, match: str
) -> None:
    assert refused(archive(tmp_path / "a.npz", **members), match) < 1 << 20


@pytest.mark.parametrize("kind", ["<f4", "<f2"])
def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused_unread(
    tmp_path: Path, kind: str
) -> None:
    n = (
        ALWAYS_ALLOWED // 8 + 1
    )  # as float64 more than is always allowed; zeros pack to a thousandth
    content = header((n,), kind) + bytes(n * int(kind[2]))
    path = archive(tmp_path / "a.npz", mu=content)
    assert path.stat().st_size < 20_000
    assert (
        refused(path, f"columns of {ALWAYS_ALLOWED} bytes at most, .* got {8 * n} bytes") < 1 << 20
    )


def test_ways_of_packing_that_numpy_does_not_write_are_refused(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "a.npz",
        zipfile.ZIP_BZIP2,
        mu=header((2,)) + bytes(8),
    )
    refused(
        path, "values that are stored or deflated, as NumPy writes them, got another way of packing"
    )
    np.savez(path, mu=GOOD["mu"])
    data = path.read_bytes()
    entry = data.rindex(b"PK\1\2")
    path.write_bytes(
        data[: entry + 8] + b"\1" + data[entry + 9 :]
    )  # the flag of an encrypted member
    refused(path, "a readable .npz archive of arrays, got RuntimeError")


def test_the_directory_may_lie_too(tmp_path: Path) -> None:
    content = header((4,)) + bytes(16)
    path = archive(
        tmp_path / "a.npz",
        mu=header((4,)) + bytes(8),
    )
    data = path.read_bytes()
    sizes = (
        (len(content) - 8).to_bytes(
            4,
            "little",
        ),
        len(content).to_bytes(4, "little"),
    )
    path.write_bytes(data.replace(*sizes))
    refused(path, "a readable .npz archive of arrays, got EOFError")


def test_molecules_that_claim_terabytes_are_refused(tmp_path: Path) -> None:
    claims = {}
    for name in qm9._COLUMNS:
        claims[name] = header(
            (2**40,) + (2,) * (name == "bond_index"),
            "<i8" if name != "mu" else "<f8",
        )
    with pytest.raises(
        DataError,
        match=r"array `mu`: expected as many bytes as float64 .* takes, 8796093022208, got 0",
    ):
        qm9.read(archive(tmp_path / "qm9_graphs.npz", **claims))
