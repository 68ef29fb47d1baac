"""Streams of elements: against each element alone, against a call in the same lanes, and how much of a stream is in memory."""

from collections import namedtuple
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ampjax as amp
from ampjax.errors import DataError, GraphError

N = 57
W = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)
XS = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
NS = np.random.default_rng(0).geometric(0.2, size=N).astype(np.int32)
NS[5] = 200
lanes_of = partial(amp.vmap, lanes=4, trips=2)


def turned(x, n):
    """A loop in a scan: numbers, rows, a count, and a result that is the same for all."""

    def draw(x, k):
        y = lax.fori_loop(
            0,
            (n * k) % 7,
            lambda i, x: jnp.tanh(W @ x) + i,
            x,
        )
        return y, y[:2]

    x = lax.fori_loop(
        0,
        n,
        lambda i, x: jnp.tanh(W @ x) + i,
        x,
    )
    end, rows = lax.scan(draw, x, jnp.arange(3))
    return {
        "end": end,
        "rows": rows,
        "n": n,
        "same": jnp.float32(3),
    }


def counted(n):
    """A count up to a number, which some numbers never reach."""
    return lax.while_loop(
        lambda i: i != n,
        lambda i: i + 1,
        jnp.int32(0),
    )


def pairs(n=N):
    return zip(XS[:n], NS[:n], strict=True)


