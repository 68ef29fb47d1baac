"""Kernels: padding changes nothing, whatever a body does to its rows; adjoints equal `jax.grad`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs
from support.control import plan_for
from support.engines import engine

import ampjax as amp
import ampjax.graphs as ag
from ampjax.plan.ladders import (
    VERY_WIDE,
    WIDE,
    fine_ladder,
    ladder,
    ladder_for,
    narrow_ladder,
    wide_ladder,
)
from ampjax.plan.stage_kinds import ROWS

pytestmark = pytest.mark.slow

BODIES = {
    "sqrt": lambda w, x: jnp.sqrt(w * x * x),
    "log": lambda w, x: jnp.log(w * x * x),
    "division": lambda w, x: w / x,
    "power": lambda w, x: jnp.abs(x) ** w,
    "norm": lambda w, x: w * x / jnp.linalg.norm(x),
}


def graph_of(body):
    with ag.Graph() as g:
        x = ag.pump("x", (3,))
        label = ag.pump("label", (3,))
        y = ag.ppt(
            "f",
            body,
            params=np.full(3, 1.5, np.float32),
        )(ag.npt("in", lambda x: x)(x))
        ag.loss(
            "loss",
            lambda y, t: (
                jnp.square(y - t).sum(),
                {"size": jnp.abs(y).sum()},
            ),
        )(y, label)
    return g


GRAPHS = {name: graph_of(body) for name, body in BODIES.items()}


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.5, 2, (n, 3)).astype(np.float32)
    result = []
    for row in x:
        result.append(
            {
                "x": row,
                "label": np.float32([0.1, 0.2, 0.3]),
            }
        )
    return result


def expected(body, data, w=1.5):
    def loss(w):
        return sum(jnp.square(body(w, i["x"]) - i["label"]).sum() for i in data)

    return jax.value_and_grad(loss)(jnp.full(3, w))


CASES = [(name, 3, fuse) for name in BODIES for fuse in (True, False)] + [
    ("division", n, False) for n in (1, 4, 5)
]


@pytest.mark.first_case
@pytest.mark.parametrize(("name", "n", "fuse"), CASES)
def test_padding_never_reaches_a_weight_gradient(name, n, fuse):
    e = engine(GRAPHS[name], fuse=fuse)
    e.virtual(rows(n))
    loss, grad = expected(BODIES[name], rows(n))
    np.testing.assert_allclose(e.gradients["f"], grad, rtol=1e-5)
    metrics = e.metrics()
    assert metrics["loss"] == pytest.approx(float(loss) / n, rel=1e-5)


@pytest.mark.first_case
@pytest.mark.parametrize("n", [1, 3])
def test_what_the_trash_row_holds_does_not_matter(n):
    """Padding writes to slot 0; neither values nor adjoints that lie there are ever read into a result."""
    e = engine(GRAPHS["division"], fuse=False)
    e.virtual(rows(n))  # makes the arenas
    e.metrics()
    clean = engine(GRAPHS["division"], fuse=False)
    clean.virtual(rows(n))
    clean.virtual(rows(n))
    arenas = e.executor.arenas
    for key in arenas.values:
        arenas.values[key] = arenas.values[key].at[0].set(jnp.nan)
        arenas.grads[key] = arenas.grads[key].at[0].set(jnp.nan)
    e.virtual(rows(n))
    np.testing.assert_array_equal(e.gradients["f"], clean.gradients["f"])


def late_graph(body):
    """Instances reach `f` one after the other."""
    with ag.Graph() as g:
        x = ag.pump("x", (3,), fields=("t",))
        label = ag.pump("label", (3,))
        h = ag.phi("h")
        step = ag.isu(
            ag.npt("in", lambda x: x)(h),
            lambda s: s.replace(t=s.t - 1),
            lambda s: s.replace(t=s.t + 1),
        )
        more, ready = ag.cond(step, lambda s: s.t > 0)
        h.connect(x, more)
        y = ag.ppt(
            "f",
            body,
            params=np.full(3, 1.5, np.float32),
        )(ready)
        ag.loss(
            "loss",
            lambda y, t: jnp.square(y - t).sum(),
            join=("instance",),
        )(
            y,
            label,
        )
    return g


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["log", "sqrt", "softmax"])
def test_padding_of_an_adjoint_alone_reads_no_activation_that_was_never_recorded(name):
    """Forward in dispatches of one row, back in one of three, of which a fourth is padding."""
    body = BODIES.get(
        name,
        lambda w, x: jax.nn.softmax(w * x),
    )
    data = []
    for t, i in enumerate(rows(3), 1):
        data.append(
            i
            | {
                "x": ag.messages(
                    i["x"][None],
                    t=t,
                )
            }
        )
    e = engine(
        late_graph(body),
        fuse=False,
        policy=lambda queues, now: min(queues, key=lambda q: q.backward),
    )
    e.virtual(data)
    back = e.scheduler.counts.read().stages["f"]
    assert back.forward == 3
    assert back.backward == 3
    assert back.most_messages == 3
    assert back.dispatches == 4
    _, grad = expected(body, rows(3))
    np.testing.assert_allclose(e.gradients["f"], grad, rtol=1e-5)


def test_a_row_of_zeros_under_a_square_root_poisons_only_itself():
    """The sqrt of a zero row has an infinite derivative: such a row that has no gradient must not make dW NaN for others."""
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.ppt(
            "scale",
            graphs.times,
            params=graphs.one(),
        )(x)
        kept, dead = ag.cond(y, lambda s: s.instance > 0)
        ag.sink("dead", dead)
        ag.loss(
            "loss",
            lambda y, t: jnp.sqrt(y) - t,
        )(
            kept,
            label,
        )
    data = []
    for v in (0.0, 4.0, 9.0):
        data.append(
            {
                "x": np.float32(v),
                "label": np.float32(0),
            }
        )
    data[0].pop("label")
    e = engine(g)
    e.virtual(data)
    np.testing.assert_allclose(
        e.gradients["scale"],
        sum(0.5 * (1.5 * v) ** -0.5 * v for v in (4, 9)),
        rtol=1e-5,
    )


@pytest.mark.nightly
@given(
    st.sampled_from(["division", "sqrt"]),
    st.integers(1, 8),
    st.sampled_from([1, 2, 3, 64]),
    st.integers(0, 99),
)
@settings(max_examples=40)
def test_gradients_are_the_same_at_any_dispatch_size(name, n, size, seed):
    """Law 2 for one node: sums differ by rounding only."""
    e = engine(GRAPHS[name], max_dispatch_size=size)
    e.virtual(rows(n, seed))
    _, grad = expected(BODIES[name], rows(n, seed))
    np.testing.assert_allclose(e.gradients["f"], grad, rtol=2e-5)


# Reductions and collections


def segments(function, n_rows, fuse=True):
    with ag.Graph() as g:
        rows = ag.pump("rows", (2,), ragged=True)
        label = ag.pump("label")
        y = ag.ppt(
            "f",
            graphs.times,
            params=graphs.one(),
        )(rows)
        total = ag.reduce("reduce", function, y)
        ag.loss(
            "loss",
            lambda v, t: (v.sum() - t) ** 2,
        )(
            total,
            label,
        )
    rng = np.random.default_rng(0)
    data = []
    for n in n_rows:
        data.append(
            {
                "rows": rng.uniform(
                    0.5,
                    2,
                    (n, 2),
                ).astype(np.float32),
                "label": np.float32(1),
            }
        )
    e = engine(g, fuse=fuse)
    e.virtual(data)
    return e, data


def segment_mean(rows, ids, n):
    ones = jnp.ones_like(rows)
    return jax.ops.segment_sum(rows, ids, n) / jnp.maximum(jax.ops.segment_sum(ones, ids, n), 1)


def segment_norm(rows, ids, n):
    """A square root whose empty segments are guarded, as a user would write it."""
    squares = jax.ops.segment_sum(rows * rows, ids, n)
    return jnp.where(
        squares > 0,
        jnp.sqrt(jnp.where(squares > 0, squares, 1)),
        0,
    )


@pytest.mark.first_case
@pytest.mark.parametrize(
    "function", [jax.ops.segment_sum, segment_mean, segment_norm, jax.ops.segment_max]
)
@pytest.mark.parametrize(
    "n_rows",
    [(1,), (1, 2, 3)],
)
def test_reductions_of_any_sizes(function, n_rows):
    e, data = segments(function, n_rows)

    def loss(w):
        return sum(
            (function(w * i["rows"], np.zeros(len(i["rows"]), np.int32), 1).sum() - 1) ** 2
            for i in data
        )

    np.testing.assert_allclose(
        e.gradients["f"],
        jax.grad(loss)(jnp.float32(1.5)),
        rtol=1e-5,
    )


def test_a_reduction_of_no_rows():
    e, data = segments(segment_norm, (0, 2, 0))
    loss, grad = jax.value_and_grad(
        lambda w: (
            2 * 1.0
            + (
                segment_norm(
                    w * data[1]["rows"],
                    np.zeros(2, np.int32),
                    1,
                ).sum()
                - 1
            )
            ** 2
        )
    )(jnp.float32(1.5))
    np.testing.assert_allclose(e.gradients["f"], grad, rtol=1e-5)
    assert e.metrics()["loss"] == pytest.approx(float(loss) / 3, rel=1e-5)


def test_only_empty_messages():
    e, _ = segments(jax.ops.segment_sum, (0, 0))
    assert e.gradients["f"] == 0 and e.metrics()["loss"] == 1


def test_a_reduction_that_gives_integers_ends_the_gradient():
    with ag.Graph() as g:
        rows = ag.pump("rows", ragged=True)
        label = ag.pump("label")
        y = ag.ppt(
            "f",
            graphs.times,
            params=graphs.one(),
        )(rows)
        count = ag.reduce(
            "count",
            lambda r, i, n: jax.ops.segment_sum(
                (r > 1).astype(jnp.int32),
                i,
                n,
            ),
            y,
        )
        ag.loss("loss", lambda c, t: (c - t) ** 2)(
            count,
            label,
        )
    e = engine(g)
    e.virtual(
        [
            {
                "rows": np.float32([0.1, 3, 5]),
                "label": np.float32(1),
            }
        ]
    )
    assert e.metrics()["loss"] == 1 and e.gradients["f"] == 0


def test_collect_adds_rows_at_their_places_and_leaves_others_zero():
    with ag.Graph() as g:
        atoms = ag.pump("atoms", ragged=True)
        maps = ag.topology("maps")
        out = ag.distribute(
            ag.npt("h", lambda x: x)(atoms),
            maps,
            2,
        )
        ag.sink(
            "m",
            ag.collect(
                [ag.npt(f"e{i}", lambda x, i=i: (i + 1) * x)(w) for i, w in enumerate(out)],
                maps,
            ),
        )
    topology = ag.Topology.from_edges(
        [0, 1, 2, 0],
        [3, 3, 0, 0],
        [0, 1, 1, 1],
        5,
        2,
    )
    e = engine(g)
    e.virtual(
        [
            {
                "atoms": np.float32([1, 10, 100, 1000, 10000]),
                "maps": topology,
            }
        ],
        train=False,
    )
    (arrival,) = e.arrived
    assert np.asarray(arrival.rows)[: arrival.n_rows].tolist() == [202, 0, 0, 21, 0]


@pytest.mark.parametrize("fuse", [True, False])
def test_bfloat16_can_write_gradients(fuse):
    with ag.Graph() as g:
        x = ag.pump("x", (3,), "bfloat16")
        label = ag.pump("label", (3,), "bfloat16")
        y = ag.ppt(
            "f",
            graphs.times,
            params=jnp.full(3, 1.5, jnp.bfloat16),
        )(x)
        ag.loss(
            "loss",
            lambda y, t: jnp.square(y - t).sum(),
        )(
            ag.npt("double", lambda x: 2 * x)(y),
            label,
        )
    e = engine(g, fuse=fuse)
    e.virtual(
        [
            {
                "x": np.ones(3, jnp.bfloat16),
                "label": np.zeros(3, jnp.bfloat16),
            }
        ]
        * 2
    )
    assert e.gradients["f"].tolist() == [24.0] * 3


# Random bodies


@pytest.mark.nightly
@pytest.mark.parametrize("fuse", [False, True])
def test_a_random_body_draws_too_where_it_is_one_stage_with_the_loss(fuse):
    def noisy(w, x, key=None):
        return w * x * (0.0 if key is None else jax.random.normal(key, ()))

    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        ag.loss("loss", lambda y, t: y - t)(
            ag.ppt(
                "f",
                noisy,
                params=graphs.one(),
                rng=True,
            )(x),
            label,
        )
    e = engine(g, fuse=fuse)
    data = [
        {
            "x": np.float32(1),
            "label": np.float32(0),
        }
    ] * 6
    e.virtual(data)
    assert 6 * e.metrics()["loss"] == pytest.approx(1.5 * float(e.gradients["f"]), rel=1e-5)
    assert abs(e.gradients["f"]) > 0.1
    e.virtual(data, train=False)
    assert e.metrics(train=False)["loss"] == 0.0


@pytest.mark.first_case
@pytest.mark.parametrize("seed", [0, 7, 1 << 70])
def test_a_random_body_draws_the_same_number_in_both_directions_and_in_every_schedule(seed):
    def noisy(w, x, key=None):
        if key is None:
            noise = 0.0
        else:
            noise = jax.random.normal(key, ())
        return w * x * noise

    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.ppt(
            "f",
            noisy,
            params=graphs.one(),
            rng=True,
        )(x)
        ag.sink("seen", y)
        ag.loss("loss", lambda y, t: y - t)(y, label)
    data = [
        {
            "x": np.float32(1),
            "label": np.float32(0),
        }
    ] * 6
    grads = []
    for size in (1, 2, 64):
        e = engine(g, max_dispatch_size=size, seed=seed)
        e.virtual(data)
        grads.append(e.gradients["f"])
        # the loss is w times the noise, so dW is the loss divided by w: forward and backward saw the same numbers
        assert 6 * e.metrics()["loss"] == pytest.approx(1.5 * float(grads[-1]), rel=1e-5)
        e.virtual(data, train=False)
        assert set(e.outputs().values()) == {0.0}
    np.testing.assert_allclose(grads, grads[0], rtol=1e-5)
    assert abs(grads[0]) > 0.1


@pytest.mark.nightly
def test_every_epoch_draws_anew():
    """Dropout that drops the same of an instance in every epoch would be a fixed damage to the data."""

    def noisy(w, x, key=None):
        return w * x * (0.0 if key is None else jax.random.normal(key, ()))

    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.ppt(
            "f",
            noisy,
            params=graphs.one(),
            rng=True,
        )(x)
        ag.loss("loss", lambda y, t: y - t)(y, label)
    data = [
        {
            "x": np.float32(1),
            "label": np.float32(0),
        }
    ] * 6

    def losses(seed):
        history = amp.Trainer(g, optax.sgd(0.0), seed=seed).fit(
            data,
            epochs=3,
            progress=False,
        )
        return [epoch.train["loss"] for epoch in history]

    assert len({*losses(0), *losses(1)}) == 6
    assert losses(0) == losses(0)


def test_the_ladder_doubles():
    assert [ladder(n) for n in (0, 1, 2, 3, 4, 5, 8, 9, 64, 65)] == [
        1,
        1,
        2,
        4,
        4,
        8,
        8,
        16,
        64,
        128,
    ]


def test_a_third_of_a_dispatch_of_wide_rows_is_padding_at_most_but_for_small_ones():
    assert sorted({fine_ladder(n) for n in range(1, 33)}) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert sorted({wide_ladder(n) for n in range(1, 65)}) == [1, 4, 16, 24, 32, 48, 64]
    assert sorted({narrow_ladder(n) for n in range(1, 65)}) == [1, 4, 16, 32, 64]
    assert all(2 * n <= 2 * fine_ladder(n) <= 3 * n for n in range(1, 3000))
    assert all(
        wide_ladder(n) == fine_ladder(n) and narrow_ladder(n) == ladder(n) for n in range(17, 3000)
    )


def test_stages_take_the_ladder_of_their_widest_rows():
    def ladders(features):
        result = set()
        for s in plan_for(graphs.rnn(features)).stages:
            if s.kind is ROWS:
                result.add(ladder_for(s))
        return result

    assert ladders(4) == {narrow_ladder}
    assert ladders(WIDE) == {wide_ladder}
    assert ladders(VERY_WIDE) == {fine_ladder}
