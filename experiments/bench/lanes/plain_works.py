"""Functions of one element whose loops have unequal lengths, each with the arguments of many elements. All data are generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

WIDTH = 64


@dataclass(frozen=True)
class Work:
    """A function of one element.

    Args:
      function: The function: plain JAX.
      args: Arrays with an entry for each element.
      tolerance: How far results of two forms may lie apart, relative to 1 and to the result.
      compared: From an array of results to what is compared of it.
      by_hand: By name, compiled functions of all elements that are written for speed.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    tolerance: float = 2e-4
    compared: Callable[[Any], Any] = np.asarray
    by_hand: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


def weights(seed: int, *shape: int) -> jax.Array:
    """Normal numbers, scaled down by the square root of the last axis but one.

    Args:
      seed: Of the numbers.
      *shape: The shape.
    """
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[-2]), jnp.float32)


def loops(kind: str, n: int) -> Work:
    """Two layers of width 64, as often as each element says.

    Args:
      kind: How the trips are spread: `equal`, `uniform`, `lognormal` or `one long`.
      n: Elements.
    """
    rng = np.random.default_rng(0)
    trips = {
        "equal": np.full(n, 40),
        "uniform": rng.integers(1, 101, n),
        "lognormal": np.minimum(np.exp(rng.normal(2.5, 1.2, n)).astype(int) + 1, 1000),
        "one long": np.where(rng.random(n) < 0.01, 500, 10),
    }[kind]
    w = weights(1, 2, WIDTH, WIDTH)

    def function(x: Any, n: Any) -> Any:
        step = lambda _, x: x + 0.01 * jnp.tanh(jnp.tanh(x @ w[0]) @ w[1])
        return lax.fori_loop(0, n, step, x)

    return Work(
        function,
        (weights(2, n, WIDTH), jnp.asarray(trips, jnp.int32)),
    )


def nested(n: int) -> Work:
    """Forty draws, each with a loop of its own length, as in samplers.

    Args:
      n: Elements.
    """
    rng = np.random.default_rng(0)
    trips = np.minimum(2 ** rng.geometric(0.5, size=(n, 40)), 256)
    w = weights(1, 2, WIDTH, WIDTH)

    def function(x: Any, trips: Any) -> Any:
        def draw(x: Any, k: Any) -> Any:
            step = lambda _, y: 0.1 * y + jnp.tanh(jnp.tanh(y @ w[0]) @ w[1])
            y = lax.fori_loop(0, k, step, x)
            return 0.5 * x + 0.5 * y, y[0]

        return lax.scan(draw, x, trips)[1]

    return Work(
        function,
        (weights(2, n, WIDTH), jnp.asarray(trips, jnp.int32)),
    )


def resets(n: int) -> Work:
    """A thousand steps of an environment of two numbers, whose rare reset makes a map of 32 by 32 in a hundred passes.

    Args:
      n: Elements.
    """

    def reset(key: Any) -> Any:
        world = jax.random.normal(key, (32, 32))
        smooth = lambda _, w: (w + jnp.roll(w, 1, 0) + jnp.roll(w, 1, 1)) / 3
        return lax.fori_loop(0, 100, smooth, world)

    def function(key: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            place, world, key = carry
            key, of_step, of_reset = jax.random.split(key, 3)
            move = jax.random.normal(of_step, (2,))
            place = 0.98 * place + 0.05 * move + 0.01 * world[0, 0]
            is_over = jnp.abs(place[0]) > 0.7
            world = lax.cond(
                is_over,
                lambda: reset(of_reset),
                lambda: world,
            )
            return (jnp.where(is_over, 0.0, place), world, key), place[0]

        start = (jnp.zeros(2), reset(key), key)
        return lax.scan(step, start, None, length=1000)[1]

    return Work(
        function,
        (jax.random.split(jax.random.key(0), n),),
        tolerance=1e-2,
    )


def early_exit(width: int, n: int) -> Work:
    """Eight blocks; an element that is sure leaves out the rest, after one or two in most cases.

    Args:
      width: Of the blocks.
      n: Elements.
    """
    rng = np.random.default_rng(0)
    wanted = jnp.asarray(np.minimum(rng.geometric(0.5, n), 8), jnp.int32)
    w = weights(1, 8, width, width)

    def function(x: Any, wanted: Any) -> Any:
        def block(carry: Any) -> Any:
            x, i = carry
            return x + jnp.tanh(x @ w[i]), i + 1

        return lax.while_loop(lambda carry: carry[1] < wanted, block, (x, 0))[0]

    return Work(function, (weights(2, n, width), wanted))


def newton(n: int) -> Work:
    """Newton's method in 16 dimensions with halved steps, until the gradient is small: conditions from 1 to 1e5.

    Args:
      n: Elements.
    """

    def function(x: Any, scale: Any) -> Any:
        value = lambda x: bowl(x, scale)
        value_and_gradient = jax.value_and_grad(value)

        def step(carry: Any) -> Any:
            x, before, g, i = carry
            h = jax.hessian(value)(x) + 1e-6 * jnp.eye(16)
            way = jnp.linalg.solve(h, g)
            least = 1e-4 * (g @ way)

            # whole steps lead far away where the function is nearly linear
            def is_too_long(size: Any) -> Any:
                found = value(x - size * way)
                return (found > before - size * least) & (size > 1e-6)

            size = lax.while_loop(is_too_long, lambda size: size / 2, 1.0)
            x = x - size * way
            return x, *value_and_gradient(x), i + 1

        goes_on = lambda c: (jnp.linalg.norm(c[2]) > 1e-3) & (c[3] < 300)
        start = (x, *value_and_gradient(x), 0)
        _, found, _, _ = lax.while_loop(goes_on, step, start)
        return found

    return Work(function, bowls(n, 1e5), tolerance=1e-2)


def bowl(x: Any, scale: Any) -> Any:
    """A convex function of 16 dimensions, with a condition that depends on its scale.

    Args:
      x: `[16]`.
      scale: `[16]`, above 0.
    """
    return jnp.sum(scale * jnp.logaddexp(x, -2 * x)) + 0.05 * jnp.sum(x) ** 2


def bowls(n: int, most: float) -> tuple[Any, Any]:
    """Starts and scales of minimizations of `bowl`, `[n, 16]` both.

    Args:
      n: Elements.
      most: The largest condition; the least is 1.
    """
    rng = np.random.default_rng(0)
    spread = np.exp(rng.uniform(0, np.log(most), n))
    scales = spread[:, None] ** np.linspace(-1, 0, 16)
    starts = rng.normal(size=(n, 16)) * 3
    return jnp.asarray(starts, jnp.float32), jnp.asarray(scales, jnp.float32)
