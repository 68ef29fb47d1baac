"""Transforms with one number for each row: Adagrad, Adam and RMSProp whose second moment is the mean over a row; learning rates of rows.

Optax transforms that know nothing of tables. `split_rows` finds, as for any transform, that they work row by row.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import SettingsError

Tree = Any
LearningRate = Any
"""A float, a scalar array, or an optax schedule."""


class RowwiseAdagradState(NamedTuple):
    """The state of `rowwise_adagrad`.

    Attributes:
      sum_of_squares: By leaf `[n_rows]`, the sum of the rows' mean squares so far.
    """

    sum_of_squares: Tree


class RowwiseAdamState(NamedTuple):
    """The state of `rowwise_adam`.

    Attributes:
      count: Updates so far.
      mu: The moving means of gradients, like the parameters; None without a first moment.
      nu: By leaf `[n_rows]`, the moving means of the rows' mean squares.
    """

    count: jax.Array
    mu: Tree
    nu: Tree


class RowwiseRmspropState(NamedTuple):
    """The state of `rowwise_rmsprop`.

    Attributes:
      nu: By leaf `[n_rows]`, the moving means of the rows' mean squares.
    """

    nu: Tree


def rowwise_adagrad(
    learning_rate: LearningRate,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    """Adagrad with one accumulator for each row, the usual optimizer of recommenders' embedding tables.

    `s ← s + mean(g²)` over the row, then `p ← p - learning_rate · g / (√s + eps)`: `EXACT_ROWWISE_ADAGRAD` of FBGEMM
    (`fbgemm_gpu/codegen/genscript/optimizers.py`, `rowwise_adagrad`) and `RowWiseSparseAdagrad` of DLRM (`optim/rwsadagrad.py`). The class
    `torchrec.optim.RowWiseAdagrad` has another formula: it squares the mean. FBGEMM's L2 regularization is this behind
    `optax.add_decayed_weights(weight_decay)`.

    A row is an entry along the first axis. So a matrix has a number for each row, whether it is a table or dense; a leaf of one
    dimension has one for each element and a scalar has one, as in plain Adagrad. Accumulators are float32, or float64 for such parameters.
    Rows without a gradient stay as they are, so `table_mode` makes no difference.

    Args:
      learning_rate: A number or a schedule.
      initial_accumulator_value: The value of `s` at first.
      eps: Added to the root.

    Returns:
      An optax transform.

    Raises:
      SettingsError: If the first accumulator is negative, or `eps` is not positive.

    >>> tx = rowwise_adagrad(0.1)
    >>> params = {"table": jnp.zeros((1000, 32))}
    >>> tx.init(params)[0].sum_of_squares["table"].shape
    (1000,)
    """
    where = "rowwise_adagrad"
    _require(
        where,
        "initial_accumulator_value",
        initial_accumulator_value,
        "at least 0",
        lambda x: x >= 0,
    )
    _require_eps(where, eps)

    def init(params: Tree) -> RowwiseAdagradState:
        return RowwiseAdagradState(_one_a_row(params, initial_accumulator_value))

    def update(
        updates: Tree,
        state: Any,
        params: Tree = None,
    ) -> tuple[Tree, RowwiseAdagradState]:
        del params
        sums = jax.tree.map(
            lambda g, s: s + _mean_square(g),
            updates,
            state.sum_of_squares,
        )
        steps = jax.tree.map(
            lambda g, s: _over_root(g, s, eps),
            updates,
            sums,
        )
        return steps, RowwiseAdagradState(sums)

    return optax.chain(
        optax.GradientTransformation(init, update),
        optax.scale_by_learning_rate(learning_rate),
    )


def rowwise_adam(
    learning_rate: LearningRate,
    b1: float | None = None,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    """Adam with one second moment for each row, and a first moment only if asked for.

    `m ← b1 · m + (1 - b1) · g`, `v ← b2 · v + (1 - b2) · mean(g²)` over the row, then
    `p ← p - learning_rate · m̂ / (√v̂ + eps)`, where `m̂ = m / (1 - b1^t)` and `v̂ = v / (1 - b2^t)`: `PARTIAL_ROWWISE_ADAM` of FBGEMM
    (`fbgemm_gpu/codegen/genscript/optimizers.py`, `partial_rowwise_adam`), where t counts updates of the whole table. Without `b1` the
    gradient takes the place of m̂, as with `b1 = 0` there, and a row has one number of state: at width 32, 1/64 of Adam's. With `b1` the first
    moment is as large as the parameters.

    Rows are those of `rowwise_adagrad`, and moments have the same dtypes. A row without a gradient still has its v decay, and with `b1`
    it moves. `table_mode="faithful"` does that, as dense training does; `"lazy"` leaves such rows alone, as FBGEMM does.

    Args:
      learning_rate: A number or a schedule.
      b1: The decay of the first moment; None for none.
      b2: The decay of the second moment.
      eps: Added to the root.

    Returns:
      An optax transform.

    Raises:
      SettingsError: If a decay is outside [0, 1), or `eps` is not positive.

    >>> params = {"table": jnp.zeros((1000, 32))}
    >>> sum(leaf.size for leaf in jax.tree.leaves(rowwise_adam(0.1).init(params)))  # and the count
    1001
    """
    where = "rowwise_adam"
    if b1 is not None:
        _require_decay(where, "b1", b1)
    _require_decay(where, "b2", b2)
    _require_eps(where, eps)

    def init(params: Tree) -> RowwiseAdamState:
        mu = None if b1 is None else jax.tree.map(_wide_zeros, params)
        return RowwiseAdamState(
            jnp.zeros((), jnp.int32),
            mu,
            _one_a_row(params, 0.0),
        )

    def update(
        updates: Tree,
        state: Any,
        params: Tree = None,
    ) -> tuple[Tree, RowwiseAdamState]:
        del params
        count = jnp.asarray(optax.safe_increment(state.count))
        nu = _decay(updates, state.nu, b2)
        second = jax.tree.map(lambda v: v / (1 - b2**count), nu)
        if b1 is None:
            mu = None
            first = updates
        else:
            mu, first = _first_moment(
                updates,
                state.mu,
                b1,
                count,
            )
        steps = jax.tree.map(
            lambda g, m, v: _over_root(m, v, eps).astype(g.dtype),
            updates,
            first,
            second,
        )
        return steps, RowwiseAdamState(count, mu, nu)

    return optax.chain(
        optax.GradientTransformation(init, update),
        optax.scale_by_learning_rate(learning_rate),
    )


def rowwise_rmsprop(
    learning_rate: LearningRate,
    decay: float = 0.9,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    """RMSProp with one moving mean of squares for each row.

    `v ← decay · v + (1 - decay) · mean(g²)` over the row, then `p ← p - learning_rate · g / (√v + eps)`: `rowwise_rmsprop_ar` of FBGEMM
    (`fbgemm_gpu/codegen/genscript/optimizers.py`) without its regularization (`ar_alpha = 0`), and `torch.optim.RMSprop` with the
    mean over the row in place of `g²`. Unlike `optax.rmsprop`, `eps` is added to the root and not below it.

    Rows are those of `rowwise_adagrad`, and means have the same dtypes. A row without a gradient does not move, but its v decays.
    `table_mode="faithful"` does that, as dense training does; `"lazy"` leaves such rows alone, as FBGEMM does.

    Args:
      learning_rate: A number or a schedule.
      decay: The decay of the mean of squares.
      eps: Added to the root.

    Returns:
      An optax transform.

    Raises:
      SettingsError: If the decay is outside [0, 1), or `eps` is not positive.

    >>> tx = rowwise_rmsprop(1.0, decay=0.75, eps=1.0)
    >>> grads = jnp.array([[2.0, 2.0], [0.0, 0.0]])
    >>> tx.update(grads, tx.init(grads))[0].tolist()  # 2 / (√(¼ · 4) + 1)
    [[-1.0, -1.0], [-0.0, -0.0]]
    """
    where = "rowwise_rmsprop"
    _require_decay(where, "decay", decay)
    _require_eps(where, eps)

    def init(params: Tree) -> RowwiseRmspropState:
        return RowwiseRmspropState(_one_a_row(params, 0.0))

    def update(
        updates: Tree,
        state: Any,
        params: Tree = None,
    ) -> tuple[Tree, RowwiseRmspropState]:
        del params
        nu = _decay(updates, state.nu, decay)
        steps = jax.tree.map(
            lambda g, v: _over_root(g, v, eps),
            updates,
            nu,
        )
        return steps, RowwiseRmspropState(nu)

    return optax.chain(
        optax.GradientTransformation(init, update),
        optax.scale_by_learning_rate(learning_rate),
    )


class ScaleRowsState(NamedTuple):
    """The state of `scale_rows`.

    Attributes:
      factors: By leaf `[n_rows]`, what updates of the rows are multiplied with.
    """

    factors: Tree


def scale_rows() -> optax.GradientTransformation:
    """Multiplies the update of each row by a factor of its own: a learning rate for each row.

    Factors are a part of the optimizer's state, 1 at first, float32 at least, so they are where the rows are, and in checkpoints. Assign
    others to the state: `runner.opt_state[1].factors["words"] = factors`, as with hyperparameters, or plainly to a state of optax.
    A factor of 0 freezes a row. Put it last in an `optax.chain`: transforms that normalise, such as Adam, undo a scaling before them.

    Rows are those of `rowwise_adagrad`: entries along the first axis, of a vector its elements.

    Returns:
      An optax transform.

    >>> tx = optax.chain(optax.sgd(1.0), scale_rows())
    >>> params = {"words": jnp.zeros((2, 3))}
    >>> state = tx.init(params)
    >>> state[1].factors["words"] = jnp.array([1.0, 0.5])
    >>> tx.update({"words": jnp.ones((2, 3))}, state)[0]["words"].tolist()
    [[-1.0, -1.0, -1.0], [-0.5, -0.5, -0.5]]
    """

    def init(params: Tree) -> ScaleRowsState:
        return ScaleRowsState(_one_a_row(params, 1.0))

    def update(
        updates: Tree,
        state: Any,
        params: Tree = None,
    ) -> tuple[Tree, ScaleRowsState]:
        del params
        steps = jax.tree.map(
            lambda u, f: (u * _by_row(f, u)).astype(u.dtype),
            updates,
            state.factors,
        )
        return steps, state

    return optax.GradientTransformation(init, update)


def _wide(dtype: Any) -> Any:
    """The dtype in which moments are kept: float32 at least."""
    return jnp.promote_types(dtype, jnp.float32)


def _wide_zeros(leaf: Any) -> jax.Array:
    return jnp.zeros(leaf.shape, _wide(leaf.dtype))


def _one_a_row(params: Tree, value: Any) -> Tree:
    """By leaf one real number for each of its rows, all the same."""

    def filled(leaf: Any) -> jax.Array:
        real = jnp.finfo(_wide(leaf.dtype)).dtype
        return jnp.full(leaf.shape[:1], value, real)

    return jax.tree.map(filled, params)


def _mean_square(g: jax.Array) -> jax.Array:
    """The mean of squares over each row, `[n_rows]`; of an element or a scalar its square."""
    wide = g.astype(_wide(g.dtype))
    squares = jnp.real(wide * jnp.conj(wide))
    total = squares.sum(tuple(range(1, g.ndim)))
    return total / max(math.prod(g.shape[1:]), 1)


def _decay(grads: Tree, means: Tree, decay: Any) -> Tree:
    return jax.tree.map(
        lambda g, v: decay * v + (1 - decay) * _mean_square(g),
        grads,
        means,
    )


def _first_moment(
    grads: Tree,
    mu: Tree,
    b1: Any,
    count: jax.Array,
) -> tuple[Tree, Tree]:
    """The new moving means of gradients, and the same without the bias towards zero."""
    mu = jax.tree.map(
        lambda g, m: b1 * m + (1 - b1) * g.astype(m.dtype),
        grads,
        mu,
    )
    return mu, jax.tree.map(lambda m: m / (1 - b1**count), mu)


def _over_root(g: jax.Array, v: jax.Array, eps: Any) -> jax.Array:
    """Rows of g over the root of their entry in v."""
    root = jnp.sqrt(v) + eps
    return (g / _by_row(root, g)).astype(g.dtype)


def _by_row(numbers: jax.Array, like: jax.Array) -> jax.Array:
    """One number for each row, with as many axes as the rows' array."""
    return numbers.reshape(numbers.shape + (1,) * (like.ndim - numbers.ndim))


def _require_decay(where: str, name: str, value: Any) -> None:
    _require(
        where,
        name,
        value,
        "in [0, 1)",
        lambda x: 0 <= x < 1,
    )


def _require_eps(where: str, eps: Any) -> None:
    _require(
        where,
        "eps",
        eps,
        "above 0",
        lambda x: x > 0,
    )


def _require(
    where: str,
    name: str,
    value: Any,
    wanted: str,
    holds: Any,
) -> None:
    """Checks a setting that is a number of Python; `optax.inject_hyperparams` passes arrays, which may be traced."""
    if isinstance(value, int | float) and not holds(value):
        raise SettingsError(
            f"{where}, `{name}`",
            wanted,
            f"{value}",
            "Pass a value in this range, or leave it out.",
        )
