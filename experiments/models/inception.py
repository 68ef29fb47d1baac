"""Inception-v3 (Szegedy et al. 2016): a model without sparse variables whose largest variable is small.

Its blocks are in `inception_blocks`. The auxiliary head reads the grid of 17 × 17. Trained by RMSProp, with labels smoothed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import optax
from flax import nnx
from jaxtyping import Array, Float

from ampjax.errors import SettingsError
from ampjax.optim.average import parameter_average
from experiments.data.readers.data_checks import at_least_one
from experiments.models.layers import classifiers
from experiments.models.layers.dropout import Dropout, from_batch
from experiments.models.layers.inception_blocks import BLOCKS, Block, Conv, convolution

Batch = Any
"""`image [batch, size, size, 3]` float32, standardised; `label [batch]` int32. Optional: `dropout_seed` `[batch]`, different in each row."""


_V3 = (
    "35/32",
    "35/64",
    "35/64",
    "to 17",
    "17/128",
    "17/160",
    "17/160",
    "17/192",
    "to 8",
    "8",
    "8",
)

_SQUARE = (3, 3)
_STEM = (
    (Conv(32, _SQUARE, 2), "VALID"),
    (Conv(32, _SQUARE), "VALID"),
    (Conv(64, _SQUARE), "SAME"),
    (Conv(80), "VALID"),
    (Conv(192, _SQUARE), "VALID"),
)
_POOLED = (2, 4)  # the stem's convolutions after which the grid is halved by a maximum
_init_head = jax.nn.initializers.truncated_normal(0.1)


@dataclass(frozen=True)
class Config:
    """Sizes of the model and how it is trained.

    Args:
      blocks: Names in `BLOCKS`; the auxiliary head comes before `to 8`.
      shrink: Every number of channels is divided by this.
      classes: Classes.
      size: Height and width of an image in pixels.
      auxiliary: Whether there is an auxiliary head.
      auxiliary_weight: The weight of its loss.
      smoothing: The probability that label smoothing spreads over all classes.
      dropout: Rate, before the head.
      batch: Images of a batch, all replicas together.
      epoch_updates: Updates of an epoch.
      clip: Largest norm of the gradient.
      average: Decay of the moving average of the weights.
      statistics: How much of BatchNorm's averages a step keeps.

    Raises:
      SettingsError: If a size is below 1, a block is unknown, or there is an auxiliary head without its place.
    """

    blocks: tuple[str, ...] = _V3
    shrink: int = 1
    classes: int = 1000
    size: int = 299
    auxiliary: bool = True
    auxiliary_weight: float = 0.4
    smoothing: float = 0.1
    dropout: float = 0.2
    batch: int = 1600
    epoch_updates: int = 801
    clip: float = 2.0
    average: float = 0.9999
    statistics: float = 0.9997

    def __post_init__(self) -> None:
        names = ("shrink", "classes", "batch", "epoch_updates")
        at_least_one("inception.Config", **{name: getattr(self, name) for name in names})
        unknown = [name for name in self.blocks if name not in BLOCKS]
        if unknown or (self.auxiliary and "to 8" not in self.blocks):
            raise SettingsError(
                "inception.Config, `blocks`",
                f"names from {list(BLOCKS)}, with `to 8` if there is an auxiliary head",
                f"{self.blocks}",
                "Check the names, or set `auxiliary` to False.",
            )
        if self.size < 75:
            raise SettingsError(
                "inception.Config, `size`",
                "at least 75 pixels",
                f"{self.size}",
                "The grid would vanish: enlarge the images.",
            )

    @classmethod
    def full(cls, auxiliary: bool = True) -> Config:
        """Inception-v3.

        Args:
          auxiliary: Whether there is an auxiliary head.

        Returns:
          The full-size configuration.
        """
        return cls(auxiliary=auxiliary)

    @classmethod
    def small(cls, auxiliary: bool = True) -> Config:
        """A small Inception for images of 75 × 75 pixels, which takes seconds on a laptop.

        Args:
          auxiliary: Whether there is an auxiliary head.

        Returns:
          A small configuration.
        """
        return cls(
            ("35/32", "to 17", "to 8"),
            16,
            10,
            75,
            auxiliary,
            dropout=0.0,
            batch=8,
            epoch_updates=20,
            statistics=0.9,
        )

    @property
    def auxiliary_grid(self) -> int:
        """Height and width of the grid that the auxiliary head reads: 17 at 299 pixels."""

        def halved(n: int) -> int:
            return (n - 3) // 2 + 1

        grid = halved(halved(halved(self.size) - 2) - 2)
        return halved(grid) if "to 17" in self.blocks else grid

    def channels(self, n: int) -> int:
        """Scales a number of channels of the full-size model.

        Args:
          n: Channels in the full-size model.

        Returns:
          Channels of this model, at least 1.
        """
        return max(n // self.shrink, 1)


class Inception(nnx.Module):
    """Parameters: `stem`, `blocks`, `head`, and maybe `auxiliary`."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        stem = []
        n_in = 3
        for conv, padding in _STEM:
            stem.append(convolution(n_in, conv, config.channels, rngs, padding))
            n_in = stem[-1].n_out
        self.stem = nnx.List(stem)
        blocks = []
        for name in config.blocks:
            if config.auxiliary and name == "to 8":
                self.auxiliary = Auxiliary(n_in, config, rngs)
            blocks.append(Block(n_in, BLOCKS[name], config.channels, rngs))
            n_in = blocks[-1].n_out
        self.blocks = nnx.List(blocks)
        self.names = config.blocks
        self.head = nnx.Linear(
            n_in,
            config.classes,
            kernel_init=_init_head,
            rngs=rngs,
        )

    def __call__(
        self,
        x: Float[Array, "n size size 3"],
        train: bool,
    ) -> Float[Array, "n classes"]:
        """Images to logits; without dropout."""
        return self.all_logits(x, Dropout(None, 0.0), train)[0]

    def all_logits(
        self,
        x: jax.Array,
        drop: Dropout,
        train: bool = True,
    ) -> list[jax.Array]:
        """Computes the logits of all heads.

        Args:
          x: Images `[n, size, size, 3]`.
          drop: Dropout before the head.
          train: Whether BatchNorm uses the batch's statistics, and the auxiliary head runs.

        Returns:
          `[n, classes]` of the head and, in training, of the auxiliary head if there is one.
        """
        for i, conv in enumerate(self.stem):
            x = conv(x, train)
            if i in _POOLED:
                x = nnx.max_pool(x, (3, 3), (2, 2))
        others = []
        for name, block in zip(self.names, self.blocks, strict=True):
            if train and name == "to 8" and hasattr(self, "auxiliary"):
                others.append(self.auxiliary(x, train))
            x = block(x, train)
        return [
            self.head(drop(x.mean((1, 2)), 0)),
            *others,
        ]


