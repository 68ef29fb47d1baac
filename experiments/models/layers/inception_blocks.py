"""The blocks of Inception-v3 (Szegedy et al. 2016, figures 5 to 7 and 10) as tables, and the module that runs one.

A block runs branches side by side on the same grid and joins their channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from experiments.models.layers.classifiers import ConvNorm

_EPSILON = 1e-3


class Conv(NamedTuple):
    """A convolution in a table.

    Args:
      n_out: Channels.
      kernel: Height and width.
      stride: 1 keeps the grid, 2 halves it without padding.
    """

    n_out: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1


Branch = tuple[Any, ...]
"""Convolutions one after the other, maybe after a pooling: `"mean"` (3 × 3, keeps the grid) or `"max"` (3 × 3, halves it). Two
convolutions in a list, at the end, both read what comes before."""

_SMALL = (3, 3)
_MIDDLE = (5, 5)
_ROW = (1, 7)
_COLUMN = (7, 1)


def _grid_35(pool: int) -> tuple[Branch, ...]:
    return (
        (Conv(64),),
        (Conv(48), Conv(64, _MIDDLE)),
        (Conv(64), Conv(96, _SMALL), Conv(96, _SMALL)),
        ("mean", Conv(pool)),
    )


def _grid_17(n: int) -> tuple[Branch, ...]:
    return (
        (Conv(192),),
        (Conv(n), Conv(n, _ROW), Conv(192, _COLUMN)),
        (
            Conv(n),
            Conv(n, _COLUMN),
            Conv(n, _ROW),
            Conv(n, _COLUMN),
            Conv(192, _ROW),
        ),
        ("mean", Conv(192)),
    )


_TO_17 = (
    (Conv(384, _SMALL, 2),),
    (
        Conv(64),
        Conv(96, _SMALL),
        Conv(96, _SMALL, 2),
    ),
    ("max",),
)
_TO_8 = (
    (Conv(192), Conv(320, _SMALL, 2)),
    (
        Conv(192),
        Conv(192, _ROW),
        Conv(192, _COLUMN),
        Conv(192, _SMALL, 2),
    ),
    ("max",),
)
_GRID_8 = (
    (Conv(320),),
    (
        Conv(384),
        [
            Conv(384, (1, 3)),
            Conv(384, (3, 1)),
        ],
    ),
    (
        Conv(448),
        Conv(384, _SMALL),
        [
            Conv(384, (1, 3)),
            Conv(384, (3, 1)),
        ],
    ),
    ("mean", Conv(192)),
)

BLOCKS: dict[str, tuple[Branch, ...]] = {
    "35/32": _grid_35(32),
    "35/64": _grid_35(64),
    "to 17": _TO_17,
    "17/128": _grid_17(128),
    "17/160": _grid_17(160),
    "17/192": _grid_17(192),
    "to 8": _TO_8,
    "8": _GRID_8,
}
"""Branches of each kind of block, named after the grid that it works on (at 299 pixels) and what distinguishes it."""


class Block(nnx.Module):
    """The branches of one kind of block.

    Args:
      n_in: Channels in.
      branches: A value of `BLOCKS`.
      channels: From the table's channels to those of this model.
      rngs: Where keys come from.
    """

    def __init__(
        self,
        n_in: int,
        branches: tuple[Branch, ...],
        channels: Callable[[int], int],
        rngs: nnx.Rngs,
    ):
        self.branches = nnx.List(
            [BranchModule(n_in, branch, channels, rngs) for branch in branches]
        )
        self.n_out = sum(branch.n_out for branch in self.branches)

    def __call__(
        self,
        x: Float[Array, "n h w c"],
        train: bool,
    ) -> Float[Array, "n h2 w2 c2"]:
        """All branches' channels."""
        return jnp.concatenate(
            [branch(x, train) for branch in self.branches],
            axis=-1,
        )


class BranchModule(nnx.Module):
    """One branch: maybe a pooling, convolutions in a row, maybe two more side by side. Arguments as of `Block`."""

    def __init__(
        self,
        n_in: int,
        branch: Branch,
        channels: Callable[[int], int],
        rngs: nnx.Rngs,
    ):
        self.pool = branch[0] if isinstance(branch[0], str) else None
        last = branch[-1] if isinstance(branch[-1], list) else []
        row = [conv for conv in branch if isinstance(conv, Conv)]
        sizes = [n_in, *(channels(conv.n_out) for conv in row)]
        self.row = nnx.List(
            [convolution(n, conv, channels, rngs) for n, conv in zip(sizes, row, strict=False)]
        )
        self.side_by_side = nnx.List(
            [convolution(sizes[-1], conv, channels, rngs) for conv in last]
        )
        if last:
            self.n_out = sum(channels(conv.n_out) for conv in last)
        else:
            self.n_out = sizes[-1]

    def __call__(
        self,
        x: Float[Array, "n h w c"],
        train: bool,
    ) -> Float[Array, "n h2 w2 c2"]:
        """The branch's channels."""
        if self.pool == "max":
            x = nnx.max_pool(x, (3, 3), (2, 2))
        elif self.pool == "mean":
            x = nnx.avg_pool(x, (3, 3), padding="SAME")
        for conv in self.row:
            x = conv(x, train)
        if len(self.side_by_side):
            return jnp.concatenate(
                [conv(x, train) for conv in self.side_by_side],
                axis=-1,
            )
        return x


def convolution(
    n_in: int,
    conv: Conv,
    channels: Callable[[int], int],
    rngs: nnx.Rngs,
    padding: str | None = None,
) -> ConvNorm:
    """Makes one convolution of a table.

    Args:
      n_in: Channels in.
      conv: Its entry in the table.
      channels: From the table's channels to the model's.
      rngs: Where keys come from.
      padding: `SAME` or `VALID`; None for what suits its stride.

    Returns:
      The convolution with its normalisation.
    """
    usual = "SAME" if conv.stride == 1 else "VALID"
    return ConvNorm(
        n_in,
        channels(conv.n_out),
        conv.kernel,
        conv.stride,
        padding or usual,
        epsilon=_EPSILON,
        rngs=rngs,
    )
