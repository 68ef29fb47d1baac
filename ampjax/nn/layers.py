"""A few layers as pairs of pure functions: `init(key) -> params` and `layer(params, x) -> y`, on one message's payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.devices.memory_budget import payload_budget
from ampjax.errors import SettingsError
from ampjax.ir.host_tables import is_table
from ampjax.plan.node_memory import bytes_with
from ampjax.sparse.table.sharded_table import Table
from ampjax.sparse.table.table_or_dense import (
    ALPHA_THRESHOLD,
    WHAT_ALPHA_DOES,
    table_or_dense,
    touched_share,
)
from ampjax.utils.setting_checks import above_zero, at_least, integers


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

    def init(
        self,
        key: jax.Array,
    ) -> dict[str, jax.Array]:
        """Makes initial parameters.

        Args:
          key: A PRNG key.

        Returns:
          `w [n_in, n_out]` and `b [n_out]`, float32.

        Raises:
          SettingsError: If `init_scale` is none of the four.
        """
        shape = (self.n_in, self.n_out)
        bound = self.n_in**-0.5
        key_w, key_b = jax.random.split(key)
        b = jnp.zeros(self.n_out, jnp.float32)
        if self.init_scale == "torch":
            w = jax.random.uniform(
                key_w,
                shape,
                jnp.float32,
                -bound,
                bound,
            )
            b = jax.random.uniform(
                key_b,
                (self.n_out,),
                jnp.float32,
                -bound,
                bound,
            )
        else:
            inits = jax.nn.initializers
            choices = {
                "he": inits.he_normal,
                "lecun": inits.lecun_normal,
                "glorot": inits.glorot_uniform,
            }
            if self.init_scale not in choices:
                names = f"one of {[*choices, 'torch']}"
                raise SettingsError(
                    "Linear, `init_scale`", names, f"{self.init_scale!r}", "Choose one of these."
                )
            w = choices[self.init_scale]()(key_w, shape, jnp.float32)
        if self.bias:
            return {"w": w, "b": b}
        return {"w": w}

    def __call__(
        self,
        params: dict[str, jax.Array],
        x: jax.Array,
    ) -> jax.Array:
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

    >>> import numpy as np, optax, ampjax.graphs as ag
    >>> table = Table(np.ones((1000, 8), np.float32), optax.adagrad(0.1))
    >>> with ag.Graph() as graph:
    ...     x = ag.ppt("embed", TableEmbed(table))(ag.pump("word", dtype="int32"))
    ...     ag.loss("loss", lambda x: x @ x)(x)
    """

    table: Table

    def __post_init__(self) -> None:
        if not is_table(self.table):
            fix = "Make one: `ampjax.sparse.Table(values, tx)`."
            raise SettingsError(
                "TableEmbed, `table`",
                "an `ampjax.sparse.Table`",
                f"{type(self.table).__name__}",
                fix,
            )

    @property
    def host_table(self) -> Table:
        """The table."""
        return self.table

    def init(self, key: jax.Array) -> jax.Array:
        """All present rows, for tools that want the table on a device.

        Args:
          key: Not needed.

        Returns:
          `[n_rows, *row]`.
        """
        return jnp.asarray(self.table.dense())

    def __call__(self, params: Any, ids: Any) -> Any:
        """The computation as a function of all rows, for the oracle. The engine pulls rows instead.

        Args:
          params: All rows, `[n_rows, *row]`.
          ids: Integers `[...]`.

        Returns:
          `[..., *row]`.

        Raises:
          SettingsError: If ids are no integers.
        """
        integers("TableEmbed, ids", jnp.result_type(ids))
        return params[ids]


@dataclass(frozen=True, eq=False, repr=False)
class ChosenEmbed:
    """Rows in a table in host memory, or on the node's device: `choose_embed` makes it. Only for the body of a PPT, which needs no `tx`.

    Args:
      values: The first rows, `[n_rows, *row]`; None if a table has them.
      tx: The optimizer of the rows, wherever they lie.
      alpha: The share of the rows that an update touches.
      why: Why they lie where they do.
      table: The table; None if the rows are on the device.
    """

    values: Any
    tx: optax.GradientTransformation
    alpha: float
    why: str
    table: Table | None = None

    @property
    def host_table(self) -> Table | None:
        """The table, if there is one."""
        return self.table

    @property
    def own_tx(self) -> optax.GradientTransformation:
        """The optimizer of the node."""
        return self.tx

    @property
    def shape(self) -> tuple[int, ...]:
        """`[n_rows, *row]`."""
        return tuple(self.values.shape) if self.table is None else self.table.shape

    @property
    def rows(self) -> Any:
        """The parameter for a model that is a function, to be read by `amp.look_up`: the table, or the first rows."""
        return self.values if self.table is None else self.table

    def init(self, key: jax.Array) -> jax.Array:
        """The rows: the table's present ones, else the first ones.

        Args:
          key: Not needed.

        Returns:
          `[n_rows, *row]`.
        """
        return jnp.asarray(self.values if self.table is None else self.table.dense())

    def __call__(self, params: Any, ids: Any) -> Any:
        """Looks rows up.

        Args:
          params: All rows, `[n_rows, *row]`.
          ids: Integers `[...]`.

        Returns:
          `[..., *row]`.

        Raises:
          SettingsError: If ids are no integers.
        """
        integers("ChosenEmbed, ids", jnp.result_type(ids))
        return params.at[ids].get(mode="clip")

    def __repr__(self) -> str:
        where = "on the device" if self.table is None else "a table in host memory"
        return f"ChosenEmbed({list(self.shape)}, {where}: {self.why})"