def require_row(found, expected, number):
    """Checks a result against a row of a call, to the bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(
        jax.tree.leaves(found),
        jax.tree.leaves(expected),
        strict=True,
    ):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b[number])


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("block", "n"),
    [
        (8, N),
        (1, N),
        (19, N),
        (100, N),
        (8, 16),
        (8, 1),
    ],
)
def test_the_bits_of_a_call_in_the_order_of_the_stream(block, n):
    batched = lanes_of(turned)
    expected = batched(XS, NS)
    found = list(batched.stream(pairs(n), block=block))
    assert len(found) == n
    for number, result in enumerate(found):
        require_row(result, expected, number)


def test_each_element_is_what_the_function_gives_alone():
    alone = jax.jit(turned)
    for (x, n), found in zip(
        pairs(),
        lanes_of(turned).stream(
            pairs(),
            block=8,
        ),
        strict=True,
    ):
        expected = alone(x, n)
        for a, b in zip(
            jax.tree.leaves(found),
            jax.tree.leaves(expected),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_in_any_order_each_element_comes_once_with_its_number():
    expected = lanes_of(turned)(XS, NS)
    found = list(lanes_of(turned).stream(pairs(), ordered=False, block=8))
    numbers = [number for number, _ in found]
    assert sorted(numbers) == list(range(N))
    # the long one comes after elements of later blocks: nobody waited for it
    assert numbers.index(5) > numbers.index(24)
    for number, result in found:
        require_row(result, expected, number)


@pytest.mark.parametrize("ordered", [True, False])
def test_elements_that_never_end_are_given_up(ordered):
    ns = [3, -1, 0, 10, -5, 9]
    stream = amp.vmap(counted, lanes=2, trips=1, max_trips=10).stream(
        ns,
        block=2,
        ordered=ordered,
    )
    found = dict(enumerate(stream) if ordered else stream)
    assert found == {
        0: (3, True),
        1: (10, False),
        2: (0, True),
        3: (10, True),
        4: (10, False),
        5: (9, True),
    }


def test_one_program_for_all_blocks_and_streams():
    traces = []

    def traced(n):
        traces.append(1)
        return counted(n)

    batched = lanes_of(traced)
    assert list(batched.stream(range(3), block=8)) == [0, 1, 2]
    n_traces = len(traces)
    assert list(batched.stream(range(61), block=8)) == list(range(61))
    assert len(traces) == n_traces + 1  # for the types of the results


class Source:
    """A stream that counts the elements taken."""

    def __init__(self, n, long=()):
        self.n_taken = 0
        self._n = n
        self._long = long

    def __iter__(self):
        for i in range(self._n):
            self.n_taken += 1
            yield np.int32(3_000 if i in self._long else i % 7)


@pytest.mark.first_case
@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "ordered", "long"),
    [
        (100_000, False, (0,)),
        (10_000, True, ()),
        (100_000, True, (0, 40_000)),
    ],
)
def test_a_long_stream_is_never_in_memory(n, ordered, long):
    """Only blocks are taken ahead; in order also elements behind one that takes long."""
    block = 500
    most_waiting = 2_000
    source = Source(n, long)
    batched = amp.vmap(counted, lanes=8, trips=4)
    stream = batched.stream(source, block=block, ordered=ordered, most_waiting=most_waiting)
    ahead = []
    total = 0
    for given, result in enumerate(stream):
        ahead.append(source.n_taken - given)
        total += int(result if ordered else result[1])
    assert len(ahead) == n
    assert total == sum(i % 7 for i in range(n)) + sum(3_000 - i % 7 for i in long)
    bound = 3 * block + 8
    if ordered and long:
        assert max(ahead) > bound
        bound += most_waiting
    assert max(ahead) <= bound


def test_nothing_is_read_before_it_is_asked_for_and_no_element_is_no_result():
    source = Source(100)
    stream = lanes_of(counted).stream(source, block=8)
    assert source.n_taken == 0
    assert next(stream) == 0
    assert source.n_taken <= 16
    assert list(lanes_of(counted).stream(iter(()))) == []


@pytest.mark.first_case
@pytest.mark.parametrize("form", ["map", "vmap"])
def test_blocks_are_calls_where_that_is_faster(monkeypatch, form):
    monkeypatch.setattr("ampjax.lanes.lane_function.fastest", lambda *_: form)
    expected = jax.vmap(turned)(XS, NS)
    sizes = []
    for block in (8, 19, 100):
        found = list(amp.vmap(turned).stream(pairs(), block=block))
        sizes.append(len(found))
        for number, result in enumerate(found):
            for a, b in zip(
                jax.tree.leaves(result),
                jax.tree.leaves(expected),
                strict=True,
            ):
                np.testing.assert_allclose(a, b[number], rtol=2e-5, atol=2e-5)
    assert sizes == [N, N, N]
    numbers = [number for number, _ in amp.vmap(turned).stream(pairs(), block=8, ordered=False)]
    assert numbers == list(range(N))


def test_the_first_block_is_measured():
    assert list(amp.vmap(counted).stream(range(20), block=8)) == list(range(20))


def test_what_tells_the_host_something_tells_it_once_for_each_element(capfd):
    def told(n):
        jax.debug.print("n is {}", n)
        return counted(n)

    assert list(lanes_of(told).stream(range(11), block=4)) == list(range(11))
    jax.effects_barrier()
    lines = []
    for line in capfd.readouterr().out.splitlines():
        if line.startswith("n is"):
            lines.append(line)
    assert sorted(lines) == sorted(f"n is {n}" for n in range(11))


def test_arguments_that_elements_share():
    def scaled(args, w):
        return lax.fori_loop(
            0,
            args["n"],
            lambda _, x: w @ x * args["scale"],
            args["x"],
        )

    w = jnp.asarray(W)
    in_axes = ({"x": 1, "n": 0, "scale": None}, None)
    batched = lanes_of(scaled, in_axes=in_axes)
    elements = []
    for x, n in pairs(11):
        elements.append(
            (
                {"x": x, "n": n, "scale": 0.5},
                w,
            )
        )
    expected = batched(
        {
            "x": XS[:11].T,
            "n": NS[:11],
            "scale": 0.5,
        },
        w,
    )
    for number, found in enumerate(batched.stream(elements, block=4)):
        require_row(found, expected, number)
    other = [
        elements[0],
        (
            {
                "x": XS[1],
                "n": NS[1],
                "scale": 0.5,
            },
            jnp.asarray(W),
        ),
    ]
    with pytest.raises(
        DataError, match=r"stream, element 1, argument \[1\]: expected the same object"
    ):
        list(batched.stream(other))


def test_keys_trees_and_numbers():
    Start = namedtuple("Start", "key n")

    def walk(start):
        step = lambda i, carry: (
            jax.random.fold_in(carry[0], i),
            carry[1] + jax.random.normal(carry[0]),
        )
        return lax.fori_loop(
            0,
            start.n,
            step,
            (start.key, 0.0),
        )

    keys = jax.random.split(jax.random.key(0), 6)
    batched = lanes_of(walk)
    starts = [Start(key, n) for n, key in enumerate(keys)]
    expected = batched(Start(keys, jnp.arange(6)))
    for number, found in enumerate(batched.stream(starts, block=4)):
        assert (jax.random.key_data(found[0]) == jax.random.key_data(expected[0][number])).all()
        assert found[1] == expected[1][number]


def test_float64():
    with jax.enable_x64(True):
        xs = XS.astype(np.float64)
        ns = NS.astype(np.int64)
        expected = lanes_of(turned)(xs, ns)
        found = list(
            lanes_of(turned).stream(
                zip(xs, ns, strict=True),
                block=8,
            )
        )
        assert found[0]["end"].dtype == np.float64
        for number, result in enumerate(found):
            require_row(result, expected, number)


def test_results_do_not_hold_their_blocks():
    found = next(iter(lanes_of(turned).stream(pairs(), block=8)))
    assert found["rows"].base is None


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (
            (XS[1, :2], NS[1]),
            r"element 1, argument \[0\]: expected \(3,\) float32, as in element 0, got \(2,\) float32",
        ),
        (
            (XS[1], np.float32(1)),
            r"element 1, argument \[1\]: expected \(\) int32, as in element 0, got \(\) float32",
        ),
        ((XS[1], "a"), r"element 1, argument \[1\]: expected numbers, got <U1"),
        (XS[1], r"element 1: expected PyTreeDef\(\(\*, \*\)\)"),
    ],
)
def test_elements_that_are_not_like_the_first_are_refused(second, told):
    with pytest.raises(DataError, match=rf"vmap\(turned\), stream, {told}"):
        list(
            lanes_of(turned).stream(
                [
                    (XS[0], NS[0]),
                    second,
                ]
            )
        )


def test_settings_are_checked_before_anything_is_read():
    for name in ("block", "most_waiting"):
        none: Any = {name: 0}
        with pytest.raises(
            GraphError, match=rf"vmap\(counted\), {name}: expected a whole number from 1, got 0"
        ):
            lanes_of(counted).stream([1], **none)
    with pytest.raises(DataError, match="stream: expected an argument that elements do not share"):
        list(lanes_of(counted, in_axes=None).stream([1]))
    with pytest.raises(GraphError, match="stream, in_axes: expected axes that fit"):
        list(lanes_of(counted, in_axes=(0, 0)).stream([1]))


def test_an_error_of_the_elements_comes_through():
    def failing():
        yield 1
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        list(lanes_of(counted).stream(failing()))
