"""The first batch is compared with what replicas make of it where tables are stacks, columns, overwritten or joined, too."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import EquivalenceError

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
N = 12
F = 3
V = 20
D = 4
SHAPES = {
    "stack": (F, V, D),
    "columns": (D, V),
    "words": (V, D),
    "rare": (10, D),
    "w": (D, D),
}
PARAMS = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
BATCH = {
    "ids": RNG.integers(0, V, (N, F)) * (RNG.random((N, F)) < 0.7),  # many examples read row 0
    "more": RNG.integers(0, V + 10, (N, F)),
    "x": RNG.normal(size=(N, D)).astype(np.float32),
    "place": np.arange(N),
}


def by_pairs(p, b):
    return p["stack"][jnp.arange(F), b["ids"]]


def under_vmap(p, b):
    return jax.vmap(
        lambda table, ids: table[ids],
        in_axes=(0, 1),
        out_axes=1,
    )(
        p["stack"],
        b["ids"],
    )


def columns(p, b):
    return jnp.moveaxis(
        p["columns"][:, b["ids"]],
        0,
        -1,
    )


def padded(p, b):
    return p["words"].at[0].set(0.0)[b["ids"]]


def joined(p, b):
    return jnp.concatenate([p["words"], p["rare"]])[b["more"]]


STACKED = ("stack", (F * V, 1, D))
COLUMNS = ("columns", (V, D))
WORDS = ("words", (V, D))
RARE = ("rare", (10, D))
FORMS = {
    "by pairs": (by_pairs, [STACKED], 2, {}),
    "under vmap": (under_vmap, [STACKED], 3, {"run_option": "ar"}),
    "columns": (columns, [COLUMNS], 4, {"run_option": "ps"}),
    "a padding row": (padded, [WORDS], 2, {}),
    "joined": (joined, [WORDS, RARE], 4, {}),
    "joined with a dense one": (joined, [WORDS], 3, {"keep_dense": ("rare",)}),
}


def make(loss, n, params=PARAMS, **options):
    machines = Resources(
        tuple(Machine(f"m{i}", (device,)) for i, device in enumerate(jax.local_devices()[:n]))
    )
    config = px.ParallaxConfig(alpha_threshold=2.0, check_equivalence="error", **options)
    return px.get_runner(loss, params, optax.sgd(0.1), machines, config)


def with_negatives(read, gather):
    """Two towers out of what is read, and all other examples that `gather` gives as negatives."""

    def loss(params, batch):
        rows = jnp.tanh(read(params, batch) @ params["w"])
        logits = rows[:, 0] @ gather(rows[:, 1:].sum(1)).T
        return optax.softmax_cross_entropy_with_integer_labels(
            logits, batch["place"] % logits.shape[1]
        ).mean()

    return loss


def check_figures(runner, loss, params=PARAMS):
    """The joined batch's loss is that of the program as it is, and so is what replicas make of it."""
    found = re.search(
        r"joined batch's loss (\S+), replicas' (\S+),", str(runner.explain(compiled=False))
    )
    expected = float(jax.jit(loss)(params, BATCH))
    assert [float(text) for text in found.groups()] == pytest.approx([expected] * 2, rel=1e-5)


@pytest.mark.first_case
@pytest.mark.parametrize("form", FORMS)
def test_a_right_program_is_not_told(form):
    read, tables, n, options = FORMS[form]
    loss = with_negatives(read, px.all_gather)
    runner = make(loss, n, **options).build(BATCH)
    assert [(path, own[0].shape) for path, own in runner.step.tables.items()] == [
        (f"['{name}']", shape) for name, shape in sorted(tables)
    ]
    check_figures(runner, loss)


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMS)
def test_negatives_within_the_batch_are_told(form):
    read, _, n, options = FORMS[form]
    with pytest.raises(
        EquivalenceError, match=r"test_equivalence_forms.py:.* pairs examples .*`px.all_gather"
    ):
        make(
            with_negatives(read, lambda x: x),
            n,
            **options,
        ).build(BATCH)


def overwritten(mean):
    """A row that the mean of the batch takes the place of."""

    def loss(params, batch):
        rows = params["words"].at[0].set(mean(batch["x"] @ params["w"], 0))[batch["ids"]]
        return jnp.mean((rows.sum(1) - batch["x"]) ** 2)

    return loss


@pytest.mark.nightly
def test_a_row_that_statistics_of_the_batch_overwrite():
    loss = overwritten(px.mean)
    check_figures(make(loss, 3).build(BATCH), loss)
    with pytest.raises(
        EquivalenceError, match=r"test_equivalence_forms.py:.* reduces over examples .*`px.mean"
    ):
        make(overwritten(jnp.mean), 3).build(BATCH)


def turned(mean):
    """A complex variable, which stays on the devices."""

    def loss(params, batch):
        h = jnp.abs(batch["x"] @ params["c"])
        return jnp.mean((h - mean(h, 0)) ** 2) + jnp.mean(params["words"][batch["ids"]] ** 2)

    return loss


@pytest.mark.nightly
def test_complex_variables():
    params = PARAMS | {"c": (PARAMS["w"] + 1j * PARAMS["w"].T).astype(np.complex64)}
    loss = turned(px.mean)
    check_figures(make(loss, 2, params).build(BATCH), loss, params)
    with pytest.raises(
        EquivalenceError, match=r"test_equivalence_forms.py:.* reduces over examples .*`px.mean"
    ):
        make(turned(jnp.mean), 2, params).build(BATCH)
