"""Images: folders of files, synthetic ones, and batches of both."""

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from ampjax.errors import DataError, SettingsError
from experiments.data import images
from experiments.data.images import MEAN, STD, Batches, Folder

pillow = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, 2:6] = (255, 0, 51)  # what a cut at the centre leaves
    for name in ("cat/b/wide.png", "dog/tall.PNG", "cat/a.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        turned = pixels.swapaxes(0, 1) if "tall" in name else pixels
        pillow.fromarray(turned).save(tmp_path / name, format="png")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    return tmp_path


def test_folders_are_classes_and_images_are_cut_at_the_centre(folder: Path) -> None:
    data = Folder(folder, 4)
    assert data.classes == ("cat", "dog")
    assert data.labels.tolist() == [0, 0, 1]
    assert [file.name for file in data.files] == ["a.png", "wide.png", "tall.PNG"]
    assert repr(data) == "Folder(3 images of 2 classes, 4 × 4)"
    pixels = data.read(np.array([2, 0]))
    assert pixels.shape == (2, 4, 4, 3)
    assert pixels.dtype == np.float32
    expected = (np.array([1, 0, 0.2]) - MEAN) / STD
    np.testing.assert_allclose(
        pixels,
        np.broadcast_to(expected, pixels.shape),
        atol=1e-5,
    )
    assert Folder(folder, 16).read(np.array([1])).shape == (1, 16, 16, 3)


def test_wrong_folders_and_files_are_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"nowhere: expected a folder for each class, got none"):
        Folder(tmp_path / "nowhere")
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: expected image files \(\.jpeg.*\), got none"):
        Folder(folder)
    (folder / "empty" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.jpg: expected an image, got cannot identify"):
        Folder(folder).read(np.array([3]))
    (folder / "empty" / "bad.jpg").write_bytes((folder / "cat" / "a.png").read_bytes()[:60])
    with pytest.raises(DataError, match=r"bad\.jpg: expected an image"):
        Folder(folder).read(np.array([3]))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        DataError, match=r"expected the package Pillow, got .*Install it: `pip install pillow`"
    ):
        Folder(folder).read(np.array([0]))


def png(width: int, height: int) -> bytes:
    """A PNG whose header claims so many pixels, with the values of none."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    facts = struct.pack(
        ">IIBBBBB",
        width,
        height,
        8,
        2,
        0,
        0,
        0,
    )
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", facts)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def test_what_an_image_claims_is_compared_with_its_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "cat" / "a.png"
    data = Folder(folder, 8)

    def told(content: bytes) -> str:
        path.write_bytes(content)
        with pytest.raises(DataError) as error:
            data.read(np.array([0]))
        assert error.value.where == f"file {path}"
        return f"{error.value.expected}; {error.value.got}"

    assert told(png(8000, 8000)).endswith(
        "at most 4194304 pixels, many times what photographs have; 8000 x 8000 from 65 bytes"
    )
    assert "decompression bomb" in told(png(60_000, 60_000))
    assert told(png(1, 4_000_000)).startswith(
        f"at most {pillow.MAX_IMAGE_PIXELS} pixels, before and after"
    )  # 256 M if scaled
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 1000)
    assert told(png(2, 400)).endswith("2 x 400, scaled to 8 x 1600")
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", None)
    assert told(png(1, 1 << 22)).startswith("an image; image file is truncated")
    assert "cannot identify" in told(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    )  # Pillow would start Ghostscript


def test_batches_hold_every_image_once(folder: Path) -> None:
    data = images.synthetic(10, 8, 3, seed=2)
    epoch = list(Batches(data, 3).epoch())
    assert len(epoch) == len(Batches(data, 3)) == 3
    found = np.concatenate([x["image"] for x in epoch])
    assert found.shape == (9, 8, 8, 3)
    assert len(np.unique(found[:, 0, 0, 0])) == 9
    other = next(Batches(data, 3).epoch(1))
    assert not np.array_equal(epoch[0]["image"], other["image"])
    assert np.array_equal(
        epoch[0]["image"],
        next(Batches(data, 3).epoch())["image"],
    )
    (batch,) = Batches(Folder(folder, 4), 3).epoch()
    assert (
        sorted(batch["label"].tolist()) == [0, 0, 1]
        and len(set(batch["dropout_seed"].tolist())) == 3
    )


def test_synthetic_images_show_their_class() -> None:
    data = images.synthetic(60, 8, 3, 0.1, seed=1)
    again = images.synthetic(60, 8, 3, 0.1, seed=1)
    assert np.array_equal(data.images, again.images) and repr(data) == "Images(60, 8 × 8)"
    means = np.stack([data.images[data.labels == k].mean(0) for k in range(3)])
    other = images.synthetic(30, 8, 3, 0.1, seed=2)
    distance = np.square(other.images[:, None] - means).sum((2, 3, 4))
    assert np.array_equal(distance.argmin(1), other.labels)


def test_mistakes_are_named() -> None:
    with pytest.raises(DataError, match="expected at least 11 images, got 10"):
        Batches(images.synthetic(10, 8), 11)
    with pytest.raises(SettingsError, match="`size`: expected at least 1, got 0"):
        images.synthetic(3, 0)
    with pytest.raises(SettingsError, match="`batch`: expected at least 1, got 0"):
        Batches(images.synthetic(3, 8), 0)
