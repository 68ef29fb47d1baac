"""Programs that mean something else when their batch is cut are told before they train, with the cause; others are not."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import DataError, EquivalenceError, EquivalenceWarning, SettingsError, TableError

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
N = 8
LENGTH = 6
DIM = 3
PARAMS = {
    "table": RNG.normal(size=(40, DIM)).astype(np.float32),
    "w": RNG.normal(size=(DIM, DIM)).astype(np.float32),
}
BATCH = {
    "ids": RNG.integers(0, 40, (N, LENGTH)),
    "x": RNG.normal(size=(N, DIM)).astype(np.float32),
    "y": RNG.normal(size=(N, DIM)).astype(np.float32),
    "mask": (np.arange(LENGTH) < np.array([6, 6, 5, 6, 1, 2, 1, 1])[:, None]).astype(np.float32),
    "place": np.arange(N),
}


def machines(n=2):
    return Resources(
        tuple(Machine(f"m{i}", (device,)) for i, device in enumerate(jax.local_devices()[:n]))
    )


def make(
    loss,
    params=None,
    tx=None,
    n=2,
    **options,
):
    """A runner whose small batches touch much of its table, which shall be one all the same."""
    config = px.ParallaxConfig(**{"alpha_threshold": 2.0} | options)
    return px.get_runner(
        loss,
        PARAMS if params is None else params,
        tx or optax.sgd(0.1),
        machines(n),
        config,
    )


def told(runner, batch=None):
    """What is told of a batch."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        runner.build(BATCH if batch is None else batch)
    assert all(w.category is EquivalenceWarning and w.filename == __file__ for w in heard)
    return [str(w.message) for w in heard]


def errors(params, batch):
    return ((jnp.tanh(params["table"][batch["ids"]] @ params["w"]) - batch["y"][:, None]) ** 2).sum(
        -1
    )


def good(params, batch):
    return errors(params, batch).mean()


def quotient(params, batch):
    return (errors(params, batch) * batch["mask"]).sum() / batch["mask"].sum()


def weighted(params, batch):
    return px.Weighted(
        (errors(params, batch) * batch["mask"]).sum(),
        batch["mask"].sum(),
    )


def negatives(params, batch, gather=lambda x: x):
    one, other = (params["table"][batch["ids"][:, i]] @ params["w"] for i in (0, 1))
    logits = gather(one) @ gather(other).T
    return optax.softmax_cross_entropy_with_integer_labels(
        logits, gather(jnp.arange(len(one)))
    ).mean()


def statistics(params, batch):
    h = batch["x"] @ params["w"]
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5)
    return jnp.mean((h * params["scale"] - batch["y"]) ** 2)


def total(params, batch):
    return errors(params, batch).sum()


CUT = {
    "uneven padding": (
        quotient,
        PARAMS,
        "test_compare.py:.* divides by a sum .*: return `px.Weighted",
    ),
    "negatives": (
        negatives,
        PARAMS,
        "test_compare.py:.* pairs examples .*: pair them with `px.all_gather",
    ),
    "statistics": (
        statistics,
        {
            "w": PARAMS["w"],
            "scale": np.ones(DIM, np.float32),
        },
        "test_compare.py:.* reduces over examples .*: take `px.mean",
    ),
    "statistics behind zeros": (
        statistics,
        {
            "w": PARAMS["w"],
            "scale": np.zeros(DIM, np.float32),
        },
        "at parameters nearby, where it shows.* take `px.mean",
    ),
    "a sum": (
        total,
        PARAMS,
        'the loss is a sum over examples: take their mean, or say `average_dense="sum"`',
    ),
}


@pytest.mark.first_case
@pytest.mark.parametrize("kind", CUT)
def test_what_a_cut_changes_is_told_with_its_cause(kind):
    loss, params, cause = CUT[kind]
    (message,) = told(make(loss, params))
    assert message.startswith(
        "loss_fn, the first batch cut for 2 replicas: expected the joined batch's loss, "
    )
    assert re.search(cause, message), message


