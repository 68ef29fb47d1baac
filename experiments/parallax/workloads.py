"""The models of the experiments, in sizes for a laptop, each with data for some replicas: what is trained, whatever trains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import optax

from experiments.data import images as image_data
from experiments.data import zipf
from experiments.data.pairs import PairBatches
from experiments.data.text import Contiguous
from experiments.models import inception, lm, nmt, resnet

Tree = Any
Model = Literal["lm", "nmt", "resnet", "inception"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the experiments' models.

    Args:
      vocabulary: Rows of LM's embedding and softmax.
      languages: Rows of NMT's embeddings, and columns of its output matrix.
      units: Features of embeddings and LSTMs.
      samples: Classes that LM draws for its softmax.
      batch: Sequences of a replica's part of a batch.
      words: Words of a sequence of LM, and words of a sentence at most.
      images: Images of a replica's part of a batch.
      pixels: Height and width of an image; Inception takes 75 at least.
    """

    vocabulary: int = 50_000
    languages: int = 4_000
    units: int = 64
    samples: int = 512
    batch: int = 16
    words: int = 20
    images: int = 8
    pixels: int = 32


@dataclass(frozen=True)
class Workload:
    """A single-device program and batches for it.

    Args:
      name: Of the model.
      loss: `loss_fn(params, batch)`.
      params: The first parameters, host arrays.
      tx: The optimizer.
      batches: Joined batches for all replicas.
      units: Words or images of a batch, the mean.
    """

    name: str
    loss: Callable[[Tree, Any], Any] = field(repr=False)
    params: Tree = field(repr=False)
    tx: optax.GradientTransformation = field(repr=False)
    batches: Sequence[Any] = field(repr=False)
    units: float = 1.0


def workload(
    model: Model,
    replicas: int,
    sizes: Sizes = Sizes(),
    n_batches: int = 4,
    seed: int = 0,
) -> Workload:
    """A model with batches.

    Args:
      model: Which.
      replicas: Parts of each batch.
      sizes: Of model and data.
      n_batches: Batches that there are.
      seed: Of parameters and data.
    """
    make = {"lm": _lm, "nmt": _nmt, "resnet": _resnet, "inception": _inception}[model]
    return make(replicas, sizes, n_batches, seed)


def language_model(sizes: Sizes) -> lm.Config:
    """LM's configuration: the paper's in small."""
    return lm.Config(
        sizes.vocabulary, None, sizes.units, 2 * sizes.units, sizes.units, min(sizes.samples, sizes.vocabulary),
        sizes.batch, sizes.words, dropout=0.0,
    )  # fmt: skip


def translator(sizes: Sizes) -> nmt.Config:
    """NMT's configuration: the paper's in small."""
    return nmt.Config(
        2,
        sizes.units,
        sizes.languages,
        sizes.languages,
        dropout=0.0,
        batch=sizes.batch,
        max_length=sizes.words,
    )


def _lm(
    replicas: int,
    sizes: Sizes,
    n_batches: int,
    seed: int,
) -> Workload:
    config = language_model(sizes)
    rows = replicas * sizes.batch
    text = zipf.tokens(
        rows * sizes.words * n_batches + 1,
        sizes.vocabulary,
        seed=seed,
    )
    batches = list(Contiguous(text, rows, sizes.words, seed).epoch())
    params = lm.init(config, seed)
    tx = lm.make_optimizer(config)
    return Workload(
        "lm",
        lm.make_loss(config),
        params,
        tx,
        batches,
        rows * sizes.words,
    )


def _nmt(
    replicas: int,
    sizes: Sizes,
    n_batches: int,
    seed: int,
) -> Workload:
    config = translator(sizes)
    rows = replicas * sizes.batch
    pairs = zipf.pairs(
        rows * n_batches,
        sizes.languages,
        max_length=sizes.words,
        seed=seed,
    )
    batches = list(PairBatches(pairs, rows, sizes.words, n_buckets=1, seed=seed).epoch())
    words = (len(pairs.source.words) + len(pairs.target.words)) / len(batches)
    return Workload(
        "nmt",
        nmt.make_loss(config),
        nmt.init(config, seed),
        nmt.make_optimizer(config),
        batches,
        words,
    )


def _resnet(
    replicas: int,
    sizes: Sizes,
    n_batches: int,
    seed: int,
) -> Workload:
    config = resnet.Config(
        classes=100,
        size=sizes.pixels,
        batch=replicas * sizes.images,
        epoch_updates=100,
    )
    batches = _images(replicas, sizes, sizes.pixels, n_batches, seed)
    params = resnet.init(config, seed)
    tx = resnet.make_optimizer(config)
    return Workload(
        "resnet", resnet.make_loss(config), params, tx, batches, replicas * sizes.images
    )


def _inception(
    replicas: int,
    sizes: Sizes,
    n_batches: int,
    seed: int,
) -> Workload:
    pixels = max(sizes.pixels, 75)
    config = inception.Config(
        classes=100, size=pixels, auxiliary=False, batch=replicas * sizes.images
    )
    batches = _images(replicas, sizes, pixels, n_batches, seed)
    params = inception.init(config, seed)
    tx = inception.make_optimizer(config)
    return Workload(
        "inception", inception.make_loss(config), params, tx, batches, replicas * sizes.images
    )


def _images(
    replicas: int, sizes: Sizes, pixels: int, n_batches: int, seed: int
) -> list[dict[str, np.ndarray]]:
    n = replicas * sizes.images
    return list(
        image_data.Batches(
            image_data.synthetic(n * n_batches, pixels, 100, seed=seed), n, seed
        ).epoch()
    )
