"""The two models that are trained in two ways: data, the same program as a function of one instance and of a batch, and its scores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax

from ampjax.frontend.combinators.structures import Stacked
from experiments.data import multi30k, zipf
from experiments.data.pairs import PairBatches, Pairs, plain, plain_sentences
from experiments.models import lm, nmt
from experiments.models.functions import language_model_function, translation_function
from experiments.models.scores import bleu, perplexity
from experiments.models.translate import make_translate
from experiments.parallax.learning import sentences_of

Tree = Any
Name = Literal["lm", "nmt"]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of data and models.

    Args:
      vocabulary: Words of a vocabulary at most.
      units: Features of embeddings and LSTMs.
      max_length: The most words of a sentence; pairs with longer ones are left out.
      n_train: Training pairs that are read.
      n_valid: Held-out pairs that are read.
      batch: Sentences of an update.
      n_buckets: Widths of padded batches.
    """

    vocabulary: int = 2000
    units: int = 64
    max_length: int = 16
    n_train: int = 4000
    n_valid: int = 256
    batch: int = 32
    n_buckets: int = 4


@dataclass(frozen=True)
class Subject:
    """One program in two forms.

    Args:
      model: The function of one instance.
      params: Its first parameters.
      spec: What its instances look like.
      train: Training instances.
      embeddings: By key of the parameters, the leaf of instances that has an embedding's ids.
      nested: From the function's parameters to those of the program of batches.
      loss: The program of batches.
      batches: Gives an epoch's padded batches.
      score: From the parameters of the program of batches to its scores on held-out sentences, by name.
      padding: The share of a padded batch's words that are padding.
    """

    model: Callable[[Tree, Any], Any]
    params: Tree = field(repr=False)
    spec: Tree
    train: Stacked = field(repr=False)
    embeddings: Mapping[str, str]
    nested: Callable[[Tree], Tree]
    loss: Callable[[Tree, Any], Any]
    batches: Callable[[int], Iterator[Any]]
    score: Callable[[Tree], Mapping[str, float]]
    padding: float


def make_subject(
    name: Name,
    sizes: Sizes,
    data_dir: Path | None,
    synthetic: bool,
    seed: int,
) -> Subject:
    """Reads the data and makes a model in both forms, with the same first parameters.

    Args:
      name: `lm`: a language model of English; `nmt`: translation from English to German.
      sizes: The sizes.
      data_dir: The folder with multi30k's files; else the environment variable AMPJAX_DATA.
      synthetic: Take generated sentences in place of files.
      seed: Of parameters, generated sentences and the batches' order.

    Raises:
      SettingsError: If a size is below 1.
      DataError: If a file is missing or wrong.
    """
    train, valid, vocabularies = _read(sizes, data_dir, synthetic, seed)
    return (_language_model if name == "lm" else _translation)(
        train, valid, vocabularies, sizes, seed
    )


def _read(
    sizes: Sizes, data_dir: Path | None, synthetic: bool, seed: int
) -> tuple[Pairs, Pairs, tuple[int, int]]:
    """Training and held-out pairs, and the sizes of both vocabularies."""
    if synthetic or (data_dir is None and not os.environ.get("AMPJAX_DATA")):
        counts = (sizes.n_train, sizes.n_valid)
        sides = []
        for i, n in enumerate(counts):
            sides.append(
                zipf.pairs(
                    n,
                    sizes.vocabulary,
                    max_length=sizes.max_length,
                    seed=seed + i,
                )
            )
        return sides[0], sides[1], (sizes.vocabulary, sizes.vocabulary)
    data = multi30k.load(data_dir, size=sizes.vocabulary, n_train=sizes.n_train)
    train = data.train.up_to(sizes.max_length)
    valid = data.valid.up_to(sizes.max_length)
    return (
        train,
        valid.first(sizes.n_valid),
        (len(data.source_vocabulary), len(data.target_vocabulary)),
    )


def _language_model(
    train: Pairs,
    valid: Pairs,
    vocabularies: tuple[int, int],
    sizes: Sizes,
    seed: int,
) -> Subject:
    units = sizes.units
    config = lm.Config(
        vocabularies[0],
        None,
        units,
        2 * units,
        units,
        None,
        sizes.batch,
        sizes.max_length + 1,
        0.0,
    )
    sides = [Pairs(pairs.source, pairs.source) for pairs in (train, valid)]
    padded, held_out = (_padded(pairs, sizes, seed) for pairs in sides)
    evaluate = jax.jit(lm.make_evaluate(config))

    def batches(data: PairBatches, epoch: int) -> Iterator[Any]:
        for batch in data.epoch(epoch):
            yield {
                "inputs": batch["target_in"],
                "targets": batch["target_out"],
                "length": batch["target_length"],
            }

    def score(params: Tree) -> Mapping[str, float]:
        found = []
        for b in batches(held_out, 0):
            found.append((float(evaluate(params, b)[0]), int(b["length"].sum())))
        return {"perplexity": perplexity(*map(sum, zip(*found, strict=True)))}

    return Subject(
        language_model_function.language_model(config),
        language_model_function.init(config, seed),
        language_model_function.SPEC,
        plain_sentences(train.source),
        {"embedding": "inputs"},
        lambda params: params,
        lm.make_loss(config),
        lambda epoch: batches(padded, epoch),
        score,
        _share_of_padding(batches(padded, 0), targets="length"),
    )


def _translation(
    train: Pairs,
    valid: Pairs,
    vocabularies: tuple[int, int],
    sizes: Sizes,
    seed: int,
) -> Subject:
    config = nmt.Config(
        2,
        sizes.units,
        *vocabularies,
        dropout=0.0,
        batch=sizes.batch,
        max_length=sizes.max_length,
        beam=1,
    )
    padded = _padded(train, sizes, seed)
    held_out = _padded(valid, sizes, seed)
    evaluate = jax.jit(nmt.make_evaluate(config))
    translate = jax.jit(make_translate(config, max_length=2 * sizes.max_length))

    def score(params: Tree) -> Mapping[str, float]:
        nats = 0.0
        n_words = 0
        said = []
        meant = []
        for batch in held_out.epoch():
            more = evaluate(params, batch)
            nats = nats + float(more[0])
            n_words = n_words + int(more[1])
            real = batch["pair"] >= 0
            words, _ = translate(params, batch["source"], batch["source_length"])
            said += sentences_of(words, real)
            meant += [valid.target[i].tolist() for i in batch["pair"][real]]
        return {"perplexity": perplexity(nats, n_words), "bleu": bleu(said, meant)}

    return Subject(
        translation_function.translation(config),
        translation_function.init(config, seed),
        translation_function.SPEC,
        plain(train),
        {"source_embedding": "source", "target_embedding": "target_in"},
        translation_function.nested,
        nmt.make_loss(config),
        padded.epoch,
        score,
        _share_of_padding(padded.epoch(0), source="source_length", target_out="target_length"),
    )


def _padded(pairs: Pairs, sizes: Sizes, seed: int) -> PairBatches:
    return PairBatches(pairs, sizes.batch, sizes.max_length, sizes.n_buckets, seed)


def _share_of_padding(batches: Iterator[Any], **lengths: str) -> float:
    """The share of words that are padding in the named leaves, each with the leaf that holds its rows' lengths."""
    words = places = 0
    for batch in batches:
        words += sum(int(batch[length].sum()) for length in lengths.values())
        places += sum(batch[leaf].size for leaf in lengths)
    return 1 - words / places
