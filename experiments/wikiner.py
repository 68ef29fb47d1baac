"""Named entities in WikiNER with a BiLSTM tagger that spells rare words (AMPNet, section 6 and B.5; DyNet's benchmark)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
import optax

import ampjax as amp
from ampjax.sparse import Table
from ampjax.train.history import History
from experiments.common import Options, Task, require_positive, run
from experiments.data import wikiner
from experiments.intervals import update_together
from experiments.models.tagger import SPEC, Sizes, init, random_table, tagger


@dataclass(frozen=True, kw_only=True)
class WikinerOptions(Options):
    """WikiNER: a tag for every word of a sentence.

    A gradient row is a word, or for the nodes that spell a character. By default each node waits for as many as `batch` sentences bring
    on average, so all update equally often (DyNet's program updates after each sentence). The paper's max-active-keys are 1, 4 and 32.

    Args:
      n_train: Training sentences, the first ones of the file; by default 10,000, or 1,000 generated ones.
      n_valid: Validation sentences, the first ones of the file; by default all, or 200 generated ones.
      full: All sentences of the files, in place of `n_train` and `n_valid`.
      batch: Sentences whose gradient rows make an update.
      learning_rate: Adam's.
      noise: Standard deviation of the Gaussian noise on word vectors in training.
      synthetic: Generated sentences in place of files.
      max_active_keys: Sentences in flight at most.
      replicas: Copies of the two LSTM cells over words.
      table: The vectors of frequent words lie in a table in host memory, where they are updated, in place of a node's parameters on a device.
      target: Validation accuracy over all words to reach. The paper's 94 % needs its 142,153 sentences: many words of the validation sentences are
        in none of the first 10,000, from which plain synchronous training has about the default too.
    """

    n_train: int | None = None
    n_valid: int | None = None
    batch: int = 4
    learning_rate: float = 1e-3
    noise: float = 0.1
    table: bool = False
    max_active_keys: int = 32
    policy: str = "wavefront"
    min_admission: int = 32
    max_dispatch_size: int = 512
    epochs: int = 3
    target: float = 0.91


def main(options: WikinerOptions) -> list[History]:
    """Trains; one history per seed.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    return run("wikiner", options, tasks(options))


def tasks(options: WikinerOptions) -> Callable[[int], Task]:
    """Reads the data; gives a function from a seed to model, data, settings and optimizer.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    require_positive(
        "The defaults are 1e-3 and 4.", learning_rate=options.learning_rate, batch=options.batch
    )
    train, valid = load(options)
    words, characters = counts(train.vocabulary)
    sizes = Sizes(noise=options.noise)
    tx = optax.adam(options.learning_rate)

    def task(seed: int) -> Task:
        key = jax.random.key(seed)
        table = None
        if options.table:
            table = Table(
                np.asarray(random_table(words, sizes.word)(key)),
                tx,
            )
        params = init(key, words, characters, sizes, table)
        compiled = amp.compile(
            tagger(options.noise, options.replicas), params, SPEC, copies=options.copies
        )
        instances = compiled.data(wikiner.plain(train))
        settings = options.settings(seed, 1, gradient="sum")
        settings = update_together(
            compiled.graph, instances, settings, options, options.batch, "output"
        )
        return Task(
            compiled.graph,
            instances,
            compiled.data(wikiner.plain(valid)),
            settings,
            tx,
        )

    return task


def counts(vocabulary: wikiner.Vocabulary) -> tuple[int, int]:
    """Words and characters of a vocabulary. Of a few sentences no word may be frequent: the table then has a row that nobody reads."""
    return max(1, len(vocabulary.words)), len(vocabulary.characters)


def load(options: WikinerOptions) -> tuple[wikiner.Sentences, wikiner.Sentences]:
    """Training and validation sentences.

    Raises:
      SettingsError: If a count is below 1.
      DataError: If a file is missing or damaged.
    """
    sizes = {"n_train": options.n_train, "n_valid": options.n_valid}
    given = {name: n for name, n in sizes.items() if n is not None}
    if options.synthetic:
        return wikiner.synthetic(**given)
    if options.full:
        return wikiner.load(options.data_dir)
    return wikiner.load(options.data_dir, **{"n_train": 10_000, **given})
