"""Loops that begin with constants: the first round is a node of its own where it needs no parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.model_laws import Compiled64

import ampjax as amp

TURN = np.array([[0.6, -0.8], [0.8, 0.6]])
PARAMS = {
    "in": {"w": TURN},
    "turn": {
        "w": TURN.T,
        "b": np.array([0.3, -0.2]),
    },
}
SPEC = {"x": "float64[t,2]"}


def instances(*lengths):
    rng = np.random.default_rng(0)
    result = []
    for n in lengths:
        result.append({"x": rng.normal(size=(n, 2))})
    return result


def compiled(
    cell,
    *,
    reverse=False,
    start=0.0,
    also=lambda h: h,
):
    """A recurrent network whose states are all used, and the last one once more."""

    def model(p, s):
        inputs = amp.map(
            lambda x: x @ p["in"]["w"],
            s["x"],
        )

        def step(h, x):
            h = cell(p, h, x)
            return h, also(h)

        h, hs = amp.scan(
            step,
            jnp.full(2, start),
            inputs,
            reverse=reverse,
        )
        return jnp.sum(h**2) + amp.sum(
            amp.map(
                lambda h: jnp.sum(jnp.sin(h)),
                hs,
            )
        )

    return Compiled64(model, PARAMS, SPEC, instances(0, 1, 4, 2))


def plain_cell(p, h, x):
    return jnp.tanh(h @ p["turn"]["w"] + x)


def gated_cell(p, h, x):
    forget = jax.nn.sigmoid(x + 1)
    return forget * h + (1 - forget) * jnp.tanh(x + (forget * h) @ p["turn"]["w"])


def named_cell(p, h, x):
    return amp.node(
        "turn",
        min_update_interval=3,
    )(lambda h, x: plain_cell(p, h, x))(
        h,
        x,
    )


def begins_apart(model):
    return any(name.startswith("t/begins") for name in model.graph.nodes)


@pytest.mark.parametrize("cell", [plain_cell, gated_cell, named_cell])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_cell_that_begins_with_zeros_multiplies_none_of_them(cell, reverse):
    with jax.enable_x64(True):
        model = compiled(cell, reverse=reverse)
        assert begins_apart(model)
        assert sum(name.endswith("turn") for name in model.graph.nodes) == 1
        model.check_direction()


def test_a_state_that_is_also_an_output_travels_once():
    with jax.enable_x64(True):
        same = compiled(plain_cell)
        other = compiled(plain_cell, also=lambda h: h * 2)
        assert len(same.graph.nodes["turn"].outputs) == 1
        assert sum(name.startswith("t") for name in same.graph.nodes) < sum(
            name.startswith("t") for name in other.graph.nodes
        )
        other.check_direction()


@pytest.mark.parametrize(
    ("cell", "start"),
    [
        (
            lambda p, h, x: jnp.tanh(h @ p["turn"]["w"] + p["turn"]["b"] + x),
            0.0,
        ),  # its bias is needed
        (plain_cell, 0.5),  # so is the matrix, for other constants
        (lambda p, h, x: jnp.tanh(x + h), 0.0),  # no round needs parameters
    ],
)
def test_other_loops_begin_as_they_go_on(cell, start):
    with jax.enable_x64(True):
        model = compiled(cell, start=start)
        assert not begins_apart(model)
        model.check_direction()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_carry_of_several_dtypes_and_sequences_within_sequences():
    def model(p, s):
        def word(chars):
            gates = amp.map(
                lambda c: p["in"]["w"][c % 2],
                chars,
            )

            def step(carry, gate):
                (h, n), c = carry
                h = plain_cell(p, h, gate) + 0.1 * c
                return ((h, n + 1), c * 0.5), (n, h[0])

            ((h, n), c), (numbers, firsts) = amp.scan(
                step,
                (
                    (jnp.zeros(2), jnp.int32(0)),
                    jnp.zeros(2),
                ),
                gates,
            )
            told = amp.sum(
                amp.map(
                    lambda n, f: (n + 1) * f,
                    numbers,
                    firsts,
                )
            )
            return jnp.sum(h) * n + jnp.sum(c) + told

        return amp.sum(amp.map(word, s["chars"]))

    data = []
    for rows in (
        [
            [1, 2, 3],
            [],
            [4],
        ],
        [[]],
        [[5, 6]],
    ):
        data.append({"chars": amp.Ragged.of(rows)})
    with jax.enable_x64(True):
        law = Compiled64(model, PARAMS, {"chars": "int32[w,c]"}, data)
        assert any(name.startswith("c/begins") for name in law.graph.nodes)
        law.check_direction()
        law.check_gradients()


def inner_sequences(p, s):
    """A computed sequence for each element, which the body passes on."""
    rows = amp.map(
        lambda cs: amp.map(
            lambda c: p["in"]["w"][c % 2],
            cs,
        ),
        s["chars"],
    )
    return rows, lambda rows: rows


def sequence_from_outside(p, s):
    """One that the body closes over."""
    rows = amp.map(
        lambda x: x @ p["in"]["w"],
        s["x"],
    )
    return s["x"], lambda _: rows


def nodes_of_a_graph(p, s):
    """The nodes of a graph, which travel in one message."""
    nodes = amp.map(
        lambda x: x @ p["in"]["w"],
        s["v"],
    )
    return s["x"], lambda _: nodes


@pytest.mark.parametrize("source", [inner_sequences, sequence_from_outside, nodes_of_a_graph])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_may_give_a_computed_sequence_for_each_element(source, reverse):
    def model(p, s):
        xs, given = source(p, s)
        gates = amp.map(
            lambda x: x @ p["in"]["w"],
            s["x"],
        )

        def step(h, row):
            gate, x = row
            return plain_cell(p, h, gate), (given(x), h)

        h, (rows, hs) = amp.scan(
            step,
            jnp.zeros(2),
            (gates, xs),
            reverse=reverse,
        )
        told = amp.map(
            lambda row, h: amp.sum(
                amp.map(
                    lambda r: jnp.sum(jnp.sin(r * (h + 1))),
                    row,
                )
            ),
            rows,
            hs,
        )
        return jnp.sum(h**2) + amp.sum(told)

    rng = np.random.default_rng(0)
    none = np.zeros(0, np.int32)
    data = []
    for rows in (
        [
            [1, 2, 3],
            [],
            [4],
        ],
        [],
        [[5, 6]],
    ):
        data.append(
            {
                "x": rng.normal(size=(len(rows), 2)),
                "chars": amp.Ragged.of(rows),
                "v": rng.normal(size=(2, 2)),
                "edges": amp.Edges(none, none, none),
            }
        )
    spec = {
        "x": "float64[w,2]",
        "chars": "int32[w,c]",
        "v": "float64[v,2]",
        "edges": amp.Edges("v", kinds=1),
    }
    with jax.enable_x64(True):
        law = Compiled64(model, PARAMS, spec, data)
        assert any(name.startswith("w/begins") for name in law.graph.nodes)
        law.check_direction()


def test_a_number_that_was_read_decides_also_after_the_loop():
    def model(p, s):
        k = amp.read((s["y"] @ p["turn"]["b"] > 0).astype(jnp.int32))
        inputs = amp.map(
            lambda x: x @ p["in"]["w"],
            s["x"],
        )

        def step(carry, x):
            h, _ = carry
            return (plain_cell(p, h, x), k), (
                k,
                h,
            )  # `k` goes on in the carry, too: it travels once

        (h, _), (ks, hs) = amp.scan(
            step,
            (jnp.zeros(2), jnp.int32(0)),
            inputs,
        )
        told = amp.map(
            lambda k, h: amp.switch(
                k,
                [
                    lambda: jnp.sum(h),
                    lambda: jnp.sum(h**2),
                ],
            ),
            ks,
            hs,
        )
        return jnp.sum(h) + amp.sum(told)

    def alone(p, s):
        k = amp.read((s["y"] @ p["turn"]["b"] > 0).astype(jnp.int32))
        h, ks = amp.scan(
            lambda h, x: (plain_cell(p, h, x), k),
            jnp.zeros(2),
            s["x"],
        )
        return jnp.sum(h) + amp.sum(
            amp.map(
                lambda k, x: amp.cond(
                    k > 0,
                    lambda: x[0],
                    lambda: x[1] * 2,
                ),
                ks,
                s["x"],
            )
        )

    data = []
    for instance, sign in zip(
        instances(
            0,
            1,
            3,
        ),
        (1, -2, 4),
        strict=True,
    ):
        data.append(
            {
                **instance,
                "y": np.array([1.0, sign]),
            }
        )
    with jax.enable_x64(True):
        for each in (model, alone):
            law = Compiled64(each, PARAMS, {**SPEC, "y": "float64[2]"}, data)
            assert begins_apart(law)
            law.check_direction()


def test_draws_in_the_first_round():
    def model(p, s):
        def step(h, x):
            noise = amp.stochastic(
                lambda key, x: jax.random.normal(key, x.shape),
                lambda x: x,
                x,
            )
            return plain_cell(p, h, noise), noise

        h, noises = amp.scan(
            step,
            jnp.zeros(2),
            amp.map(
                lambda x: x @ p["in"]["w"],
                s["x"],
            ),
        )
        return jnp.sum(h) + amp.sum(
            amp.map(
                lambda x: jnp.sum(jnp.sin(x)),
                noises,
            )
        )

    with jax.enable_x64(True):
        law = Compiled64(model, PARAMS, SPEC, instances(0, 1, 3))
        assert begins_apart(law)
        law.check_direction()
