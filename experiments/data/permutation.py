"""Shuffles in an order that each instance has of its own: synthetic data where every instance takes another path through the network.

A row of digits goes through K fixed shuffles, each once, in an order drawn for the instance; the label is the digit that is first in the
end. Of eight operations there are 40,320 orders, so hardly any two instances have the same one (the case of AMPNet's ICLR version,
section 7).

The task is hard to learn from labels alone, since the label says something about an operation only if what the others do is known in part.
Four operations are learned in an epoch from 100,000 instances; if there are only 10,000, a network learns their answers by heart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from ampjax.errors import DataError
from ampjax.frontend.combinators.structures import Stacked
from experiments.data.readers.data_checks import at_least_one

N_DIGITS = 10
N_PLACES = 6


@dataclass(frozen=True)
class Shuffles:
    """Rows of digits with their orders and labels, as columns.

    Args:
      digits: `[n, 6]` int32, 0 to 9.
      orders: `[n, K]`: a permutation of the K operations for each instance.
      labels: `[n]` int32: the digit that is first in the end.

    Raises:
      DataError: If the columns disagree in their number of instances, or an order is no permutation.
    """

    digits: Int[np.ndarray, "n 6"]
    orders: Int[np.ndarray, "n k"]
    labels: Int[np.ndarray, " n"]

    def __post_init__(self) -> None:
        n = len(self.labels)
        if self.digits.shape != (n, N_PLACES) or len(self.orders) != n:
            shapes = f"digits {self.digits.shape}, {len(self.orders)} orders, {n} labels"
            raise DataError(
                "Shuffles",
                "a row of digits, an order and a label each",
                shapes,
                "Let the columns fit.",
            )
        if (np.sort(self.orders, axis=1) != np.arange(self.n_operations)).any():
            raise DataError(
                "Shuffles, orders", "each operation once", "something else", "Draw permutations."
            )

    @property
    def n_operations(self) -> int:
        """K."""
        return self.orders.shape[1]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Shuffles({len(self)} instances, {self.n_operations} operations)"


def generate(
    n: int,
    n_operations: int = 8,
    seed: int | np.random.SeedSequence = 0,
) -> Shuffles:
    """Draws digits and orders, and applies the operations; operation `k` is the same for every seed.

    Args:
      n: How many instances.
      n_operations: Operations, K.
      seed: Same seed, same instances.

    Returns:
      `n` rows of digits with their orders and labels.

    Raises:
      SettingsError: If a count is below 1.

    >>> data = generate(3, n_operations=4)
    >>> data, data.orders.shape
    (Shuffles(3 instances, 4 operations), (3, 4))
    """
    at_least_one("generate", n=n, n_operations=n_operations)
    rng = np.random.default_rng(seed)
    digits = rng.integers(
        0,
        N_DIGITS,
        (n, N_PLACES),
        dtype=np.int32,
    )
    orders = rng.permuted(
        np.tile(np.arange(n_operations), (n, 1)),
        axis=1,
    )
    moves = shuffles(n_operations)
    last = digits
    for operation in orders.T:
        last = np.take_along_axis(last, moves[operation], axis=1)
    return Shuffles(digits, orders, last[:, 0])


def shuffles(n_operations: int) -> np.ndarray:
    """Draws the shuffle of each operation; they are the same for every seed.

    Args:
      n_operations: K.

    Returns:
      `[K, 6]`: for each operation and place, the place that the digit comes from.
    """
    return np.stack([np.random.default_rng(k).permutation(N_PLACES) for k in range(n_operations)])


def plain(data: Shuffles) -> Stacked:
    """Makes the instances of `experiments.models.permutation`.

    Args:
      data: Digits, orders and labels.

    Returns:
      Instances with `digits` `[6]`, `order` `[t]` and `label` `[]`, int32.
    """
    return Stacked(
        {
            "digits": data.digits,
            "order": data.orders.astype(np.int32),
            "label": data.labels,
        }
    )
