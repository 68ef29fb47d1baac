"""The LSTM language model LSTM-2048-512 (Jozefowicz et al. 2016), the one of the Parallax papers.

Words are looked up in a table, an LSTM with a projection reads them, and a softmax over all words, sampled in training, tells the next one.
A step touches a few rows of the embedding, and of the softmax matrix and bias those of the right words and the samples: these three are
sparse variables, the LSTM's three are dense. Ids must be sorted by frequency, the most frequent word first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ampjax.errors import SettingsError
from ampjax.optim.average import parameter_average
from experiments.data.readers.data_checks import at_least_one
from experiments.models.layers import dropout, functional
from experiments.models.layers.lstm import LSTM, State
from experiments.models.layers.sampled_softmax import draw, expected_count, sampled_loss

Batch = Any
"""`inputs` and `targets`, `[batch, steps]` int32. `sample_seed`, `[batch]`: the step's seed in each row, equal in all rows of a part that
shares samples; not for a full softmax. Optional: `length` `[batch]`, how many words of a row count, all by default; `dropout_seed`
`[batch]`, different in each row; `state`, what `carry=True` gave for the batch before."""

_matrix = jax.nn.initializers.variance_scaling(1.0, "fan_in", "uniform")
_rows = jax.nn.initializers.variance_scaling(
    1.0, "fan_out", "uniform"
)  # a row's length is 1, whatever the number of rows


@dataclass(frozen=True)
class Config:
    """Sizes of the model and how it is trained.

    Args:
      vocabulary: Rows of the embedding.
      classes: Rows of the softmax matrix; `vocabulary` if None.
      embedding: Features of an embedding.
      hidden: Features of the LSTM's cell.
      projection: Features of the projected output, which is also fed back; None for an LSTM without a projection.
      samples: Classes that are drawn for the sampled softmax of a step; None trains with the full softmax.
      batch: Sequences in a batch.
      steps: Words of a sequence in a batch.
      dropout: Rate, on embeddings and on the LSTM's outputs.
      learning_rate: The learning rate of Adagrad.
      accumulator: The initial value of Adagrad's sums of squares.
      clip: Largest norm of the LSTM's gradient.
      average: Decay of the moving average of the LSTM's parameters.

    Raises:
      SettingsError: If a size is below 1, or there are more samples than classes.
    """

    vocabulary: int = 793_470
    classes: int | None = None
    embedding: int = 512
    hidden: int = 2048
    projection: int | None = 512
    samples: int | None = 8192
    batch: int = 128
    steps: int = 20
    dropout: float = 0.1
    learning_rate: float = 0.2
    accumulator: float = 1.0
    clip: float = 10.0
    average: float = 0.999

    def __post_init__(self) -> None:
        names = (
            "vocabulary",
            "n_classes",
            "embedding",
            "hidden",
            "n_features",
            "samples",
            "batch",
            "steps",
        )
        sizes = {name: getattr(self, name) for name in names}
        at_least_one(
            "lm.Config",
            **{name: size for name, size in sizes.items() if size is not None},
        )
        if self.samples is not None and self.samples > self.n_classes:
            raise SettingsError(
                "lm.Config, `samples`",
                f"at most {self.n_classes} classes",
                f"{self.samples}",
                "Draw fewer.",
            )

    @property
    def n_classes(self) -> int:
        """Rows of the softmax matrix."""
        return self.vocabulary if self.classes is None else self.classes

    @property
    def n_features(self) -> int:
        """What the LSTM gives to the softmax."""
        return self.hidden if self.projection is None else self.projection

    @classmethod
    def full(cls) -> Config:
        """The paper's language model.

        Returns:
          The full-size configuration.
        """
        return cls()

    @classmethod
    def small(cls) -> Config:
        """A small language model, which takes seconds on a laptop.

        Returns:
          A small configuration.
        """
        return cls(
            1000,
            None,
            32,
            64,
            32,
            samples=64,
            batch=8,
            steps=10,
            dropout=0.0,
        )


class LanguageModel(nnx.Module):
    """Parameters: `embedding [V, E]`, `lstm`, `softmax/weight [C, F]` and `softmax/bias [C]`."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        self.embedding = nnx.Param(
            _rows(
                rngs.params(),
                (config.vocabulary, config.embedding),
                jnp.float32,
            )
        )
        self.lstm = LSTM(
            config.embedding, config.hidden, config.projection, initializer=_matrix, rngs=rngs
        )
        self.softmax = Softmax(config.n_classes, config.n_features, rngs)

    def __call__(
        self,
        batch: Batch,
        drop: dropout.Dropout,
    ) -> tuple[State, jax.Array]:
        """The last state and what the softmax reads, `[batch, steps, F]`."""
        inputs = drop(self.embedding[batch["inputs"]], 0)
        state, outputs = self.lstm.run(
            _state(self, batch),
            inputs,
            batch.get("length"),
        )
        return state, drop(outputs, 1)


