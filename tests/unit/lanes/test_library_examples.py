"""Examples from the pages of BlackJAX and diffrax: an element's result in lanes is the function's own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.compilation_cache import compilation_cache

import ampjax as amp

pytestmark = pytest.mark.nightly
NS = 6
DRAWS = 20


def spiral(diffrax: Any, y0: Any) -> Any:
    """Diffrax, Getting started: an equation, its values at four times."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -y),
        diffrax.Dopri5(),
        t0=0,
        t1=3,
        dt0=0.1,
        y0=y0,
        saveat=diffrax.SaveAt(ts=jnp.array([0.0, 1.0, 2.0, 3.0])),
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5),
    )
    return solution.ys


def robertson(diffrax: Any, k: Any) -> Any:
    """Diffrax, Stiff ODE: Robertson's reactions, by an implicit solver."""

    def field(t: Any, y: Any, k: Any) -> Any:
        f0 = -0.04 * y[0] + k * y[1] * y[2]
        f2 = 3e3 * y[1] ** 2
        return jnp.stack([f0, -f0 - f2, f2])

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Kvaerno5(),
        t0=0.0,
        t1=10.0,
        dt0=2e-4,
        y0=jnp.array([1.0, 0.0, 0.0]),
        args=k,
        stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-5),
    )
    return solution.ys[0]


def bouncing(diffrax: Any, height: Any) -> Any:
    """Diffrax, Events: the time at which a falling ball hits the ground."""
    import optimistix  # pyright: ignore[reportMissingImports]

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: jnp.stack([y[1], -9.8])),
        diffrax.Tsit5(),
        t0=0,
        t1=jnp.inf,
        dt0=0.1,
        y0=jnp.stack([height, 0.0]),
        event=diffrax.Event(
            lambda t, y, args, **kwargs: y[0],
            optimistix.Newton(1e-5, 1e-5, optimistix.rms_norm),
        ),
    )
    return solution.ts[0]


def log_density(x: Any) -> Any:
    """Of BlackJAX's first example: a normal distribution's location and logarithm of its scale, given some data."""
    observed = jnp.linspace(8.0, 12.0, 10)
    return jnp.sum(
        jax.scipy.stats.norm.logpdf(
            observed,
            x[0],
            jnp.exp(x[1]),
        )
    )


def sampled(algorithm: Any, key: Any) -> Any:
    """BlackJAX's loop of inference: a state, and a scan of steps."""

    def step(state: Any, key: Any) -> Any:
        state, _ = algorithm.step(key, state)
        return state, state.position

    start = algorithm.init(jnp.array([9.0, 0.5]))
    return lax.scan(
        step,
        start,
        jax.random.split(key, DRAWS),
    )[1]


def nuts(blackjax: Any, key: Any) -> Any:
    return sampled(
        blackjax.nuts(log_density, 0.1, jnp.ones(2)),
        key,
    )


def hmc(blackjax: Any, key: Any) -> Any:
    """With a number of steps of each element's own."""

    def own(key: Any) -> Any:
        steps = jax.random.randint(key, (), 1, 9)
        return sampled(
            blackjax.hmc(log_density, 0.1, jnp.ones(2), steps),
            key,
        )

    return own(key)


def slice_sampler(blackjax: Any, key: Any) -> Any:
    """Of a normal distribution, whose every step looks for a point of the slice."""
    algorithm = blackjax.elliptical_slice(
        log_density,
        mean=jnp.zeros(2),
        cov=jnp.eye(2) * 9.0,
    )
    return sampled(algorithm, key)


def require_each_alone(function: Any, xs: Any) -> None:
    """Checks several lanes, and a single one, against the function of one element after another."""
    wanted = jnp.stack([function(x) for x in xs])
    assert np.isfinite(wanted).all()
    for lanes in (4, 1):
        found = amp.vmap(function, lanes=lanes, trips=4)(xs)
        # two programs round otherwise, and a step's size depends on rounding
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)


@pytest.fixture
def compiles_afresh():
    """Compilations without a cache, from which JAX can't load kernels for lineax in the middle of lowering."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("compiles_afresh")
@pytest.mark.parametrize("example", [spiral, robertson, bouncing])
def test_examples_of_diffrax(example):
    diffrax = pytest.importorskip("diffrax", reason="diffrax is in the extra `bench`")
    xs = {
        spiral: jnp.linspace(0.5, 3.0, NS),
        robertson: jnp.linspace(1e2, 1e4, NS),
        bouncing: jnp.linspace(1.0, 40.0, NS),
    }[example]
    require_each_alone(lambda x: example(diffrax, x), xs)


@pytest.mark.parametrize("example", [nuts, hmc, slice_sampler])
def test_examples_of_blackjax(example):
    blackjax = pytest.importorskip("blackjax", reason="blackjax is in the extra `bench`")
    keys = jax.random.split(jax.random.key(0), NS)
    require_each_alone(lambda key: example(blackjax, key), keys)
