"""The batches of an epoch: the examples of each, and a thread that packs batches while earlier ones are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import jax
import numpy as np

from ampjax.train.grouping import in_batches, in_groups

T = TypeVar("T")


class EpochBatches(Generic[T]):
    """The batches of an epoch, each of which is packed while the one before is used.

    Each `iter` goes over the whole epoch, with the same batches. An iterator has a thread, which ends with it: after the last batch, or when
    it is closed or forgotten.

    Args:
      groups: The numbers of the examples of each batch.
      pack: Packs a batch.
    """

    def __init__(
        self,
        groups: Sequence[np.ndarray],
        pack: Callable[[np.ndarray], T],
    ):
        self.groups = groups
        self._pack = pack

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[T]:
        is_wide = jax.config.read("jax_enable_x64")

        def pack(numbers: np.ndarray) -> T:
            with jax.enable_x64(is_wide):  # another thread does not know what `with` has set here
                return self._pack(numbers)

        with ThreadPoolExecutor(1, "ampjax-pack") as thread:
            ahead = None
            for numbers in self.groups:
                ready = ahead
                ahead = thread.submit(pack, numbers)
                if ready is not None:
                    yield ready.result()
            if ahead is not None:
                yield ahead.result()

    def __repr__(self) -> str:
        n = sum(map(len, self.groups))
        return f"EpochBatches({len(self)} of {n} examples)"


def epoch_groups(
    n_elements: np.ndarray,
    size: int,
    seed: int | None,
    by_size: bool,
) -> list[np.ndarray]:
    """Lists the examples' numbers of each batch of an epoch; a seed gives the order of a trainer's first epoch with the same seed.

    Args:
      n_elements: How many elements each example has, `[n]`.
      size: How many examples a batch has; the last one may have fewer.
      seed: Of the order; None takes the examples as they come, or from small to large.
      by_size: Whether examples of about the same size come together.
    """
    n = len(n_elements)
    if seed is None:
        order = np.argsort(n_elements, kind="stable") if by_size else np.arange(n)
    else:
        rng = np.random.default_rng(seed)
        order = in_groups(n_elements, size, rng) if by_size else rng.permutation(n)
    return in_batches(order, size)
