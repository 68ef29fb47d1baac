"""The velocity that estimates of earlier parameters are made of, against its definition in NumPy, and what estimates are on known paths."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampjax.errors import SettingsError
from ampjax.optim.remedies.discrepancy_correction import params_before, track_velocity

ADAM = optax.adam(0.1)


def path(tx, gradients, staleness):
    """Parameters after each update, `[n + 1, 2]`, and velocities, `[n + 1, 2]`."""
    step = jax.jit(lambda g, s, p, late: tx.update(g, s, p, staleness=late))
    params = jnp.ones(2)
    state = tx.init(jnp.ones(2))
    seen = [params]
    velocities = [state.velocity]
    for gradient, late in zip(gradients, staleness, strict=True):
        updates, state = step(
            jnp.asarray(gradient, jnp.float32),
            state,
            params,
            jnp.float32(late),
        )
        params = optax.apply_updates(params, updates)
        seen.append(params)
        velocities.append(state.velocity)
    return np.array(seen), np.array(velocities)


@pytest.mark.nightly
@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.floats(0, 9),
        min_size=1,
        max_size=8,
    ),
    st.floats(0, 0.99),
    st.integers(0, 99),
)
def test_it_is_the_running_mean_of_changes(staleness, decay, seed):
    """γ = D ** (1 / staleness), and 0 in the limit of none."""
    gradients = np.random.default_rng(seed).normal(size=(len(staleness), 2))
    seen, velocities = path(track_velocity(ADAM, decay), gradients, staleness)
    want = np.zeros(2)
    for n, late in enumerate(np.float32(staleness)):
        if late > 0:
            kept = np.float32(decay) ** (1 / late)
        else:
            kept = 0
        want = kept * want + (1 - kept) * (seen[n + 1] - seen[n])
        np.testing.assert_allclose(
            velocities[n + 1],
            want,
            rtol=1e-4,
            atol=1e-5,
        )


def test_updates_have_the_same_bits():
    gradients = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    seen, _ = path(
        track_velocity(ADAM, 0.135),
        gradients,
        [0, 2, 1.5, 0, 3, 1],
    )
    update = jax.jit(ADAM.update)
    params = jnp.ones(2)
    state = ADAM.init(jnp.ones(2))
    for gradient, want in zip(gradients, seen[1:], strict=True):
        updates, state = update(jnp.asarray(gradient), state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_array_equal(params, want)


@pytest.mark.parametrize(
    ("decay", "late"),
    [(0.0, 3), (0.135, 1), (0.135, 4), (0.5, 2)],
)
def test_at_a_constant_velocity_the_estimate_is_the_parameters_of_then(decay, late):
    """It begins at zero, so what is missing falls by D in each `late` updates; nothing is missing with D = 0."""
    n = 8 * late
    velocity = np.array([-0.25, 0.125])
    seen, velocities = path(
        track_velocity(optax.sgd(1.0), decay),
        [-velocity] * n,
        [late] * n,
    )
    estimate = params_before(seen[n], velocities[n], late)
    np.testing.assert_allclose(
        estimate - seen[n - late],
        late * decay**8 * velocity,
        rtol=1e-3,
        atol=1e-6,
    )


@pytest.mark.parametrize("late", [3, 5, 9])
def test_at_a_constant_acceleration_too_with_the_decay_that_gives_changes_their_mean_age(late):
    """γ = 1 - 2 / (τ + 1), whose power of τ tends to e⁻², the default."""
    decay = (1 - 2 / (late + 1)) ** late
    n = 20 * late
    seen, velocities = path(
        track_velocity(optax.sgd(1e-3), decay),
        [[k, -k] for k in range(n)],
        [late] * n,
    )
    estimate = params_before(seen[n], velocities[n], late)
    np.testing.assert_allclose(
        estimate,
        seen[n - late],
        atol=1e-4 * np.abs(seen[n] - seen[n - late]).max(),
    )


def test_what_has_no_gradient_stays_as_it_is():
    params = {
        "w": jnp.ones(2, jnp.bfloat16),
        "n": jnp.array([3, 4]),
    }
    velocity = {
        "w": jnp.full(2, 0.25, jnp.bfloat16),
        "n": None,
    }
    found = params_before(params, velocity, jnp.float32(2))
    assert (
        found["w"].tolist() == [0.5, 0.5]
        and found["w"].dtype == jnp.bfloat16
        and found["n"] is params["n"]
    )


def test_staleness_is_asked_for():
    tx = track_velocity(ADAM, 0.5)
    with pytest.raises(
        SettingsError,
        match="`track_velocity`, update: expected the extra argument `staleness`, got none",
    ):
        tx.update(
            jnp.ones(2),
            tx.init(jnp.ones(2)),
            jnp.ones(2),
        )
