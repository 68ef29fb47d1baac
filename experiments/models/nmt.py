"""Translation with LSTMs and attention: Google's model (GNMT, Wu et al. 2016) and the standard bidirectional one, as in TensorFlow's nmt.

Both embeddings are looked up by rows, so they are sparse variables; the output matrix meets every word at every step, so it is dense.
The recurrent halves are in `seq2seq`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ampjax.errors import SettingsError
from experiments.data.readers.data_checks import at_least_one
from experiments.models.layers import dropout, functional
from experiments.models.layers.attention import Memory
from experiments.models.layers.seq2seq import ARCHITECTURES, Decoder, Encoder

Batch = Any
"""`source [batch, words]`, `source_length [batch]`; `target_in` and `target_out`, `[batch, words]`, the sentence after its start mark and
before its end mark; `target_length [batch]`, with the mark. All int32. Optional: `dropout_seed` `[batch]`, different in each row."""


@dataclass(frozen=True)
class Config:
    """Sizes of the model and how it is trained.

    Args:
      layers: Layers of the encoder, and of the decoder.
      units: Features of an embedding and of every LSTM.
      source_vocabulary: Rows of the source's embedding.
      target_vocabulary: Rows of the target's embedding, and columns of the output matrix.
      architecture: `gnmt`: one bidirectional layer below, context to all decoder layers; `bi`: all encoder layers bidirectional, an
        attention layer above the decoder.
      dropout: Rate, on each LSTM's input.
      scale: Initial values are uniform within ± this.
      learning_rate: The learning rate of SGD; it is halved 10 times in the second half of training.
      n_updates: Updates of the whole training.
      clip: Largest norm of the gradient.
      batch: Sentences in a batch.
      max_length: The most words of a sentence in training.
      beam: Beam width of translation.

    Raises:
      SettingsError: If a size is below 1, the architecture is neither of the two, or it can't have so many layers.
    """

    layers: int = 2
    units: int = 1024
    source_vocabulary: int = 36_548
    target_vocabulary: int = 36_548
    architecture: str = "gnmt"
    dropout: float = 0.2
    scale: float = 0.1
    learning_rate: float = 1.0
    n_updates: int = 340_000
    clip: float = 5.0
    batch: int = 128
    max_length: int = 50
    beam: int = 10

    def __post_init__(self) -> None:
        sizes = (
            "layers",
            "units",
            "source_vocabulary",
            "target_vocabulary",
            "n_updates",
            "batch",
            "max_length",
            "beam",
        )
        at_least_one("nmt.Config", **{name: getattr(self, name) for name in sizes})
        if self.architecture not in ARCHITECTURES:
            raise SettingsError(
                "nmt.Config, `architecture`",
                f"one of {list(ARCHITECTURES)}",
                f"{self.architecture!r}",
                "Choose one.",
            )
        if self.layers < 2 or (self.architecture == "bi" and self.layers % 2):
            raise SettingsError(
                "nmt.Config, `layers`",
                "an even number for `bi`, at least 2 for `gnmt`",
                f"{self.layers}",
                "Half of `bi`'s encoder layers read backwards; `gnmt` has at least one layer above its bidirectional one.",
            )

    @classmethod
    def full(cls, layers: int = 2) -> Config:
        """The papers' translation model, with 2, 4 or 8 layers on each side.

        Args:
          layers: Layers of the encoder, and of the decoder.

        Returns:
          The full-size configuration.
        """
        return cls(layers, learning_rate=2.0 if layers == 8 else 1.0)

    @classmethod
    def small(cls, source_vocabulary: int = 500, target_vocabulary: int = 500) -> Config:
        """A small translation model, which takes seconds on a laptop.

        Args:
          source_vocabulary: Rows of the source's embedding.
          target_vocabulary: Rows of the target's embedding.

        Returns:
          A small configuration.
        """
        return cls(
            2,
            32,
            source_vocabulary,
            target_vocabulary,
            dropout=0.0,
            n_updates=400,
            batch=16,
            max_length=12,
        )


class Translator(nnx.Module):
    """Parameters: `source_embedding` and `target_embedding` `[V, units]`, `encoder`, `decoder`, `output [units, V]`."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        def uniform(
            key: jax.Array,
            shape: tuple[int, ...],
            dtype: Any = jnp.float32,
        ) -> jax.Array:
            return jax.random.uniform(
                key,
                shape,
                dtype,
                -config.scale,
                config.scale,
            )

        units = config.units
        target = config.target_vocabulary
        self.source_embedding = nnx.Param(uniform(rngs.params(), (config.source_vocabulary, units)))
        self.target_embedding = nnx.Param(uniform(rngs.params(), (target, units)))
        self.encoder = Encoder(config.architecture, config.layers, units, uniform, rngs)
        self.decoder = Decoder(
            config.architecture, config.layers, units, self.encoder.n_out, uniform, rngs
        )
        self.output = nnx.Param(uniform(rngs.params(), (units, target)))

    def encode(
        self, source: jax.Array, length: jax.Array, drop: dropout.Dropout
    ) -> tuple[Memory, Any]:
        """Encodes sentences.

        Args:
          source: `[n, words]` int32, padded after each sentence's end.
          length: `[n]` int32: words of each sentence.
          drop: Dropout of this batch.

        Returns:
          The memory that the decoder attends to, and its first state.
        """
        outputs, states = self.encoder(self.source_embedding[source], length, drop)
        present = jnp.arange(source.shape[1]) < length[:, None]
        return self.decoder.attention.remember(outputs, present), self.decoder.start(states)

    def decode(
        self,
        memory: Memory,
        state: Any,
        words: jax.Array,
    ) -> tuple[Any, jax.Array]:
        """Decodes one word of each sentence.

        Args:
          memory: The memory that `encode` has returned.
          state: The decoder's state.
          words: `[n]` int32: the previous words.

        Returns:
          The next state, and the next words' logits `[n, V]`.
        """
        attend = partial(self.decoder.attention, memory=memory)
        state, output = self.decoder.step(
            attend, state, self.target_embedding[words], dropout.Dropout(None, 0.0)
        )
        return state, output @ self.output[...]

    def logits(self, batch: Batch, drop: dropout.Dropout) -> jax.Array:
        """Computes the logits of all words of the targets, each given the right previous words (teacher forcing).

        Args:
          batch: Sources and targets.
          drop: Dropout of this batch.

        Returns:
          `[n, words, V]`, float32.
        """
        memory, state = self.encode(
            batch["source"],
            batch["source_length"],
            drop.at(0),
        )
        inputs = self.target_embedding[batch["target_in"]]
        attend = partial(self.decoder.attention, memory=memory)
        return self.decoder.run(attend, state, inputs, drop.at(1)) @ self.output[...]