class Softmax(nnx.Module):
    """The output layer, with a row and a bias for each class, so that a step may read only some rows."""

    def __init__(self, n_classes: int, features: int, rngs: nnx.Rngs):
        self.weight = nnx.Param(_rows(rngs.params(), (n_classes, features), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(n_classes))

    def rows(
        self,
        ids: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Reads the weights and biases of some classes.

        Args:
          ids: Numbers of classes, `[n]` integers.

        Returns:
          Rows `[n, F]` and biases `[n]`, float32.
        """
        return self.weight[ids], self.bias[ids]

    def logits(self, x: jax.Array) -> jax.Array:
        """Computes the logits of all classes.

        Args:
          x: Features `[..., F]`.

        Returns:
          The logits `[..., C]`.
        """
        return x @ self.weight.T + self.bias[...]

    def nats(
        self,
        x: jax.Array,
        targets: jax.Array,
    ) -> jax.Array:
        """Computes the cross entropies of the full softmax.

        Args:
          x: Features `[..., F]`.
          targets: The right classes `[...]`.

        Returns:
          `[...]`, in nats.
        """
        return optax.softmax_cross_entropy_with_integer_labels(self.logits(x), targets)

    def sampled_nats(
        self,
        x: jax.Array,
        targets: jax.Array,
        key: jax.Array,
        n_samples: int,
    ) -> jax.Array:
        """Computes the cross entropies of a sampled softmax.

        Args:
          x: Features `[n, F]`.
          targets: The right classes `[n]`.
          key: A PRNG key, from which the samples are drawn.
          n_samples: How many of them.

        Returns:
          `[n]`, in nats.
        """
        n_classes = len(self.bias[...])
        samples, n_draws = draw(key, n_samples, n_classes)
        counts = (
            expected_count(targets, n_draws, n_classes),
            expected_count(samples, n_draws, n_classes),
        )
        return sampled_loss(
            x,
            self.rows(targets),
            self.rows(samples),
            targets,
            samples,
            counts,
        )


def init(config: Config, seed: int = 0) -> Any:
    """Makes initial parameters; the same seed gives the same parameters.

    Args:
      config: Sizes of the model and how it is trained.
      seed: Of the PRNG key.

    Returns:
      A nested dict of float32 arrays.
    """
    return functional.init(LanguageModel, config, seed)


def make_loss(
    config: Config,
    carry: bool = False,
) -> Callable[[Any, Batch], Any]:
    """Makes the training loss: the words' cross entropies in nats, summed over a row, averaged over the batch.

    Args:
      config: Sizes of the model and how it is trained.
      carry: Whether the loss also returns the LSTM's last state, for the next batch's `state`.

    Returns:
      `loss_fn(params, batch) -> loss`, or `-> (loss, state)`.
    """

    def loss_fn(params: Any, batch: Batch) -> Any:
        model = functional.merge(LanguageModel, config, params)
        state, outputs = model(batch, dropout.from_batch(batch, config.dropout))
        x = outputs.reshape(batch["targets"].size, -1)
        targets = batch["targets"].ravel()
        if config.samples is None:
            nats = model.softmax.nats(x, targets)
        else:
            nats = model.softmax.sampled_nats(
                x,
                targets,
                jax.random.key(batch["sample_seed"][0]),
                config.samples,
            )
        loss = _present(batch, nats.reshape(batch["targets"].shape)).sum() / len(batch["targets"])
        return (loss, _packed(state)) if carry else loss

    return loss_fn


def make_evaluate(config: Config) -> Callable[[Any, Batch], tuple[jax.Array, Any]]:
    """Makes the evaluation with the full softmax: `evaluate(params, batch) -> (nats, state)`.

    `nats` are summed over the batch's words, so `exp(sum of nats / number of words)` is the perplexity; `state` is for the next batch.

    Args:
      config: Sizes of the model.

    Returns:
      The function.
    """

    def evaluate(
        params: Any,
        batch: Batch,
    ) -> tuple[jax.Array, Any]:
        model = functional.merge(LanguageModel, config, params)
        state, outputs = model(batch, dropout.Dropout(None, 0.0))
        # Step by step: the logits of all steps at once would fill gigabytes.
        steps = (
            jnp.swapaxes(outputs, 0, 1),
            batch["targets"].T,
        )
        nats = jax.lax.map(
            lambda step: model.softmax.nats(*step),
            steps,
        )
        return _present(batch, nats.T).sum(), _packed(state)

    return evaluate


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Makes Adagrad as the paper uses it.

    The embedding's gradient is multiplied by `batch`. Only the LSTM's gradient is clipped, and only its parameters are averaged.

    Args:
      config: Sizes of the model and how it is trained.

    Returns:
      The optax transform.
    """
    return optax.chain(
        optax.masked(optax.scale(config.batch), _only("embedding")),
        optax.masked(optax.clip_by_global_norm(config.clip), _only("lstm")),
        optax.adagrad(config.learning_rate, config.accumulator, eps=0.0),
        optax.masked(parameter_average(config.average), _only("lstm")),
    )


def _only(name: str) -> Callable[[Any], Any]:
    return lambda tree: jax.tree.map_with_path(
        lambda path, _: path[0].key == name,
        tree,
    )


def _state(model: LanguageModel, batch: Batch) -> State:
    if "state" in batch:
        return batch["state"]["c"], batch["state"]["m"]
    return model.lstm.start(len(batch["inputs"]))


def _present(batch: Batch, nats: jax.Array) -> jax.Array:
    """The words' nats `[batch, steps]`, with 0 for those that do not count."""
    if "length" not in batch:
        return nats
    return jnp.where(
        jnp.arange(nats.shape[1]) < batch["length"][:, None],
        nats,
        0,
    )


def _packed(state: State) -> dict[str, jax.Array]:
    """The state for the next batch; gradients end here."""
    return dict(zip(("c", "m"), jax.lax.stop_gradient(state), strict=True))
