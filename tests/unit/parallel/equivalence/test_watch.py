"""Later batches are looked at, too; leaves that all replicas share are told; parts may be batches of their own."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import DataError, EquivalenceError, EquivalenceWarning, SettingsError
from ampjax.parallel.equivalence.compare import Comparison

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
N = 8
V = 50
D = 3
PARAMS = {
    "t": RNG.normal(size=(V, D)).astype(np.float32),
    "w": RNG.normal(size=D).astype(np.float32),
}
FULL = np.ones(N, np.float32)
PADDED = np.array(
    [1, 1, 1, 1, 1, 0, 0, 0],
    np.float32,
)


def make(loss, n=2, **options):
    machines = Resources(
        tuple(Machine(f"m{i}", (device,)) for i, device in enumerate(jax.local_devices()[:n]))
    )
    config = px.ParallaxConfig(**{"alpha_threshold": 2.0} | options)
    return px.get_runner(loss, PARAMS, optax.sgd(0.02), machines, config)


def a_batch(seed, mask=FULL):
    rng = np.random.default_rng(seed)
    n = len(mask)
    return {
        "ids": rng.integers(0, V, (n, 2)),
        "y": rng.normal(size=n).astype(np.float32),
        "m": mask,
    }


def errors(params, batch):
    return (params["t"][batch["ids"]].sum(1) @ params["w"] - batch["y"]) ** 2


def mean(params, batch):
    return errors(params, batch).mean()


def quotient(params, batch):
    return (errors(params, batch) * batch["m"]).sum() / jnp.maximum(batch["m"].sum(), 1)


def in_order(params, batch):
    """A mean of which nothing is proved."""
    return jnp.sort(errors(params, batch)).mean()


def largest(params, batch):
    """As long as the batch says so, examples don't meet."""
    e = errors(params, batch)
    return jnp.where(
        batch["m"].min() == 1,
        jnp.sort(e).mean(),
        e.max(),
    )


def told(runner, *batches):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for batch in batches:
            runner.run(batch)
    assert all(w.category is EquivalenceWarning and w.filename == __file__ for w in heard)
    return [str(w.message) for w in heard]


RUNS = {
    "devices": {},
    "servers": {"run_option": "ps"},
    "tables everywhere": {"run_option": "ar"},
    "dense": {"keep_dense": ("t",)},
    "no barrier": {"sync": False},
    "processes": {"server_processes": True},
}
FEW = ("devices", "no barrier")


@pytest.mark.first_case
@pytest.mark.parametrize(
    "how",
    [how if how in FEW else pytest.param(how, marks=pytest.mark.nightly) for how in RUNS],
)
def test_a_later_batch_that_a_cut_changes_is_told_once(how):
    with make(quotient, **RUNS[how]) as runner:
        assert told(runner, a_batch(0), a_batch(1)) == []
        assert "proved for all batches like it" in str(runner.explain(compiled=False))
        (message,) = told(
            runner,
            a_batch(2, PADDED),
            a_batch(3),
            a_batch(4, PADDED),
        )
        assert message.startswith(
            "loss_fn, the batch of step 3 cut for 2 replicas: expected the joined batch's loss, "
        )
        cause = (
            "Train with `sync=True`"
            if how == "no barrier"
            else r"test_watch.py:\d+ divides by .*`px.Weighted\(total"
        )
        assert re.search(cause, message)


@pytest.mark.parametrize(
    "how",
    [how if how in FEW else pytest.param(how, marks=pytest.mark.nightly) for how in RUNS],
)
def test_an_error_comes_before_anything_changes_and_again(how):
    with make(quotient, check_equivalence="error", **RUNS[how]) as runner:
        runner.run(a_batch(0))
        before = runner.params
        for _ in range(2):
            with pytest.raises(EquivalenceError, match="the batch of step 2 cut for 2 replicas"):
                runner.run(a_batch(1, PADDED))
        jax.tree.map(np.testing.assert_array_equal, runner.params, before)
        runner.run(a_batch(2))
        assert runner.steps == 2


