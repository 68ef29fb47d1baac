"""`amp.vmap` of plain JAX functions: against `jax.vmap`, and against the function of one element."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import ampjax as amp
from ampjax.errors import DataError, GraphError
from ampjax.lanes import choosing as forms
from ampjax.lanes.running import LanePace

XS = jnp.asarray(np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32))
NS = jnp.asarray(
    [3, 0, 5, 1, 9, 0, 2, 7, 4, 6, 1],
    jnp.int32,
)
W = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32))
lanes_of = partial(amp.vmap, lanes=4, trips=2)


def turned(x, n):
    """A loop with a trip count of its own."""
    return lax.fori_loop(
        0,
        n,
        lambda i, x: jnp.tanh(W @ x) + i,
        x,
    )


def nested(x, n):
    """A loop in a scan, whose rows are read from an element's array and from a shared one, and written."""

    def draw(carry, row):
        x, n = carry
        y = turned(x * row, n)
        return (0.5 * x + 0.5 * y, (n * 3 + 1) % 7), (y, n)

    return lax.scan(
        draw,
        (x, n),
        jnp.arange(1.0, 5.0),
        reverse=True,
    )


def choosing(x, n):
    """Choices between dear branches, one of which does nothing, inside a loop."""

    def trip(carry):
        x, i = carry
        branches = [
            lambda x: x,
            lambda x: turned(x, i + 1),
            lambda x: jnp.sort(x) + n,
        ]
        return lax.switch(
            (i + n) % 3,
            branches,
            x,
        ), i + 1

    return lax.while_loop(
        lambda carry: carry[1] < n,
        trip,
        (x, 0),
    )


def looping_test(x, n):
    """A loop whose test has a loop."""
    test = lambda carry: lax.fori_loop(0, carry[1] % 3, lambda _, k: k + 2, carry[1]) < n
    return lax.while_loop(
        test,
        lambda carry: (carry[0] * 1.5, carry[1] + 1),
        (x, 0),
    )


def swapped(x, n):
    """A loop that swaps two carried numbers."""
    swap = lambda _, carry: (carry[1], carry[0], carry[2])
    return lax.fori_loop(
        0,
        n,
        swap,
        (x, 2 * x, 1.0),
    )


def called(x, n):
    """Loops in calls: `jit`, `checkpoint`, `custom_jvp`, `custom_vjp`."""

    @jax.custom_jvp
    def own(x):
        return turned(x, n)

    own.defjvp(lambda primals, tangents: (own(*primals), tangents[0]))

    @jax.custom_vjp
    def other(x):
        return turned(x, n + 1)

    other.defvjp(
        lambda x: (other(x), None),
        lambda _, ct: (ct,),
    )
    return jax.jit(turned)(x, n) + jax.checkpoint(turned)(x, n) + own(x) + other(x) + jax.nn.relu(x)


def several(x, n):
    """Loops of unequal length that an inner `jax.vmap` goes through together, one around another, and in a branch."""

    def one(x, n):
        def inner(i, x):
            return lax.while_loop(
                lambda y: y < 0.3 * i,
                lambda y: y + 0.25,
                jnp.sin(x),
            )

        return lax.fori_loop(0, n, inner, x)

    @jax.custom_vjp
    def own(x):
        return lax.while_loop(
            lambda y: y < 2,
            lambda y: y + 0.5,
            x,
        )

    own.defvjp(
        lambda x: (own(x), None),
        lambda _, ct: (ct,),
    )
    ns = n + jnp.arange(3)
    grid = jax.vmap(
        jax.vmap(one),
        in_axes=(0, None),
    )(
        jnp.stack([x, 2 * x]),
        ns,
    )
    chosen = lax.cond(
        n > 2,
        lambda: jax.vmap(one)(x, ns),
        lambda: x,
    )
    return chosen, grid, jax.vmap(own)(x)


PROGRAMS = [turned, nested, choosing, looping_test, swapped, called, several]


