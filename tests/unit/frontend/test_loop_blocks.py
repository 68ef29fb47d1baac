"""Pairs of a loop's elements and a sequence around the loop, as in attention that feeds a carry: blocks at each level, with the values of the function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.effort import left_to_nightly
from support.jaxpr_walks import equations_in, loops_in

import ampjax as amp
from ampjax.frontend.batch_rules import reduction_steps, sequence_steps
from ampjax.frontend.loops.loop_forms import loops_as
from ampjax.jaxprs.primitives import inner as bodies

RNG = np.random.default_rng(4)
WIDTH = 3
PARAMS = {
    "w": RNG.normal(size=(2 * WIDTH, WIDTH)) / 2,
    "u": RNG.normal(size=(WIDTH, WIDTH)) / 2,
    "v": RNG.normal(size=WIDTH),
}
SPEC = {
    "words": f"float64[n,{WIDTH}]",
    "at": "int32[n]",
    "memory": f"float64[m,{WIDTH}]",
    "places": "int32[m]",
    "texts": f"float64[s,t,{WIDTH}]",
    "turns": "int32[]",
    "sign": "float64[]",
}
START = np.linspace(0.1, 0.5, WIDTH)
SIZES = ((3, 4, 2), (0, 2, 1), (5, 1, 4), (1, 7, 0), (2, 0, 3), (4, 3, 2))


def example(n, m, turns):
    sizes = RNG.integers(0, 4, 2)
    texts = RNG.normal(size=(sizes.sum(), WIDTH))
    return {
        "words": RNG.normal(size=(n, WIDTH)),
        "at": np.arange(n, dtype=np.int32),
        "memory": RNG.normal(size=(m, WIDTH)),
        "places": np.arange(m, dtype=np.int32),
        "texts": amp.Ragged(amp.Ragged(texts, sizes), [2])[0],
        "turns": np.int32(turns),
        "sign": RNG.choice([-1.0, 1.0]),
    }


EXAMPLES = [example(*sizes) for sizes in SIZES]


def attend(h, memory):
    shares = amp.softmax(amp.map(lambda m: h @ m, memory))
    return amp.sum(
        amp.map(
            lambda share, m: share * m,
            shares,
            memory,
        )
    )


def cell(p, h, x):
    return jnp.tanh(jnp.concatenate([h, x]) @ p["w"])


def feeding(p, s):
    """Input feeding: a cell gets the attention of the state before."""
    memory = amp.map(
        lambda m: jnp.tanh(m @ p["u"]),
        s["memory"],
    )

    def step(h, x):
        h = cell(p, h, x + attend(h, memory))
        return h, h

    h, hs = amp.scan(step, START, s["words"])
    return jnp.sum(h @ p["u"]) + amp.sum(hs).sum()


def additive(p, s):
    """Additive attention with keys from before the loop, from the last word to the first."""
    keys = amp.map(
        lambda m: m @ p["u"],
        s["memory"],
    )

    def step(h, x):
        q = h @ p["u"]
        shares = amp.softmax(
            amp.map(
                lambda k: p["v"] @ jnp.tanh(q + k),
                keys,
            )
        )
        read = amp.sum(
            amp.map(
                lambda share, m: share * m,
                shares,
                s["memory"],
            )
        )
        return cell(p, h, x + read), read

    h, reads = amp.scan(step, START, s["words"], reverse=True)
    return jnp.sum(h**2) + amp.sum(reads).sum()


def heads(p, s):
    """Shares that are arrays: two heads in one."""

    def step(h, x):
        scores = amp.map(
            lambda m: h * (m @ p["u"]),
            s["memory"],
        )
        shares = amp.softmax(scores)
        read = amp.sum(
            amp.map(
                lambda share, m: share * m,
                shares,
                s["memory"],
            )
        )
        return cell(p, h, x + read), None

    return jnp.sum(amp.scan(step, START, s["words"])[0])


def guarded(p, s):
    """Logarithms of products that are above 0 for pairs of one example alone, in each of some turns."""
    memory = amp.map(
        lambda m: s["sign"] * jnp.exp(m),
        s["memory"],
    )

    def turn(i, h):
        bits = amp.sum(
            amp.map(
                lambda m: jnp.log(h * m) * p["v"],
                memory,
            )
        )
        return s["sign"] * jnp.exp(jnp.tanh(bits))

    h = amp.fori_loop(
        s["turns"],
        turn,
        s["sign"] * jnp.exp(p["v"]),
    )
    return jnp.sum(h)


def reductions(p, s):
    """Largest values, logarithms of sums, and sums of one side alone or of values of the whole example."""
    mean = amp.sum(s["memory"]) / 7

    def step(h, x):
        apart = amp.map(
            lambda m: jnp.sum((h - m @ p["u"]) ** 2),
            s["memory"],
        )
        alone = amp.sum(
            amp.map(
                lambda m: jnp.sin(m @ p["v"]),
                s["memory"],
            )
        )
        whole = amp.sum(
            amp.map(
                lambda m: mean * m,
                s["memory"],
            )
        )
        near = jnp.tanh(-amp.logsumexp(apart)) + jnp.tanh(-amp.max(apart))
        return cell(p, h, x * near + alone + whole), None

    return jnp.sum(amp.scan(step, START, s["words"])[0])


def masked(p, s):
    """Later elements are hidden by their numbers; the shares are a result."""

    def step(h, word):
        x, i = word
        scores = amp.map(
            lambda m, j: jnp.where(j <= i, h @ m, -1e9),
            s["memory"],
            s["places"],
        )
        shares = amp.softmax(scores)
        read = amp.sum(
            amp.map(
                lambda share, m: share * m,
                shares,
                s["memory"],
            )
        )
        return cell(p, h, x + read), shares

    h, shares = amp.scan(
        step,
        START,
        (s["words"], s["at"]),
    )
    entropies = amp.map(
        lambda each: amp.sum(amp.map(lambda z: z**2, each)),
        shares,
    )
    return jnp.sum(h) + amp.sum(entropies)


def in_a_map(p, s):
    """Loops through the texts of an example, which read the text and the example's memory."""

    def of_text(text):
        def step(h, x):
            return cell(
                p,
                h,
                x + attend(h, s["memory"]) - attend(h, text),
            ), None

        return amp.scan(step, START, text)[0]

    return amp.sum(amp.map(of_text, s["texts"])).sum()