class Auxiliary(nnx.Module):
    """A classifier on the middle grid: mean pooling, a 1 × 1 convolution, a convolution over the whole remaining grid, and a matrix."""

    def __init__(self, n_in: int, config: Config, rngs: nnx.Rngs):
        grid = config.auxiliary_grid
        self.window = min(5, grid)
        left = (grid - self.window) // 3 + 1
        self.reduce = convolution(n_in, Conv(128), config.channels, rngs)
        self.whole = convolution(
            self.reduce.n_out,
            Conv(768, (left, left)),
            config.channels,
            rngs,
            "VALID",
        )
        self.head = nnx.Linear(
            self.whole.n_out,
            config.classes,
            kernel_init=_init_head,
            rngs=rngs,
        )

    def __call__(
        self,
        x: Float[Array, "n grid grid c"],
        train: bool,
    ) -> Float[Array, "n classes"]:
        """The grid to logits."""
        x = nnx.avg_pool(
            x,
            (self.window, self.window),
            (3, 3),
        )
        return self.head(self.whole(self.reduce(x, train), train)[:, 0, 0])


def init(config: Config, seed: int = 0) -> Any:
    """Makes initial parameters; the same seed gives the same parameters.

    Args:
      config: Sizes of the model and how it is trained.
      seed: Of the PRNG key.

    Returns:
      `weights` and `statistics`, each a nested dict of float32 arrays.
    """
    return classifiers.init(Inception, config, seed)


def make_loss(config: Config) -> Callable[[Any, Batch], jax.Array]:
    """The training loss: both heads' mean cross entropies in nats, with smoothed labels. See `layers.classifiers` for how statistics are kept.

    Args:
      config: Sizes of the model and how it is trained.

    Returns:
      `loss_fn(params, batch)`: a scalar, float32.
    """

    def objective(
        model: Inception,
        x: jax.Array,
        batch: Batch,
    ) -> jax.Array:
        logits = model.all_logits(x, from_batch(batch, config.dropout))
        losses = []
        for each in logits:
            losses.append(classifiers.cross_entropy(each, batch["label"], config.smoothing))
        return losses[0] + config.auxiliary_weight * sum(losses[1:])

    return classifiers.make_loss(Inception, config, objective)


def make_predict(config: Config) -> Callable[[Any, jax.Array], jax.Array]:
    """Makes the function that classifies images.

    Args:
      config: Sizes of the model and how it is trained.

    Returns:
      `predict(params, images [n, size, size, 3])`: logits `[n, classes]`, float32.
    """
    return classifiers.make_predict(Inception, config)


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """RMSProp with an epsilon of 1 after clipping, a rate of 0.045 that falls to 0.94 of itself every 2 epochs, and averaged weights.

    Args:
      config: Sizes of the model and how it is trained.

    Returns:
      The optax transform.
    """
    rate = optax.exponential_decay(0.045, 2 * config.epoch_updates, 0.94, staircase=True)
    weights = optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.rmsprop(rate, decay=0.9, eps=1.0, eps_in_sqrt=True),
        parameter_average(config.average),
    )
    return classifiers.make_optimizer(weights, config.statistics)
