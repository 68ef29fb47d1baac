"""What figure 7 trains: models that learn something in minutes on a laptop, each with a score and a target for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax

from experiments.data import images as image_data
from experiments.data import multi30k, zipf
from experiments.data.pairs import PairBatches, Pairs
from experiments.data.text import END, Contiguous
from experiments.models import lm, nmt, resnet
from experiments.models.scores import bleu, perplexity
from experiments.models.translate import make_translate
from experiments.parallax.workloads import Workload

Tree = Any


@dataclass(frozen=True)
class Task:
    """A workload that is trained until a score.

    Args:
      work: What is trained; its batches are those of the first epoch.
      score: Its name, with a unit.
      higher: Whether more of it is better.
      target: The score to reach.
      evaluate: From parameters to the score, on data that training does not see.
      epoch: Gives an epoch's batches.
    """

    work: Workload
    score: str
    higher: bool
    target: float
    evaluate: Callable[[Tree], float] = field(repr=False)
    epoch: Callable[[int], Iterator[Any]] = field(repr=False)

    def batches(self) -> Iterator[Any]:
        """Batches without end, epoch by epoch."""
        number = 0
        while True:
            yield from self.epoch(number)
            number += 1


Learner = Literal["lm", "nmt", "resnet"]


def learn_lm(
    replicas: int,
    seed: int,
    vocabulary: int = 2000,
    words: int = 60_000,
) -> Task:
    """LM on a text of which half the words repeat the one five places before; perplexity, where chance is the vocabulary's entropy."""
    config = lm.Config(
        vocabulary,
        None,
        64,
        128,
        64,
        samples=min(256, vocabulary),
        batch=8,
        steps=20,
        dropout=0.0,
        learning_rate=0.1,
    )
    text = zipf.tokens(words, vocabulary, copy=0.7, seed=seed)
    train = Contiguous(
        text[: -words // 10],
        replicas * config.batch,
        config.steps,
        seed,
    )
    held_out = list(Contiguous(text[-words // 10 :], config.batch, config.steps, seed).epoch())
    score = jax.jit(lm.make_evaluate(config))

    def evaluate(params: Tree) -> float:
        nats = 0.0
        state = {}
        for batch in held_out:
            more, last = score(params, batch | state)
            nats = nats + float(more)
            state = {"state": last}
        return perplexity(nats, sum(batch["targets"].size for batch in held_out))

    params = lm.init(config, seed)
    tx = lm.make_optimizer(config)
    work = Workload(
        "lm",
        lm.make_loss(config),
        params,
        tx,
        [],
        replicas * config.batch * config.steps,
    )
    return Task(work, "perplexity", False, 230.0, evaluate, train.epoch)


def learn_nmt(
    replicas: int,
    seed: int,
    data_dir: Path | None,
    synthetic: bool,
    n_train: int | None = None,
) -> Task:
    """NMT on multi30k, English to German, or on a made-up language that reverses sentences; BLEU of greedy translations."""
    pairs, valid, vocabularies, target = _languages(data_dir, synthetic, n_train, seed)
    config = nmt.Config(
        2,
        128,
        *vocabularies,
        dropout=0.0,
        n_updates=10**6,
        batch=32,
        max_length=20,
        clip=1.0,
        scale=0.1,
    )
    train = PairBatches(
        pairs,
        replicas * config.batch,
        config.max_length,
        n_buckets=2,
        seed=seed,
    )
    held_out = list(PairBatches(valid, 128, config.max_length, n_buckets=1, seed=seed).epoch())[:2]
    translate = jax.jit(make_translate(config, beam=1, max_length=config.max_length + 5))

    def evaluate(params: Tree) -> float:
        said = []
        meant = []
        for batch in held_out:
            words, _ = translate(params, batch["source"], batch["source_length"])
            some = batch["pair"] >= 0
            said += sentences_of(words, some)
            meant += [valid.target[i].tolist() for i in batch["pair"][some]]
        return bleu(said, meant)

    units = (
        (len(pairs.source.words) + len(pairs.target.words))
        / max(1, train.n_pairs)
        * replicas
        * config.batch
    )
    tx = optax.chain(
        optax.clip_by_global_norm(config.clip), optax.adam(4e-3)
    )  # four times as fast as Adagrad
    work = Workload(
        "nmt",
        nmt.make_loss(config),
        nmt.init(config, seed),
        tx,
        [],
        units,
    )
    return Task(work, "BLEU", True, target, evaluate, train.epoch)


def learn_resnet(replicas: int, seed: int) -> Task:
    """A small ResNet on synthetic images of ten classes; top-1 error."""
    config = resnet.Config(
        (1, 1),
        8,
        10,
        32,
        batch=replicas * 16,
        epoch_updates=40,
    )
    train = image_data.Batches(
        image_data.synthetic(640, 32, 10, 1.5, seed),
        replicas * 16,
        seed,
    )
    valid = image_data.synthetic(256, 32, 10, 1.5, seed + 1)
    predict = jax.jit(resnet.make_predict(config))

    def evaluate(params: Tree) -> float:
        logits = np.asarray(predict(params, valid.images))
        return 100 * float((logits.argmax(-1) != valid.labels).mean())

    params = resnet.init(config, seed)
    tx = resnet.make_optimizer(config)
    work = Workload(
        "resnet",
        resnet.make_loss(config),
        params,
        tx,
        [],
        replicas * 16,
    )
    return Task(work, "top-1 error [%]", False, 5.0, evaluate, train.epoch)


def _languages(
    data_dir: Path | None, synthetic: bool, n_train: int | None, seed: int
) -> tuple[Pairs, Pairs, tuple[int, int], float]:
    """Training and validation pairs, the sizes of both vocabularies, and the BLEU to reach."""
    if synthetic or (data_dir is None and not os.environ.get("AMPJAX_DATA")):
        sides = []
        for i, n in enumerate((n_train or 6000, 256)):
            sides.append(zipf.pairs(n, 200, max_length=6, seed=seed + i))
        return sides[0], sides[1], (200, 200), 30.0
    data = multi30k.load(data_dir, size=8000, n_train=n_train)
    return data.train, data.valid, (len(data.source_vocabulary), len(data.target_vocabulary)), 10.0


def sentences_of(
    words: Any,
    real: np.ndarray,
) -> list[list[int]]:
    """Translations up to their end marks.

    Args:
      words: What `make_translate` gives, `[n, words]`.
      real: `[n]`: which rows are no padding.
    """
    rows = np.asarray(words)[real]
    ends = [np.flatnonzero(row == END) for row in rows]
    result = []
    for row, end in zip(rows, ends, strict=True):
        result.append(row[: end[0]].tolist() if len(end) else row.tolist())
    return result