def beyond(p, s):
    """Pairs of a block that a loop, a choice and a carried sequence read, which go row by row."""

    def step(carry, x):
        h, cover = carry
        scores = amp.map(
            lambda m: jnp.tanh(h @ m),
            s["memory"],
        )
        c, _ = amp.scan(
            lambda c, z: (jnp.sin(c + z), None),
            0.1,
            scores,
        )
        some = amp.map(
            lambda z: amp.cond(
                amp.read(z > 0),
                lambda: z**2,
                lambda: -z,
            ),
            scores,
        )
        cover = amp.map(
            lambda old, z, m: 0.5 * old + z * (m @ p["v"]),
            cover,
            some,
            s["memory"],
        )
        return (
            cell(
                p,
                h,
                x + attend(h, s["memory"]) * c + amp.sum(cover),
            ),
            cover,
        ), None

    start = amp.map(
        lambda m: m @ p["v"],
        s["memory"],
    )
    (h, cover), _ = amp.scan(
        step,
        (START, start),
        s["words"],
    )
    return jnp.sum(h) + amp.sum(cover)


def in_loops(p, s):
    """A loop in a loop, and one that a computed value chooses."""

    def outer(g, x):
        def inner(h, m):
            return cell(
                p,
                h,
                m + attend(h, s["words"]),
            ), None

        return amp.scan(inner, g + x, s["memory"])[0], None

    g, _ = amp.scan(outer, START, s["words"])
    return amp.cond(
        amp.read(jnp.sum(g) > 0),
        lambda: feeding(p, s),
        lambda: jnp.sum(g),
    )


MODELS = [
    feeding,
    additive,
    heads,
    guarded,
    reductions,
    masked,
    in_a_map,
    beyond,
    in_loops,
]
SEVERAL = [heads, guarded]


