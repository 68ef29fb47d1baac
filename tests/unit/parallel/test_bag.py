"""Bags of ids against loops over bags, and cut over replicas between bags."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.optimizers import worst

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, RemoteDevice, Resources
from ampjax.errors import DataError, ParameterError, SettingsError
from ampjax.optim import rowwise_adagrad
from ampjax.parallel.bag import BagWidths, arrange_bags
from ampjax.parallel.shard import joined_batch, split_batch

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(12, 3)).astype(np.float32)
VALUES = np.array([4, 4, 11, 0, 7, 2, 7])
OFFSETS = np.array([0, 0, 3, 4, 4, 7])  # bags 0, 3 and 5 are empty
WEIGHTS = RNG.normal(size=7).astype(np.float32)
ENDS = [*OFFSETS[1:], len(VALUES)]
MODES = {
    "sum": jnp.sum,
    "mean": jnp.mean,
    "max": jnp.max,
}


def by_loops(table, mode, weights=None):
    """One bag after the other, as torch defines `EmbeddingBag`."""
    result = []
    for start, end in zip(OFFSETS, ENDS, strict=True):
        rows = table[VALUES[start:end]]
        if weights is not None:
            rows = rows * weights[start:end, None]
        result.append(
            MODES[mode](
                rows,
                axis=0,
            )
            if end > start
            else jnp.zeros(table.shape[1:])
        )
    return jnp.stack(result)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*MODES, "weighted"])
def test_values_and_gradients_are_those_of_loops(mode):
    weights = WEIGHTS if mode == "weighted" else None
    mode = "sum" if mode == "weighted" else mode
    factors = RNG.normal(size=(6, 3)).astype(np.float32)

    def ours(table, weights):
        made = px.Bag(
            VALUES,
            OFFSETS,
            weights,
        ).look_up(table, mode)
        return (factors * made).sum(), made

    def loops(table, weights):
        made = by_loops(table, mode, weights)
        return (factors * made).sum(), made

    wanted_of = (0,) if weights is None else (0, 1)
    results = []
    for function in (ours, loops):
        both = jax.value_and_grad(function, wanted_of, has_aux=True)
        results.append(jax.jit(both)(jnp.asarray(TABLE), weights))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            a,
            b,
            rtol=1e-5,
            atol=1e-6,
        ),
        *results,
    )


@pytest.mark.parametrize("mode", [*MODES, "weighted"])
@given(
    lengths=st.sampled_from(
        [
            (2, 0, 3, 1),
            (0, 0, 4, 2),
            (6, 0, 0, 0),
            (0, 0, 0, 0),
        ]
    ),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=examples(24), deadline=None)
def test_values_and_gradients_are_those_of_torch(mode, lengths, seed):
    """Sparse gradients but for maxima, of which torch's are dense."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `bench`)")
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    values = rng.integers(0, 12, n)
    offsets = np.cumsum([0, *lengths[:-1]])
    weights = rng.normal(size=n).astype(np.float32) if mode == "weighted" else None
    way = "sum" if mode == "weighted" else mode
    factors = rng.normal(size=(len(lengths), 3)).astype(np.float32)

    def ours(table, weights):
        made = px.Bag(values, offsets, weights).look_up(table, way)
        return (factors * made).sum(), made

    (_, made), grads = jax.value_and_grad(
        ours,
        (0, 1) if weights is not None else (0,),
        True,
    )(jnp.asarray(TABLE), weights)
    bags = torch.nn.EmbeddingBag.from_pretrained(
        torch.tensor(TABLE),
        freeze=False,
        mode=way,
        sparse=mode in ("sum", "mean"),
    )
    own = None if weights is None else torch.tensor(weights, requires_grad=True)
    theirs = bags(torch.tensor(values), torch.tensor(offsets), own)
    (torch.tensor(factors) * theirs).sum().backward()
    grad = bags.weight.grad
    wanted = [grad.to_dense() if grad.is_sparse else grad]
    if own is not None:
        wanted.append(own.grad)
    assert worst(made, theirs.detach().numpy()) < 1e-5
    for one, other in zip(grads, wanted, strict=True):
        assert worst(one, other.numpy()) < 1e-5


