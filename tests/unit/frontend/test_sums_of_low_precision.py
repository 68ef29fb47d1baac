"""Sums in bfloat16 go on to grow: 256 + 1 is 256 there, so sums of many elements, and of gradients from many readers, are formed in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.frontend.loops.loop_forms import loops_as

LOW = jnp.bfloat16
N = 600
SPEC = {
    "xs": "bfloat16[v]",
    "zeros": "int32[v]",
    "edges": amp.Edges("v"),
    "tree": amp.Tree("int32[u]", "int32[u]", "int32[u]"),
}
P = {"w": np.ones((), LOW)}


def example(n):
    tree = amp.Tree(
        parent=[-1] + [0] * n,
        side=[0, *range(n)],
        value=[0] * (n + 1),
    )
    return {
        "xs": np.ones(n, LOW),
        "zeros": np.zeros(n, np.int32),
        "edges": amp.Edges(
            np.arange(n),
            np.zeros(n, int),
        ),
        "tree": tree,
    }


def scaled(p, e):
    return amp.map(lambda x: x * p["w"], e["xs"])


def received(p, e):
    return amp.sum(
        amp.propagate(
            [lambda h: h],
            e["edges"],
            scaled(p, e),
        )
    )


def of_children(p, e):
    branch = lambda _, children: amp.sum(children)
    return amp.fold_tree(
        lambda _: p["w"],
        branch,
        e["tree"],
    )[1]


SUMS = {
    "sum": lambda p, e: amp.sum(scaled(p, e)),
    "sum of data": lambda p, e: amp.sum(e["xs"]) * p["w"],
    "mean": lambda p, e: amp.mean(scaled(p, e)) * N,
    "logsumexp": lambda p, e: jnp.exp(
        amp.logsumexp(
            amp.map(
                lambda x: 0 * x,
                scaled(p, e),
            )
        )
    ),
    "messages": received,
    "children": of_children,
}
WHOLE = {
    "product": lambda p, e: e["xs"] @ (e["xs"] * p["w"]),
    "running sum": lambda p, e: jnp.cumsum(e["xs"] * p["w"])[-1],
}


@pytest.mark.parametrize("form", ["steps", "scan"])
@pytest.mark.parametrize("name", [*SUMS, *WHOLE])
def test_a_batch_sums_many_elements(name, form):
    with loops_as(form):
        batched = amp.vmap({**SUMS, **WHOLE}[name], SPEC)
        found = batched(P, [example(N), example(3)])
    np.testing.assert_allclose(np.float32(found[0]), N, 0.02)


@pytest.mark.parametrize("name", SUMS)
def test_the_function_as_it_is_and_messages_do(name):
    def loss(p, e):
        return SUMS[name](p, e).astype(jnp.float32)

    e = example(N)
    np.testing.assert_allclose(
        float(
            loss(
                P,
                {**e, "xs": jnp.asarray(e["xs"])},
            )
        ),
        N,
        0.02,
    )
    compiled = amp.compile(loss, P, SPEC)
    trainer = amp.Trainer(compiled.graph, optax.sgd(0.0))
    found = trainer.evaluate(
        compiled.data([e]),
        progress=False,
    )
    np.testing.assert_allclose(found["loss"], N, 0.02)


def by_closure(p, e):
    shared = p["w"] * e["xs"][0]
    return amp.sum(
        amp.map(
            lambda x: x * shared,
            e["xs"],
        )
    )


def by_number(p, e):
    xs = scaled(p, e)
    return amp.sum(
        amp.map(
            lambda i: amp.take(xs, i),
            e["zeros"],
        )
    )


def by_largest(p, e):
    shared = amp.max(scaled(p, e))
    return amp.sum(
        amp.map(
            lambda x: x * shared,
            e["xs"],
        )
    )


def by_parent(p, e):
    step = lambda state, _: state * 1
    return (
        amp.sum(
            amp.scan_tree(
                step,
                p["w"],
                e["tree"],
            )
        )
        * N
        / (N + 1)
    )


@pytest.mark.parametrize("form", ["steps", "scan"])
@pytest.mark.parametrize("function", [by_closure, by_number, by_largest, by_parent])
def test_gradients_of_what_many_read_are_summed(function, form):
    with loops_as(form):
        batched = amp.vmap(function, SPEC, params=P)
        batch = batched.pack([example(N), example(3)])
        found = jax.grad(lambda p: batched(p, batch)[0].astype(jnp.float32))(P)
    assert found["w"].dtype == LOW
    np.testing.assert_allclose(np.float32(found["w"]), N, 0.02)
