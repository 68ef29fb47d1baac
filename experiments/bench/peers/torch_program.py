"""What the peers in PyTorch share: our parameters as tensors, and a program from its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]

Tensor = Any  # where PyTorch is not installed, types are checked without it


@dataclass(frozen=True)
class Parts:
    """What a program trains, and how.

    Args:
      loss: From a minibatch to the loss that is minimised, a scalar.
      score: From a minibatch to what `evaluate` averages: hits, or errors, summed.
      optimizers: Each steps after every minibatch.
      minibatches: A pass over the training instances, in an order from the generator.
      valid: The validation instances in minibatches.
      n_train: Training instances in a pass.
      n_valid: Validation instances.
      n_scored: What a summed score is divided by.
      schedules: Each steps after every minibatch.
    """

    loss: Callable[[Any], Tensor]
    score: Callable[[Any], Tensor]
    optimizers: Sequence[Any]
    minibatches: Callable[[np.random.Generator], Iterable[Any]]
    valid: Callable[[], Iterable[Any]]
    n_train: int
    n_valid: int
    n_scored: int
    schedules: Sequence[Any] = ()


class Torch:
    """Trains on minibatches, a step for each.

    Args:
      parts: What it trains, and how.
      seed: Of the order.
      threads: Of PyTorch, within an operation; by default one for each core.
    """

    def __init__(
        self,
        parts: Parts,
        seed: int = 0,
        threads: int | None = None,
    ):
        self._parts = parts
        self._rng = np.random.default_rng(seed)
        self._updates = 0
        torch.manual_seed(seed)
        if threads is not None:
            torch.set_num_threads(threads)

    def train(self) -> int:
        """A pass over the training instances in random order."""
        parts = self._parts
        self._updates = 0
        for batch in parts.minibatches(self._rng):
            for optimizer in parts.optimizers:
                optimizer.zero_grad()
            parts.loss(batch).backward()
            for each in (*parts.optimizers, *parts.schedules):
                each.step()
            self._updates += 1
        return parts.n_train

    def infer(self) -> int:
        """A pass over the validation instances."""
        self.evaluate()
        return self._parts.n_valid

    def evaluate(self) -> float:
        """The score over the validation instances."""
        with torch.inference_mode():
            return (
                sum(float(self._parts.score(batch)) for batch in self._parts.valid())
                / self._parts.n_scored
            )

    def updates(self) -> float:
        """Optimizer steps in a pass."""
        return self._updates


def tensors(params: Any) -> Any:
    """Parameters as leaf tensors with gradients, in the same tree."""
    return jax.tree.map(
        lambda x: torch.tensor(np.asarray(x)).requires_grad_(),
        params,
    )


def cosine(optimizer: Any, n_updates: int) -> Any:
    """A learning rate that falls to 0 along a cosine."""

    def factor(n):
        return 0.5 * (1 + math.cos(math.pi * min(1.0, n / n_updates)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def linear(params: Any, x: Tensor) -> Tensor:
    """`x @ w + b`, `x [rows, n_in]`."""
    return torch.addmm(params["b"], x, params["w"])
