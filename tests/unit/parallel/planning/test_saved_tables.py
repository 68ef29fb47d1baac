"""What a variable is, a table or dense, belongs to the run: a checkpoint says it, and a batch without ids changes nothing."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.effort import left_to_nightly

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import DataError, SettingsError

pytestmark = pytest.mark.slow

ROWS = 40
DIM = 3
FIRST = {
    "words": np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32),
    "w": np.ones(DIM, np.float32),
}


def loss(params, batch):
    return jnp.mean((params["words"][batch["ids"]].sum(1) @ params["w"] - batch["y"]) ** 2)


def a_batch(seed, n=8, length=1):
    """Few distinct ids if `length` is 1, nearly all if it is large."""
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(0, ROWS, (n, length)),
        "y": rng.normal(size=n).astype(np.float32),
    }


def make(n=2, loss=loss, params=FIRST, **options):
    machines = Resources(
        tuple(Machine(f"m{i}", (device,)) for i, device in enumerate(jax.local_devices()[:n]))
    )
    return px.get_runner(
        loss,
        params,
        optax.adam(0.1),
        machines,
        px.ParallaxConfig(**options),
    )


def saved_as(kind, folder):
    """A checkpoint of a run in which the variable was that, after a step."""
    runner = make()
    runner.run(a_batch(0, length=1 if kind == "table" else 30))
    assert bool(runner.plan.tables) == (kind == "table")
    runner.save(folder / "c")
    return folder / "c"


def plain_from(runner, batch, loss=loss):
    """A step of plain JAX from where a runner is."""
    value, grads = jax.jit(jax.value_and_grad(loss))(
        runner.params,
        batch,
    )
    updates, _ = optax.adam(0.1).update(
        grads,
        runner.opt_state,
        runner.params,
    )
    return float(value), optax.apply_updates(runner.params, updates)


def close(ours, theirs):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        ours,
        theirs,
    )


CONTINUED = {
    "one machine": (1, {}),
    "other batches": (2, {}),
    "servers for all": (2, {"run_option": "ps"}),
    "tables everywhere": (2, {"run_option": "ar"}),
    "no barrier": (2, {"sync": False, "max_staleness": 0}),
    "processes": (2, {"server_processes": True}),
}


ORDINARY = [
    ("one machine", "table", False),
    ("other batches", "dense", False),
    ("other batches", "table", True),
    ("processes", "dense", True),
]
"""What an ordinary run tries of all these."""


def combinations():
    for how, kind, begun in itertools.product(
        CONTINUED,
        ("table", "dense"),
        (False, True),
    ):
        marks = () if (how, kind, begun) in ORDINARY else pytest.mark.nightly
        yield pytest.param(how, kind, begun, marks=marks)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("how", "kind", "begun"),
    list(combinations()),
)
def test_a_checkpoint_says_what_is_a_table(tmp_path, how, kind, begun):
    folder = saved_as(kind, tmp_path)
    n, options = CONTINUED[how]
    contrary = a_batch(
        1, length=30 if kind == "table" else 1
    )  # by alpha it would be the other kind
    with make(n, **options) as runner:
        if begun:
            runner.run(contrary)
        runner.restore(folder)
        assert runner.steps == 1
        params = runner.params
        opt_state = runner.opt_state
        value, new = plain_from(runner, contrary)
        found = runner.run(contrary)
        assert bool(runner.plan.tables) == (kind == "table")
        if options.get("sync", True):
            assert found.loss == pytest.approx(value, rel=1e-5)
            close(runner.params, new)
        assert (
            "as in the checkpoint" in str(runner.explain(compiled=False)) or "run_option" in options
        )
        runner.restore(folder)
        jax.tree.map(
            np.testing.assert_array_equal,
            (runner.params, runner.opt_state),
            (params, opt_state),
        )


@pytest.mark.first_case
@pytest.mark.parametrize("begun", [False, True])
def test_settings_that_name_another_kind_are_refused(tmp_path, begun):
    table = saved_as("table", tmp_path / "t")
    dense = saved_as("dense", tmp_path / "d")
    kept = make(keep_dense=("words",))
    if begun:
        kept.run(a_batch(0))
    with pytest.raises(
        SettingsError, match=r"setting `keep_dense`, `words`: .*got a checkpoint with table `words`"
    ):
        kept.restore(table) or kept.run(a_batch(0))
    always = make(alpha_threshold=2.0)
    if begun:
        always.run(a_batch(0))
    with pytest.raises(
        SettingsError, match=r"setting `alpha_threshold`, 2, .*in which `words` is dense"
    ):
        always.restore(dense) or always.run(a_batch(0))
    if begun:  # nothing has changed
        assert (kept.steps, always.steps) == (1, 1)
        kept.run(a_batch(1))


def test_a_saved_table_that_the_program_uses_as_a_whole(tmp_path):
    def whole(params, batch):
        return (
            jnp.mean((params["words"].sum(0) @ params["w"] - batch["y"]) ** 2)
            + 0 * batch["ids"].sum()
        )

    runner = make(loss=whole)
    runner.restore(saved_as("table", tmp_path))
    with pytest.raises(
        DataError,
        match=r"table `words`: expected a variable that is read row by row, got a dense one",
    ):
        runner.run(a_batch(0))


def two_features(params, batch):
    rows = params["words"][batch["ids"]].sum(1) + jnp.take(
        params["rare"], batch["rare"], axis=0
    ).sum(1)
    return jnp.mean((rows @ params["w"] - batch["y"]) ** 2)


EMPTY = {
    "devices": {},
    "servers": {"run_option": "ps"},
    "tables everywhere": {"run_option": "ar"},
    "processes": {"server_processes": True},
    "no barrier": {"sync": False, "max_staleness": 0},
}


@pytest.mark.first_case
@pytest.mark.parametrize(
    "how",
    ["devices", *left_to_nightly(list(EMPTY)[1:])],
)
@pytest.mark.parametrize(
    "lengths",
    [(0, 2, 2), (2, 0, 2)],
    ids=str,
)
def test_a_feature_without_ids_stays_what_it_is(how, lengths):
    params = FIRST | {"rare": np.random.default_rng(1).normal(size=(ROWS, DIM)).astype(np.float32)}
    n = 1 if how == "no barrier" else 2
    with make(n, two_features, params, **EMPTY[how]) as runner:
        for step, length in enumerate(lengths):
            batch = a_batch(step) | {
                "rare": np.random.default_rng(step).integers(
                    0,
                    ROWS,
                    (8, length),
                )
            }
            value, new = plain_from(runner, batch, two_features)
            assert runner.run(batch).loss == pytest.approx(value, rel=1e-5)
            close(runner.params, new)
        assert sorted(runner.plan.tables) == ["['rare']", "['words']"]
