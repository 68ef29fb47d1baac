"""ResNet-50 (He et al. 2016) with the recipe of Goyal et al. 2017: a model without sparse variables.

The stride is in a bottleneck's 3 × 3 convolution, and the last gamma of each bottleneck starts at 0, so that all start as identities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float

from ampjax.errors import SettingsError
from experiments.data.readers.data_checks import at_least_one
from experiments.models.layers import classifiers
from experiments.models.layers.classifiers import ConvNorm

Batch = Any
"""`image [batch, size, size, 3]` float32, standardised; `label [batch]` int32."""


@dataclass(frozen=True)
class Config:
    """Sizes of the model and how it is trained.

    Args:
      stages: Bottlenecks of each stage; each but the first halves the image and doubles the channels.
      width: Channels of the stem and of the first stage's 3 × 3 convolutions; four times as many come out.
      classes: Classes.
      size: Height and width of an image in pixels.
      batch: Images of a batch, all replicas together.
      epoch_updates: Updates of an epoch.
      momentum: The momentum of SGD.
      weight_decay: Added to gradients of matrices and kernels; gammas, betas and biases have none.
      statistics: How much of BatchNorm's averages a step keeps.

    Raises:
      SettingsError: If a size is below 1, or there are no stages.
    """

    stages: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000
    size: int = 224
    batch: int = 256
    epoch_updates: int = 5005
    momentum: float = 0.9
    weight_decay: float = 1e-4
    statistics: float = 0.9

    def __post_init__(self) -> None:
        names = ("width", "classes", "size", "batch", "epoch_updates")
        at_least_one("resnet.Config", **{name: getattr(self, name) for name in names})
        if not self.stages or min(self.stages) < 1:
            raise SettingsError(
                "resnet.Config, `stages`",
                "a positive number for each stage",
                f"{self.stages}",
                "ResNet-50 has (3, 4, 6, 3).",
            )

    @classmethod
    def full(cls) -> Config:
        """ResNet-50.

        Returns:
          The full-size configuration.
        """
        return cls()

    @classmethod
    def small(cls) -> Config:
        """A small ResNet for images of 32 × 32 pixels, which takes seconds on a laptop.

        Returns:
          A small configuration.
        """
        return cls(
            (1, 1),
            8,
            10,
            32,
            batch=16,
            epoch_updates=20,
        )


class Bottleneck(nnx.Module):
    """A residual block: 1 × 1, 3 × 3 and 1 × 1 convolutions, and a shortcut, which is a 1 × 1 convolution if shapes differ."""

    def __init__(
        self,
        n_in: int,
        width: int,
        stride: int,
        rngs: nnx.Rngs,
    ):
        self.reduce = ConvNorm(n_in, width, rngs=rngs)
        self.middle = ConvNorm(
            width,
            width,
            (3, 3),
            stride,
            1,
            rngs=rngs,
        )
        self.expand = ConvNorm(
            width,
            4 * width,
            relu=False,
            scale=0.0,
            rngs=rngs,
        )
        if n_in != 4 * width or stride != 1:
            self.shortcut = ConvNorm(
                n_in,
                4 * width,
                stride=stride,
                relu=False,
                rngs=rngs,
            )

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """`[n, h, w, n_in]` to `[n, h / stride, w / stride, 4 width]`."""
        y = self.expand(
            self.middle(self.reduce(x, train), train),
            train,
        )
        return jax.nn.relu(y + (self.shortcut(x, train) if hasattr(self, "shortcut") else x))


class ResNet(nnx.Module):
    """Parameters: `stem`, `blocks` and `head`."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        self.stem = ConvNorm(
            3,
            config.width,
            (7, 7),
            2,
            3,
            rngs=rngs,
        )
        n_in = config.width
        blocks = []
        for stage, n_blocks in enumerate(config.stages):
            for i in range(n_blocks):
                width = config.width << stage
                blocks.append(Bottleneck(n_in, width, 2 if stage > 0 and i == 0 else 1, rngs))
                n_in = 4 * width
        self.blocks = nnx.List(blocks)
        self.head = nnx.Linear(
            n_in,
            config.classes,
            kernel_init=jax.nn.initializers.normal(0.01),
            rngs=rngs,
        )

    def __call__(
        self,
        x: Float[Array, "n size size 3"],
        train: bool,
    ) -> Float[Array, "n classes"]:
        """Images to logits."""
        x = nnx.max_pool(self.stem(x, train), (3, 3), (2, 2), ((1, 1), (1, 1)))  # type: ignore[arg-type] # pairs do too
        for block in self.blocks:
            x = block(x, train)
        return self.head(x.mean((1, 2)))


def init(config: Config, seed: int = 0) -> Any:
    """Makes initial parameters; the same seed gives the same parameters.

    Args:
      config: Sizes of the model and how it is trained.
      seed: Of the PRNG key.

    Returns:
      `weights` and `statistics`, each a nested dict of float32 arrays.
    """
    return classifiers.init(ResNet, config, seed)


def make_loss(config: Config) -> Callable[[Any, Batch], jax.Array]:
    """Makes the training loss: the mean cross entropy in nats. See `layers.classifiers` for how statistics are kept.

    Args:
      config: Sizes of the model and how it is trained.

    Returns:
      `loss_fn(params, batch)`: a scalar, float32.
    """
    return classifiers.make_loss(
        ResNet,
        config,
        lambda model, x, batch: classifiers.cross_entropy(model(x, train=True), batch["label"]),
    )


def make_predict(config: Config) -> Callable[[Any, jax.Array], jax.Array]:
    """Makes the function that classifies images.

    Args:
      config: Sizes of the model and how it is trained.

    Returns:
      `predict(params, images [n, size, size, 3])`: logits `[n, classes]`, float32.
    """
    return classifiers.make_predict(ResNet, config)


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Makes SGD with momentum, weight decay and `schedule`.

    Args:
      config: Sizes of the model and how it is trained.

    Returns:
      The optax transform.
    """
    weights = optax.chain(
        optax.add_decayed_weights(
            config.weight_decay,
            lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree),
        ),
        optax.sgd(schedule(config), config.momentum),
    )
    return classifiers.make_optimizer(weights, config.statistics)


def schedule(config: Config) -> optax.Schedule:
    """Makes the learning rate as a function of the update's number.

    If the batch has more than 256 images, the rate goes linearly from 0.1 to 0.1 · batch / 256 in 5 epochs. It falls to a tenth after 30, 60
    and 80 epochs.

    Args:
      config: Sizes of the model and how it is trained.

    Returns:
      From an update's number to its learning rate.
    """
    peak = 0.1 * config.batch / 256
    warm = 5 * config.epoch_updates
    start = min(0.1, peak)

    def rate(count: Any) -> Any:
        drops = sum(
            jnp.where(count >= epoch * config.epoch_updates, 1, 0) for epoch in (30, 60, 80)
        )
        return (start + (peak - start) * jnp.minimum(count / warm, 1.0)) * 0.1**drops

    return rate