GOOD = {
    "a mean": (good, {}),
    "a sum that is summed": (total, {"average_dense": "sum", "average_sparse": "sum"}),
    "a weighted loss": (weighted, {}),
    "a weighted loss at servers": (weighted, {"run_option": "ps"}),
    "rows gathered everywhere": (good, {"run_option": "ar"}),
    "no barrier": (good, {"sync": False}),
}


@pytest.mark.first_case
@pytest.mark.parametrize("kind", GOOD)
def test_what_a_cut_leaves_as_it_is_is_not_told(kind):
    loss, options = GOOD[kind]
    runner = make(loss, **options)
    assert told(runner) == []
    text = str(runner.explain(compiled=False))
    assert "equivalence: joined batch's loss " in text
    assert runner.setup.wire.traffic().per_machine() == 0


def test_without_a_barrier_replicas_are_alone():
    (message,) = told(make(weighted, sync=False))
    assert "Without a barrier (`sync=False`) each replica's part is a batch of its own" in message


def test_an_error_changes_nothing_and_comes_again():
    runner = make(quotient, check_equivalence="error")
    for _ in range(2):
        with pytest.raises(
            EquivalenceError,
            match=r"got .*, the mean of the replicas' losses, where rounding explains",
        ):
            runner.run(BATCH)
    assert runner.steps == 0
    jax.tree.map(np.testing.assert_array_equal, runner.params, PARAMS)


def test_the_setting_is_checked():
    with pytest.raises(SettingsError, match=r"check_equivalence.*got 'no'"):
        px.ParallaxConfig(check_equivalence="no")


def test_a_runner_that_goes_on_is_compared_at_what_it_restored(tmp_path):
    runner = make(good)
    for _ in range(3):
        loss = runner.run(BATCH).loss
    runner.save(tmp_path / "saved")
    other = make(good)
    other.restore(tmp_path / "saved")
    assert told(other) == [] and other.steps == 3
    joined = float(
        re.search(r"joined batch's loss ([\d.]+)", str(other.explain(compiled=False)))[1]
    )
    assert joined == pytest.approx(other.run(BATCH).loss, rel=1e-5)
    assert joined < loss


# ---- what rounding is ------------------------------------------------------------------------------------------------


def square(params, batch):
    return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)


def test_a_loss_that_is_nearly_zero_is_all_rounding():
    w = PARAMS["w"]
    x = RNG.normal(size=(1024, DIM)).astype(np.float32)
    y = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32)
    assert (
        told(
            make(square, {"w": w}),
            {"x": x, "y": y},
        )
        == []
    )


def half(loss):
    def halved(params, batch):
        params = jax.tree.map(
            lambda leaf: leaf.astype(jnp.bfloat16),
            params,
        )
        return loss(
            params,
            batch | {"x": batch["x"].astype(jnp.bfloat16)},
        )

    return halved


def test_half_precision():
    x, y = (RNG.normal(size=(512, DIM)).astype(np.float32) for _ in range(2))
    assert (
        told(
            make(half(square), {"w": PARAMS["w"]}),
            {"x": x, "y": y},
        )
        == []
    )
    (message,) = told(make(half(quotient)))
    assert "return `px.Weighted(total, weight)`" in message


def test_a_sum_in_half_precision_over_a_scan_is_rounded_in_every_step():
    def loss(params, batch):
        def add(total, example):
            error = (example["x"] @ params["w"] - example["y"]) ** 2
            return total + jnp.mean(error).astype(jnp.bfloat16), None

        total, _ = jax.lax.scan(
            add,
            jnp.bfloat16(0),
            batch,
        )
        return total.astype(jnp.float32) / len(batch["y"])

    x, y = (RNG.normal(size=(512, DIM)).astype(np.float32) for _ in range(2))
    assert (
        told(
            make(loss, {"w": PARAMS["w"]}),
            {"x": x, "y": y},
        )
        == []
    )


# ---- what can't be compared ------------------------------------------------------------------------------------------


