"""Functions of one element whose loops have unequal lengths, each with the arguments of many elements. All data are generated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    tolerance: float = 2e-4


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

    return Work(function, (weights(2, n, WIDTH), jnp.asarray(trips, jnp.int32)))


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

    return Work(function, (weights(2, n, WIDTH), jnp.asarray(trips, jnp.int32)))


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
    """Damped Newton's method in 16 dimensions, until the gradient is small: conditions from 1 to 1e5.

    Args:
      n: Elements.
    """
    rng = np.random.default_rng(0)
    spread = np.exp(rng.uniform(0, np.log(1e5), n))
    scales = spread[:, None] ** np.linspace(-1, 0, 16)
    starts = rng.normal(size=(n, 16)) * 3

    def function(x: Any, scale: Any) -> Any:
        value = lambda x: jnp.sum(scale * jnp.logaddexp(x, -2 * x)) + 0.05 * jnp.sum(x) ** 2
        gradient = jax.grad(value)

        def step(carry: Any) -> Any:
            x, g, i = carry
            h = jax.hessian(value)(x) + 1e-6 * jnp.eye(16)
            x = x - 0.3 * jnp.linalg.solve(h, g)
            return x, gradient(x), i + 1

        goes_on = lambda c: (jnp.linalg.norm(c[1]) > 1e-4) & (c[2] < 300)
        x, _, _ = lax.while_loop(goes_on, step, (x, gradient(x), 0))
        return value(x)

    args = (jnp.asarray(starts, jnp.float32), jnp.asarray(scales, jnp.float32))
    return Work(function, args, tolerance=1e-2)


def van_der_pol(n: int) -> Work:
    """Van der Pol's oscillator over five seconds, stiffness from 1 to 1,000, by diffrax's adaptive Tsit5.

    Args:
      n: Elements.

    Raises:
      ModuleNotFoundError: If diffrax is missing.
    """
    import diffrax  # pyright: ignore[reportMissingImports]

    def field(t: Any, y: Any, mu: Any) -> Any:
        return jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])

    def function(mu: Any) -> Any:
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Tsit5(),
            t0=0.0,
            t1=5.0,
            dt0=1e-3,
            y0=jnp.array([2.0, 0.0]),
            args=mu,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-5),
            max_steps=None,
            adjoint=diffrax.ForwardMode(),
        )
        assert found.ys is not None
        return found.ys[0]

    mu = np.exp(np.random.default_rng(0).uniform(0, np.log(1000), n))
    return Work(
        function,
        (jnp.asarray(mu, jnp.float32),),
        tolerance=5e-2,
    )


def funnel(n: int) -> Work:
    """A hundred draws of BlackJAX's NUTS from a funnel of 25 dimensions, step 0.1.

    Args:
      n: Chains.

    Raises:
      ModuleNotFoundError: If blackjax is missing.
    """
    import blackjax  # pyright: ignore[reportMissingImports]

    def log_density(x: Any) -> Any:
        of_neck = -0.5 * (x[0] / 3) ** 2
        return of_neck - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 12 * x[0]

    sampler = blackjax.nuts(log_density, 0.1, jnp.ones(25))

    def function(key: Any, start: Any) -> Any:
        def draw(state: Any, key: Any) -> Any:
            state, info = sampler.step(key, state)
            return state, info.num_integration_steps

        keys = jax.random.split(key, 100)
        return lax.scan(draw, sampler.init(start), keys)[1]

    starts = np.random.default_rng(0).normal(size=(n, 25)) * 0.5
    args = (jax.random.split(jax.random.key(0), n), jnp.asarray(starts, jnp.float32))
    # chains part where numbers are rounded otherwise: leapfrogs are compared, on average
    return Work(function, args, tolerance=float("inf"))


WORKS: dict[str, Callable[[int], Work]] = {
    "loops-equal": partial(loops, "equal"),
    "loops-uniform": partial(loops, "uniform"),
    "loops-lognormal": partial(loops, "lognormal"),
    "loops-one-long": partial(loops, "one long"),
    "loop-in-a-loop": nested,
    "resets": resets,
    "early-exit-128": partial(early_exit, 128),
    "early-exit-512": partial(early_exit, 512),
    "newton": newton,
    "van-der-pol": van_der_pol,
    "nuts-funnel": funnel,
}
"""By name, what makes the work of so many elements."""

ELEMENTS = {
    "loop-in-a-loop": 256,
    "resets": 128,
    "early-exit-512": 512,
    "newton": 256,
    "van-der-pol": 512,
    "nuts-funnel": 128,
}
"""By name, how many elements are measured, where these are not 1,024."""
