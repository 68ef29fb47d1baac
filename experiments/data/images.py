"""Labelled images: folders of image files, one folder a class (as ImageNet is passed around), and synthetic ones.

Files are read by Pillow, batch by batch, so a data set may be larger than memory.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from ampjax.errors import DataError
from experiments.data.readers.data_checks import at_least_one

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
"""Of ImageNet's pixels on [0, 1], by channel."""
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp")
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF")
"""What Pillow takes such files for: no format of its that runs other programs."""
ALWAYS_ALLOWED = 1 << 22
MOST_PER_BYTE = 400
"""Pixels that an image may have, however small its file is, and for each byte of the file. Photographs have up to about 20 for a byte."""

_FIX = "Get the file again, or remove it."
_DAMAGE = (
    OSError,
    ValueError,
    SyntaxError,
    LookupError,
    TypeError,
    EOFError,
    OverflowError,
    struct.error,
    zlib.error,
)
"""What Pillow's readers raise where a file is damaged."""


@dataclass(frozen=True, eq=False, repr=False)
class Folder:
    """The image files below `path`, labelled by their folders: `path/class/.../file`.

    Args:
      path: The folder with a folder for each class.
      size: Height and width of the images: they are scaled so that the shorter side fits, then cropped at the centre.

    Raises:
      SettingsError: If `size` is below 1.
      DataError: If there is no such folder, or a class, or none at all, has no images.
    """

    path: str | os.PathLike[str]
    size: int = 224
    classes: Sequence[str] = field(init=False)
    """The names of the classes, sorted; a label is a place here."""
    files: Sequence[Path] = field(init=False)
    """All files, class by class."""
    labels: Int[np.ndarray, " n"] = field(init=False)
    """`[n]` int32."""

    def __post_init__(self) -> None:
        at_least_one("images.Folder", size=self.size)
        root = Path(self.path)
        if root.is_dir():
            classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        else:
            classes = []
        by_class = []
        for name in classes:
            by_class.append(
                sorted(f for f in (root / name).rglob("*") if f.suffix.lower() in SUFFIXES)
            )
        if not classes or not all(by_class):
            if not classes:
                empty = root
            else:
                empty = root / classes[[len(files) for files in by_class].index(0)]
            raise DataError(
                f"folder {empty}",
                "a folder for each class"
                if not classes
                else f"image files ({', '.join(SUFFIXES)})",
                "none",
                "Lay the images out as FOLDER/CLASS/FILE, and leave empty classes out.",
            )
        object.__setattr__(self, "classes", tuple(classes))
        object.__setattr__(self, "files", [file for files in by_class for file in files])
        labels = np.repeat(
            np.arange(len(classes), dtype=np.int32),
            [len(files) for files in by_class],
        )
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        return (
            f"Folder({len(self)} images of {len(self.classes)} classes, {self.size} × {self.size})"
        )

    def read(
        self,
        ids: np.ndarray,
    ) -> Float[np.ndarray, "n size size 3"]:
        """Reads some images and standardises them.

        Args:
          ids: `[n]`, each in `[0, len(self))`.

        Returns:
          `[n, size, size, 3]`, float32.

        Raises:
          DataError: If Pillow is not installed, or a file is no image, or claims more pixels than a file of its size has; names the file.
        """
        return np.stack([_read(self.files[i], self.size) for i in ids])


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Images in memory, with the same methods as `Folder`.

    Args:
      images: `[n, size, size, 3]` float32, standardised.
      labels: `[n]` int32.
    """

    images: Float[np.ndarray, "n size size 3"]
    labels: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Images({len(self)}, {self.images.shape[1]} × {self.images.shape[2]})"

    def read(
        self,
        ids: np.ndarray,
    ) -> Float[np.ndarray, "n size size 3"]:
        """Gives some images.

        Args:
          ids: `[n]`: which images.

        Returns:
          `[n, size, size, 3]`, float32.
        """
        return self.images[ids]


def synthetic(
    n: int,
    size: int = 32,
    classes: int = 10,
    noise: float = 0.5,
    seed: int = 0,
) -> Images:
    """Draws images that need no files: a coarse pattern of colours for each class, plus noise on every pixel.

    Args:
      n: How many.
      size: Height and width.
      classes: Classes, equally likely.
      noise: Deviation of the noise; that of the patterns is 1.
      seed: Of labels and noise; the patterns are the same for all seeds.

    Returns:
      `n` images with labels.

    Raises:
      SettingsError: If a count is below 1.
    """
    at_least_one("images.synthetic", n=n, size=size, classes=classes)
    patterns = np.random.default_rng(0).normal(size=(classes, 4, 4, 3))
    cell = np.arange(size) * 4 // size
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n, dtype=np.int32)
    images = patterns[labels][:, cell][:, :, cell] + noise * rng.normal(size=(n, size, size, 3))
    return Images(images.astype(np.float32), labels)


@dataclass(frozen=True)
class Batches:
    """Batches of images; an epoch leaves out the images that do not fill a whole batch.

    Args:
      data: A `Folder` or `Images`.
      batch: Images of a batch.
      seed: Of the order and of the seeds in the batches.

    Raises:
      SettingsError: If `batch` is below 1.
      DataError: If there are too few images for one batch.
    """

    data: Folder | Images
    batch: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        at_least_one("images.Batches", batch=self.batch)
        if not len(self):
            raise DataError(
                "images.Batches",
                f"at least {self.batch} images",
                f"{len(self.data)}",
                "Make the batch smaller.",
            )

    def __len__(self) -> int:
        return len(self.data) // self.batch

    def epoch(
        self,
        number: int = 0,
    ) -> Iterator[dict[str, np.ndarray]]:
        """All batches, in a random order of an epoch's own.

        Args:
          number: Which epoch.

        Yields:
          `image` `[batch, size, size, 3]` float32, `label` `[batch]` int32, `dropout_seed` `[batch]` uint32.

        Raises:
          DataError: As `Folder.read`.
        """
        rng = np.random.default_rng([self.seed, number])
        order = rng.permutation(len(self.data))
        for i in range(len(self)):
            ids = order[i * self.batch : (i + 1) * self.batch]
            seeds = rng.integers(
                1 << 32,
                size=self.batch,
                dtype=np.uint32,
            )
            yield {
                "image": self.data.read(ids),
                "label": self.data.labels[ids],
                "dropout_seed": seeds,
            }


def _read(path: Path, size: int) -> np.ndarray:
    image_module = _pillow()
    try:
        with image_module.open(path, formats=FORMATS) as image:
            scale = size / min(image.size)
            width, height = (max(size, round(side * scale)) for side in image.size)
            _check_size(path, image.size, (width, height), image_module.MAX_IMAGE_PIXELS)
            image = image.convert("RGB")
            left = (width - size) // 2
            top = (height - size) // 2
            image = image.resize((width, height), image_module.Resampling.BILINEAR)
            pixels = np.asarray(
                image.crop((left, top, left + size, top + size)),
                np.float32,
            )
    except DataError:
        raise
    except (
        *_DAMAGE,
        image_module.DecompressionBombError,
        image_module.DecompressionBombWarning,
    ) as error:
        raise DataError(f"file {path}", "an image", f"{error}", _FIX) from error
    return (pixels / 255 - MEAN) / STD


def _check_size(
    path: Path,
    size: tuple[int, int],
    scaled: tuple[int, int],
    most: int | None,
) -> None:
    """Raises a `DataError` where an image would take far more memory than a photograph in a file of this size, before it is unpacked."""
    n_bytes = path.stat().st_size
    allowed = max(ALWAYS_ALLOWED, MOST_PER_BYTE * n_bytes)
    if math.prod(size) > allowed:
        got = f"{size[0]} x {size[1]} from {n_bytes} bytes"
        raise DataError(
            f"file {path}", f"at most {allowed} pixels, many times what photographs have", got, _FIX
        )
    if most is not None and max(math.prod(size), math.prod(scaled)) > most:
        got = f"{size[0]} x {size[1]}, scaled to {scaled[0]} x {scaled[1]}"
        fix = "Make it smaller or cut it, or raise PIL.Image.MAX_IMAGE_PIXELS."
        raise DataError(
            f"file {path}", f"at most {most} pixels, before and after it is scaled", got, fix
        )


def _pillow():
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            "folders of images",
            "the package Pillow",
            f"{error}",
            "Install it: `pip install pillow`.",
        ) from error
    return Image