def require_close(found, expected):
    """Checks structure, types and numbers."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(
        jax.tree.leaves(found),
        jax.tree.leaves(expected),
        strict=True,
    ):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def require_same_bits(found, expected):
    """Checks that all numbers are the same."""
    for a, b in zip(
        jax.tree.leaves(found),
        jax.tree.leaves(expected),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_vmap(program):
    require_close(
        lanes_of(program)(XS, NS),
        jax.vmap(program)(XS, NS),
    )


@pytest.mark.parametrize("program", [nested, choosing])
def test_bits_do_not_depend_on_what_else_is_in_the_batch(program):
    """The same lanes, other neighbours: other order, others beside, alone."""
    batched = lanes_of(program)
    whole = batched(XS, NS)
    order = np.random.default_rng(2).permutation(len(NS))
    taken = jax.tree.map(lambda a: a[order], whole)
    require_same_bits(batched(XS[order], NS[order]), taken)
    alone = jax.tree.map(lambda a: a[4:5], whole)
    require_same_bits(
        batched(XS[4:5], NS[4:5]),
        alone,
    )
    require_same_bits(
        amp.vmap(program, lanes=4, trips=7)(XS, NS),
        whole,
    )


@pytest.mark.parametrize("n_lanes", [1, 11, 30])
def test_any_number_of_lanes(n_lanes):
    found = amp.vmap(nested, lanes=n_lanes, trips=3)(XS, NS)
    require_close(found, jax.vmap(nested)(XS, NS))


def test_the_form_is_measured_and_remembered(monkeypatch):
    traces = []

    def counted(x, n):
        traces.append(1)
        return turned(x, n)

    batched = amp.vmap(counted)
    expected = jax.vmap(turned)(XS, NS)
    require_close(batched(XS, NS), expected)
    n_traces = len(traces)
    require_close(batched(XS, NS), expected)
    assert len(traces) == n_traces
    require_close(jax.jit(batched)(XS, NS), expected)


@pytest.mark.parametrize("n", [0, 1])
def test_few_elements(n):
    require_close(
        amp.vmap(nested)(XS[:n], NS[:n]),
        jax.vmap(nested)(XS[:n], NS[:n]),
    )


def test_loops_that_never_run():
    none = jnp.zeros_like(NS)
    require_close(lanes_of(turned)(XS, none), XS)


def test_axes_and_trees():
    def program(args, shared):
        return {
            "y": turned(args["x"] + shared["b"], args["n"]),
            "same": shared["b"] * 2,
            "one": 1.0,
        }

    args = {"x": XS.T, "n": NS}
    shared = {"b": jnp.float32(0.5)}
    in_axes = ({"x": 1, "n": 0}, None)
    out_axes = {"y": 1, "same": 0, "one": -1}
    expected = jax.vmap(program, in_axes, out_axes)(args, shared)
    require_close(
        lanes_of(program, in_axes=in_axes, out_axes=out_axes)(args, shared),
        expected,
    )


def test_keys():
    def walk(key, n):
        def step(carry):
            key, x, i = carry
            key, own = jax.random.split(key)
            return key, x + jax.random.normal(own), i + 1

        return lax.while_loop(
            lambda carry: carry[2] < n,
            step,
            (key, 0.0, 0),
        )[:2]

    typed = jax.random.split(
        jax.random.key(0),
        len(NS),
    )
    found = lanes_of(walk)(typed, NS)
    expected = jax.vmap(walk)(typed, NS)
    require_same_bits(
        jax.random.key_data(found[0]),
        jax.random.key_data(expected[0]),
    )
    require_close(found[1], expected[1])
    old = jax.random.key_data(typed)
    require_close(
        lanes_of(walk)(old, NS),
        jax.vmap(walk)(old, NS),
    )


@pytest.mark.parametrize(
    "setting",
    [{"trips": 2}, {"max_trips": 9}],
)
def test_numbers_of_python_in_a_loop_give_way_to_other_dtypes(setting):
    def double(n):
        doubled = lambda carry: (carry[0] + 1, carry[1] * 2.0)
        return lax.while_loop(
            lambda carry: carry[0] < n,
            doubled,
            (0, 1.0),
        )

    n = jnp.asarray([1, 3, 2])
    found = amp.vmap(double, lanes=2, **setting)(n)
    if "max_trips" in setting:
        found, _ = found
    small = jnp.ones(3, jnp.bfloat16)
    for got, expected in zip(
        found,
        jax.vmap(double)(n),
        strict=True,
    ):
        assert jax.typeof(got) == jax.typeof(expected)
        assert (got * small).dtype == (expected * small).dtype == jnp.bfloat16


def test_float64():
    with jax.enable_x64(True):
        xs = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
        ns = jnp.arange(5)
        found = lanes_of(nested)(xs, ns)
        assert found[0][0].dtype == jnp.float64
        expected = jax.vmap(nested)(xs, ns)
        np.testing.assert_allclose(
            found[0][0],
            expected[0][0],
            rtol=1e-12,
        )


def test_elements_that_never_end_are_given_up():
    def endless(n):
        test = lambda carry: carry[0] != n
        return lax.while_loop(
            test,
            lambda carry: (carry[0] + 1, carry[1] * 0.5),
            (0, 1.0),
        )

    ns = jnp.asarray([3, -1, 0, 10, -5, 9])
    (reached, halves), ended = amp.vmap(endless, lanes=2, max_trips=10)(ns)
    assert ended.tolist() == [True, False, True, True, False, True]
    assert reached.tolist() == [3, 10, 0, 10, 10, 9]
    assert halves.tolist() == [0.5**n for n in (3, 10, 0, 10, 10, 9)]


def test_trips_are_counted_and_lanes_do_not_wait_for_the_longest():
    """In step all elements wait for nine trips; two lanes make some trips more than their elements need."""
    report = amp.vmap(turned, lanes=2, trips=1).explain(XS, NS)
    assert report.trips.tolist() == NS.tolist()
    assert report.rows_of_vmap == NS.max() * len(NS)
    assert NS.sum() <= report.rows_of_lanes < report.rows_of_vmap
    assert "turned: 11 elements, trips of loops 0 to 9, 3.5 on average" in repr(report)
    assert "jax.vmap" in report._repr_html_()
    with pytest.raises(DataError, match="explain: expected an element at least"):
        lanes_of(turned).explain(XS[:0], NS[:0])


@pytest.mark.parametrize(
    ("n_lanes", "n_trips"),
    [(1, 1), (3, 4), (4, 2), (20, 3)],
)
def test_where_each_element_was_is_told(n_lanes, n_trips):
    """A queue by hand agrees: in each turn a lane's element makes so many of its trips, and then the first free lane takes the next element."""
    report = amp.vmap(turned, lanes=n_lanes, trips=n_trips).explain(XS, NS)
    left = NS.tolist()
    waiting = list(range(len(left)))
    inside = {}
    for lane in range(min(n_lanes, len(left))):
        inside[lane] = (waiting.pop(0), 0)
    clock = 0
    spans = {}
    while inside:
        # a turn ends early once no lane is in its loop any more
        clock += min(
            n_trips,
            max(left[element] for element, _ in inside.values()),
        )
        for lane, (element, start) in sorted(inside.items()):
            left[element] = max(left[element] - n_trips, 0)
            if left[element] == 0:
                spans[element] = (lane, start, clock)
                del inside[lane]
                if waiting:
                    inside[lane] = (waiting.pop(0), clock)
    found = zip(
        report.lane.tolist(),
        report.start.tolist(),
        report.end.tolist(),
        strict=True,
    )
    assert list(found) == [spans[element] for element in range(len(NS))]
    assert report.rows_of_lanes == clock * n_lanes


