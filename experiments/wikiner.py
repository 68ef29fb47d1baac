"""Named entities in WikiNER with a BiLSTM tagger that spells rare words (AMPNet, section 6 and B.4; DyNet's benchmark)."""

from __future__ import annotations

from dataclasses import dataclass

import optax

from ampjax.data import wikiner
from ampjax.errors import SettingsError
from ampjax.history import History
from ampjax.models.tagger import Sizes, tagger
from experiments.common import Options, Task, run

EMBEDDING_INTERVAL = 1000
"""Gradient rows between updates of the table of words, whose rows are many and rarely seen: about 50 sentences."""


@dataclass(frozen=True, kw_only=True)
class WikinerOptions(Options):
    """WikiNER: a tag for every word of a sentence.

    A gradient row is a word, or for the nodes that spell a character: a sentence has 25 words, and 34 characters in its rare words, on average. So
    with an interval of 50 an update sees about two sentences (DyNet's program updates after each). The paper's max-active-keys are 1, 4 and 32.

    Args:
      n_train: Training sentences, the first ones of the file.
      n_valid: Validation sentences, the first ones of the file.
      full: All sentences of the files, in place of `n_train` and `n_valid`.
      learning_rate: Adam's.
      noise: Standard deviation of the Gaussian noise on word vectors in training.
      synthetic: Generated sentences in place of files.
      max_active_keys: Sentences in flight at most.
      replicas: Copies of the two LSTM cells over words.
      target: Validation accuracy over all words to reach.
    """

    n_train: int = 2000
    n_valid: int = 500
    full: bool = False
    learning_rate: float = 1e-3
    noise: float = 0.1
    max_active_keys: int = 32
    epochs: int = 3
    target: float = 0.94


def main(options: WikinerOptions) -> list[History]:
    """Trains; one history per seed.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    if not options.learning_rate > 0:
        raise SettingsError("--learning-rate", "more than 0", f"{options.learning_rate}", "Adam's default is 1e-3.")
    data = load(options)
    return run("wikiner", options, lambda seed: prepare(options, *data, seed))


def load(options: WikinerOptions) -> tuple[wikiner.Sentences, wikiner.Sentences]:
    """Training and validation sentences.

    Raises:
      SettingsError: If a count is below 1.
      DataError: If a file is missing or damaged.
    """
    if options.synthetic:
        return wikiner.synthetic(options.n_train, options.n_valid)
    if options.full:
        return wikiner.load(options.data_dir)
    return wikiner.load(options.data_dir, options.n_train, options.n_valid)


def prepare(options: WikinerOptions, train: wikiner.Sentences, valid: wikiner.Sentences, seed: int) -> Task:
    """Model, settings and optimizer for one seed."""
    vocabulary = train.vocabulary
    graph = tagger(
        len(vocabulary.words),
        len(vocabulary.characters),
        Sizes(noise=options.noise),
        options.replicas,
        EMBEDDING_INTERVAL,
    )
    settings = options.settings(seed, 50, gradient="sum")
    tx = optax.adam(options.learning_rate)
    return Task(graph, wikiner.SentenceInstances(train), wikiner.SentenceInstances(valid), settings, tx)
