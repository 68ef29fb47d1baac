"""A step whose numbers are not finite says where they come from, and changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.effort import left_to_nightly

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import DataError, ParameterError, TableError

pytestmark = pytest.mark.slow

ROWS = 30
PARAMS = {
    "t": np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32),
    "w": np.ones(3, np.float32),
}
BATCH = {
    "ids": np.arange(8),
    "m": np.ones(8, np.float32),
    "x": np.ones(8, np.float32),
}


def make(loss, n=2, **options):
    machines = Resources(
        tuple(Machine(f"m{i}", (device,)) for i, device in enumerate(jax.local_devices()[:n]))
    )
    config = px.ParallaxConfig(**{"alpha_threshold": 2.0, "check_equivalence": "off"} | options)
    return px.get_runner(loss, PARAMS, optax.sgd(0.1), machines, config)


def rows(params, batch):
    return params["t"][batch["ids"]] @ params["w"]


def taken(params, batch):
    return jnp.mean(jnp.take(params["t"], batch["ids"], axis=0) @ params["w"])


def in_branches(params, batch):
    def one(i, m):
        return jax.lax.cond(
            m > 0,
            lambda: jnp.take(params["t"], i, axis=0).sum(),
            lambda: params["w"].sum(),
        )

    return jnp.mean(jax.vmap(one)(batch["ids"], batch["m"]))


def guarded(params, batch):
    """Infinity and NaN that reach nothing, beside a logarithm that does."""
    masked = jnp.where(
        batch["m"] > 0,
        rows(params, batch),
        -jnp.inf,
    )
    unused = jnp.where(
        batch["x"] > 5,
        batch["x"] / 0,
        0,
    )
    return jax.nn.logsumexp(masked) + unused.sum() + jnp.log(batch["x"]).mean()


ZERO = np.zeros(8, np.float32)
HALF = np.repeat(np.float32([1, 0]), 4)
OUTSIDE = np.r_[np.arange(7), 99]
CAUSES = {
    "0 / 0": (
        lambda p, b: (rows(p, b) * b["m"]).sum() / b["m"].sum(),
        {"m": ZERO},
        r"a loss of nan.*\. Nothing.* The cause: `div` \(test_not_finite.py:\d+\) divides 0 by 0\.",
    ),
    "0 / 0 at a replica": (
        lambda p, b: (rows(p, b) * b["m"]).sum() / b["m"].sum(),
        {"m": HALF},
        r"The cause in the part of replica 1: `div` \(test_not_finite.py:\d+\) divides 0 by 0",
    ),
    "weighted": (
        lambda p, b: px.Weighted(
            (rows(p, b) * b["m"]).sum(),
            b["m"].sum(),
        ),
        {"m": ZERO},
        "all weights of `px.Weighted` add up to 0",
    ),
    "an id": (
        taken,
        {"ids": OUTSIDE},
        r"id 99 of leaf `ids` is outside of `t`, which has 30 rows \(test_not_finite",
    ),
    "a negative id": (
        taken,
        {"ids": OUTSIDE - 80},
        r"id -\d\d of leaf `ids` is outside of `t`, which has 30 rows",
    ),
    "an id in a branch": (in_branches, {"ids": OUTSIDE}, r"id 99 of leaf `ids` is outside of `t`"),
    "a logarithm": (
        guarded,
        {"x": ZERO, "m": HALF},
        r"`log` \(test_not_finite.py:\d+\) takes the logarithm of a number that is not above 0",
    ),
    "an overflow": (
        lambda p, b: jnp.mean(jnp.exp(rows(p, b) + 1000 * b["x"])),
        {},
        r"`exp` \(test_not_finite.py:\d+\) takes the exponential of a large number",
    ),
    "a gradient": (
        lambda p, b: jnp.mean(jnp.sqrt(jnp.abs(b["x"] * p["w"].sum()))),
        {"x": ZERO},
        r"NaN or infinity in `w`\. .*\(test_not_finite.py:\d+\)",
    ),
    "the batch": (
        lambda p, b: jnp.mean(rows(p, b) * b["x"]),
        {"x": np.full(8, np.nan)},
        "leaf `x` of the batch holds",
    ),
}


@pytest.mark.first_case
@pytest.mark.parametrize("kind", CAUSES)
def test_the_cause_is_named(kind):
    loss, more, text = CAUSES[kind]
    runner = make(loss)
    with pytest.raises(
        ParameterError, match=rf"(?s)step 1, gradients: expected finite numbers, got .*{text}"
    ):
        runner.run(BATCH | more)
    assert runner.steps == 0
    jax.tree.map(np.testing.assert_array_equal, runner.params, PARAMS)


RUNS = {
    "dense": {"keep_dense": ("t",)},
    "servers": {"run_option": "ps"},
    "tables everywhere": {"run_option": "ar"},
    "no barrier": {"sync": False, "max_staleness": 0},
    "processes": {"server_processes": True},
}


@pytest.mark.parametrize(
    "how",
    [*list(RUNS)[:1], *left_to_nightly(list(RUNS)[1:])],
)
def test_wherever_variables_are(how):
    with (
        make(taken, **RUNS[how]) as runner,
        pytest.raises(ParameterError, match="id 99 of leaf `ids` is outside of"),
    ):
        runner.run(BATCH | {"ids": OUTSIDE})
        runner.run(BATCH)


@pytest.mark.nightly
def test_of_tables_that_are_kept_as_one():
    params = {f"t{k}": PARAMS["t"] for k in range(5)} | {"w": PARAMS["w"]}

    def loss(p, b):
        return jnp.mean(sum(p[f"t{k}"][b["ids"]] @ p["w"] for k in range(5)) * b["x"])

    runner = px.get_runner(
        loss,
        params,
        optax.sgd(0.1),
        config=px.ParallaxConfig(alpha_threshold=2.0),
    )
    with pytest.raises(
        ParameterError, match="The cause: leaf `x` of the batch holds a number that is NaN"
    ):
        runner.run(BATCH | {"x": np.full(8, np.nan)})
    assert len(runner.plan.program.members) == 1


def test_the_table_whose_row_is_not_finite_is_named():
    """The step before made it infinite: tables in a list are not in the order of their names."""
    params = [PARAMS["t"]] * 11

    def loss(p, b):
        return jnp.mean(sum((1e6 if k == 2 else 1) * p[k][b["ids"]].sum(1) for k in range(11)))

    runner = px.get_runner(
        loss,
        params,
        optax.sgd(1e35),
        config=px.ParallaxConfig(alpha_threshold=2.0),
    )
    runner.run(BATCH)
    with pytest.raises(
        ParameterError, match="The cause: a row of `2` holds a number that is infinite"
    ):
        runner.run(BATCH)


def test_a_row_without_a_finite_gradient():
    """Of the rows alone: the error is the table's."""

    def loss(p, b):
        return jnp.mean(jnp.sqrt(jnp.abs(p["t"][b["ids"]] * b["m"][:, None]))) + p["w"].sum()

    with pytest.raises(TableError, match=r"The cause: .*\(test_not_finite.py:\d+\)"):
        make(loss).run(BATCH | {"m": HALF})


