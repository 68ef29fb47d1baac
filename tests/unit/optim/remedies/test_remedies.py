"""Remedies against their definitions, written once more in NumPy; each without delay is the plain optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampjax.errors import SettingsError
from ampjax.optim import (
    anneal_by_staleness,
    bounded_staleness,
    compensate_delay,
    compensate_spikes,
    damp_by_staleness,
    delayed,
    predict_weights,
    scale_by_discounted_nadam,
    scale_by_rotated_adam,
    scale_by_staleness,
    trained_params,
)

pytestmark = pytest.mark.users

ADAM = optax.adam(0.1)
MOMENTUM = optax.sgd(0.1, momentum=0.9)
HESSIAN = np.array([[2.0, 0.8], [0.8, 1.0]])
START = np.array([1.0, -2.0])
STALENESS = st.lists(
    st.integers(0, 4),
    min_size=4,
    max_size=8,
)


def apply(tx, gradients, staleness, params=None, steps=None):
    """The updates that a transform makes of some gradients."""
    step = jax.jit(
        lambda g, s, p, late: optax.with_extra_args_support(tx).update(g, s, p, staleness=late)
    )
    params = jnp.zeros(2) if params is None else params
    state = tx.init(params)
    made = []
    for gradient, late in zip(gradients, staleness, strict=True):
        update, state = step(
            jnp.asarray(gradient, jnp.float32),
            state,
            params,
            jnp.float32(late),
        )
        params = optax.apply_updates(params, update)
        made.append(np.asarray(update))
    return made, params, state


def some(n, seed):
    return np.random.default_rng(seed).normal(size=(n, 2)).astype(np.float32)


PLAIN = {
    "scale_by_staleness": (optax.chain(ADAM, scale_by_staleness()), ADAM),
    "anneal_by_staleness": (optax.chain(ADAM, anneal_by_staleness(5)), ADAM),
    "damp_by_staleness": (optax.chain(damp_by_staleness(), ADAM), ADAM),
    "bounded_staleness": (bounded_staleness(ADAM, 0), ADAM),
    "compensate_delay": (optax.chain(compensate_delay(), ADAM), ADAM),
    "compensate_delay, adaptive": (optax.chain(compensate_delay(adaptive=True), ADAM), ADAM),
    "predict_weights": (predict_weights(ADAM), ADAM),
    "compensate_spikes": (
        optax.chain(compensate_spikes(0.9), optax.scale(-0.02)),
        optax.sgd(0.02, momentum=0.9),
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_without_delay_it_is_the_plain_optimizer(name):
    tx, plain = PLAIN[name]
    gradients = some(6, 0)
    for one, other in zip(
        apply(tx, gradients, [0] * 6)[0],
        apply(plain, gradients, [0] * 6)[0],
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", PLAIN)
def test_it_goes_down_a_quadratic_with_delayed_gradients(name):
    """A valley with a delay of 2: every remedy is told the staleness by `delayed`, and ends lower than it began."""
    tx = delayed(
        PLAIN[name][0] if name != "bounded_staleness" else bounded_staleness(ADAM, 2),
        2,
    )
    params = jnp.asarray(START, jnp.float32)
    state = tx.init(jnp.asarray(START, jnp.float32))
    step = jax.jit(tx.update)
    for _ in range(60):
        update, state = step(
            jnp.asarray(HESSIAN, jnp.float32) @ params,
            state,
            params,
        )
        params = optax.apply_updates(params, update)
    at = np.asarray(trained_params(state, params))
    assert at @ HESSIAN @ at < 0.5 * START @ HESSIAN @ START


@settings(max_examples=10)
@given(
    STALENESS,
    st.floats(0, 2),
    st.integers(1, 6),
)
@pytest.mark.slow
def test_steps_become_shorter(staleness, exponent, n):
    gradients = some(len(staleness), 1)
    for t, late in enumerate(staleness):
        told = staleness[: t + 1]
        scaled = apply(scale_by_staleness(exponent), gradients[: t + 1], told)[0][-1]
        np.testing.assert_allclose(
            scaled,
            gradients[t] / (1 + late) ** exponent,
            rtol=1e-5,
        )
        annealed = apply(anneal_by_staleness(n), gradients[: t + 1], told)[0][-1]
        np.testing.assert_allclose(
            annealed,
            gradients[t] / max(late, 1) ** (1 - min(t / n, 1)),
            rtol=1e-5,
        )
        damped = apply(damp_by_staleness(0.3, 3.0), gradients[: t + 1], told)[0][-1]
        wanted = 0.5 * (1 + np.cos(np.pi * min(late / 3, 1))) * np.exp(-0.3 * late)
        np.testing.assert_allclose(
            damped,
            gradients[t] * wanted,
            rtol=1e-4,
            atol=1e-6,
        )


def test_without_a_cutoff_damping_is_exponential():
    tx = damp_by_staleness(0.3, float("inf"))
    updates, _ = tx.update(
        jnp.ones(2),
        tx.init(jnp.ones(2)),
        staleness=5.0,
    )
    np.testing.assert_allclose(updates, np.exp(-1.5), rtol=1e-6)


@pytest.mark.users  # to the bit
@settings(max_examples=10)
@given(STALENESS, st.integers(0, 3))
def test_stale_gradients_are_left_out(staleness, most):
    gradients = some(len(staleness), 2)
    made, _, _ = apply(bounded_staleness(ADAM, most), gradients, staleness)
    fresh = [i for i, late in enumerate(staleness) if late <= most]
    wanted = apply(
        ADAM,
        gradients[fresh],
        [0] * len(fresh),
    )[0]
    for i, update in enumerate(made):
        np.testing.assert_array_equal(
            update,
            wanted[fresh.index(i)] if i in fresh else np.zeros(2),
        )


@settings(max_examples=10)
@given(
    STALENESS,
    st.floats(0, 2),
    st.integers(1, 3),
    st.booleans(),
)
def test_delays_are_compensated_to_first_order(staleness, scale, most, adaptive):
    gradients = some(len(staleness), 3)
    tx = optax.chain(
        compensate_delay(scale, most, adaptive, 0.9),
        optax.sgd(0.1),
    )
    made, _, _ = apply(tx, gradients, staleness)
    seen = [np.zeros(2)]
    mean = np.zeros(2)
    for t, (g, late) in enumerate(zip(gradients, staleness, strict=True)):
        mean = 0.9 * mean + 0.1 * g * g
        if adaptive:
            by = scale / np.sqrt(mean + 1e-7)
        else:
            by = scale
        compensated = g + by * g * g * (seen[-1] - seen[max(t - min(late, most), 0)])
        np.testing.assert_allclose(
            made[t],
            -0.1 * compensated,
            rtol=1e-3,
            atol=1e-5,
        )
        seen.append(seen[-1] - 0.1 * compensated)


def test_compensation_is_exact_where_the_square_of_the_gradient_is_the_curvature():
    """A gradient that is `-1 / w` has the derivative `1 / w²`: its own square."""
    gradient = lambda w: -1 / w
    old = 2.0
    now = 2.02
    tx = compensate_delay()
    _, state = tx.update(
        jnp.array(0.0),
        tx.init(jnp.array(old)),
        jnp.array(old),
        staleness=0,
    )
    made, _ = tx.update(
        jnp.array(gradient(old)),
        state,
        jnp.array(now),
        staleness=1,
    )
    assert abs(float(made) - gradient(now)) < 0.02 * abs(gradient(now) - gradient(old))


@settings(max_examples=10)
@given(
    STALENESS,
    st.floats(0, 2),
    st.sampled_from([MOMENTUM, ADAM]),
)
def test_models_run_at_predicted_weights(staleness, scale, tx):
    gradients = some(len(staleness), 4)
    _, params, state = apply(predict_weights(tx, scale), gradients, staleness)
    steps, trained, _ = apply(tx, gradients, staleness)
    np.testing.assert_allclose(
        trained_params(state, params),
        trained,
        rtol=1e-4,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        params,
        trained + scale * staleness[-1] * steps[-1],
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_part_of_the_parameters_is_predicted():
    kinds = {"late": "predicted", "others": "plain", "more": "predicted twice"}
    tx = optax.partition(
        {
            "predicted": predict_weights(MOMENTUM),
            "predicted twice": predict_weights(MOMENTUM, 2.0),
            "plain": MOMENTUM,
        },
        kinds,
    )
    gradients = []
    for gradient in some(6, 4):
        gradients.append({name: gradient for name in kinds})
    staleness = [2] * 6
    start = {name: jnp.zeros(2) for name in kinds}
    state = tx.init(start)
    params = start
    for gradient in gradients:
        step, state = tx.update(
            gradient,
            state,
            params,
            staleness=2,
        )
        params = optax.apply_updates(params, step)
    _, plain, _ = apply(MOMENTUM, some(6, 4), staleness)
    trained = trained_params(state, params)
    for name in kinds:
        np.testing.assert_allclose(
            trained[name],
            plain,
            rtol=1e-4,
            atol=1e-6,
        )
    assert not np.allclose(params["late"], plain, rtol=1e-2)


@settings(max_examples=10)
@given(
    st.integers(0, 5),
    st.floats(0.1, 0.95),
)
def test_a_spike_adds_what_was_missed(late, momentum):
    """A gradient that comes late, followed by none, adds up to what it would have in time: `1 / (1 - m)`."""
    tx = compensate_spikes(momentum)
    n = 8
    made, _, _ = apply(
        tx,
        [
            np.ones(2),
            *np.zeros((n, 2)),
        ],
        [late] * (n + 1),
    )
    in_time = sum(momentum**i for i in range(late + n + 1))
    np.testing.assert_allclose(
        np.sum(made, axis=0),
        np.full(2, in_time),
        rtol=1e-4,
    )


@settings(max_examples=6)
@given(
    st.sampled_from([0.9, 0.99]),
    st.sampled_from([0.0, 0.004, 0.5]),
)
def test_nadam_with_a_discount(b1, discount):
    gradients = some(6, 5).astype(float)
    made, _, _ = apply(
        scale_by_discounted_nadam(b1, 0.99, 1e-8, discount),
        gradients,
        [0] * 6,
    )
    m = v = np.zeros(2)
    mu = []
    for t in range(1, 8):
        mu.append(b1 * (1 - 0.5 * 0.96 ** (t * discount)))
    for t, g in enumerate(gradients):
        m = b1 * m + (1 - b1) * g
        v = 0.99 * v + 0.01 * g * g
        ahead = mu[t + 1] * m / (1 - np.prod(mu[: t + 2])) + (1 - mu[t]) * g / (
            1 - np.prod(mu[: t + 1])
        )
        np.testing.assert_allclose(
            made[t],
            ahead / (np.sqrt(v / (1 - 0.99 ** (t + 1))) + 1e-8),
            rtol=2e-3,
            atol=1e-5,
        )


def rotation(angle):
    return np.array(
        [
            [np.cos(angle), -np.sin(angle)],
            [np.sin(angle), np.cos(angle)],
        ],
        np.float32,
    )


@settings(max_examples=5)
@given(
    st.floats(0, 3),
    st.integers(0, 9),
)
@pytest.mark.slow
def test_a_rotated_problem_is_solved_in_rotated_steps(angle, seed):
    """Turning the rows' space turns each step, as Adam's does not."""
    turn = rotation(angle)
    rng = np.random.default_rng(seed)
    gradients = (
        np.diag([5.0, 1.0]) @ rng.normal(size=(5, 2, 3)) * np.array([4.0, 2.0, 1.0])
    ).astype(np.float32)
    tx = scale_by_rotated_adam(every=1)

    def steps(given):
        state = tx.init(jnp.zeros((2, 3)))
        made = []
        for gradient in given:
            update, state = tx.update(jnp.asarray(gradient), state)
            made.append(np.asarray(update))
        return made

    for one, other in zip(
        steps(gradients),
        steps(turn @ gradients),
        strict=True,
    ):
        np.testing.assert_allclose(turn @ one, other, atol=5e-3)


@pytest.mark.nightly
@pytest.mark.slow
@settings(max_examples=6)
@given(
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_steps_are_those_of_its_definition(every, seed):
    """SOAP, with the eigenvectors that gradients before this one have made."""
    b1 = 0.8
    b2 = 0.9
    eps = 1e-8
    gradients = np.random.default_rng(seed).normal(size=(7, 2, 3))
    tx = scale_by_rotated_adam(b1, b2, eps, every)
    mean = 0
    square = 0
    left = np.eye(2)
    right = np.eye(3)
    state = tx.init(jnp.zeros((2, 3)))
    rows = np.zeros((2, 2))
    columns = np.zeros((3, 3))
    for t, g in enumerate(gradients):
        update, state = tx.update(
            jnp.asarray(g, jnp.float32),
            state,
        )
        if t:
            mean = b1 * mean + (1 - b1) * g
            square = b2 * square + (1 - b2) * (left.T @ g @ right) ** 2
            scaled = left.T @ mean @ right / (1 - b1**t) / (np.sqrt(square / (1 - b2**t)) + eps)
            np.testing.assert_allclose(
                update,
                left @ scaled @ right.T,
                rtol=5e-3,
                atol=5e-3,
            )
        else:
            assert not np.any(update)
        rows = b2 * rows + (1 - b2) * g @ g.T
        columns = b2 * columns + (1 - b2) * g.T @ g
        if t % every == 0:
            left = np.linalg.eigh(rows)[1]
            right = np.linalg.eigh(columns)[1]


def test_in_a_basis_that_is_right_it_is_adam():
    """Where all gradients lie along the axes there is nothing to rotate; a vector is never rotated. The first gradient makes no step."""
    rng = np.random.default_rng(0)
    gradients = []
    for _ in range(5):
        gradients.append(
            jnp.asarray(
                np.diag(rng.normal(size=2) * [3, 1]),
                jnp.float32,
            )
        )
    tx = scale_by_rotated_adam(0.9, 0.99, every=1)
    plain = optax.scale_by_adam(0.9, 0.99)
    for shape in (lambda g: g, lambda g: g[0]):
        states = []
        for one in (tx, plain):
            states.append(one.init(shape(gradients[0])))
        first, states[0] = tx.update(
            shape(gradients[0]),
            states[0],
        )
        assert not np.any(first)
        for gradient in gradients[1:]:
            made = [None, None]
            for i, one in enumerate((tx, plain)):
                made[i], states[i] = one.update(
                    shape(gradient),
                    states[i],
                )
            wanted = np.where(
                np.asarray(shape(gradient)) == 0,
                0,
                made[1],
            )
            np.testing.assert_allclose(made[0], wanted, atol=1e-4)


WITHOUT = [
    scale_by_staleness(),
    anneal_by_staleness(3),
    damp_by_staleness(),
    bounded_staleness(ADAM, 1),
    compensate_delay(),
    predict_weights(ADAM),
    compensate_spikes(),
]


@pytest.mark.parametrize(
    "tx",
    WITHOUT,
    ids=range(len(WITHOUT)),
)
def test_staleness_is_asked_for(tx):
    params = jnp.ones(2)
    with pytest.raises(SettingsError, match="expected the extra argument `staleness`, got none"):
        tx.update(params, tx.init(params), params)


@pytest.mark.parametrize(
    "tx", [compensate_delay(), predict_weights(ADAM)], ids=["compensate", "predict"]
)
def test_parameters_are_asked_for(tx):
    with pytest.raises(SettingsError, match="expected the parameters"):
        tx.update(
            jnp.ones(2),
            tx.init(jnp.ones(2)),
            staleness=1,
        )


@pytest.mark.parametrize(
    "make",
    [
        lambda: scale_by_staleness(-1),
        lambda: anneal_by_staleness(0),
        lambda: damp_by_staleness(-0.1),
        lambda: damp_by_staleness(cutoff=0),
        lambda: bounded_staleness(ADAM, -1),
        lambda: compensate_delay(-1),
        lambda: compensate_delay(most=-1),
        lambda: predict_weights(ADAM, -1),
        lambda: compensate_spikes(1.0),
        lambda: scale_by_discounted_nadam(1.0),
        lambda: scale_by_rotated_adam(every=0),
        lambda: scale_by_rotated_adam(eps=0),
    ],
)
def test_settings_out_of_their_range(make):
    with pytest.raises(SettingsError):
        make()