@pytest.mark.parametrize(
    "form",
    ["steps", *left_to_nightly(["scan"])],
)
@pytest.mark.parametrize(
    "model",
    [*SEVERAL, *left_to_nightly(MODELS, *SEVERAL)],
)
def test_values_and_gradients_are_those_of_each_example(model, form):
    """In two orders, filled up; in the second with more levels, rows and pairs than the batch needs."""
    with jax.enable_x64(True), loops_as(form):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        each = [jax.value_and_grad(model)(PARAMS, s) for s in EXAMPLES]
        run = jax.jit(
            lambda weights, batch: jax.value_and_grad(
                lambda p: jnp.sum(batched(p, batch) * weights)
            )(PARAMS)
        )
        for order in ([0, 1, 2, 3, 4, 5], [4, 2, 3, 5, 0, 1]):
            batch = batched.pack(
                [EXAMPLES[i] for i in order],
                size=8,
            )
            weights = np.array([1.0, 2, 3, 4, 5, 6, 0, 0])
            value, grads = run(weights, batch)
            parts = list(zip(weights, order, strict=False))
            np.testing.assert_allclose(
                value,
                sum(w * each[i][0] for w, i in parts),
                rtol=1e-9,
            )
            for name in PARAMS:
                np.testing.assert_allclose(
                    grads[name],
                    sum(w * each[i][1][name] for w, i in parts),
                    rtol=1e-9,
                    atol=1e-10,
                )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "model",
    [feeding, *left_to_nightly([masked, reductions])],
)
def test_batches_that_lack_pairs_or_turns_have_the_shapes_of_others(model):
    """Batches of one example each, with as many levels and pairs as the largest one."""
    with jax.enable_x64(True):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        parts = batched.pack(EXAMPLES, parts=len(EXAMPLES))
        run = jax.jit(
            lambda batch: jax.value_and_grad(lambda p: jnp.sum(batched(p, batch)))(PARAMS)
        )
        for number, each in enumerate(EXAMPLES):
            found = run(
                jax.tree.map(
                    lambda x, i=number: x[i],
                    parts,
                )
            )
            want = jax.value_and_grad(model)(PARAMS, each)
            for a, b in zip(
                jax.tree.leaves(found),
                jax.tree.leaves(want),
                strict=True,
            ):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


def test_what_a_loop_with_blocks_tells_is_told_once():
    """Six words are seven levels, of which the last one repeats the one before."""

    def telling(p, s):
        def step(h, x):
            h = cell(p, h, x + attend(h, s["memory"]))
            amp.metric("largest", jnp.max(h))
            return h, None

        return jnp.sum(amp.scan(step, START, s["words"])[0])

    examples = [
        example(6, 3, 1),
        example(2, 0, 1),
    ]
    with jax.enable_x64(True):
        batched = amp.vmap(telling, SPEC, params=PARAMS)
        batch = batched.pack(examples)
        found = batched.reports(PARAMS, batch)
        hs = [START, START]
        sums = [0.0, 0.0]
        for i, s in enumerate(examples):
            for x in s["words"]:
                read = np.zeros(WIDTH)
                if len(s["memory"]):
                    read = jax.nn.softmax(s["memory"] @ hs[i]) @ s["memory"]
                hs[i] = cell(PARAMS, hs[i], x + read)
                sums[i] += hs[i].max()
    np.testing.assert_allclose(
        found.metrics["largest"],
        [sums, [6, 2]],
        rtol=1e-6,
    )


def of_gradient(model, examples):
    with jax.enable_x64(True):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        batch = batched.pack(examples)
        return jax.make_jaxpr(jax.grad(lambda p: batched(p, batch).sum()))(PARAMS).jaxpr


@pytest.mark.first_case
@pytest.mark.parametrize("model", [feeding, additive])
def test_no_loop_reads_pairs_or_adds_them_up_one_by_one(model):
    """Backwards a level adds its part to the cotangent of the whole memory; no level keeps a copy of the memory."""
    n = 4
    examples = [example(5, 7, 5) for _ in range(n)]
    loops = [*loops_in(of_gradient(model, examples))]
    assert len(loops) >= 2
    shapes = set()
    for loop in loops:
        for body in bodies(loop):
            for equation in equations_in(body):
                assert "gather" not in equation.primitive.name
                assert "scatter" not in equation.primitive.name
                shapes |= {(equation.primitive.name, v.aval.shape) for v in equation.outvars}
        for kept in loop.outvars:
            assert kept.aval.shape[1:] != (n, 7, WIDTH)
    assert ("add_any", (n, 7, WIDTH)) in shapes or ("add_any", (n * 7, WIDTH)) in shapes


@pytest.mark.nightly
def test_blocks_in_loops_are_what_rows_give(monkeypatch):
    def found():
        with jax.enable_x64(True):
            batched = amp.vmap(beyond, SPEC, params=PARAMS)
            batch = batched.pack(EXAMPLES)
            return jax.value_and_grad(lambda p: batched(p, batch).sum())(PARAMS)

    blocks = found()
    monkeypatch.setattr(sequence_steps, "block_map", lambda *_: None)
    monkeypatch.setattr(reduction_steps, "block_reduction", lambda *_: None)
    for a, b in zip(
        jax.tree.leaves(blocks),
        jax.tree.leaves(found()),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