def of_one_size(params, batch):
    return jnp.mean(batch["x"].reshape(4, DIM) @ params["w"])


def waiting(params, batch):
    def more(state):
        key, _ = state
        return jax.random.split(key)[0], jax.random.uniform(key)

    _, x = jax.lax.while_loop(
        lambda state: state[1] > 0.2,
        more,
        (batch["keys"][0], jnp.float32(1)),
    )
    return x * jnp.mean(batch["x"] @ params["w"])


SKIPPED = {
    "one replica": (good, BATCH, {"n": 1}, "there is one replica"),
    "off": (quotient, BATCH, {"check_equivalence": "off"}, '`check_equivalence="off"`'),
    "one size": (of_one_size, BATCH, {}, "the loss function does not take it \\(TypeError: "),
    "scalars that differ": (
        lambda params, batch: batch["scale"] * square(params, batch),
        px.Parts(tuple({"x": BATCH["x"], "y": BATCH["y"], "scale": np.float32(s)} for s in (1, 2))),
        {},
        "the parts differ in a scalar or in a single random key",
    ),
    "a loop that waits for a draw": (
        waiting,
        {
            "x": BATCH["x"],
            "keys": jax.random.split(jax.random.key(0), 2),
        },
        {},
        "no random draws in a `while` loop",
    ),
}


@pytest.mark.parametrize("kind", SKIPPED)
def test_why_nothing_was_compared(kind):
    loss, batch, options, reason = SKIPPED[kind]
    runner = make(loss, **options)
    assert told(runner, batch) == []
    assert re.search(reason, str(runner.explain(compiled=False)))


# ---- random keys -----------------------------------------------------------------------------------------------------

TYPED = jax.random.key(3)
RAW = jax.random.PRNGKey(3)


def dropped(key_of, shape_of=lambda x: x.shape):
    def loss(params, batch):
        h = batch["x"] @ params["w"]
        h = h * jax.random.bernoulli(key_of(batch), 0.7, shape_of(h))
        return jnp.mean((h - batch["y"]) ** 2)

    return loss


def in_a_scan(params, batch):
    def layer(h, _):
        return h * jax.random.bernoulli(TYPED, 0.7, h.shape), None

    h, _ = jax.lax.scan(
        jax.checkpoint(layer),
        batch["x"] @ params["w"],
        None,
        length=2,
    )
    return jnp.mean((h - batch["y"]) ** 2)


SHARED = {
    "a typed key": (dropped(lambda batch: TYPED), "closed over or made in the loss"),
    "a raw key": (dropped(lambda batch: RAW), "closed over or made in the loss"),
    "made in the loss": (
        dropped(lambda batch: jax.random.PRNGKey(0)),
        "closed over or made in the loss",
    ),
    "split": (
        dropped(lambda batch: jax.random.split(TYPED)[1]),
        "closed over or made in the loss",
    ),
    "in a scan": (in_a_scan, "closed over or made in the loss"),
    "the same for all": (
        dropped(lambda batch: jax.random.fold_in(TYPED, batch["step"])),
        "follows from scalars or a single key of the batch",
    ),
}


@pytest.mark.parametrize("kind", SHARED)
def test_keys_that_replicas_share_are_told(kind):
    loss, which = SHARED[kind]
    batch = {
        "x": BATCH["x"],
        "y": BATCH["y"],
        "step": np.int32(1),
    }
    (message,) = told(
        make(loss, {"w": PARAMS["w"]}),
        batch,
    )
    assert message.startswith("loss_fn, random numbers (test_compare.py:")
    assert (
        which in message
        and "all replicas draw the same numbers" in message
        and "`runner.keys()`" in message
    )


OWN = {
    "a key for each replica": dropped(lambda batch: batch["keys"][0]),
    "folded": dropped(
        lambda batch: jax.random.fold_in(
            batch["keys"][0],
            1,
        )
    ),
    "one draw for all examples": dropped(
        lambda batch: batch["one"],
        lambda h: h.shape[1:],
    ),
}