@pytest.mark.nightly
def test_the_first_of_the_largest_gets_the_gradient():
    table = jnp.array([[1.0, 5.0], [5.0, 5.0], [5.0, 0.0]])
    grads = jax.grad(
        lambda table: (
            px.Bag(
                [2, 1, 0],
                [0],
            )
            .look_up(table, "max")
            .sum()
        )
    )(table)
    assert grads.tolist() == [[0, 0], [0, 1], [1, 0]]


@pytest.mark.nightly
def test_rows_of_any_rank_and_half_precision():
    bag = px.Bag([0, 2, 2], [0, 1])
    assert bag.look_up(jnp.array([1.0, 2.0, 4.0])).tolist() == [1, 8]
    cube = jnp.arange(12.0).reshape(3, 2, 2)
    assert (bag.look_up(cube, "mean") == cube[np.array([0, 2])]).all()
    half = jnp.full((1, 2), 0.1, jnp.bfloat16)
    many = px.Bag(
        np.zeros(1000, int),
        [0],
    ).look_up(half)
    assert many.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.float32(many),
        1000 * np.float32(half[0, 0]),
        rtol=2**-8,
    )


@pytest.mark.nightly
def test_an_id_beyond_the_table_and_nan_rows_are_not_zero():
    bag = px.Bag([0, 3, 1], [0, 2])
    for mode in MODES:
        seen = np.isnan(
            bag.look_up(
                jnp.ones((3, 2)),
                mode,
            )
        )
        assert seen[0].all() and not seen[1].any()
    rows = jnp.array([[1.0], [jnp.nan], [2.0]])
    assert np.isnan(
        px.Bag([0, 1, 2], [0]).look_up(
            rows,
            "max",
        )
    ).all()


def test_lengths_and_the_tree():
    bag = px.Bag(VALUES, OFFSETS, WEIGHTS)
    assert jax.jit(lambda bag: bag.lengths)(bag).tolist() == [0, 3, 1, 0, 3, 0]
    assert len(bag) == 6
    names = []
    for path, _ in jax.tree.leaves_with_path(bag):
        names.append(jax.tree_util.keystr(path))
    assert names == [".ids", ".shifts", ".weights"]
    assert repr(bag) == "Bag(6 bags, 7 ids)"
    none = jax.jit(px.Bag.look_up)(
        px.Bag([], [0, 0]),
        TABLE,
    )
    assert none.tolist() == [[0, 0, 0], [0, 0, 0]]


lengths = st.lists(
    st.integers(0, 9),
    min_size=1,
    max_size=6,
)


@given(
    batches=st.lists(
        st.lists(lengths, min_size=4, max_size=4),
        min_size=1,
        max_size=3,
    ),
    n=st.sampled_from([1, 2, 4]),
)
@settings(max_examples=examples(100))
def test_cuts_are_between_bags_and_parts_have_one_shape(batches, n):
    widths = BagWidths()
    for four in batches:
        # Four lists of the same number of lengths: a number of bags that 1, 2 and 4 divide.
        size = min(map(len, four))
        counts = np.concatenate([own[:size] for own in four])
        offsets = np.cumsum(counts) - counts
        values = np.arange(counts.sum())
        weights = values / 2
        bag = px.Bag(values, offsets, weights)
        parts = split_batch(
            {"bag": bag, "y": np.arange(len(counts))},
            n,
            (),
            widths,
        )
        assert len({part["bag"].ids.shape for part in parts}) == 1
        seen = []
        for part in parts:
            ids, bags, factors = part["bag"]._flat()
            assert (factors == ids / 2).all()
            for k, label in enumerate(part["y"]):
                start = offsets[label]
                assert (ids[bags == k] == np.arange(start, start + counts[label])).all()
            seen.append(ids)
        assert (np.concatenate(seen) == values).all()
        whole = joined_batch(px.Parts(parts))["bag"]._flat()
        assert all(
            (a == b).all()
            for a, b in zip(
                whole,
                bag._flat(),
                strict=True,
            )
        )