def test_elements_in_one_lane_follow_each_other():
    report = amp.vmap(nested, lanes=3, trips=2).explain(XS, NS)
    assert (report.end - report.start >= report.trips).all()
    for lane in range(3):
        order = np.argsort(report.start[report.lane == lane])
        starts = report.start[report.lane == lane][order]
        ends = report.end[report.lane == lane][order]
        assert starts[0] == 0
        assert (starts[1:] == ends[:-1]).all()


def test_rows_that_an_element_did_not_reach_are_zero():
    batched = amp.vmap(nested, lanes=2, trips=1, max_trips=6)
    (_, (_, rows)), ended = batched(XS, NS)
    assert not ended.all()
    assert ended.any() == bool((np.asarray(rows) != 0).all(1).any())
    again, same = batched(
        XS[::-1],
        NS[::-1],
    )
    assert same[::-1].tolist() == ended.tolist()
    require_same_bits(again[1][1][::-1], rows)


def test_under_jit_vmap_and_shard_map():
    expected = jax.vmap(nested)(XS, NS)
    batched = lanes_of(nested)
    require_close(
        jax.jit(batched, donate_argnums=0)(XS + 0, NS),
        expected,
    )
    pairs = jax.vmap(batched)(
        jnp.stack([XS, XS]),
        jnp.stack([NS, NS]),
    )
    require_close(
        jax.tree.map(lambda a: a[1], pairs),
        expected,
    )
    mesh = jax.make_mesh(
        (2,),
        ("i",),
        axis_types=(AxisType.Auto,),
    )
    rows = PartitionSpec("i")
    shared = jax.shard_map(
        batched,
        mesh=mesh,
        in_specs=rows,
        out_specs=rows,
        check_vma=False,
    )
    first = jax.tree.map(lambda a: a[:10], expected)
    require_close(
        jax.jit(shared)(XS[:10], NS[:10]),
        first,
    )


def bounded(w, x, n):
    """A scan with choices, which JAX differentiates in both directions."""

    def step(x, i):
        x = lax.cond(
            i < n,
            lambda x: jnp.tanh(w @ x),
            lambda x: x,
            x,
        )
        return lax.cond(
            x[0] > 0,
            lambda x: x,
            lambda x: jnp.sort(w @ w @ w @ x),
            x,
        ), x[1]

    return lax.scan(step, x, jnp.arange(5))


