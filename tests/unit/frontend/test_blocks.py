"""Pairs as blocks: a batch computes the function's values, as pairs in rows do too; no value shows the padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.effort import left_to_nightly

import ampjax as amp
from ampjax.frontend.batch_rules import reduction_steps, sequence_steps

SPEC = {"x": "float32[n,3]", "at": "int32[n]", "y": "float32[m,3]", "texts": "float32[s,t,3]"}
LENGTHS = ((3, 4), (0, 2), (5, 0), (1, 1), (2, 7))
RNG = np.random.default_rng(5)
PARAMS = {
    "w": RNG.normal(size=(3, 3)).astype(np.float32),
    "v": RNG.normal(size=(3, 4)).astype(np.float32),
}


def example(seed, lengths):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, 3)
    n, m = lengths
    return {
        "x": rng.normal(size=(n, 3)).astype(np.float32),
        "at": np.arange(n, dtype=np.int32),
        "y": rng.normal(size=(m, 3)).astype(np.float32),
        "texts": amp.Ragged(
            amp.Ragged(rng.normal(size=(sizes.sum(), 3)).astype(np.float32), sizes), [3]
        )[0],
    }


EXAMPLES = [example(seed, lengths) for seed, lengths in enumerate(LENGTHS)]


def attend(queries, keys, values):
    def each(q):
        shares = amp.softmax(amp.map(lambda k: q @ k, keys))
        return amp.sum(
            amp.map(
                lambda share, v: share * v,
                shares,
                values,
            )
        )

    return amp.map(each, queries)


def across(p, s):
    """Attention of one sequence to another one."""
    queries = amp.map(
        lambda x: x @ p["w"],
        s["x"],
    )
    values = amp.map(
        lambda y: jnp.tanh(y @ p["v"]),
        s["y"],
    )
    return amp.sum(
        amp.map(
            jnp.sum,
            attend(queries, s["y"], values),
        )
    )


def within(p, s):
    """Computes attention within a sequence, in two layers."""
    h = amp.map(
        lambda x: x @ p["w"],
        s["x"],
    )
    for _ in range(2):
        h = attend(h, h, h)
    return amp.sum(
        amp.map(
            lambda v: jnp.sum(v**2),
            h,
        )
    )


def heads(p, s):
    """Two heads: shares are arrays."""
    split = lambda x: (x @ p["v"]).reshape(2, 2)
    keys = amp.map(split, s["y"])

    def each(x):
        q = split(x)
        shares = amp.softmax(
            amp.map(
                lambda k: jnp.sum(q * k, 1),
                keys,
            )
        )
        return amp.sum(
            amp.map(
                lambda share, k: share[:, None] * k,
                shares,
                keys,
            )
        )

    return jnp.sum(amp.sum(amp.map(each, s["x"])) ** 2)


def causal(p, s):
    """Hides later elements from attention by element number."""
    h = amp.map(
        lambda x: x @ p["w"],
        s["x"],
    )

    def each(q, i):
        scores = amp.map(
            lambda k, j: jnp.where(j <= i, q @ k, -1e9),
            h,
            s["at"],
        )
        shares = amp.softmax(scores)
        return amp.sum(
            amp.map(
                lambda share, k: share * k,
                shares,
                h,
            )
        )

    return jnp.sum(
        amp.sum(
            amp.map(
                each,
                h,
                s["at"],
            )
        )
        ** 3
    )


def distances(p, s):
    """Computes distances, their maximum and logsumexp, and sums that depend on one side of the pairs alone."""
    h = amp.map(
        lambda x: x @ p["w"],
        s["x"],
    )

    def each(a):
        apart = amp.map(
            lambda b: jnp.sum((a - b @ p["w"]) ** 2),
            s["y"],
        )
        alone = amp.sum(
            amp.map(
                lambda b: jnp.sum(b @ p["v"]),
                s["y"],
            )
        )
        same = amp.sum(
            amp.map(
                lambda b: jnp.sum(a**2),
                s["y"],
            )
        )
        return jnp.tanh(-amp.logsumexp(apart)) + alone * a[0] + same + jnp.tanh(-amp.max(apart))

    return amp.sum(amp.map(each, h))


def texts(p, s):
    """Words attend to words of their text, and to another sequence of the example."""

    def of_text(text):
        h = amp.map(lambda x: x @ p["w"], text)
        both = attend(
            attend(h, h, h),
            s["y"],
            s["y"],
        )
        return amp.sum(amp.map(jnp.sum, both))

    return amp.sum(amp.map(of_text, s["texts"]))


def beyond(p, s):
    """Reads pairs outside the block: in a loop, in a choice, by one element, and in a map with a combinator inside."""
    h = amp.map(
        lambda x: x @ p["w"],
        s["x"],
    )

    def each(a):
        scores = amp.map(
            lambda b: jnp.sum(a * b),
            s["y"],
        )
        last, _ = amp.scan(
            lambda c, z: (jnp.sin(c + z), None),
            0.1,
            scores,
        )
        chosen = amp.map(
            lambda z: amp.cond(
                amp.read(z > 0),
                lambda: z**2,
                lambda: -z,
            ),
            scores,
        )
        first = amp.cond(
            amp.length(s["y"]) > 1,
            lambda: amp.take(scores, 1),
            lambda: 0.5,
        )
        return last + amp.sum(chosen) * first

    return amp.sum(amp.map(each, h))


def guarded(p, s):
    """Divides and takes logarithms that are finite only for pairs within one example."""
    mean = amp.mean(
        amp.map(
            lambda x: x[0],
            s["x"],
        )
    )
    near = amp.map(
        lambda x: x[0] - mean + 10,
        s["x"],
    )
    far = amp.map(
        lambda y: jnp.sqrt(9 + mean - jnp.clip(y[0], -1, 1) * p["w"][0, 0]),
        s["y"],
    )
    total = lambda a: amp.sum(
        amp.map(
            lambda b: jnp.log(a * b),
            far,
        )
    )
    return amp.sum(amp.map(total, near))


FUNCTIONS = [across, within, heads, causal, distances, texts, beyond, guarded]


def values_and_gradients(function, params=PARAMS, examples=EXAMPLES, **options):
    batched = amp.vmap(
        function,
        SPEC,
        params=params,
    )
    batch = batched.pack(examples, **options)
    weights = np.arange(1.0, 1 + batch.size, dtype=np.float32) * np.asarray(batch.weights)

    def total(p):
        found = batched(p, batch)
        return jnp.sum(jnp.where(weights > 0, found * weights, 0)), found

    return jax.jit(jax.grad(total, has_aux=True))(params)


def by_example(function):
    def total(p):
        each = jnp.stack([jnp.asarray(function(p, one)) for one in EXAMPLES])
        return jnp.sum(each * np.arange(1, 1 + len(each))), each

    return jax.grad(total, has_aux=True)(PARAMS)


def close(one, other):
    for a, b in zip(
        jax.tree.leaves(one),
        jax.tree.leaves(other),
        strict=True,
    ):
        largest = max(1, np.abs(b).max(initial=0))
        np.testing.assert_allclose(
            a,
            b,
            rtol=2e-5,
            atol=2e-5 * largest,
        )


@pytest.mark.first_case
@pytest.mark.parametrize(
    "function", [within, guarded, *left_to_nightly(FUNCTIONS, within, guarded)]
)
def test_blocks_are_what_the_function_gives(function):
    close(values_and_gradients(function), by_example(function))


def test_a_product_is_divided_by_a_product():
    """The divisor begins with a number, and has factors of both sides of a pair behind the number."""

    def quotients(p, s):
        h = amp.map(
            lambda x: x @ p["w"],
            s["x"],
        )

        def each(a):
            quotient = lambda b: jnp.sum(a * b / (2.0 * (jnp.exp(a) * jnp.exp(b))))
            return amp.sum(amp.map(quotient, s["y"]))

        return amp.sum(amp.map(each, h))

    with jax.disable_jit():
        close(values_and_gradients(quotients), by_example(quotients))


def test_a_block_is_read_by_pairs_further_in():
    """Keys of all texts are computed for each text, and read for each of its words."""

    def of_keys(p, s):
        def of_text(text):
            keys = amp.map(
                lambda y: jnp.tanh(y @ p["w"]),
                s["y"],
            )
            each = lambda x: amp.sum(
                amp.map(
                    lambda key: jnp.sin(x @ key),
                    keys,
                )
            )
            return amp.sum(amp.map(each, text))

        return amp.sum(amp.map(of_text, s["texts"]))

    with jax.disable_jit():
        close(values_and_gradients(of_keys), by_example(of_keys))


@pytest.mark.nightly
@pytest.mark.parametrize("function", [within, heads, texts])
def test_blocks_are_what_rows_give(function, monkeypatch):
    """Filled up with copies, in another order."""
    examples = EXAMPLES[::-1]
    found = values_and_gradients(
        function,
        examples=examples,
        size=7,
    )
    monkeypatch.setattr(
        sequence_steps,
        "block_map",
        lambda *_: None,
    )
    monkeypatch.setattr(
        reduction_steps,
        "block_reduction",
        lambda *_: None,
    )
    close(
        found,
        values_and_gradients(function, examples=examples, size=7),
    )


def test_no_array_has_a_number_for_each_pair():
    batched = amp.vmap(
        within,
        {"x": "float32[n,3]"},
        params=PARAMS,
    )
    n = 100
    batch = batched.pack(
        [
            {
                "x": np.ones(
                    (n, 3),
                    np.float32,
                )
            }
        ]
    )
    assert max(x.size for x in batch.arrays) < n**2
    text = str(jax.make_jaxpr(jax.grad(lambda p: batched(p, batch).sum()))(PARAMS))
    assert "f32[1,104,104]" in text and "f32[1,104,104,3]" not in text


def test_elements_that_a_branch_alone_reads_are_no_block():
    """One long word among short ones is not the length to which all words are filled up."""

    def spelled(p, s):
        def word(rare, letters):
            total = lambda: amp.sum(
                amp.map(
                    lambda x: jnp.tanh(x @ p["w"]),
                    letters,
                )
            )
            return amp.cond(rare > 0, total, lambda: jnp.zeros(3))

        return jnp.sum(
            amp.sum(
                amp.map(
                    word,
                    s["rare"],
                    s["letters"],
                )
            )
        )

    spec = {"rare": "int32[n]", "letters": "float32[n,c,3]"}
    lengths = [40, *[2] * 20]
    letters = []
    for n in lengths:
        letters.append(np.ones((n, 3), np.float32))
    rare = np.ones(len(lengths), np.int32)
    batched = amp.vmap(spelled, spec, params=PARAMS)
    batch = batched.pack([{"rare": rare, "letters": letters}])
    traced = jax.make_jaxpr(jax.grad(lambda p: batched(p, batch).sum()))(PARAMS)
    sizes = []
    for equation in traced.eqns:
        for variable in equation.outvars:
            sizes.append(variable.aval.size)
    assert max(sizes) < 3 * 2 * sum(lengths)


def test_the_same_bits_from_run_to_run():
    one = values_and_gradients(within)
    other = values_and_gradients(within)
    for a, b in zip(
        jax.tree.leaves(one),
        jax.tree.leaves(other),
        strict=True,
    ):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.nightly
def test_nan_stays_in_its_example():
    """NaN stays in an example even if pairs of that example fill up empty places of the block."""
    examples = [*EXAMPLES]
    examples[0] = dict(
        examples[0],
        x=np.full(
            (3, 3),
            np.nan,
            np.float32,
        ),
    )
    for function in (across, within, distances):
        _, found = values_and_gradients(
            function,
            examples=examples,
        )
        _, clean = values_and_gradients(function)
        assert np.isnan(found[0])
        np.testing.assert_array_equal(
            found[1:],
            clean[1:],
        )


@pytest.mark.nightly
def test_blocks_under_transformations():
    """An ensemble, derivatives forward over backward, and parts of equal shapes."""
    batched = amp.vmap(
        within,
        SPEC,
        params=PARAMS,
    )
    batch = batched.pack(EXAMPLES)
    several = jax.tree.map(
        lambda x: jnp.stack([x, 2 * x]),
        PARAMS,
    )
    loss = lambda p: batched(p, batch).sum()
    grads = jax.vmap(jax.grad(loss))(several)
    for i in range(2):
        one = jax.tree.map(
            lambda x, i=i: x[i],
            several,
        )
        close(
            jax.tree.map(
                lambda x, i=i: x[i],
                grads,
            ),
            jax.grad(loss)(one),
        )
    second = jax.jvp(
        jax.grad(loss),
        (PARAMS,),
        (PARAMS,),
    )[1]
    step = 1e-2
    high, low = (jax.tree.map(lambda x, k=k: x * (1 + k * step), PARAMS) for k in (1, -1))
    slope = jax.tree.map(
        lambda a, b: (a - b) / (2 * step),
        jax.grad(loss)(high),
        jax.grad(loss)(low),
    )
    for a, b in zip(
        jax.tree.leaves(second),
        jax.tree.leaves(slope),
        strict=True,
    ):
        np.testing.assert_allclose(
            a,
            b,
            rtol=0.02,
            atol=0.02 * np.abs(b).max(),
        )
    parts = batched.pack(EXAMPLES, parts=3)
    found = jax.vmap(lambda part: batched(PARAMS, part))(parts)
    close(
        found.ravel()[: len(EXAMPLES)],
        batched(PARAMS, batch),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("function", [across, within, beyond])
def test_a_long_example_is_cut_into_tiles(function, monkeypatch):
    """Tiles give the values and gradients of pairs as rows; no side is padded to the longest example for all."""
    lengths = [(2, 3)] * 20 + [(70, 30)]
    examples = [example(seed, each) for seed, each in enumerate(lengths)]
    found = values_and_gradients(function, examples=examples)
    if function is across:
        batch = amp.vmap(function, SPEC, params=PARAMS).pack(examples)
        assert max(x.size for x in batch.arrays if x.dtype == bool) < 21 * 72
    monkeypatch.setattr(sequence_steps, "block_map", lambda *_: None)
    monkeypatch.setattr(reduction_steps, "block_reduction", lambda *_: None)
    close(found, values_and_gradients(function, examples=examples))