def test_widths_only_grow():
    widths = BagWidths()
    wide = px.Bag(np.arange(40), [0, 30])
    narrow = px.Bag(np.arange(4), [0, 1])
    (first,) = arrange_bags(
        ({"b": wide},),
        2,
        widths,
    )
    (second,) = arrange_bags(
        ({"b": narrow},),
        2,
        widths,
    )
    assert first["b"].ids.shape == second["b"].ids.shape == (2, 30)


def a_batch(seed, n_bags=4, weights=True):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4 + seed, n_bags)
    values = rng.integers(0, 12, counts.sum())
    factors = rng.normal(size=len(values)).astype(np.float32) if weights else None
    return {
        "bag": px.Bag(
            values,
            np.cumsum(counts) - counts,
            factors,
        ),
        "more": px.Bag(values, np.cumsum(counts) - counts),
        "y": rng.normal(size=(n_bags, 3)).astype(np.float32),
    }


def sum_loss(params, batch):
    return jnp.mean((batch["bag"].look_up(params["table"]) - batch["y"]) ** 2)


def all_modes_loss(params, batch):
    made = sum_loss(params, batch)
    more = batch["more"].look_up(params["table"], "mean") + batch["more"].look_up(
        params["table"], "max"
    )
    bias = batch["more"].look_up(params["bias"])
    return made + jnp.mean((more @ params["w"] + bias[:, None]) ** 2)


PARAMS = {
    "table": TABLE,
    "bias": RNG.normal(size=20).astype(np.float32),
    "w": RNG.normal(size=(3, 2)).astype(np.float32),
}


def make(loss, params, tx, *names, **options):
    devices = jax.local_devices()
    machines = []
    for i, name in enumerate(names or ("", "")):
        if name:
            machines.append(
                Machine(
                    name,
                    (RemoteDevice(name, 0),),
                    address="localhost",
                )
            )
        else:
            machines.append(Machine(f"m{i}", (devices[i],)))
    config = px.ParallaxConfig(alpha_threshold=2.0, **{"check_equivalence": "error", **options})
    return px.get_runner(
        loss,
        params,
        tx,
        Resources(tuple(machines)),
        config,
    )


def plain(loss, params, tx, n):
    """Training on one device with whole batches, and the losses."""
    state = tx.init(params)
    losses = []
    step = jax.jit(jax.value_and_grad(loss))
    for seed in range(n):
        value, grads = step(params, a_batch(seed))
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    return params, losses


@pytest.mark.slow
def test_two_replicas_are_one_device():
    # The ordinary run's one runner with a row-wise rule, too.
    tx = rowwise_adagrad(0.1, eps=1e-2)
    params = {"table": TABLE}
    runner = make(sum_loss, params, tx, check_equivalence="off")
    losses = []
    for seed in range(2):
        losses.append(float(runner.run(a_batch(seed)).loss))
    wanted, wanted_losses = plain(sum_loss, params, tx, 2)
    assert {*runner.step.tables} == {"['table']"}
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-5)
    assert worst(runner.params, wanted) < 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("names", "options"),
    [
        ((), {}),
        ((), {"run_option": "ps"}),
        ((), {"run_option": "ar"}),
        (("a", "b"), {}),
    ],
    ids=str,
)
def test_all_modes_wherever_rows_are(names, options):
    # Adam moves a row whose gradient is zero: one that only stands where an id is filled in would be seen.
    tx = optax.adam(
        0.05,
        b1=0.875,
        b2=0.9375,
        eps=1e-2,
    )
    with make(all_modes_loss, PARAMS, tx, *names, **options) as runner:
        losses = []
        for seed in range(4):
            losses.append(float(runner.run(a_batch(seed)).loss))
        wanted, wanted_losses = plain(all_modes_loss, PARAMS, tx, 4)
        np.testing.assert_allclose(losses, wanted_losses, rtol=1e-5)
        assert worst(runner.params, wanted) < 1e-5
        other = a_batch(5, n_bags=3)
        assert float(runner.evaluate(other).loss) == pytest.approx(
            float(all_modes_loss(wanted, other)), rel=1e-4
        )


