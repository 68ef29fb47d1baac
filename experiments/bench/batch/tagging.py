"""The tagger of words with a model of characters for rare ones; by hand padded, with masks."""

from __future__ import annotations

import os

import jax
import numpy as np

from experiments.bench.batch.work import Amount, Work
from experiments.bench.peers import wikiner_jax
from experiments.data import wikiner
from experiments.models import tagger
from experiments.wikiner import counts


def tagging(amount: Amount) -> Work:
    """64 sentences of WikiNER, or generated ones where there is none."""
    there = amount.data_dir or os.environ.get("AMPJAX_DATA")
    if amount.synthetic or not there:
        sentences, _ = wikiner.synthetic()
    else:
        sentences, _ = wikiner.load(amount.data_dir, n_train=10_000)
    n = amount.of(64)
    plain = wikiner.plain(sentences)
    n_words = int(sentences.ptr[n])
    return Work(
        tagger.tagger(0),
        tagger.SPEC,
        tagger.init(
            jax.random.key(0),
            *counts(sentences.vocabulary),
            tagger.Sizes(noise=0),
        ),
        [plain[i] for i in range(n)],
        n_words + int(sentences.char_ptr[n_words]),
        lambda p, a: wikiner_jax.loss(p, a) / n,
        wikiner_jax.padded(
            sentences,
            np.arange(n),
            n,
        ),
    )
