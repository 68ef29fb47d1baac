"""A linear layer in tiles that run on different workers (AMPNet, section 5): model parallelism within one layer."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.ir.wires import Wire


@dataclass(frozen=True)
class Tile:
    """A block of a larger matrix: `x @ w`, optionally with a bias.

    Args:
      n_in: Features in, of the block.
      n_out: Features out, of the block.
      fan_in: Features in, of the whole matrix, whose initial variance is `2 / fan_in` (He).
      bias: Whether the block adds a bias, zero at first.
    """

    n_in: int
    n_out: int
    fan_in: int
    bias: bool

    def init(
        self,
        key: jax.Array,
    ) -> dict[str, jax.Array]:
        """Makes the tile's parameters.

        Args:
          key: A PRNG key.

        Returns:
          `w [n_in, n_out]`, and `b [n_out]` if there is a bias; float32.
        """
        w = jax.random.normal(key, (self.n_in, self.n_out), jnp.float32) * (2 / self.fan_in) ** 0.5
        if self.bias:
            return {
                "w": w,
                "b": jnp.zeros(self.n_out, jnp.float32),
            }
        return {"w": w}

    def __call__(
        self,
        params: dict[str, jax.Array],
        x: jax.Array,
    ) -> jax.Array:
        """`[..., n_in]` to `[..., n_out]`."""
        y = x @ params["w"]
        return y + params["b"] if self.bias else y


def tiled_linear(
    name: str,
    wire: Wire,
    n_in: int,
    n_out: int,
    rows: int = 2,
    columns: int = 2,
    *,
    workers: int | None = None,
) -> Wire:
    """Makes `x @ w + b` with `w` cut into `rows * columns` tiles, each a node `name/row,column` with parameters and updates of its own.

    A Split sends each tile the features that it reads; the tiles of a column are added up, and the columns concatenated. Sizes that do not
    divide evenly differ by one.

    Args:
      name: The beginning of the nodes' names.
      wire: Messages `[..., n_in]`.
      n_in: Features in.
      n_out: Features out.
      rows: Parts of the input.
      columns: Parts of the output.
      workers: Tile number `t` runs on worker `t % workers`; by default the affinity rule decides.

    Returns:
      Messages `[..., n_out]`.

    Raises:
      SettingsError: If there are fewer features than parts, or no part.
    """
    if not 1 <= rows <= n_in or not 1 <= columns <= n_out:
        raise SettingsError(
            f"tiled_linear `{name}`",
            f"1 to {n_in} rows and 1 to {n_out} columns of tiles",
            f"{rows} and {columns}",
            "Cut the matrix into fewer tiles.",
        )
    heights = _parts(n_in, rows)
    widths = _parts(n_out, columns)
    if rows > 1:
        inputs = ag.split(wire, heights, name=f"{name}/split")
    else:
        inputs = (wire,)
    results = []
    for c, width in enumerate(widths):
        parts = []
        for r, (height, x) in enumerate(zip(heights, inputs, strict=True)):
            if workers is None:
                worker = None
            else:
                worker = (r * columns + c) % workers
            parts.append(
                ag.ppt(f"{name}/{r},{c}", Tile(height, width, n_in, r == 0), worker=worker)(x)
            )
        results.append(ag.npt(f"{name}/sum{c}", _add)(*parts) if rows > 1 else parts[0])
    if columns > 1:
        return ag.concat(*results, name=f"{name}/concat")
    return results[0]


def _parts(n: int, parts: int) -> tuple[int, ...]:
    result = []
    for part in np.array_split(np.arange(n), parts):
        result.append(len(part))
    return tuple(result)


def _add(*parts: jax.Array) -> jax.Array:
    return sum(parts[1:], start=parts[0])
