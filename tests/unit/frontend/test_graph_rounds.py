"""Rounds of messages over graphs in a batch, as many as each example says: values, gradients, and one table of edges for all rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.effort import left_to_nightly
from support.jaxpr_walks import loops_in

import ampjax as amp

SPEC = {
    "edges": amp.Edges("v"),
    "x": "float32[v,3]",
    "rounds": "int32[]",
}
RNG = np.random.default_rng(0)
PARAMS = {name: RNG.normal(size=(3, 3)).astype(np.float32) / 2 for name in ("send", "own")}


def graph(n_nodes, n_edges, rounds):
    ends = RNG.integers(
        0,
        max(n_nodes, 1),
        (2, n_edges),
    ).astype(np.int32)
    return {
        "edges": amp.Edges(*ends),
        "x": RNG.normal(size=(n_nodes, 3)).astype(np.float32),
        "rounds": np.int32(rounds),
    }


EXAMPLES = [
    graph(4, 9, 3),
    graph(1, 2, 0),
    graph(0, 0, 2),
    graph(5, 0, 1),
    graph(3, 4, 5),
]
FEW_EDGES = [
    graph(
        6,
        2,
        2,
    ),
    graph(4, 0, 3),
    graph(5, 1, 1),
]


def turn(p, s, h):
    arrived = amp.propagate(
        lambda own: jnp.tanh(own @ p["send"]),
        s["edges"],
        h,
    )
    return amp.map(
        lambda own, came: jnp.tanh(own @ p["own"] + came),
        h,
        arrived,
    )


def states(p, s):
    return amp.fori_loop(
        s["rounds"],
        lambda i, h: turn(p, s, h),
        s["x"],
    )


def with_a_sum(p, s):
    def body(i, carry):
        h, total = carry
        h = turn(p, s, h)
        return h, total + jnp.sum(amp.sum(h))

    h, total = amp.fori_loop(
        s["rounds"],
        body,
        (s["x"], jnp.float32(1)),
    )
    return total + jnp.sum(amp.sum(h) ** 2)


def with_the_round(p, s):
    def body(i, h):
        return amp.map(
            lambda own: own * (1 + i),
            turn(p, s, h),
        )

    return jnp.sum(
        amp.sum(
            amp.fori_loop(
                s["rounds"],
                body,
                s["x"],
            )
        )
    )


def plain_loss(p, s):
    return jnp.sum(amp.sum(states(p, s)) ** 2)


@pytest.mark.parametrize(
    "examples",
    [EXAMPLES, FEW_EDGES],
    ids=["more edges", "more nodes"],
)
@pytest.mark.parametrize("model", [with_a_sum, with_the_round, *left_to_nightly([plain_loss])])
def test_values_and_gradients_are_those_of_the_function(model, examples):
    batched = amp.vmap(model, SPEC, params=PARAMS)
    batch = batched.pack(
        examples,
        size=len(examples) + 2,
    )

    def of_batch(p):
        found = batched(p, batch)
        return jnp.sum(found * batch.weights), found[: len(examples)]

    def of_each(p):
        found = jnp.stack([model(p, one) for one in examples])
        return jnp.sum(found), found

    grads, found = jax.jit(jax.grad(of_batch, has_aux=True))(PARAMS)
    wanted, want = jax.jit(jax.grad(of_each, has_aux=True))(PARAMS)
    np.testing.assert_allclose(
        found,
        want,
        rtol=1e-5,
        atol=1e-5,
    )

    for name, leaf in wanted.items():
        np.testing.assert_allclose(
            grads[name],
            leaf,
            rtol=1e-4,
            atol=1e-5,
        )


def test_sequences_come_back_as_they_are_after_each_ones_rounds():
    rows = amp.vmap(states, SPEC)(PARAMS, EXAMPLES)
    for own, one in zip(
        rows.tolist(),
        EXAMPLES,
        strict=True,
    ):
        np.testing.assert_allclose(
            own,
            np.reshape(states(PARAMS, one), (-1, 3)),
            rtol=1e-5,
            atol=1e-6,
        )


def test_edges_have_one_table_for_all_rounds():
    batched = amp.vmap(
        plain_loss,
        SPEC,
        params=PARAMS,
    )
    sizes = []
    for rounds in (2, 40):
        examples = []
        for one in EXAMPLES:
            examples.append({**one, "rounds": np.int32(rounds)})
        batch = batched.pack(examples)
        sizes.append(sum(array.size for array in batch.arrays))
    assert sizes[1] < sizes[0] + 60


def test_what_is_sent_is_computed_for_the_fewer_of_nodes_and_edges():
    batched = amp.vmap(
        plain_loss,
        SPEC,
        params=PARAMS,
    )
    for n_nodes, n_edges in ((50, 200), (200, 50)):
        batch = batched.pack(
            [
                graph(
                    n_nodes,
                    n_edges,
                    1,
                )
            ]
        )
        text = (
            jax.jit(batched)
            .lower(
                PARAMS,
                batch,
            )
            .compile()
            .as_text()
        )
        widths = {
            int(line.split("f32[")[1].split(",")[0])
            for line in text.splitlines()
            if " tanh(" in line and "f32[" in line
        }
        assert max(widths) < 2 * n_nodes
        assert min(widths) < 2 * min(n_nodes, n_edges)


def test_a_round_keeps_no_weights_and_a_truth_value_a_row():
    batched = amp.vmap(plain_loss, SPEC, params=PARAMS)
    batch = batched.pack(EXAMPLES)
    program = jax.make_jaxpr(jax.grad(lambda p: batched(p, batch).sum()))(PARAMS)
    kept = []
    for loop in loops_in(program.jaxpr):
        kept += [variable.aval for variable in loop.outvars if len(variable.aval.shape) > 1]
    n_rounds = 5
    assert any(kind.shape[0] == n_rounds for kind in kept)
    for kind in kept:
        assert kind.shape != (n_rounds, *PARAMS["own"].shape)
        assert kind.dtype != bool or len(kind.shape) == 2


def test_rounds_without_messages_give_no_derivative():
    """Messages of a graph without further rounds, computed where no other graph has edges: of numbers without a logarithm."""

    def spread(p, s):
        def turn(_, h):
            send = lambda h: jnp.log(h) * p["w"]
            got = amp.propagate([send], s["edges"], h)
            return amp.map(
                lambda h, m: h + jnp.tanh(m * p["v"]),
                h,
                got,
            )

        return amp.sum(
            amp.fori_loop(
                s["rounds"],
                turn,
                s["x"],
            )
        )

    def graph(rounds, x, senders, receivers):
        return {
            "x": np.array(x, np.float32),
            "rounds": np.int32(rounds),
            "edges": amp.Edges(
                np.array(senders, np.int32),
                np.array(receivers, np.int32),
            ),
        }

    spec = {"x": "float32[v]", "rounds": "int32[]", "edges": amp.Edges("v")}
    params = {
        "w": np.float32(0.5),
        "v": np.float32(-0.3),
    }
    ended = graph(
        0,
        [0.0, -1.0],
        [0, 1],
        [1, 0],
    )
    alone = graph(2, [1.0, 2.0, 3.0], [], [])
    sending = graph(
        3,
        [2.0, 3.0],
        [0, 1],
        [1, 0],
    )
    batched = amp.vmap(spread, spec, params=params)
    largest = batched.pack(
        [
            sending,
            graph(
                9,
                [4.0, 5.0],
                [0, 1],
                [1, 0],
            ),
        ]
    )
    for examples in ([ended, alone], [alone, ended], [ended, sending], [ended]):
        want = jax.value_and_grad(lambda p, each=examples: sum(spread(p, s) for s in each))(params)
        for batch in (batched.pack(examples), batched.pack(examples, like=largest)):
            n = len(examples)
            total = lambda p, batch=batch, n=n: batched(p, batch)[:n].sum()
            found = jax.value_and_grad(total)(params)
            for one, other in zip(
                jax.tree.leaves(found),
                jax.tree.leaves(want),
                strict=True,
            ):
                np.testing.assert_allclose(one, other, 1e-5, 1e-6)
