"""Delayed gradients, against a loop over numbers that keeps all parameters there ever were."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.optim import RandomDelay, delayed, stage_delays
from ampjax.optim.node_update import make_update
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.data import list_reduction

N_STEPS = 9


def noting():
    """A transform that does nothing, and keeps the staleness that it was told."""

    def update(updates, state, params=None, *, staleness, **extra):
        return jax.tree.map(
            jnp.zeros_like,
            updates,
        ), jnp.roll(state, -1).at[-1].set(staleness)

    return optax.GradientTransformationExtraArgs(lambda params: jnp.full(N_STEPS, -1.0), update)


def run(tx, gradient, start, steps=N_STEPS, **extra):
    """Parameters after each step, `[steps + 1]` of them."""
    params = start
    state = tx.init(start)
    seen = [params]
    update = jax.jit(lambda g, s, p: optax.with_extra_args_support(tx).update(g, s, p, **extra))
    for t in range(steps):
        made, state = update(gradient(params, t), state, params)
        params = optax.apply_updates(params, made)
        seen.append(params)
    return seen, state


def pull_to(t):
    return lambda params, step: jax.tree.map(
        lambda x: x * 0.3 + jnp.sin(step + jnp.arange(x.size)),
        params,
    )


@settings(max_examples=8)
@given(
    st.integers(0, 4),
    st.sampled_from(
        [
            optax.sgd(0.5),
            optax.adam(0.1),
            optax.sgd(0.2, momentum=0.9),
        ]
    ),
)
def test_it_is_the_transform_on_gradients_of_old_parameters(delay, tx):
    start = jnp.array([1.0, -2.0])
    gradient = pull_to(0)
    seen, _ = run(delayed(tx, delay), gradient, start)
    params = start
    state = tx.init(start)
    for t in range(N_STEPS):
        if t >= delay:
            made, state = tx.update(
                gradient(seen[t - delay], t - delay),
                state,
                params,
            )
            params = optax.apply_updates(params, made)
        np.testing.assert_allclose(
            seen[t + 1],
            params,
            rtol=1e-6,
            atol=1e-7,
        )


@pytest.mark.parametrize(
    "tx",
    [
        optax.adam(0.1),
        optax.adamw(
            0.1,
            weight_decay=0.1,
        ),
    ],
    ids=["adam", "adamw"],
)
def test_no_delay_has_the_same_bits(tx):
    start = {
        "a": jnp.array([0.1, 0.7]),
        "b": jnp.array(3.0),
    }
    for delay in (0, {"a": 0, "b": 0}, RandomDelay((1.0,))):
        for one, other in zip(
            jax.tree.leaves(run(delayed(tx, delay), pull_to(0), start)[0]),
            jax.tree.leaves(run(tx, pull_to(0), start)[0]),
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)


def test_parts_have_delays_of_their_own():
    start = {
        "embed": {"w": jnp.array([1.0, -2.0])},
        "hidden": jnp.array([0.5]),
        "output": jnp.array([2.0]),
    }
    delays = stage_delays(["embed", "hidden", "output"])
    assert delays == {"embed": 2, "hidden": 1, "output": 0}
    seen, _ = run(
        delayed(optax.adam(0.1), delays),
        pull_to(0),
        start,
    )
    for name, delay in delays.items():
        alone, _ = run(
            delayed(optax.adam(0.1), delay),
            pull_to(0),
            start[name],
        )
        for one, other in zip(seen, alone, strict=True):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
                one[name],
                other,
            )


@pytest.mark.nightly
@settings(max_examples=6)
@given(
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_the_staleness_that_is_told(delay, sync):
    _, state = run(
        delayed(noting(), delay, sync_updates=sync),
        pull_to(0),
        jnp.array([1.0]),
    )
    told = []
    for value in np.asarray(state.inner).tolist():
        if value >= 0:
            told.append(value)
    # updates before each gradient came
    made_before = []
    wanted = []
    for t in range(N_STEPS):
        made_before.append(len(wanted))
        age = 0 if len(wanted) < sync else delay
        if t >= age:
            wanted.append(float(len(wanted) - made_before[t - age]))
    assert told == wanted
    assert told[-1] == delay


def test_what_comes_in_stale_is_staler():
    tx = delayed(noting(), 2)
    _, state = run(
        tx,
        pull_to(0),
        jnp.array([1.0]),
        staleness=3.0,
    )
    assert np.asarray(state.inner).tolist()[-1] == 5.0


@pytest.mark.nightly
@settings(max_examples=5)
@given(st.integers(0, 100))
def test_drawn_delays_are_those_of_the_probabilities(seed):
    delay = RandomDelay((0.0, 1.0, 0.0, 3.0), seed)
    _, state = run(
        delayed(noting(), delay),
        pull_to(0),
        jnp.array([1.0]),
    )
    again = run(
        delayed(noting(), delay),
        pull_to(0),
        jnp.array([1.0]),
    )[1]
    told = np.asarray(state.inner)
    np.testing.assert_array_equal(told, np.asarray(again.inner))
    assert told[-1] in (
        1.0,
        2.0,
        3.0,
    )  # in updates: at a step for which nothing had arrived none was made
    assert told.max() <= delay.most


@pytest.mark.parametrize(
    "delay",
    [{"a": 1}, {"a": 1, "b": 0, "c": 0}, {"b": 2, "x": 0}, [1, 0]],
)
def test_trees_of_delays_that_do_not_fit_the_parameters(delay):
    params = {
        "a": jnp.zeros(2),
        "b": {"c": jnp.zeros(1)},
    }
    with pytest.raises(
        SettingsError, match=r"`delay`: expected a tree like .*, or like its upper levels, got "
    ):
        delayed(optax.sgd(0.1), delay).init(params)


@pytest.mark.parametrize(
    "delay",
    [-1, 1.5, {"a": -2}, True, "2", [], {}],
)
def test_delays_that_are_none(delay):
    with pytest.raises(SettingsError, match="whole numbers of at least 0"):
        delayed(optax.sgd(0.1), delay)


@pytest.mark.parametrize(
    "probabilities",
    [(), (-1.0, 2.0), (0.0, 0.0)],
)
def test_probabilities_that_are_none(probabilities):
    with pytest.raises(SettingsError, match="probabilities"):
        RandomDelay(probabilities)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_nodes_gradients_come_late():
    """In AMP: here each node is updated once a call, so a delay of 1 applies the gradients of the round before."""
    graph = list_reduction_rnn(hidden=8)
    data = list_reduction.Sequences(
        list_reduction.generate(20, seed=0),
        hidden=8,
    )
    start = amp.Trainer(graph, optax.sgd(0.1)).params
    rounds = [data, data]
    late = amp.Trainer(
        graph,
        delayed(optax.sgd(0.1), 1),
        params=start,
        mode="pipeline",
        max_active_keys=64,
    )
    plain = amp.Trainer(
        graph,
        optax.sgd(0.1),
        params=start,
        mode="pipeline",
        max_active_keys=64,
    )
    late.accumulate(rounds[0])
    jax.tree.map(np.testing.assert_array_equal, late.params, start)  # nothing has arrived
    late.accumulate(rounds[1])
    plain.accumulate(rounds[0])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        late.params,
        plain.params,
    )


def test_it_is_part_of_a_nodes_update():
    update = make_update(delayed(optax.sgd(1.0), 1))
    params = jnp.array([1.0])
    state = delayed(optax.sgd(1.0), 1).init(params)
    for accumulated, expected in ((4.0, 1.0), (8.0, -1.0)):
        params, state, _ = update(
            params,
            state,
            jnp.array([accumulated]),
            2.0,
            staleness=jnp.float32(0),
        )
        assert params.tolist() == [expected]
