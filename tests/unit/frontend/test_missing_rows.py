"""Batches without any element of a sequence, in shapes of other batches: numbers computed of zeros must not show there, not in gradients either.

Each function here has no finite derivative at zero.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.effort import left_to_nightly

import ampjax as amp
from ampjax.frontend.loops.loop_forms import loops_as

WIDTH = 3
PARAMS = {
    "w": 0.7 * np.eye(WIDTH),
    "u": np.ones(WIDTH),
    "table": np.ones((4, WIDTH)),
}
SPEC = {
    "a": f"float64[n,{WIDTH}]",
    "b": f"float64[m,{WIDTH}]",
    "ids": "int32[k]",
    "edges": amp.Edges("n", kinds=1),
}
SIZES = ((3, 4, 2), (3, 0, 0), (0, 3, 0), (0, 0, 0), (2, 1, 4))


def example(seed, n, m, k):
    rng = np.random.default_rng(seed)
    n_edges = n * min(m, 1)
    return {
        "a": rng.uniform(0.5, 1.5, (n, WIDTH)),
        "b": rng.uniform(0.5, 1.5, (m, WIDTH)),
        "ids": rng.integers(
            1,
            max(n, 1) + 1,
            k,
        ).astype(np.int32),
        "edges": amp.Edges(
            rng.integers(0, max(n, 1), n_edges).astype(np.int32),
            rng.integers(0, max(n, 1), n_edges).astype(np.int32),
        ),
    }


EXAMPLES = [example(seed, *sizes) for seed, sizes in enumerate(SIZES)]


def of_elements(p, s):
    return amp.sum(
        amp.map(
            lambda x: jnp.log(x @ p["w"] @ p["u"]),
            s["a"],
        )
    )


def of_a_table(p, s):
    return amp.sum(
        amp.map(
            lambda i: jnp.log(p["table"][i] @ p["u"] * i),
            s["ids"],
        )
    )


def of_taken(p, s):
    return amp.sum(
        amp.map(
            lambda i: jnp.log(amp.take(s["a"], i - 1) @ p["u"]),
            s["ids"],
        )
    )


def of_values_around(p, s):
    total = amp.sum(s["a"]) + 1.0
    scale = jnp.log(p["u"].sum())
    return amp.sum(
        amp.map(
            lambda x: jnp.log((x * scale) @ (total @ p["w"])),
            s["b"],
        )
    )


def of_pairs(p, s):
    def row(x):
        def pair(y):
            return jnp.log((y @ p["w"]) @ x) + jnp.sqrt(x @ p["u"] * jnp.sum(y))

        return amp.sum(amp.map(pair, s["b"]))

    return amp.sum(amp.map(row, s["a"]))


def of_attention(p, s):
    def row(x):
        scores = amp.map(
            lambda y: jnp.log((x @ p["w"]) @ y),
            s["b"],
        )
        read = amp.sum(
            amp.map(
                lambda w, y: w * jnp.sqrt(y * p["u"]),
                amp.softmax(scores),
                s["b"],
            )
        )
        return jnp.sum(read) * jnp.log(x @ p["u"])

    return amp.sum(amp.map(row, s["a"]))


def of_steps(p, s):
    def step(h, x):
        h = h * jnp.sqrt(x @ p["w"] @ p["u"])
        return h, jnp.log(x @ p["u"] * h)

    h, logs = amp.scan(
        step,
        jnp.ones(WIDTH),
        s["a"],
    )
    return h.sum() + amp.sum(logs).sum()


def of_pairs_in_a_loop(p, s):
    def step(h, x):
        def pair(y):
            return jnp.log((y @ p["w"]) @ h) * jnp.sqrt(jnp.sum(y))

        return h + 0.01 * amp.sum(amp.map(pair, s["b"])) ** 2 + x, None

    return amp.scan(
        step,
        p["u"],
        s["a"],
    )[0].sum()


def of_a_loop_in_a_loop(p, s):
    def step(h, x):
        def inner(g, y):
            return jnp.sqrt(y * p["u"]) * g, None

        return h + 0.1 * amp.scan(inner, h, s["b"])[0] + x, None

    return amp.scan(
        step,
        p["u"],
        s["a"],
    )[0].sum()


def of_a_graph(p, s):
    total = amp.propagate(
        lambda x: jnp.sqrt(x * p["u"]),
        s["edges"],
        s["a"],
    )
    return amp.sum(
        amp.map(
            lambda h, x: h @ jnp.log(x @ p["w"]),
            total,
            s["a"],
        )
    )


MODELS = [
    of_elements,
    of_a_table,
    of_taken,
    of_values_around,
    of_pairs,
    of_attention,
    of_steps,
    of_pairs_in_a_loop,
    of_a_loop_in_a_loop,
    of_a_graph,
]
SEVERAL = [of_elements, of_taken, of_pairs_in_a_loop, of_a_graph]


@pytest.mark.parametrize(
    "form",
    ["steps", *left_to_nightly(["scan"])],
)
@pytest.mark.parametrize(
    "model",
    [*SEVERAL, *left_to_nightly(MODELS, *SEVERAL)],
)
def test_values_and_gradients_are_those_of_each_example(model, form):
    """Batches of one example each, all of the shape that fits every example."""
    with jax.enable_x64(True), loops_as(form):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        parts = batched.pack(EXAMPLES, parts=len(EXAMPLES))
        run = jax.jit(
            lambda batch: jax.value_and_grad(lambda p: jnp.sum(batched(p, batch)))(PARAMS)
        )
        for number, each in enumerate(EXAMPLES):
            value, grads = run(
                jax.tree.map(
                    lambda x, i=number: x[i],
                    parts,
                )
            )
            want, want_grads = jax.value_and_grad(model)(PARAMS, each)
            np.testing.assert_allclose(value, want, rtol=1e-9)
            for name, found in grads.items():
                np.testing.assert_allclose(found, want_grads[name], rtol=1e-9, atol=1e-12)
