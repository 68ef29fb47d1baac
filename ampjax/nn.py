"""A few layers as pairs of pure functions: `init(key) -> params` and `layer(params, x) -> y`, on one message's payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.errors import SettingsError
from ampjax.sparse.table.sharded_table import Table


@dataclass(frozen=True)
class Linear:
    """`y = x @ w + b` on the last axis: `[..., n_in] -> [..., n_out]`.

    Args:
      n_in: Features in.
      n_out: Features out.
      bias: False leaves `b` out.
      init_scale: `he` (normal, variance 2/n_in), `lecun` (normal, variance 1/n_in), `glorot` (uniform), or `torch`
        (uniform within 1/sqrt(n_in), the bias too). Biases start at zero otherwise.
    """

    n_in: int
    n_out: int
    bias: bool = True
    init_scale: str = "lecun"

    def init(self, key: jax.Array) -> dict[str, jax.Array]:
        """Makes initial parameters.

        Args:
          key: A PRNG key.

        Returns:
          `w [n_in, n_out]` and `b [n_out]`, float32.

        Raises:
          SettingsError: If `init_scale` is none of the four.
        """
        shape, bound = (self.n_in, self.n_out), self.n_in**-0.5
        key_w, key_b = jax.random.split(key)
        b = jnp.zeros(self.n_out, jnp.float32)
        if self.init_scale == "torch":
            w = jax.random.uniform(key_w, shape, jnp.float32, -bound, bound)
            b = jax.random.uniform(key_b, (self.n_out,), jnp.float32, -bound, bound)
        else:
            inits = jax.nn.initializers
            choices = {"he": inits.he_normal, "lecun": inits.lecun_normal, "glorot": inits.glorot_uniform}
            if self.init_scale not in choices:
                names = f"one of {[*choices, 'torch']}"
                raise SettingsError("Linear, `init_scale`", names, f"{self.init_scale!r}", "Choose one of these.")
            w = choices[self.init_scale]()(key_w, shape, jnp.float32)
        return {"w": w, "b": b} if self.bias else {"w": w}

    def __call__(self, params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        """Applies the layer.

        Args:
          params: As `init` gives them.
          x: `[..., n_in]`.

        Returns:
          `[..., n_out]`.
        """
        y = x @ params["w"]
        return y + params["b"] if self.bias else y


@dataclass(frozen=True)
class Embed:
    """A table of vectors: integer ids `[...] -> [..., features]`. Ids outside the table are clamped, as JAX's gathers do.

    Args:
      n_rows: Rows of the table.
      features: Length of a vector.
      scale: Standard deviation of the initial normal values.
    """

    n_rows: int
    features: int
    scale: float = 1.0

    def init(self, key: jax.Array) -> jax.Array:
        """Makes the initial table.

        Args:
          key: A PRNG key.

        Returns:
          `[n_rows, features]`, float32.
        """
        return self.scale * jax.random.normal(key, (self.n_rows, self.features), jnp.float32)

    def __call__(self, params: jax.Array, ids: Any) -> jax.Array:
        """Looks vectors up.

        Args:
          params: The table.
          ids: Integers `[...]`.

        Returns:
          `[..., features]`.
        """
        return params.at[ids].get(mode="clip")


@dataclass(frozen=True)
class TableEmbed:
    """Rows of an `ampjax.sparse.Table` in host memory: integer ids `[...] -> [..., *row]`. Only for the body of a PPT.

    A dispatch pulls the rows that it needs, each once. Their gradients are pushed when the node's `min_update_interval` is reached, and the
    table's own transform updates the rows. So the table may be larger than a device's memory, and may be in mapped files (`folder=`) or at
    server processes (`processes=`). All nodes of a graph that read one table, copies included, share its parameters: gradients add
    up, and there is one count of rows and one version. Two trainers of one graph train the same table.

    This is where AMPNet's asynchrony (arXiv:1705.09786) and Parallax's parameter servers (Kim et al., EuroSys 2019, §3) meet.

    Args:
      table: The table.

    >>> import numpy as np, optax, ampjax as amp
    >>> table = Table(np.ones((1000, 8), np.float32), optax.adagrad(0.1))
    >>> with amp.Graph() as graph:
    ...     x = amp.ppt("embed", TableEmbed(table))(amp.pump("word", dtype="int32"))
    ...     amp.loss("loss", lambda x: x @ x)(x)
    """

    table: Table

    def __post_init__(self) -> None:
        if not isinstance(self.table, Table):
            fix = "Make one: `ampjax.sparse.Table(values, tx)`."
            raise SettingsError("TableEmbed, `table`", "an `ampjax.sparse.Table`", f"{type(self.table).__name__}", fix)

    @property
    def host_table(self) -> Table:
        """The table."""
        return self.table

    def init(self, key: jax.Array) -> jax.Array:
        """All rows as they are now, for tools that want them on a device.

        Args:
          key: Not needed.

        Returns:
          `[n_rows, *row]`.
        """
        return jnp.asarray(self.table.dense())

    def __call__(self, params: Any, ids: Any) -> Any:
        """What is computed, as a function of all rows: the oracle's view of it. The engine pulls rows instead.

        Args:
          params: All rows, `[n_rows, *row]`.
          ids: Integers `[...]`.

        Returns:
          `[..., *row]`.

        Raises:
          SettingsError: If ids are no integers.
        """
        if not jnp.issubdtype(jnp.result_type(ids), jnp.integer):
            got = str(jnp.result_type(ids))
            raise SettingsError("TableEmbed, ids", "integers", got, 'Declare the pump with `dtype="int32"`.')
        return params[ids]