def test_equal_weights_are_no_difference():
    runner = make(quotient, check_equivalence="error")
    for mask in (
        FULL,
        np.array(
            [1, 1, 0, 0, 0, 1, 0, 1],
            np.float32,
        ),
        3 * FULL,
    ):
        runner.run(a_batch(0, mask))
    runner.run(a_batch(1, np.ones(12, np.float32)))  # of another size
    with pytest.raises(EquivalenceError):
        runner.run(
            a_batch(
                1,
                np.r_[np.ones(11, np.float32), np.zeros(1, np.float32)],
            )
        )


def count(monkeypatch):
    compared = []
    compare = Comparison.compare
    monkeypatch.setattr(
        Comparison,
        "compare",
        lambda self, *args: compared.append(args[2]) or compare(self, *args),
    )
    return compared


def test_what_is_proved_is_not_computed(monkeypatch):
    compared = count(monkeypatch)
    for loss in (mean, quotient):
        told(
            make(loss),
            *(a_batch(i) for i in range(4)),
        )
    assert compared == ["the first batch"] * 2


@pytest.mark.nightly
def test_what_is_not_proved_is_compared_at_each_step(monkeypatch):
    compared = count(monkeypatch)
    runner = make(in_order)
    assert (
        told(
            runner,
            *(a_batch(i) for i in range(3)),
        )
        == []
    )
    assert compared == ["the first batch", "the batch of step 2", "the batch of step 3"]
    assert re.search(
        r"not proved \(`sort` \(test_watch.py:\d+\)\), so each batch is compared",
        str(runner.explain()),
    )
    runner = make(largest)
    assert told(runner, a_batch(0), a_batch(1)) == []
    (message,) = told(
        runner,
        a_batch(2, PADDED),
        a_batch(3, PADDED),
    )
    assert "the batch of step 3" in message


def test_another_kind_of_error_does_not_stop_the_watch():
    """All replicas share a key, which is told, and later their weights differ."""

    def loss(params, batch):
        kept = jax.random.bernoulli(
            jax.random.key(0),
            0.9,
            batch["y"].shape,
        )
        return (errors(params, batch) * kept * batch["m"]).sum() / batch["m"].sum()

    first, second = told(
        make(loss),
        a_batch(0),
        a_batch(1),
        a_batch(2, PADDED),
    )
    assert "random numbers" in first and "the batch of step 3" in second


# ---- leaves that all replicas share ----------------------------------------------------------------------------------


def sampled(params, batch):
    """A sampled softmax with weights of classes: one set of negatives for all examples."""
    h = params["t"][batch["ids"]].mean(1)
    right = h @ params["w"]
    wrong = h @ params["t"][batch["shared"]["negatives"]].T
    lost = (
        jax.nn.logsumexp(
            jnp.concatenate([right[:, None], wrong], 1),
            1,
        )
        - right
    )
    return (batch["shared"]["weights"][batch["class"]] * lost).mean()


def shared_batch(seed):
    rng = np.random.default_rng(seed)
    shared = {
        "negatives": rng.integers(0, V, 5),
        "weights": rng.random(3).astype(np.float32),
    }
    return {
        "ids": rng.integers(0, V, (N, 2)),
        "class": rng.integers(0, 3, N),
        "shared": shared,
    }


@pytest.mark.first_case
@pytest.mark.parametrize(
    "how",
    [how if how in FEW else pytest.param(how, marks=pytest.mark.nightly) for how in RUNS],
)
def test_shared_leaves_train_as_on_one_device(how):
    n = 1 if how == "no barrier" else 2
    params = PARAMS
    step = jax.jit(jax.value_and_grad(sampled))
    with make(
        sampled,
        n,
        shared=("shared",),
        check_equivalence="error",
        **RUNS[how],
    ) as runner:
        for seed in range(3):
            value, grads = step(params, shared_batch(seed))
            params = jax.tree.map(
                lambda p, g: p - 0.02 * g,
                params,
                grads,
            )
            assert runner.run(shared_batch(seed)).loss == pytest.approx(float(value), rel=1e-5)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
            runner.params,
            params,
        )
        assert n == 1 or "proved for all batches" in str(runner.explain(compiled=False))


