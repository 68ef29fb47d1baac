"""What is proved of a loss is true: replicas' losses and gradients are those of the joined batch, whatever the parameters are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.cut_programs import ENDS, STEPS, batch_of, loss_of, params_of
from support.effort import examples

import ampjax.parallel as px
from ampjax.devices.loss_collectives import AXIS
from ampjax.parallel.equivalence.proof import Proof
from ampjax.sparse.detection.loss_jaxpr import trace_loss


def parts_of(batch, n):
    return [
        jax.tree.map(
            lambda leaf, i=i: leaf[i * len(leaf) // n : (i + 1) * len(leaf) // n],
            batch,
        )
        for i in range(n)
    ]


def proved(loss, params, batch, n, scales=None):
    parts = parts_of(batch, n)
    traced = (
        trace_loss(
            loss,
            params,
            parts[0],
            ((AXIS, n),),
        ),
        trace_loss(loss, params, batch, ((AXIS, 1),)),
    )
    proof = Proof(
        *traced,
        n,
        scales or (n,),
        [True] * len(jax.tree.leaves(batch)),
    )
    return proof.verdict(
        [jax.tree.leaves(part) for part in parts],
        jax.tree.leaves(batch).__getitem__,
    ).holds


def of_replicas(loss, params, batch, n):
    """The mean of the replicas' losses."""
    stacked = jax.tree.map(
        lambda leaf: leaf.reshape(
            n,
            len(leaf) // n,
            *leaf.shape[1:],
        ),
        batch,
    )
    return jax.vmap(
        functools.partial(loss, params),
        axis_name=AXIS,
    )(stacked).mean()


PROGRAMS = st.tuples(
    st.lists(st.sampled_from(sorted(STEPS)), max_size=5),
    st.sampled_from(sorted(ENDS)),
)


@settings(max_examples=examples(400))
@given(
    PROGRAMS,
    st.sampled_from([2, 3]),
    st.booleans(),
    st.integers(0, 2**31),
)
@example((["concatenated", "without its mean"], "mean"), 2, False, 0)
@example((["a row in each", "by the largest weight"], "quotient"), 3, True, 0)
def test_what_is_proved_is_true(program, n, is_even, seed):
    loss = loss_of(*program)
    params = params_of(seed)
    batch = batch_of(seed, n, is_even)
    if not proved(loss, params, batch, n):
        return
    joined = jax.value_and_grad(loss)(params, batch)
    replicas = jax.value_and_grad(lambda params: of_replicas(loss, params, batch, n))(params)
    scale = max(
        1.0,
        *(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(joined)),
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            a,
            b,
            rtol=1e-3,
            atol=1e-4 * scale,
        ),
        replicas,
        joined,
    )


RIGHT = [name for name, (_, mixes) in STEPS.items() if mixes is False]
ONLY_EVEN = [name for name, (_, mixes) in STEPS.items() if mixes == "unless even"]
MIXING = [name for name, (_, mixes) in STEPS.items() if mixes is True]


@pytest.mark.parametrize("name", RIGHT)
def test_what_mixes_nothing_is_proved(name):
    loss = loss_of([name], "mean")
    assert proved(
        loss,
        params_of(0),
        batch_of(0, 2, False),
        2,
    )
    assert proved(
        jax.jit(jax.checkpoint(loss)),
        params_of(0),
        batch_of(0, 3, False),
        3,
    )


@pytest.mark.parametrize("name", ONLY_EVEN)
def test_equal_weights_at_all_replicas_are_proved(name):
    loss = loss_of(["a layer", name], "mean")
    assert proved(
        loss,
        params_of(0),
        batch_of(0, 2, True),
        2,
    )
    assert not proved(
        loss,
        params_of(0),
        batch_of(0, 2, False),
        2,
    )


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_examples_is_not_proved(name):
    assert not proved(
        loss_of([name], "mean"),
        params_of(0),
        batch_of(0, 2, True),
        2,
    )


@pytest.mark.parametrize("name", ENDS)
def test_ends(name):
    end, mixes = ENDS[name]
    del end
    even, uneven = (
        proved(
            loss_of(["a layer"], name),
            params_of(0),
            batch_of(0, 2, e),
            2,
        )
        for e in (True, False)
    )
    assert (even, uneven) == {
        False: (True, True),
        "unless even": (True, False),
        True: (False, False),
    }[mixes]


def test_nothing_is_proved_where_a_part_has_another_program():
    def by_length(params, batch):
        x = batch["x"] @ params["w"]
        return jnp.mean((jnp.sin(x) if len(x) > 3 else x) ** 2)

    batch = batch_of(0, 2, True)
    batch = {"x": batch["x"][:4]}
    assert not proved(by_length, params_of(0), batch, 2)


def test_a_sum_is_proved_where_sums_are_wanted():
    def total(params, batch):
        return jnp.sum((batch["x"] @ params["w"]) ** 2)

    assert proved(
        total,
        params_of(0),
        batch_of(0, 2, False),
        2,
        scales=(1,),
    )
    assert not proved(
        total,
        params_of(0),
        batch_of(0, 2, False),
        2,
    )
    assert px.mean(jnp.ones(2)) == 1