@pytest.mark.nightly
def test_lazy_rows_without_an_id_are_not_touched():
    tx = optax.adam(0.05)
    runner = make(sum_loss, {"table": TABLE}, tx, table_mode="lazy")
    runner.run(
        {
            **a_batch(0),
            "bag": px.Bag(
                [3, 5],
                [0, 1, 2, 2],
            ),
        }
    )
    moved = (runner.params["table"] != TABLE).any(1)
    runner.run(
        {
            **a_batch(0),
            "bag": px.Bag(
                [3],
                [0, 1, 1, 1],
            ),
        }
    )  # none in the second replica
    first = np.asarray(runner.opt_state[0].nu["table"]).any(1)
    assert np.flatnonzero(moved).tolist() == [3, 5] == np.flatnonzero(first).tolist()


@pytest.mark.nightly
def test_a_bad_id_stops_the_step():
    runner = make(
        sum_loss,
        {"table": TABLE},
        optax.sgd(0.1),
    )
    bad = {
        **a_batch(0),
        "bag": px.Bag(
            [3, 12],
            [0, 1, 2, 2],
            [1.0, 1.0],
        ),
    }
    runner.run(a_batch(0))
    before = runner.params["table"]
    with pytest.raises(ParameterError, match=r"id 12 of leaf `bag/ids` is outside of `table`"):
        runner.run(bad)
    assert (runner.params["table"] == before).all()


def test_batches_that_can_not_be_cut_are_refused():
    batch = a_batch(0, n_bags=3)
    with pytest.raises(SettingsError, match=r"leaf `bag/ids`: expected a leading size .* 2 repli"):
        split_batch(batch, 2)
    with pytest.raises(SettingsError, match=r"leaf `y`: expected the leading size of `bag/ids`, 3"):
        split_batch({**batch, "y": np.ones(4)}, 1)
    with pytest.raises(SettingsError, match=r"shard: expected arrays with a row .* got a `Bag`"):
        px.shard(batch, count=3)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: px.Bag([[1]], [0]), r"Bag, `values`: expected integers \[n\], got int64\[1, 1\]"),
        (lambda: px.Bag([0.5], [0]), "Bag, `values`: expected integers"),
        (lambda: px.Bag(np.ma.array([1]), [0]), "Bag, `values`: expected an array without a mask"),
        (lambda: px.Bag([3, -1], [0]), r"Bag, `values`: expected ids from 0 .* got -1"),
        (lambda: px.Bag([2**31], [0]), "Bag, `values`: .*hash larger ids"),
        (lambda: px.Bag([1], []), r"Bag, `offsets`: expected integers \[n_bags\]"),
        (lambda: px.Bag([1], [1]), "Bag, `offsets`: expected numbers that rise from 0 to 1, got 1"),
        (
            lambda: px.Bag(
                [1, 2],
                [0, 2, 1],
            ),
            "Bag, `offsets`: .* got 2 before a smaller number",
        ),
        (
            lambda: px.Bag(
                [1, 2],
                [0, 3],
            ),
            "Bag, `offsets`: .* got 3 before a smaller number",
        ),
        (
            lambda: px.Bag(
                [1],
                [0],
                [1.0, 2.0],
            ),
            r"Bag, `weights`: expected one for each value, \[1",
        ),
        (lambda: jax.jit(lambda x: px.Bag(x, [0]).ids)(jnp.ones(2, int)), "Make bags on the host"),
        (lambda: jax.jit(lambda x: px.Bag([0], x).ids)(jnp.ones(1, int)), "Make bags on the host"),
    ],
)
def test_arrays_that_are_no_bags_are_refused(make, text):
    with pytest.raises(DataError, match=text):
        make()


def test_modes_that_are_not_there_are_refused():
    with pytest.raises(SettingsError, match="`mode`: expected one of sum, mean, max, got 'median'"):
        px.Bag([1], [0]).look_up(TABLE, "median")
    with pytest.raises(SettingsError, match="`mode`: expected `sum`, since the bags have weights"):
        px.Bag(
            [1],
            [0],
            [1.0],
        ).look_up(TABLE, "mean")
