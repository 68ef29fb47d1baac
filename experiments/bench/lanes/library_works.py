"""Functions of one element from libraries: equations of diffrax, chains of BlackJAX, minima by optax, optimistix and jaxopt. All data are generated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from experiments.bench.lanes.chain_machine import machine_of_chains
from experiments.bench.lanes.plain_works import WIDTH, Work, bowl, bowls, weights

DRAWS = 100


def van_der_pol(n: int) -> Work:
    """Van der Pol's oscillator over five seconds, stiffness from 1 to 1,000.

    Args:
      n: Elements.

    Raises:
      ModuleNotFoundError: If diffrax is missing.
    """
    return _solved(_oscillator, n)


def learned_field(n: int) -> Work:
    """The same, and a network of two layers of width 64, which adds a little to the right-hand side.

    Args:
      n: Elements.

    Raises:
      ModuleNotFoundError: If diffrax is missing.
    """
    w = weights(1, 2, WIDTH, WIDTH)
    into = weights(2, 2, WIDTH)
    out = weights(3, WIDTH, 2)

    def field(t: Any, y: Any, mu: Any) -> Any:
        x = jnp.tanh(y @ into)
        x = jnp.tanh(x @ w[0])
        x = jnp.tanh(x @ w[1])
        return _oscillator(t, y, mu) + 0.1 * (x @ out)

    return _solved(field, n)


def _oscillator(t: Any, y: Any, mu: Any) -> Any:
    position, speed = y
    force = mu * (1 - position**2) * speed - position
    return jnp.stack([speed, force])


def _solved(field: Callable[..., Any], n: int) -> Work:
    """An equation by diffrax's adaptive Tsit5, for stiffness log-uniform from 1 to 1,000."""
    import diffrax  # pyright: ignore[reportMissingImports]

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
    """Chains in a funnel of 25 dimensions, step 0.1.

    Args:
      n: Chains.

    Raises:
      ModuleNotFoundError: If blackjax is missing.
    """

    def log_density(x: Any) -> Any:
        neck = x[0]
        of_neck = -0.5 * (neck / 3) ** 2
        squares = jnp.sum(x[1:] ** 2)
        return of_neck - 0.5 * squares * jnp.exp(-neck) - 12 * neck

    starts = np.random.default_rng(0).normal(size=(n, 25)) * 0.5
    return _sampled(log_density, 0.1, starts)


def mixture(n: int) -> Work:
    """Chains in a mixture of four correlated Gaussians of ten dimensions, step 0.05.

    Args:
      n: Chains.

    Raises:
      ModuleNotFoundError: If blackjax is missing.
    """
    rng = np.random.default_rng(0)
    root = rng.normal(size=(10, 10))
    covariance = root @ root.T / 10 + 0.05 * np.eye(10)
    precision = jnp.asarray(np.linalg.inv(covariance), jnp.float32)
    centers = jnp.asarray(rng.normal(size=(4, 10)) * 3, jnp.float32)

    def log_density(x: Any) -> Any:
        away = x - centers
        return jax.nn.logsumexp(-0.5 * jnp.sum((away @ precision) * away, 1))

    return _sampled(log_density, 0.05, rng.normal(size=(n, 10)))


def _sampled(log_density: Callable[[Any], Any], step: float, starts: np.ndarray) -> Work:
    """A hundred draws of BlackJAX's NUTS: how many leapfrogs each took."""
    import blackjax  # pyright: ignore[reportMissingImports]

    n, size = starts.shape
    sampler = blackjax.nuts(log_density, step, jnp.ones(size))

    def function(key: Any, start: Any) -> Any:
        def draw(state: Any, key: Any) -> Any:
            state, info = sampler.step(key, state)
            return state, info.num_integration_steps

        keys = jax.random.split(key, DRAWS)
        return lax.scan(draw, sampler.init(start), keys)[1]

    args = (
        jax.random.split(jax.random.key(0), n),
        jnp.asarray(starts, jnp.float32),
    )
    machine = partial(machine_of_chains, log_density, step, DRAWS)
    # chains part where numbers are rounded otherwise, so that averages are compared
    return Work(
        function,
        args,
        tolerance=0.05,
        compared=np.mean,
        by_hand={
            "one phase a step": machine(bundles=False),
            "one leapfrog a step": machine(bundles=True),
        },
    )


def lbfgs(n: int) -> Work:
    """L-BFGS of optax with its line search, until the gradient is small.

    Args:
      n: Elements.
    """

    def function(x: Any, scale: Any) -> Any:
        value = lambda x: bowl(x, scale)
        solver = optax.lbfgs()
        value_and_grad = optax.value_and_grad_from_state(value)

        def step(carry: Any) -> Any:
            x, state, i = carry
            found, g = value_and_grad(x, state=state)
            change, state = solver.update(
                g,
                state,
                x,
                value=found,
                grad=g,
                value_fn=value,
            )
            return optax.apply_updates(x, change), state, i + 1

        def goes_on(carry: Any) -> Any:
            _, state, i = carry
            g = optax.tree_utils.tree_get(state, "grad")
            return (i == 0) | ((jnp.linalg.norm(g) > 1e-3) & (i < 300))

        x, _, _ = lax.while_loop(goes_on, step, (x, solver.init(x), 0))
        return value(x)

    return Work(function, bowls(n, 1e4), tolerance=1e-2)


def lbfgs_of_optimistix(n: int) -> Work:
    """L-BFGS of optimistix on the same problems.

    Args:
      n: Elements.

    Raises:
      ModuleNotFoundError: If optimistix is missing.
    """
    import optimistix  # pyright: ignore[reportMissingImports]

    def function(x: Any, scale: Any) -> Any:
        found = optimistix.minimise(
            bowl,
            optimistix.LBFGS(1e-3, 1e-3),
            x,
            scale,
            max_steps=500,
            throw=False,
        )
        return bowl(found.value, scale)

    return Work(function, bowls(n, 1e4), tolerance=1e-2)


def lbfgs_of_jaxopt(n: int) -> Work:
    """L-BFGS of jaxopt, with its own line search, on the same problems.

    Args:
      n: Elements.

    Raises:
      ModuleNotFoundError: If jaxopt is missing.
    """
    return _by_jaxopt("LBFGS", n)


def bfgs_of_jaxopt(n: int) -> Work:
    """BFGS of jaxopt, which keeps a matrix of 16 by 16, on the same problems.

    Args:
      n: Elements.

    Raises:
      ModuleNotFoundError: If jaxopt is missing.
    """
    return _by_jaxopt("BFGS", n)


def _by_jaxopt(name: str, n: int) -> Work:
    """Minima of bowls by a solver of jaxopt."""
    with warnings.catch_warnings():
        # it says at import that nobody maintains it
        warnings.simplefilter("ignore", DeprecationWarning)
        import jaxopt  # pyright: ignore[reportMissingImports]
    solver = getattr(jaxopt, name)

    def function(x: Any, scale: Any) -> Any:
        found = solver(bowl, maxiter=500, tol=1e-3).run(x, scale=scale)
        return bowl(found.params, scale)

    return Work(function, bowls(n, 1e4), tolerance=1e-2)