@pytest.mark.first_case
@pytest.mark.parametrize("kind", OWN)
def test_keys_of_the_batch_are_not_told(kind):
    runner = make(
        OWN[kind],
        {"w": PARAMS["w"]},
        check_equivalence="error",
    )
    batch = {
        "x": BATCH["x"],
        "y": BATCH["y"],
        "one": jax.random.key(5),
    }
    for _ in range(2):
        runner.run(batch | {"keys": runner.keys()})
    assert "joined batch's loss" in str(runner.explain(compiled=False))


def test_a_difference_is_found_under_dropout_too():
    def loss(params, batch):
        e = errors(params, batch)
        e = e * jax.random.bernoulli(
            batch["keys"][0],
            0.9,
            e.shape,
        )
        return (e * batch["mask"]).sum() / batch["mask"].sum()

    (message,) = told(
        make(loss),
        BATCH
        | {
            "keys": jax.random.split(
                jax.random.key(0),
                2,
            )
        },
    )
    assert "return `px.Weighted(total, weight)`" in message


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(
        SettingsError, match=r"expected one process.*got 2 processes.*Start one.*an `address`"
    ):
        make(good)


@pytest.mark.parametrize("setting", ["average_dense", "average_sparse"])
def test_a_weighted_loss_is_not_summed_over_replicas(setting):
    with pytest.raises(
        SettingsError, match=f"setting `{setting}`: expected `mean` where.*got 'sum'"
    ):
        make(weighted, **{setting: "sum"}).run(BATCH)


@pytest.mark.parametrize(
    ("out", "got"),
    [
        (lambda e: px.Weighted(e, e.sum()), r"float32\[8, 6\] and float32\[\]"),
        (lambda e: px.Weighted(jnp.int32(1), 1), r"int32\[\] and int32\[\]"),
    ],
)
def test_a_weighted_loss_of_other_things(out, got):
    with pytest.raises(
        SettingsError,
        match=rf"px.Weighted: expected a float scalar and its weight, a scalar, got {got}",
    ):
        out(errors(PARAMS, BATCH)).value


def test_scalars_are_not_gathered():
    with pytest.raises(DataError, match=r"px\.all_gather: expected arrays"):
        px.all_gather(jnp.float32(1))


ACROSS_ROWS = {
    "lamb": optax.lamb,
    "adafactor": optax.adafactor,
    "muon": optax.contrib.muon,
}


@pytest.mark.first_case
@pytest.mark.parametrize("name", ACROSS_ROWS)
def test_optimizers_that_work_across_rows(name):
    tx = ACROSS_ROWS[name](1e-2)
    with pytest.raises(
        TableError, match=r"got operation .* `ParallaxConfig\(keep_dense=\(\"table\",\)\)`"
    ):
        make(good, tx=tx).build(BATCH)
    runner = make(
        good,
        tx=tx,
        keep_dense=("table",),
        check_equivalence="off",
    )

    @jax.jit
    def plain(params, state):
        updates, state = tx.update(
            jax.grad(good)(params, BATCH),
            state,
            params,
        )
        return optax.apply_updates(params, updates), state

    params = PARAMS
    state = tx.init(PARAMS)
    for _ in range(2):
        runner.run(BATCH)
        params, state = plain(params, state)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        runner.params,
        params,
    )


def test_many_collectives_in_a_loss_do_not_hang():
    """More than 32 programs in flight hang JAX 0.10.2; here each program holds 40 collectives of the loss's own."""

    def deep(params, batch):
        h = batch["x"]
        for _ in range(20):
            h = jnp.tanh(h @ params["w"])
            h = h - px.mean(h, axis=0)
        return jnp.mean((h - batch["y"]) ** 2)

    runner = make(
        deep,
        {"w": PARAMS["w"]},
        n=4,
        check_finite=False,
        check_equivalence="off",
    )
    losses = [runner.run(BATCH) for _ in range(40)]
    assert np.isfinite([metrics.loss for metrics in losses]).all()