def choose_embed(
    values: Any,
    tx: optax.GradientTransformation,
    ids: Any,
    *,
    ids_per_update: int = 1,
    alpha_threshold: float = ALPHA_THRESHOLD,
    device_bytes: int | None = None,
    **settings: Any,
) -> ChosenEmbed:
    """Puts rows into a `TableEmbed`'s table or keeps them on the node's device, by the rule of `get_runner`: what updates touch, and the size.

    Rows go into a table if an update of the node touches less than `alpha_threshold` of them, or if a device has no room for them, their
    accumulated gradient and their optimizer state. Either way the node trains alike, unless the optimizer moves rows without a gradient (as Adam does): a table
    of the default mode `lazy` leaves these as they are, `mode="faithful"` does not. One layer is for one node: nodes that are to share rows
    need a `TableEmbed`, or `Embed` with `params_of`.

    Args:
      values: The first rows, `[n_rows, *row]`: see `Table`.
      tx: The optimizer of the rows. For a table it must work row by row.
      ids: Integers of any shape: rows in the order in which training reads them, for example those of the first instances.
      ids_per_update: About how many ids an update contains: `min_update_interval` times the ids of a message.
      alpha_threshold: From this share on rows stay on the device.
      device_bytes: Bytes that the device has for nodes; by default half of the memory of the first device.
      **settings: Those of the `Table`, if it is made: `mode`, `folder`, `partitions`, ...

    Returns:
      The layer; it says what was chosen, and why.

    Raises:
      SettingsError: If `values` is no array, `ids` has no integers or ids that are no rows, or a number is out of its range.
      TableError: If values, settings or the transform do not fit a table, and one is made.

    >>> import numpy as np, optax
    >>> layer = choose_embed(np.ones((1000, 8), np.float32), optax.adagrad(0.1), np.arange(60) % 30, ids_per_update=20)
    >>> layer
    ChosenEmbed([1000, 8], a table in host memory: alpha 0.02 is below 0.4)
    >>> choose_embed(np.ones((40, 8), np.float32), optax.adagrad(0.1), np.arange(60) % 30, ids_per_update=20)
    ChosenEmbed([40, 8], on the device: alpha 0.5 is at least 0.4)
    """
    at_least("ids_per_update", ids_per_update, 1)
    above_zero("alpha_threshold", alpha_threshold, WHAT_ALPHA_DOES)
    if device_bytes is not None:
        at_least("device_bytes", device_bytes, 0)
    if not getattr(values, "shape", ()):
        fix = "Give one row for each id; wrap lists with `np.asarray`."
        raise SettingsError(
            "choose_embed, `values`", "an array [n_rows, *row]", type(values).__name__, fix
        )
    flat = np.asarray(ids).reshape(-1)
    n_rows = values.shape[0]
    integers("choose_embed, ids", flat.dtype)
    if not flat.size or flat.min() < 0 or flat.max() >= n_rows:
        got = f"ids from {flat.min()} to {flat.max()}" if flat.size else "none"
        fix = "Pass those of the first instances, as they are pumped."
        raise SettingsError("choose_embed, `ids`", f"rows in [0, {n_rows})", got, fix)
    pieces = np.split(flat, range(ids_per_update, len(flat), ids_per_update))
    alpha = touched_share(
        [len(np.unique(piece)) for piece in pieces if len(piece) == len(pieces[0])],
        n_rows,
    )
    shape = values.shape
    dtype = jax.dtypes.canonicalize_dtype(values.dtype)
    kept = bytes_with(lambda key: jnp.zeros(shape, dtype), tx)
    if device_bytes is None:
        room = payload_budget(jax.devices()[:1])
    else:
        room = device_bytes
    choice = table_or_dense(
        alpha,
        np.dtype(values.dtype),
        alpha_threshold,
        kept,
        room,
    )
    if choice.is_table:
        table = Table(values, tx, **settings)
    else:
        table = None
    return ChosenEmbed(
        values if table is None else None,
        tx,
        alpha,
        choice.why,
        table,
    )
