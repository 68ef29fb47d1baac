"""Parameters in 16 bits that learn from small updates: computed in float32, rounded up or down at random, so that nothing is lost in the mean.

Rounded to the nearest number, an update below a half of the distance between two bfloat16 numbers (1/256 of the parameter) changes nothing, however often it
comes. The random numbers are a hash of the row, so that each row can be updated by itself.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import SettingsError
from ampjax.optim.optax_transforms.transform_arguments import with_extra_arguments

Tree = Any

NARROW = ("bfloat16", "float16")
"""The dtypes that are rounded stochastically."""

_STEP = 0x9E3779B9
"""2^32 over the golden ratio: multiples of it are spread evenly."""


class StochasticRoundingState(NamedTuple):
    """The state of `stochastic_rounding`.

    Attributes:
      count: Updates so far, int32.
      inner: The inner transform's state, for parameters in float32.
    """

    count: jax.Array
    inner: Any


def stochastic_rounding(
    tx: optax.GradientTransformation,
    seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Lets a transform update bfloat16 and float16 parameters as if they were float32, and rounds the results stochastically.

    A number between two that the dtype knows becomes the upper one with the probability that makes the mean right. Gradients and the state of `tx` are float32.
    Leaves of other dtypes are left to `tx`. Rows that are equal to the bit are rounded alike.

    Works row by row where `tx` does: for tables of `px.get_runner`, for nodes, and in plain optax. The updates that it gives are float32, and
    `optax.apply_updates` rounds their sums with the parameters exactly.

    Args:
      tx: The transform.
      seed: Of the random numbers; the same seed gives the same bits.

    Returns:
      A transform that wants `params`.

    Raises:
      SettingsError: If the seed is no integer from 0 to 2^32 - 1.

    >>> params = jnp.linspace(1.1, 1.9, 1000, dtype=jnp.bfloat16).reshape(100, 10)
    >>> tx = stochastic_rounding(optax.sgd(1.0))
    >>> gradients = jnp.full((100, 10), 1e-3)  # steps of 1/1000, where bfloat16 knows multiples of 1/128
    >>> updates, _ = tx.update(gradients, tx.init(params), params)
    >>> new = optax.apply_updates(params, updates)
    >>> steps = new.astype(jnp.float32) - params.astype(jnp.float32)
    >>> sorted({*steps.reshape(-1).tolist()}), bool(abs(steps.mean() + 1e-3) < 3e-4)
    ([-0.0078125, 0.0], True)
    """
    is_integer = isinstance(seed, int) and not isinstance(seed, bool)
    if not is_integer or not 0 <= seed < 2**32:
        raise SettingsError(
            "stochastic_rounding, `seed`",
            "an integer from 0 to 2^32 - 1",
            f"{seed!r}",
            "Leave it out, or give another number for other random numbers.",
        )
    step = with_extra_arguments(tx)

    def init(params: Tree) -> StochasticRoundingState:
        return StochasticRoundingState(
            jnp.zeros((), jnp.int32),
            tx.init(_widen(params)),
        )

    def update(
        updates: Tree,
        state: Any,
        params: Tree = None,
        **extra: Any,
    ) -> tuple[Tree, StochasticRoundingState]:
        if params is None:
            raise SettingsError(
                "stochastic_rounding",
                "parameters beside the gradients",
                "none",
                "Call `tx.update(grads, state, params)`.",
            )
        wide = _widen(params)
        steps, inner = step.update(
            _widen(updates),
            state.inner,
            wide,
            **extra,
        )
        count = state.count.astype(jnp.uint32)
        turn = count * jnp.uint32(_STEP) + jnp.uint32(seed)
        old, structure = jax.tree.flatten(params)
        moved = []
        for number, (leaf, change) in enumerate(
            zip(old, structure.flatten_up_to(steps), strict=True)
        ):
            if leaf.dtype.name in NARROW:
                salt = turn ^ jnp.uint32(_STEP * (number + 1) % 2**32)
                change = _rounded_step(leaf, change, salt)
            moved.append(change)
        result = jax.tree.unflatten(structure, moved)
        return result, StochasticRoundingState(state.count + 1, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def _widen(tree: Tree) -> Tree:
    """Narrow leaves as float32."""

    def widened(leaf: jax.Array) -> jax.Array:
        if leaf.dtype.name not in NARROW:
            return leaf
        return leaf.astype(jnp.float32)

    return jax.tree.map(widened, tree)


def _rounded_step(
    param: jax.Array,
    step: jax.Array,
    salt: jax.Array,
) -> jax.Array:
    """The float32 step from a narrow parameter to one of the two narrow numbers around its new value."""
    old = param.astype(jnp.float32)
    wanted = old + step
    narrow = wanted.astype(param.dtype)
    nearest = narrow.astype(jnp.float32)
    error = wanted - nearest
    # The narrow number on the other side of the wanted value.
    infinity = jnp.full_like(narrow, jnp.inf)
    beyond = jnp.where(error > 0, infinity, -infinity)
    other = jnp.nextafter(narrow, beyond).astype(jnp.float32)
    gap = jnp.abs(other - nearest)
    takes_other = _uniform(param, salt) * gap < jnp.abs(error)
    chosen = jnp.where(takes_other, other, nearest)
    # A step of zero stays one, which analyses of rows without gradients must see.
    return (chosen - old) * jnp.sign(jnp.abs(step))


def _uniform(param: jax.Array, salt: jax.Array) -> jax.Array:
    """Numbers in [0, 1) from a hash of old parameters, the other ones of their row, their columns and a salt.

    Old parameters are exact, whatever the program: new values differ in the last bit from one program to another.
    """
    short = jax.lax.bitcast_convert_type(param, jnp.uint16)
    bits = short.astype(jnp.uint32)
    if param.ndim > 1:
        size = math.prod(param.shape[1:])
        columns = jnp.arange(1, size + 1, dtype=jnp.uint32)
        salts = columns * jnp.uint32(_STEP)
        bits = bits + salts.reshape(param.shape[1:])
        of_row = jnp.sum(
            _mix_bits(bits),
            tuple(range(1, param.ndim)),
            dtype=jnp.uint32,
            keepdims=True,
        )
        bits = bits + of_row
    high = _mix_bits(bits ^ salt) >> 8
    return high.astype(jnp.float32) * jnp.float32(2.0**-24)


def _mix_bits(bits: jax.Array) -> jax.Array:
    """MurmurHash3's finalizer, of uint32."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
    return bits ^ (bits >> 16)
