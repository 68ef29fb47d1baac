"""MNIST: the original files, and a synthetic twin that needs none.

The paper's perceptron (AMPNet B.1) takes batches of 100 images as instances, so that is what `Batches` hands out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int

from ampjax.errors import DataError
from ampjax.ir.instances import Messages
from experiments.data.readers.data_checks import at_least_one
from experiments.data.readers.data_files import Remote, find
from experiments.data.readers.idx import foreign, read_idx

# of the training images' pixels on [0, 1]
MEAN = 0.1307
STD = 0.3081
N_PIXELS = 784
N_CLASSES = 10
_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"


def _remote(stem: str, sha256: str) -> Remote:
    return Remote("mnist", f"{stem}.gz", f"{_MIRROR}{stem}.gz", sha256, also=(stem,))


FILES = {
    ("train", "images"): _remote(
        "train-images-idx3-ubyte",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    ("train", "labels"): _remote(
        "train-labels-idx1-ubyte",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    ("valid", "images"): _remote(
        "t10k-images-idx3-ubyte", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    ("valid", "labels"): _remote(
        "t10k-labels-idx1-ubyte", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}


@dataclass(frozen=True)
class Digits:
    """Images with their labels.

    Args:
      images: `[n, 784]` float32: pixels scaled to `[0, 1]`, then standardised with MNIST's mean and deviation.
      labels: `[n]` int32, each in `[0, 10)`.
    """

    images: Float[np.ndarray, "n 784"]
    labels: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Digits({len(self)} images)"


def load(data_dir: str | os.PathLike[str] | None = None) -> tuple[Digits, Digits]:
    """Loads MNIST: 60,000 training and 10,000 validation images.

    Args:
      data_dir: The folder with the four files; else `AMPJAX_DATA`, else the cache, else a download (see `readers.data_files.find`).

    Returns:
      The training and the validation (MNIST's test) images.

    Raises:
      DataError: If a file is missing and can't be downloaded, is damaged or foreign, holds a label above 9, or if the images and
        labels differ in number.
    """
    train, valid = (_load(split, data_dir) for split in ("train", "valid"))
    return train, valid


def synthetic(
    n_train: int = 6000,
    n_valid: int = 1000,
    seed: int = 0,
) -> tuple[Digits, Digits]:
    """Draws a twin of MNIST that needs no files: one prototype image for each class, plus noise on every pixel.

    Args:
      n_train: Training images.
      n_valid: Validation images, of the same prototypes.
      seed: Same seed, same images.

    Returns:
      `(train, valid)`, with shapes, dtypes and scale as from `load`; a linear classifier can learn it.

    Raises:
      SettingsError: If a count is below 1.
    """
    at_least_one("synthetic", n_train=n_train, n_valid=n_valid)
    rng = np.random.default_rng(seed)
    # A fifth of the pixels carry ink, about as in MNIST, so the standardised images have about the same scale.
    prototypes = rng.random((N_CLASSES, N_PIXELS)) * (rng.random((N_CLASSES, N_PIXELS)) < 0.2)

    def draw(n: int) -> Digits:
        labels = rng.integers(0, N_CLASSES, n, dtype=np.int32)
        pixels = prototypes[labels] + rng.normal(scale=0.25, size=(n, N_PIXELS))
        return Digits(
            ((np.clip(pixels, 0, 1) - MEAN) / STD).astype(np.float32),
            labels,
        )

    return draw(n_train), draw(n_valid)


@dataclass(frozen=True)
class Batches:
    """Instances for the perceptron: one instance is one batch of images (`ampjax.ir.instances.Instances`).

    Pumps: `image`, one row `[batch_size, 784]` float32, and `label`, one row `[batch_size]` int32, both without state fields.
    The last batch is filled up with images of its own whose label is -1, which the loss must ignore.

    Args:
      data: The images.
      batch_size: Images in a batch.
      permutation: `[n]`, the order in which images fill batches; the data's own order if absent.

    Raises:
      SettingsError: If `batch_size` is below 1.
    """

    data: Digits
    batch_size: int = 100
    permutation: np.ndarray | None = field(default=None, repr=False)
    _members: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        at_least_one("Batches", batch_size=self.batch_size)
        if self.permutation is None:
            order = np.arange(len(self.data))
        else:
            order = self.permutation
        padded = np.concatenate([order, np.full(-len(order) % self.batch_size, -1)])
        object.__setattr__(self, "_members", padded.reshape(-1, self.batch_size))

    def __len__(self) -> int:
        return len(self._members)

    @property
    def n_examples(self) -> int:
        """Real images in all instances: what throughput is counted in."""
        return len(self.data)

    def reshuffle(self, rng: np.random.Generator) -> Batches:
        """Puts the same images into newly drawn batches; this object, which may still be in use, does not change.

        Args:
          rng: Draws.

        Returns:
          A data set of batches.
        """
        return replace(self, permutation=rng.permutation(len(self.data)))

    def gather(self, ids: np.ndarray) -> dict[str, Messages]:
        """The messages of the batches `ids`, by pump.

        Args:
          ids: `[n]`, each in `[0, len(self))`.

        Returns:
          By pump, the messages as columns; `Messages.instance` counts positions in `ids`.
        """
        members = self._members[np.asarray(ids, dtype=np.int64)]
        # Padding repeats a real image: a made-up one might give a body values that real data never gives.
        real = np.where(members < 0, members[:, :1], members)
        labels = np.where(
            members < 0,
            np.int32(-1),
            self.data.labels[real],
        )
        instance = np.arange(len(members))
        return {
            "image": Messages(
                np.take(self.data.images, real, axis=0),
                instance,
            ),
            "label": Messages(labels, instance),
        }


def _load(
    split: str,
    data_dir: str | os.PathLike[str] | None,
) -> Digits:
    paths = {}
    for kind in ("images", "labels"):
        paths[kind] = find(FILES[split, kind], data_dir)
    images = read_idx(paths["images"], 3)
    labels = read_idx(paths["labels"], 1)
    if len(images) != len(labels):
        raise DataError(
            f"files {paths['images']} and {paths['labels']}",
            "as many images as labels",
            f"{len(images)} images and {len(labels)} labels",
            "Take both files from one source.",
        )
    if labels.max() >= N_CLASSES:
        at = int(np.argmax(labels >= N_CLASSES))
        raise foreign(paths["labels"], 8 + at, "a label from 0 to 9", f"{labels[at]}")
    # 256 byte values, so a table gives what float64 arithmetic would, without its temporaries.
    table = ((np.arange(256) / 255 - MEAN) / STD).astype(np.float32)
    return Digits(
        table[images.reshape(len(images), -1)],
        labels.astype(np.int32),
    )