@pytest.mark.nightly
def test_shared_leaves_of_parts():
    batch = shared_batch(0)
    machines = Resources(
        tuple(Machine(f"m{i}", (device,)) for i, device in enumerate(jax.local_devices()[:2]))
    )
    runner = make(sampled, shared=("negatives", "weights"), check_equivalence="error")
    parts = px.shard(batch, machines, shared=("shared",))
    assert [part["ids"].shape for part in parts.batches] == [(N // 2, 2)] * 2
    assert runner.run(parts).loss == pytest.approx(float(sampled(PARAMS, batch)), rel=1e-5)
    parts.batches[1]["shared"] = shared_batch(1)["shared"]
    with pytest.raises(
        DataError,
        match=r"leaf `shared/negatives`: expected the leaf of part 0.*another one in part 1",
    ):
        runner.run(parts)


def test_what_is_said_of_shared_leaves():
    with pytest.raises(
        SettingsError,
        match=r"setting `shared`, `negatif`: expected a leaf of the batch, one of .*class",
    ):
        make(sampled, shared=("negatif",)).run(shared_batch(0))
    with pytest.raises(
        SettingsError, match=r"setting `shared`: expected a tuple of patterns, got 'negatives'"
    ):
        px.ParallaxConfig(shared="negatives")
    with pytest.raises(
        SettingsError,
        match=r"the leading size of `class`, 8, got 5\. .*`ParallaxConfig\(shared=...\)`",
    ):
        make(sampled).run(shared_batch(0))


# ---- parts that are batches of their own -----------------------------------------------------------------------------


def bags(params, batch):
    """Bags by offsets; one more collects the padding."""
    n = len(batch["y"])
    bag = (
        jnp.searchsorted(
            batch["offsets"],
            jnp.arange(len(batch["values"])),
            side="right",
        )
        - 1
    )
    total = jax.ops.segment_sum(
        params["t"][batch["values"]],
        bag,
        n + 1,
    )[:n]
    return (total @ params["w"] - batch["y"]) ** 2


def a_part(lengths, seed, mask=FULL):
    rng = np.random.default_rng(seed)
    n = len(lengths)
    return {
        "values": rng.integers(0, V, 12),
        "offsets": np.cumsum([0, *lengths]).astype(np.int32),
        "y": rng.normal(size=n).astype(np.float32),
        "m": mask[:n],
    }


PARTS = px.Parts(
    (
        a_part(
            [2, 0, 3],
            0,
        ),
        a_part([4, 1, 0], 1),
    )
)


@pytest.mark.nightly
def test_bags_are_no_false_alarm():
    runner = make(
        lambda p, b: bags(p, b).mean(),
        check_equivalence="error",
    )
    expected = np.mean([float(bags(PARAMS, part).mean()) for part in PARTS.batches])
    assert runner.run(PARTS).loss == pytest.approx(expected, rel=1e-5)
    assert "each part is a batch of its own" in str(runner.explain(compiled=False))
    runner.run(
        px.Parts(
            (
                a_part(
                    [1, 1, 1],
                    2,
                ),
                a_part([0, 0, 5], 3),
            )
        )
    )


def test_bags_whose_weights_differ_are_told():
    def loss(params, batch):
        return (bags(params, batch) * batch["m"]).sum() / batch["m"].sum()

    runner = make(loss)
    assert told(runner, PARTS) == []
    uneven = px.Parts(
        (
            PARTS.batches[0],
            a_part(
                [1, 1, 1],
                2,
                np.array([1, 0, 0], np.float32),
            ),
        )
    )
    (message,) = told(runner, uneven)
    assert re.search(
        r"the batch of step 2 in parts for 2 replicas: .*test_watch.py:\d+ divides by a sum",
        message,
    )
