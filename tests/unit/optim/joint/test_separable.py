"""Which transforms do the same when each node has them for itself; and the pytree of all nodes' parameters."""

import jax
import jax.numpy as jnp
import optax
import pytest

from ampjax.optim import scale_by_staleness
from ampjax.optim.joint.params_form import ParamsForm
from ampjax.optim.joint.separable import is_separable

PARAMS = {key: {"w": jnp.ones((3, 2)), "b": jnp.ones(3)} for key in ("one", "two", "three")}
FORM = ParamsForm.by_node(PARAMS)
FIRST = {key: key == "one" for key in PARAMS}


def by_path(tree):
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[0].key == "one",
        tree,
    )


@pytest.mark.parametrize(
    "tx",
    [
        optax.sgd(0.1, momentum=0.9, nesterov=True),
        optax.sgd(optax.cosine_decay_schedule(0.1, 10)),
        optax.adamw(0.1),
        optax.adamw(
            0.1,
            mask=lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree),
        ),
        optax.lamb(0.1),
        optax.adafactor(0.1),
        optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
        optax.chain(
            optax.clip(1.0),
            optax.clip_by_block_rms(1.0),
            optax.rmsprop(0.1),
        ),
        optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation(),
        optax.chain(scale_by_staleness(), optax.sgd(0.1)),
    ],
    ids=[
        "momentum",
        "schedule",
        "adamw",
        "mask by shape",
        "lamb",
        "adafactor",
        "inject",
        "clip",
        "multi",
        "staleness",
    ],
)
def test_transforms_of_each_leaf(tx):
    assert is_separable(tx, FORM, PARAMS)


@pytest.mark.parametrize(
    "tx",
    [
        optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
        optax.chain(optax.normalize_by_update_norm(), optax.sgd(0.1)),
        optax.apply_if_finite(optax.sgd(0.1), 2),
        optax.masked(optax.sgd(0.1), FIRST),
        optax.adamw(0.1, mask=FIRST),
        optax.adamw(0.1, mask=by_path),
        optax.multi_transform(
            {True: optax.sgd(0.1), False: optax.set_to_zero()},
            by_path,
        ),
        optax.add_noise(0.1, 0.5, key=0),
        optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()),
        optax.lbfgs(),
    ],
    ids=[
        "norm",
        "normed",
        "finite",
        "masked",
        "mask",
        "mask by path",
        "labels",
        "noise",
        "plateau",
        "line search",
    ],
)
def test_transforms_of_the_whole(tx):
    assert not is_separable(tx, FORM, PARAMS)


def test_a_label_may_be_the_only_nodes_name():
    alone = {"one": PARAMS["one"]}
    tx = optax.masked(optax.set_to_zero(), {"one": True})
    assert not is_separable(tx, ParamsForm.by_node(alone), alone)


def test_what_does_nothing_to_some_is_not_the_same_for_all():
    """Only a part of the tree is passed, as where a node has a transform of its own."""
    some = {key: PARAMS[key] for key in ("one", "three")}
    assert is_separable(optax.adam(0.1), FORM, some)
    assert not is_separable(
        optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
        FORM,
        some,
    )


def test_a_form_puts_nodes_together_and_takes_them_apart():
    tree = {
        "b": [
            jnp.float32(1),
            {"x": jnp.float32(2)},
        ],
        "a": jnp.float32(3),
        "c": jnp.float32(4),
    }
    structure = jax.tree.structure(tree)
    nodes = {
        "left": (jnp.float32(2), jnp.float32(3)),
        "right": {"w": jnp.float32(1), "absent": None},
    }
    left, right = (jax.tree.structure(node) for node in nodes.values())
    form = ParamsForm(
        structure,
        (
            ("left", (2, 0), left),
            ("right", (1,), right),
        ),
        (("c", 3),),
    )
    whole = form.whole(nodes, {"c": jnp.float32(4)})
    assert jax.tree.map(float, whole) == jax.tree.map(float, tree)
    assert form.parts(whole, nodes) == nodes
    assert form.unread_parts(whole) == {"c": 4.0}
    partial = form.whole({"right": nodes["right"]}, {})
    assert jax.tree.leaves(partial) == [1.0]
    assert form.unread_parts(partial) == {}
    again = ParamsForm(
        structure,
        (
            ("left", (2, 0), left),
            ("right", (1,), right),
        ),
        (("c", 3),),
    )
    assert hash(again) == hash(form) and again == form
