"""Operations in an order of each instance's own, against a loop over instances and steps written directly in JAX."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest
from support.parity import assert_equal, ours

import ampjax as amp
from ampjax.errors import SettingsError
from experiments.bench.peers import permutation_jax
from experiments.data.permutation import generate, plain
from experiments.models.permutation import SPEC, embed, init, permutation

pytestmark = [pytest.mark.slow, pytest.mark.users]


def direct_loss(params, data):
    total = 0.0
    for digits, order, label in zip(
        data.digits,
        data.orders,
        data.labels,
        strict=True,
    ):
        h = sum(params["embed"][place, digit] for place, digit in enumerate(digits))
        for k in order:
            h = jax.nn.relu(h @ params[f"operation{k}"]["w"] + params[f"operation{k}"]["b"])
        logits = h @ params["output"]["w"] + params["output"]["b"]
        total += optax.softmax_cross_entropy_with_integer_labels(logits, label)
    return total


def compiled_for(n_operations, replicas=1):
    return amp.compile(
        partial(permutation, replicas=replicas),
        init(jax.random.key(0), n_operations, 8),
        SPEC,
    )


def test_each_instance_takes_its_own_way():
    data = generate(7, 3)
    model = compiled_for(3)
    params, *got = ours(
        model.graph,
        model.data(plain(data)),
        max_dispatch_size=4,
        policy="largest",
    )
    assert_equal(
        tuple(got),
        jax.value_and_grad(direct_loss)(
            jax.tree.map(jnp.asarray, params),
            data,
        ),
    )


@pytest.mark.nightly
def test_replicas_are_kept_together_and_learn():
    model = compiled_for(2, replicas=2)
    data = model.data(plain(generate(40, 2)))
    trainer = amp.Trainer(
        model.graph,
        optax.adam(0.02),
        workers=2,
        max_dispatch_size=8,
    )
    assert {"operation0/0", "operation0/1", "operation1/0", "operation1/1"} <= set(trainer.params)
    history = trainer.fit(data, epochs=5, progress=False)
    assert history[-1].train["loss"] < 0.9 * history[0].train["loss"]


def test_the_union_of_all_paths_computes_the_same():
    data = generate(5, 3)
    model = compiled_for(3)
    params, *want = ours(
        model.graph,
        model.data(plain(data)),
    )
    batch = data.digits, data.orders, data.labels
    loss, grads = jax.value_and_grad(permutation_jax.loss)(
        jax.tree.map(jnp.asarray, params), *batch
    )
    assert_equal(
        (
            5 * loss,
            jax.tree.map(lambda g: 5 * g, grads),
        ),
        tuple(want),
    )


def test_dispatches_mix_depths():
    """A dispatch of an operation holds more messages than have it to do at any one depth."""
    data = generate(64, 4)
    model = compiled_for(4)
    stats = amp.simulate(
        model.graph,
        model.data(plain(data)),
        max_active_keys=64,
        policy="largest",
    ).stats
    stage = next(s for name, s in stats.stages.items() if name.startswith("operation0"))
    assert stage.most_messages > (data.orders == 0).sum(axis=0).max()


def test_bad_sizes_are_refused():
    for sizes in ((0, 8), (4, 0)):
        with pytest.raises(
            SettingsError, match="permutation, sizes: expected at least 1 operation and 1 feature"
        ):
            init(jax.random.key(0), *sizes)
    assert embed(
        jnp.ones((6, 10, 2)),
        jnp.zeros((3, 6), jnp.int32),
    ).shape == (3, 2)


def test_operations_are_numbered_however_many_there_are():
    """JAX sorts the keys of dictionaries, and `operation10` is before `operation2` then."""
    params = init(jax.random.key(0), 11, 4)
    digits = jnp.arange(6)
    loss = partial(
        permutation,
        s={
            "digits": digits,
            "order": jnp.array([2]),
            "label": jnp.int32(3),
        },
    )
    value, grads = jax.value_and_grad(loss)(params)
    touched = set()
    for name, grad in grads.items():
        if name.startswith("operation") and jnp.abs(grad["b"]).max() > 0:
            touched.add(name)
    assert touched == {"operation2"} and float(value) == pytest.approx(
        float(loss(params)), rel=1e-5
    )