def test_a_large_loss_in_double_precision_is_finite():
    with jax.enable_x64(True):
        params = {"w": np.full(3, 1e25)}
        runner = px.get_runner(
            lambda p, b: jnp.mean((b["x"] * p["w"].sum()) ** 2),
            params,
            optax.sgd(0.0),
        )
        assert runner.run({"x": np.full(8, 1.0)}).loss == pytest.approx(9e50)


def test_gradients_whose_sum_overflows_are_finite():
    params = {"w": np.full(8, 1e-37, np.float32)}
    runner = px.get_runner(
        lambda p, b: 5e37 * jnp.sum(p["w"] * b["x"].mean()),
        params,
        optax.sgd(0.0),
    )
    assert runner.run({"x": np.ones(8, np.float32)}).loss == pytest.approx(40)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("old", "new", "begun"),
    [("float32", "bfloat16", False), ("bfloat16", "float32", True)],
)
def test_a_checkpoint_of_another_dtype(tmp_path, old, new, begun):
    def of(dtype, **changed):
        params = {}
        for name, leaf in PARAMS.items():
            params[name] = leaf.astype(changed.get(name, dtype))
        config = px.ParallaxConfig(alpha_threshold=2.0)
        return px.get_runner(
            lambda p, b: jnp.mean(rows(p, b).astype("float32") ** 2),
            params,
            optax.sgd(0.1),
            config=config,
        )

    saved = of(old)
    saved.run(BATCH)
    saved.save(tmp_path / "c")
    for other, leaf in (
        (of(new), "w"),
        (
            of(
                old,
                t=new,
            ),
            "t",
        ),
    ):
        if begun:
            other.run(BATCH)
        with pytest.raises(
            DataError,
            match=rf"parameter `{leaf}`: expected {new}, got {old}\. Restore it into .*{old}",
        ):
            other.restore(tmp_path / "c") or other.run(BATCH)
