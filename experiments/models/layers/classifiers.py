"""The common part of the image classifiers: convolution with normalisation, and a training loss that keeps BatchNorm's statistics.

A loss for data-parallel training is a pure function of parameters and a batch, but BatchNorm (Ioffe and Szegedy 2015) also moves averages.
Here the averages are leaves of the parameters whose gradient is their distance from the batch's statistics: SGD with the rate
`1 - momentum` on them *is* the moving average, `s - (1 - m) (s - batch) = m s + (1 - m) batch`. So they need nothing from whoever runs the
step, and where gradients are averaged over replicas, the statistics are too. (Where gradients are summed, divide that rate by the number
of replicas.) The term that has this gradient adds 0 to the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float

from experiments.models.layers import functional

_he = jax.nn.initializers.variance_scaling(2.0, "fan_out", "truncated_normal")


class ConvNorm(nnx.Module):
    """A convolution without bias, BatchNorm, and a ReLU if it is asked for.

    Args:
      n_in: Channels in.
      n_out: Channels out.
      kernel: Height and width.
      stride: Of both directions.
      padding: `SAME`, `VALID`, or the pixels on each side in each direction.
      relu: Whether negative values become 0.
      scale: What BatchNorm's gamma starts at.
      epsilon: Added to the variance.
      rngs: Where keys come from.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kernel: tuple[int, int] = (1, 1),
        stride: int = 1,
        padding: Any = "VALID",
        *,
        relu: bool = True,
        scale: float = 1.0,
        epsilon: float = 1e-5,
        rngs: nnx.Rngs,
    ):
        self.relu = relu
        self.n_out = n_out
        self.conv = nnx.Conv(
            n_in,
            n_out,
            kernel,
            stride,
            padding=padding,
            use_bias=False,
            kernel_init=_he,
            rngs=rngs,
        )
        gamma = jax.nn.initializers.constant(scale)
        # Momentum 0: after a call, the layer's statistics are the batch's own.
        self.norm = nnx.BatchNorm(
            n_out,
            momentum=0.0,
            epsilon=epsilon,
            scale_init=gamma,
            rngs=rngs,
        )

    def __call__(
        self,
        x: Float[Array, "n h w c"],
        train: bool,
    ) -> Float[Array, "n h2 w2 c2"]:
        """With the batch's statistics in training, else with the averages."""
        x = self.norm(self.conv(x), use_running_average=not train)
        return jax.nn.relu(x) if self.relu else x


def init(
    kind: type[nnx.Module],
    config: Hashable,
    seed: int = 0,
) -> Any:
    """Makes initial parameters of a model.

    Args:
      kind: The model's class.
      config: Its configuration.
      seed: Of the PRNG key.

    Returns:
      `weights` and `statistics`, each a nested dict of float32 arrays.
    """
    return _variables(functional.build(kind, config, seed))


def shapes(kind: type[nnx.Module], config: Hashable) -> Any:
    """Computes the shapes of a model's parameters; nothing is allocated.

    Args:
      kind: The model's class.
      config: Its configuration.

    Returns:
      As `init`, with `jax.ShapeDtypeStruct` in place of arrays.
    """
    return jax.eval_shape(lambda: init(kind, config))


def make_loss(
    kind: type[nnx.Module],
    config: Hashable,
    objective: Callable[[Any, Any, Any], jax.Array],
) -> Callable[[Any, Any], jax.Array]:
    """The training loss `loss_fn(params, batch)`.

    Args:
      kind: The model's class.
      config: Its configuration.
      objective: From the model in training, the images and the batch to a scalar.

    Returns:
      The loss: a scalar, float32.
    """

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        model = functional.merge(kind, config, params["weights"], params["statistics"])
        loss = objective(model, batch["image"], batch)
        return loss + _pull(params["statistics"], functional.variables(model, nnx.BatchStat))

    return loss_fn


def make_predict(
    kind: type[nnx.Module],
    config: Hashable,
) -> Callable[[Any, Any], jax.Array]:
    """Makes the function that classifies images, with the averaged statistics.

    Args:
      kind: The model's class.
      config: Its configuration.

    Returns:
      `predict(params, images [n, h, w, 3])`: logits `[n, classes]`.
    """

    def predict(params: Any, images: jax.Array) -> jax.Array:
        model = functional.merge(kind, config, params["weights"], params["statistics"])
        return model(images, train=False)  # type: ignore[operator]

    return predict


def make_optimizer(
    weights: optax.GradientTransformation, momentum: float
) -> optax.GradientTransformation:
    """The optimizer of the weights beside the moving average of the statistics.

    Args:
      weights: Sees nothing of the statistics, neither in norms nor in weight decay.
      momentum: How much of the average a step keeps.
    """
    return optax.partition(
        {"weights": weights, "statistics": optax.sgd(1 - momentum)},
        lambda params: {name: name for name in params},
    )


def cross_entropy(
    logits: jax.Array,
    labels: jax.Array,
    smoothing: float = 0.0,
) -> jax.Array:
    """Computes the mean cross entropy.

    Args:
      logits: `[n, classes]`.
      labels: `[n]` integers.
      smoothing: Probability that is spread over all classes.

    Returns:
      A scalar, in nats.
    """
    right = jax.nn.one_hot(labels, logits.shape[-1])
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(right, smoothing)).mean()


def _variables(module: nnx.Module) -> dict[str, Any]:
    return {
        "weights": functional.variables(module, nnx.Param),
        "statistics": functional.variables(module, nnx.BatchStat),
    }


def _pull(statistics: Any, batch: Any) -> jax.Array:
    """0, with the gradient `statistics - batch`."""
    targets = jax.lax.stop_gradient(batch)
    halves = jax.tree.map(
        lambda s, b: jnp.square(s - b).sum() / 2,
        statistics,
        targets,
    )
    term = jnp.asarray(sum(jax.tree.leaves(halves)))
    return term - jax.lax.stop_gradient(term)