def test_gradients_of_arguments_and_of_what_a_function_closes_over(monkeypatch):
    monkeypatch.setattr("ampjax.lanes.splitting.DEAR", 0)

    def loss(vmap, w, xs):
        ends, rows = vmap(lambda x, n: bounded(w, x, n))(xs, NS)
        return (ends**2).sum() + rows.sum()

    found = jax.value_and_grad(
        partial(loss, lanes_of),
        (0, 1),
    )(W, XS)
    require_close(
        found,
        jax.value_and_grad(
            partial(loss, jax.vmap),
            (0, 1),
        )(W, XS),
    )
    assert (
        lanes_of(bounded, in_axes=(None, 0, 0))
        ._trace_types(
            (False, True, True),
            jax.tree.structure((0, 0, 0)),
            [
                W,
                XS,
                NS,
            ],
        )
        .can_split
    )


def test_forward_derivatives_go_through_loops():
    changes = lambda vmap: jax.jvp(
        lambda xs: vmap(nested)(xs, NS)[0][0],
        (XS,),
        (XS * 2,),
    )
    require_close(changes(lanes_of), changes(jax.vmap))


def test_derivatives_of_what_may_be_given_up_are_refused():
    loss = lambda xs: amp.vmap(turned, max_trips=3)(xs, NS)[0].sum()
    assert np.isfinite(loss(XS))
    with pytest.raises(GraphError, match=r"vmap\(turned\), derivative: expected loops that come"):
        jax.grad(loss)(XS)


def test_what_tells_the_host_something_is_left_to_jax(capfd):
    def told(x, n):
        jax.debug.print("n is {}", n)
        return turned(x, n)

    require_close(
        lanes_of(told)(XS, NS),
        jax.vmap(turned)(XS, NS),
    )
    jax.effects_barrier()
    assert "n is 9" in capfd.readouterr().out


def test_a_check_on_the_host_sees_no_lane_that_stands_elsewhere():
    """Checks such as equinox's raise where a value is wrong, and lanes without an element hold zeros."""

    def check(k):
        if np.any(k <= 0):
            raise ValueError("a count that no element has")
        return k

    def checked(n):
        def trip(carry):
            i, left = carry
            seen = jax.pure_callback(
                check, jax.ShapeDtypeStruct((), np.int32), left, vmap_method="expand_dims"
            )
            return i + seen, left - 1

        return lax.while_loop(
            lambda carry: carry[1] > 0,
            trip,
            (jnp.int32(0), n),
        )[0]

    assert lanes_of(checked)(NS).tolist() == [n * (n + 1) // 2 for n in NS.tolist()]


def test_lanes_are_tried_on_a_part_where_a_call_is_long(monkeypatch):
    tried = []
    monkeypatch.setattr(forms, "LONG", 0.0)
    monkeypatch.setattr(
        forms,
        "_seconds",
        lambda compute, form, args: tried.append(form) or 1.0,
    )
    found = forms.fastest(
        lambda form, args: args,
        [NS],
        [True],
        len(NS),
        [LanePace(8, 4)],
    )
    assert found in ("map", "vmap")
    assert tried[2:] == [LanePace(2, 4)]  # as long as all elements take otherwise


@pytest.mark.parametrize("name", ["lanes", "trips", "max_trips"])
@pytest.mark.parametrize("number", [0, True, 1.5])
def test_numbers_are_checked(name, number):
    with pytest.raises(GraphError, match=f"{name}: expected a whole number from 1"):
        amp.vmap(turned, **{name: number})


def test_arguments_of_the_other_form_are_refused():
    with pytest.raises(GraphError, match="vmap, params: expected a spec beside it"):
        amp.vmap(turned, params={})  # pyright: ignore[reportCallIssue]
    with pytest.raises(GraphError, match="vmap, lanes, out_axes: expected no spec beside it"):
        other: Any = {"lanes": 2, "out_axes": 1}
        amp.vmap(lambda params, x: x, "float32[]", **other)


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="expected the same number of elements, got 11 in"):
        lanes_of(turned)(XS, NS[:3])
    with pytest.raises(DataError, match="expected an argument with an axis of elements"):
        lanes_of(turned, in_axes=None)(XS, NS)
    with pytest.raises(DataError, match="expected an axis 2"):
        lanes_of(turned, in_axes=(2, 0))(XS, NS)
    with pytest.raises(GraphError, match="in_axes: expected axes that fit"):
        lanes_of(turned, in_axes=(0, 0, 0))(XS, NS)
    with pytest.raises(GraphError, match="out_axes: expected an axis of"):
        lanes_of(turned, out_axes=None)(XS, NS)