def init(config: Config, seed: int = 0) -> Any:
    """Makes initial parameters; the same seed gives the same parameters.

    Args:
      config: Sizes of the model and how it is trained.
      seed: Of the PRNG key.

    Returns:
      A nested dict of float32 arrays.
    """
    return functional.init(Translator, config, seed)


def make_loss(config: Config) -> Callable[[Any, Batch], jax.Array]:
    """Makes the training loss: the words' cross entropies in nats, summed over a sentence, averaged over the batch.

    Args:
      config: Sizes of the model and how it is trained.

    Returns:
      `loss_fn(params, batch)`: a scalar, float32.
    """

    def loss_fn(params: Any, batch: Batch) -> jax.Array:
        drop = dropout.from_batch(batch, config.dropout)
        return _nats(config, params, batch, drop).sum() / len(batch["source"])

    return loss_fn


def make_evaluate(config: Config) -> Callable[[Any, Batch], tuple[jax.Array, jax.Array]]:
    """Makes the function that scores a batch of translations.

    Args:
      config: Sizes of the model and how it is trained.

    Returns:
      `evaluate(params, batch)`: the words' cross entropies in nats and the number of words, both summed over the batch. `exp(nats /
      n_words)` is the perplexity.
    """

    def evaluate(
        params: Any,
        batch: Batch,
    ) -> tuple[jax.Array, jax.Array]:
        return _nats(config, params, batch, dropout.Dropout(None, 0.0)).sum(), batch[
            "target_length"
        ].sum()

    return evaluate


def _nats(
    config: Config,
    params: Any,
    batch: Batch,
    drop: dropout.Dropout,
) -> jax.Array:
    """The cross entropy of each word of the targets `[n, words]`; 0 behind their ends."""
    logits = functional.merge(Translator, config, params).logits(batch, drop)
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["target_out"])
    return jnp.where(
        jnp.arange(nats.shape[1]) < batch["target_length"][:, None],
        nats,
        0,
    )


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Makes SGD with the schedule `halving`, after clipping by the norm of all gradients.

    Args:
      config: Sizes of the model and how it is trained.

    Returns:
      The optax transform.
    """
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.sgd(halving(config)),
    )


def halving(config: Config) -> optax.Schedule:
    """The learning rate by update: constant in the first half, then halved after each of 10 equal parts of the second (`luong10`).

    Args:
      config: Sizes of the model and how it is trained.

    Returns:
      From an update's number to its learning rate.
    """
    half = config.n_updates // 2
    part = max((config.n_updates - half) // 10, 1)
    return lambda count: config.learning_rate * 0.5 ** (jnp.maximum(count - half, 0) // part)
