"""Random numbers in models: keys of the model's own, and those that the engine draws with."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.model_laws import Compiled64, check_batch

import ampjax as amp
from ampjax.errors import DataError, GraphError, SameNumbersWarning
from ampjax.frontend.loops.loop_forms import loops_as

P = {
    "w": np.eye(2) * 0.7,
    "b": np.ones(2) * 0.3,
    "s": np.float64(1.5),
}
SPEC = {
    "x": "float64[t,2]",
    "ps": "int32[t,k]",
    "id": "int32[]",
    "raw": "uint32[2]",
    "key": "key<fry>[]",
    "keys": "key<fry>[m]",
    "tree": amp.Tree("int32[u]", "int32[u]", "float64[u,2]"),
    "g": amp.Edges("v"),
    "h": "float64[v,2]",
}


def example(n, number, dtype=np.float64):
    rng = np.random.default_rng(number)
    key = jax.random.key(number)
    return {
        "x": rng.normal(size=(n, 2)).astype(dtype),
        "ps": [list(range(i)) for i in range(n)],
        "id": number,
        "raw": np.asarray(jax.random.PRNGKey(number)),
        "key": key,
        "keys": list(jax.random.split(key, n))
        if n != 1
        else jax.random.split(
            key,
            3,
        ),
        "tree": amp.Tree.of(
            ((1, 2), 3),
            lambda x: np.array([x, 1], dtype),
            np.zeros(2, dtype),
        ),
        "g": amp.Edges([0, 1], [1, 0]),
        "h": rng.normal(size=(2, 2)).astype(dtype),
    }


def dense(p, x):
    return jnp.tanh(x @ p["w"] + p["b"])


def normal(key):
    return jax.random.normal(key, (2,))


def carried(key, p, e):
    def step(s, x):
        h, key = s
        key, own = jax.random.split(key)
        return (dense(p, h + x + normal(own)), key), own

    (h, last), own = amp.scan(
        step,
        (jnp.zeros(2), key),
        e["x"],
    )
    return (
        h
        + normal(last) * p["b"]
        + amp.sum(
            amp.map(
                lambda k: normal(k) * p["b"],
                own,
            )
        )
    )


def closed_over(key, p, e):
    at = amp.fori_loop(
        e["id"] % 3,
        lambda i, h: dense(
            p,
            h + normal(jax.random.fold_in(key, i)),
        ),
        p["b"],
    )
    return at + amp.sum(
        amp.map(
            lambda x: dense(p, x + normal(key)),
            e["x"],
        )
    )


def chosen(key, p, e):
    one = amp.cond(
        e["id"] > 1,
        lambda: jax.random.fold_in(key, e["id"]),
        lambda: key,
    )
    two = amp.cond(
        amp.read(jnp.sum(p["b"]) > e["id"]),
        lambda: key,
        lambda: jax.random.split(key)[0],
    )

    def last():
        return normal(
            amp.take(
                amp.map(
                    lambda x: jax.random.fold_in(key, e["id"]),
                    e["x"],
                ),
                -1,
            )
        )

    three = amp.cond(
        amp.length(e["x"]) > 0,
        last,
        lambda: jnp.zeros(2),
    )
    return (normal(one) + normal(two) + three) * p["b"]


def looped(key, p, e):
    def body(s):
        key, own = jax.random.split(s[1])
        return s[0] + p["b"] + 0.1 * normal(own), key

    h, key = amp.while_loop(
        lambda s: amp.read(jnp.sum(s[0]) < 3),
        body,
        (p["b"] * e["id"], key),
        most=4,
    )
    return h + normal(key) * p["b"]


def in_trees(key, p, e):
    def branch(n, kids):
        return (
            amp.sum(
                amp.map(
                    lambda s: s[0] + normal(s[1]),
                    kids,
                )
            )
            @ p["w"],
            jax.random.fold_in(key, 7),
        )

    up = amp.fold_tree(
        lambda n: (
            dense(p, n),
            jax.random.fold_in(key, jnp.int32(n[0])),
        ),
        branch,
        e["tree"],
    )[1][0]
    down = amp.scan_tree(
        lambda s, n: (
            dense(p, s[0] + n + normal(s[1])),
            jax.random.split(s[1])[0],
        ),
        (up, key),
        e["tree"],
    )
    return amp.sum(down[0])


def in_recursions(key, p, e):
    def each(recur, x, ps):
        h, key = recur(amp.length(ps) - 1)
        return dense(
            p,
            h + x + normal(key),
        ), jax.random.split(key)[1]

    return amp.sum(amp.recurse(each, (p["b"] * 1, key), e["x"], e["ps"])[0])


def of_examples(key, p, e):
    own = amp.map(
        lambda k: normal(k) * p["b"],
        e["keys"],
    )
    return (
        amp.sum(own)
        + (normal(e["raw"]) + normal(e["key"]) + normal(jax.random.key(e["id"]))) * p["b"]
    )


def in_several(key, p, e):
    draws = []
    for k in jax.random.split(key, 3):
        draws.append(normal(k))
    edges = amp.propagate(
        lambda h: h @ p["w"] + normal(jax.random.fold_in(key, e["id"])),
        e["g"],
        e["h"],
    )
    return (
        sum(draws) * p["b"]
        + amp.sum(edges)
        + amp.sum(
            amp.map(
                lambda k: normal(k) * p["b"],
                jax.random.split(key),
            )
        )
    )


USES = [carried, closed_over, chosen, looped, in_trees, in_recursions, of_examples, in_several]


@pytest.mark.first_case
@pytest.mark.filterwarnings("ignore::ampjax.errors.SameNumbersWarning")
@pytest.mark.parametrize(
    ("make", "result"),
    [(jax.random.key, each) for each in USES[:2]]
    + [pytest.param(jax.random.key, each, marks=pytest.mark.nightly) for each in USES[2:]]
    + [(jax.random.PRNGKey, each) for each in USES[:1]]
    + [pytest.param(jax.random.PRNGKey, each, marks=pytest.mark.nightly) for each in USES[1:]],
)
def test_the_graph_draws_what_the_function_draws(make, result):
    with jax.enable_x64(True):
        key = make(5)
        instances = []
        for n, number in ((3, 1), (0, 2), (1, 3)):
            instances.append(example(n, number))
        compiled = Compiled64(
            lambda p, e: jnp.sum(result(key, p, e) ** 2),
            P,
            SPEC,
            instances,
        )
        compiled.check_gradients()
        assert compiled.compiled.draws


def test_keys_that_all_examples_share_are_told_of_once():
    key = jax.random.key(0)
    shared = [carried, closed_over, in_several]
    spec = jax.tree.map(
        lambda text: text.replace("64", "32"),
        SPEC,
    )
    for result in shared:
        with pytest.warns(
            SameNumbersWarning,
            match=r"test_random_keys\.py:\d+: expected a key of each example's own",
        ) as told:
            compiled = amp.compile(
                lambda p, e, f=result: jnp.sum(f(key, p, e)),
                P,
                spec,
            )
        assert len(told) == 1 and compiled.shared_draws
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = amp.compile(
            lambda p, e: (
                jnp.sum(
                    carried(
                        jax.random.fold_in(key, e["id"]),
                        p,
                        e,
                    )
                )
                + jnp.sum(of_examples(key, p, e))
            ),
            P,
            spec,
        )
        assert not own.shared_draws and own.draws
        noisy = amp.compile(
            lambda p, e: jnp.sum(
                amp.sum(
                    amp.map(
                        lambda x: amp.dropout(x * p["b"], 0.5),
                        e["x"],
                    )
                )
            ),
            P,
            spec,
        )
        assert not noisy.shared_draws and noisy.draws
        assert not amp.compile(
            lambda p, e: jnp.sum(amp.sum(e["x"]) * p["b"]),
            P,
            spec,
        ).draws


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (
            lambda p, e: jnp.sum(
                normal(
                    jax.random.fold_in(
                        jax.random.key(1, impl="rbg"),
                        e["id"],
                    )
                )
                * p["b"]
            ),
            r"test_random_keys\.py:\d+: expected keys that give the same numbers alone and together: Threefry's, got `rbg`",
        ),
        (
            lambda p, e: jnp.sum(
                amp.scan(lambda k, x: (jnp.float32(1), None), jax.random.key(0), e["x"])[0] * p["b"]
            ),
            r"expected a carry that keeps its types: key<fry>\[\], got float32\[\]",
        ),
    ],
)
def test_other_keys_are_refused(model, text):
    with pytest.raises(GraphError, match=text):
        amp.compile(
            model,
            P,
            jax.tree.map(
                lambda text: text.replace("64", "32"),
                SPEC,
            ),
        )


@pytest.mark.parametrize(
    ("spec", "key", "text"),
    [
        (
            "uint32[2]",
            lambda: jax.random.key(1),
            r"expected numbers, as the spec says, got PRNG keys, key<fry>\. Write `key<fry>`",
        ),
        (
            "key<fry>[]",
            lambda: jax.random.key(1, impl="rbg"),
            "expected keys of its type, as the spec says, got PRNG keys, key<rbg>",
        ),
        (
            "int32[t]",
            lambda: list(jax.random.split(jax.random.key(1))),
            "expected numbers, as the spec says, got PRNG keys",
        ),
    ],
)
def test_keys_that_do_not_fit_the_spec_are_refused(spec, key, text):
    compiled = amp.compile(
        lambda p, e: jnp.sum(p["b"]),
        {"b": jnp.ones(2)},
        {"key": spec},
    )
    with pytest.raises(DataError, match=text):
        compiled.data([{"key": key()}])


def noisy(x):
    return amp.stochastic(
        lambda key, x: x + jax.random.normal(key, x.shape),
        lambda x: x,
        x,
    )


def loops(p, e):
    def inner(ps, x):
        return amp.sum(
            amp.map(
                lambda j: noisy(x * p["b"] + j),
                ps,
            )
        )

    h = amp.scan(
        lambda h, x: (noisy(jnp.tanh(h @ p["w"] + x)), h),
        jnp.zeros(2),
        e["x"],
        reverse=True,
    )[0]
    h += amp.fori_loop(
        e["id"],
        lambda i, h: amp.dropout(dense(p, h), 0.5),
        h,
    )
    several = amp.sum(
        amp.map(
            lambda x: noisy(x * p["b"]),
            [h, h * 2, jnp.ones(2)],
        )
    )
    return (
        amp.sum(
            amp.map(
                inner,
                e["ps"],
                e["x"],
            )
        )
        + several
        + amp.node("last")(lambda h: noisy(noisy(h) * 0.5))(h)
    )


def choices(p, e):
    def each(x):
        a = amp.cond(
            x[0] > 0,
            lambda: noisy(x @ p["w"]),
            lambda: p["b"] * noisy(x),
        )
        b = amp.cond(
            amp.read(jnp.sum(a) > 0),
            lambda: noisy(a),
            lambda: a * p["b"],
        )

        def turn(s):
            return (
                noisy(s[0] * p["b"]),
                s[1] + 1,
            )

        c = amp.while_loop(
            lambda s: amp.read(s[1] < 2 + (jnp.sum(x) > 0)),
            turn,
            (b, jnp.int32(0)),
            most=4,
        )[0]
        experts = [
            lambda: noisy(x * p["b"]),
            lambda: noisy(x),
        ]
        return c + sum(amp.switch(amp.read(jnp.argmax(x * s * p["b"])), experts) for s in (1, -1))

    return amp.sum(amp.map(each, e["x"]))


def structures(p, e):
    up = amp.fold_tree(
        lambda n: noisy(dense(p, n)),
        lambda n, kids: noisy(amp.sum(amp.map(noisy, kids))),
        e["tree"],
    )[1]
    down = amp.sum(
        amp.scan_tree(
            lambda s, n: noisy(dense(p, s + n)),
            up,
            e["tree"],
        )
    )
    asked = amp.recurse(
        lambda recur, x, ps: noisy(x * p["b"]) + amp.sum(amp.map(recur, ps)),
        up,
        e["x"],
        e["ps"],
    )
    sent = amp.propagate(
        lambda h: noisy(h * p["b"]),
        e["g"],
        e["h"],
    )
    return (
        down
        + amp.sum(asked)
        + amp.sum(
            amp.map(
                lambda a, h: noisy(a + h),
                sent,
                e["h"],
            )
        )
    )


@pytest.mark.nightly
@pytest.mark.parametrize("result", [loops, choices, structures])
def test_verify_compares_with_the_numbers_that_the_engine_drew(result):
    params = jax.tree.map(np.float32, P)
    spec = jax.tree.map(
        lambda text: text.replace("64", "32"),
        SPEC,
    )
    examples = []
    for n, number in ((3, 1), (0, 2), (2, 3)):
        examples.append(example(n, number, np.float32))
    compiled = amp.compile(
        lambda p, e: jnp.sum(result(p, e)),
        params,
        spec,
    )
    verdict = compiled.verify(examples, progress=False, tolerance=3e-5)  # float32 against float32
    assert "in its own precision, with the random numbers that the engine drew" in str(verdict)
    trainer = amp.Trainer(compiled.graph, optax.sgd(0.0))
    losses = []
    for _ in range(2):
        losses.append(trainer.accumulate(compiled.data(examples), update=False)["loss_sum"])
    assert len({round(loss, 2) for loss in [*losses, float(compiled.loss(params, examples))]}) == 3


@pytest.mark.nightly
def test_verify_still_finds_another_function():
    calls = []

    def drifting(p, e):
        calls.append(1)
        return jnp.sum(noisy(p["b"] * (1 if len(calls) == 1 else 2)))

    compiled = amp.compile(
        drifting,
        {"b": jnp.ones(2)},
        {"id": "int32[]"},
    )
    with pytest.raises(
        amp.errors.NumericsError, match="with the random numbers that the engine drew, gives"
    ):
        compiled.verify([{"id": 1}], progress=False)


@pytest.mark.nightly
def test_each_accumulation_draws_anew_and_a_checkpoint_knows_how_many_there_were(tmp_path):
    def model(p, e):
        def digit(s, x):
            return (
                3 * s + amp.dropout(jnp.float32(1), 0.5) * p["w"],
                None,
            )

        return amp.scan(
            digit,
            jnp.float32(0),
            e["x"],
        )[0]  # the masks in base 3

    compiled = amp.compile(
        model,
        {"w": jnp.float32(1)},
        {"x": "float32[t]"},
    )
    data = compiled.data([{"x": np.ones(14, np.float32)}])

    def drawn(trainer, n):
        return [trainer.accumulate(data)["loss_sum"] for _ in range(n)]

    trainer = amp.Trainer(
        compiled.graph,
        optax.sgd(0.0),
        mode="sync",
    )
    first = drawn(trainer, 3)
    trainer.save(tmp_path / "checkpoint")
    more = drawn(trainer, 3)
    assert len({*first, *more}) == 6
    other = amp.Trainer(
        compiled.graph,
        optax.sgd(0.0),
        mode="sync",
    )
    other.restore(tmp_path / "checkpoint")
    assert (
        drawn(other, 3) == more
        and drawn(
            amp.Trainer(
                compiled.graph,
                optax.sgd(0.0),
                mode="sync",
            ),
            3,
        )
        == first
    )


def test_a_batch_draws_with_keys_of_both_kinds():
    batched = amp.vmap(
        lambda p, s: jnp.sum(
            amp.dropout(
                s["x"] @ p["w"],
                0.5,
            )
        ),
        {"x": "float32[t,2]"},
    )
    params = {"w": np.ones((2, 2), np.float32)}
    examples = []
    for n in (3, 1):
        examples.append({"x": np.ones((n, 2))})
    typed, plain = (
        batched(
            params,
            examples,
            key=make(3),
        )
        for make in (
            jax.random.key,
            jax.random.PRNGKey,
        )
    )
    np.testing.assert_array_equal(typed, plain)
    wrong = {
        "int32\\[\\]": 3,
        "key<fry>\\[2\\]": jax.random.split(jax.random.key(0)),
        "uint32\\[3\\]": np.zeros(3, np.uint32),
    }
    for kind, key in wrong.items():
        with pytest.raises(DataError, match=rf"key: expected one PRNG key.*{kind}.*jax.random.key"):
            batched(params, examples, key=key)


def noised(p, key, h):
    return jnp.tanh(h @ p["w"]) + 0.1 * normal(key)


def in_rounds(p, e):
    def turn(carry):
        number, key, h = carry
        return number + 1, jax.random.fold_in(key, number), noised(p, key, h)

    start = 0, e["key"], p["b"]
    return amp.while_loop(
        lambda carry: carry[0] < e["n"],
        turn,
        start,
        most=3,
    )[2].sum()


def down_a_tree(p, e):
    def step(carry, value):
        key, h = carry
        key = jax.random.fold_in(key, value)
        return key, noised(p, key, h)

    keys, states = amp.scan_tree(
        step,
        (e["key"], p["b"]),
        e["tree"],
    )
    drawn = amp.map(
        lambda key, h: h.sum() + jax.random.uniform(key),
        keys,
        states,
    )
    return amp.sum(drawn)


def by_recursion(p, e):
    def each(recur, before):
        key, h = recur(before)
        own, key = jax.random.split(key)
        return own, noised(p, key, h)

    init = e["key"], p["b"]
    _, states = amp.recurse(each, init, e["before"])
    return amp.sum(states).sum()


@pytest.mark.parametrize("form", ["steps", "scan"])
@pytest.mark.parametrize("function", [in_rounds, down_a_tree, by_recursion])
def test_a_batch_carries_keys(function, form):
    spec = {
        "key": "key<fry>[]",
        "n": "int32[]",
        "before": "int32[k]",
        "tree": amp.Tree("int32[v]", "int32[v]", "int32[v]"),
    }
    examples = []
    for n in range(3):
        tree = amp.Tree(
            parent=[-1] + [0] * n,
            side=[0, *range(n)],
            value=[*range(n + 1)],
        )
        before = np.arange(-1, n - 1, dtype=np.int32)
        key = jax.random.key(n)
        examples.append(
            {
                "key": key,
                "n": np.int32(n),
                "before": before,
                "tree": tree,
            }
        )
    p = {"w": P["w"], "b": P["b"]}
    with jax.enable_x64(True), loops_as(form):
        check_batch(function, p, spec, examples)
