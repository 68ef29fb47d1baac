"""Loops in steps of a few row counts, beside the same loops by `lax.scan`: values, and the gradient of every leaf."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from support.effort import left_to_nightly
from support.loop_bodies import bodies_of_loops

import ampjax as amp
from ampjax.frontend.loops.loop_forms import form_of_loops, loops_as

RNG = np.random.default_rng(3)
PARAMS = {
    "embed": RNG.normal(size=(7, 3)).astype(np.float32),
    "w": RNG.normal(size=(6, 12)).astype(np.float32) * 0.5,
    "b": RNG.normal(size=12).astype(np.float32),
    "u": RNG.normal(size=(3, 3)).astype(np.float32) * 0.5,
}
SPEC = {
    "words": "int32[n]",
    "x": "float32[n,3]",
    "tree": amp.Tree("int32[v]", "int32[v]", "int32[v]"),
    "asked": "int32[m,2]",
    "taken": "int32[t,2]",
}


def binary_tree(rng, n_leaves):
    parent = [-1] * n_leaves
    side = [0] * n_leaves
    roots = list(range(n_leaves))
    while len(roots) > 1:
        at = int(rng.integers(len(roots) - 1))
        new = len(parent)
        for number, child in enumerate(roots[at : at + 2]):
            parent[child] = new
            side[child] = number
        parent.append(-1)
        side.append(0)
        roots[at : at + 2] = [new]
    columns = []
    for each in (parent, side):
        columns.append(np.array(each, np.int32))
    return amp.Tree(
        *columns,
        rng.integers(
            0,
            7,
            len(parent),
        ).astype(np.int32),
    )


def example(seed, n, n_leaves, n_asked):
    rng = np.random.default_rng(seed)
    asked = []
    for i in range(n_asked):
        asked.append([int(rng.integers(-1, i)) if i else -1 for _ in range(2)])
    # numbers of elements of `x`, some counted from its end, and of elements before
    taken = []
    for i in range(n_asked if n else 0):
        taken.append(
            [
                min(i, n) - 1,
                int(
                    rng.integers(
                        -n,
                        min(i, n),
                    )
                ),
            ]
        )
    return {
        "words": rng.integers(0, 7, n).astype(np.int32),
        "x": rng.normal(size=(n, 3)).astype(np.float32),
        "tree": binary_tree(rng, n_leaves),
        "asked": np.array(asked, np.int32).reshape(n_asked, 2),
        "taken": np.array(taken, np.int32).reshape(-1, 2),
    }


SIZES = [
    (4, 5, 3),
    (0, 1, 0),
    (9, 12, 12),
    (1, 2, 1),
    (6, 9, 5),
]
EXAMPLES = [example(seed, *sizes) for seed, sizes in enumerate(SIZES)]


def cell(p, c, h, x):
    gates = jnp.concatenate([h, x]) @ p["w"] + p["b"]
    i, f, o, g = jnp.split(gates, 4)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


def of_sequences(p, s):
    """Loops in both directions, gives a value for each element, and carries arrays of two kinds of shapes."""

    def step(carried, wx):
        w, x = wx
        c, h, square = carried
        c, h = cell(
            p,
            c,
            h,
            p["embed"][w] + x,
        )
        return (
            c,
            h,
            jnp.tanh(
                square
                + jnp.outer(
                    h,
                    x,
                )
            ),
        ), (h, jnp.sum(c))

    start = jnp.zeros(3), p["b"][:3], jnp.ones((3, 3))
    (_, last, square), (hs, sums) = amp.scan(
        step,
        start,
        (s["words"], s["x"]),
    )
    (first, _, _), _ = amp.scan(
        step,
        start,
        (s["words"], s["x"]),
        reverse=True,
    )
    total = amp.sum(
        amp.map(
            lambda h, c: jnp.sum(h) * c,
            hs,
            sums,
        )
    )
    return total + jnp.sum(last * first) + jnp.sum(square)


def of_trees(p, s):
    """From the leaves up, each state read once; and from the root down, states read by all children."""

    def leaf(word):
        return jnp.zeros(3), jnp.tanh(p["embed"][word])

    def branch(word, left, right):
        c, h = cell(
            p,
            left[0] + right[0],
            left[1],
            right[1] @ p["u"],
        )
        return c + p["embed"][word], h

    states, (c, h) = amp.fold_tree(
        leaf,
        branch,
        s["tree"],
        arity=2,
    )
    down = amp.scan_tree(
        lambda above, word: jnp.tanh(above @ p["u"] + p["embed"][word]),
        h,
        s["tree"],
    )
    return jnp.sum(c) + amp.sum(
        amp.map(
            lambda state, d: jnp.dot(state[1], d),
            states,
            down,
        )
    )


def of_recursions(p, s):
    """Elements that ask for any number of others, which any number of others ask for."""

    def each(recur, ab):
        return jnp.tanh(recur(ab[0]) @ p["u"] + recur(ab[1]) * p["b"][:3])

    return amp.sum(
        amp.map(
            jnp.sum,
            amp.recurse(each, p["embed"][1], s["asked"]),
        )
    )


def of_drawn_numbers(p, s):
    def step(h, x):
        return jnp.tanh(
            amp.dropout(
                h,
                0.3,
            )
            @ p["u"]
            + x
        ), None

    return jnp.sum(
        amp.scan(
            step,
            p["b"][:3],
            s["x"],
        )[0]
    )


def of_taken_elements(p, s):
    """Steps that take elements of whole sequences, by numbers of the example: from around, and of pairs."""
    rows = amp.map(
        lambda x: (x @ p["u"], jnp.tanh(x)),
        s["x"],
    )

    def each(recur, ab):
        own = amp.take(rows, 0)[0] + amp.take(s["x"], ab[0])
        return jnp.tanh(recur(ab[0]) @ p["u"] + recur(ab[1]) * amp.take(rows, ab[1])[1] + own)

    def step(h, ab):
        return jnp.tanh(h @ p["u"] + amp.take(rows, ab[1])[0]), None

    found = amp.recurse(
        each,
        p["embed"][1],
        s["taken"],
    )
    last, _ = amp.scan(
        step,
        p["b"][:3],
        s["taken"],
    )
    return amp.sum(amp.map(jnp.sum, found)) + jnp.sum(last)


FUNCTIONS = [of_sequences, of_trees, of_recursions, of_drawn_numbers, of_taken_elements]


def compare(one, other, tolerance=1e-5):
    for a, b in zip(
        jax.tree.leaves(one),
        jax.tree.leaves(other),
        strict=True,
    ):
        np.testing.assert_allclose(
            np.asarray(a, np.float64),
            np.asarray(b, np.float64),
            rtol=tolerance,
            atol=tolerance
            * max(
                1.0,
                float(
                    np.abs(
                        np.asarray(
                            b,
                            np.float64,
                        )
                    ).max(initial=0)
                ),
            ),
        )


def batched_as(form, function, params=PARAMS, spec=SPEC):
    with loops_as(form):
        return amp.vmap(function, spec, params=params)


def both(function):
    return batched_as("steps", function), batched_as("scan", function)


def weighted(batched, params, batch, key=None):
    values = batched(params, batch, key=key)
    return jnp.sum(values * jnp.cos(jnp.arange(len(values))) * batch.weights), values


def test_the_form_is_chosen_by_the_back_end():
    assert jax.default_backend() == "cpu" and form_of_loops() == "steps"
    with loops_as("scan"):
        assert form_of_loops() == "scan"


@pytest.mark.parametrize(
    "function",
    [of_taken_elements, *left_to_nightly(FUNCTIONS, of_taken_elements)],
)
def test_values_and_gradients_are_those_of_scans(function):
    """Also of a batch that is filled up; and a second run gives the same bits."""
    key = jax.random.key(1) if function is of_drawn_numbers else None
    found = []
    for batched in both(function):
        batch = batched.pack(EXAMPLES, size=7)
        compute = jax.jit(
            jax.value_and_grad(
                lambda p, batch, batched=batched: weighted(
                    batched,
                    p,
                    batch,
                    key,
                ),
                has_aux=True,
            )
        )
        ((_, values), grads) = compute(PARAMS, batch)
        found.append((values[: len(EXAMPLES)], grads))
        again = compute(PARAMS, batch)
        for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(((_, values), grads)), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    compare(*found)
    assert len(batched_as("steps", function).pack(EXAMPLES).arrays) > 0


def test_steps_are_taken_where_they_can_be():
    """The programs of the two forms have other arrays, so other layouts."""
    for function in FUNCTIONS:
        steps, scans = both(function)
        assert steps.pack(EXAMPLES).layout != scans.pack(EXAMPLES).layout


@pytest.mark.nightly
def test_all_orders_of_examples_give_the_same():
    batched = batched_as("steps", of_trees)
    order = [3, 0, 4, 2, 1]
    found = batched(PARAMS, [EXAMPLES[i] for i in order])
    compare(found, batched(PARAMS, EXAMPLES)[np.array(order)])


@pytest.mark.nightly
def test_a_state_that_many_read_has_its_cotangents_added_up():
    """A star: nine children read the root's state; and a chain, each of which one reads."""

    def star(p, s):
        down = amp.scan_tree(
            lambda above, word: jnp.tanh(above @ p["u"] + p["embed"][word]),
            p["b"][:3],
            s["tree"],
        )
        return amp.sum(amp.map(jnp.sum, down))

    columns = []
    for each in ([-1] + [0] * 9, [0, *range(9)]):
        columns.append(np.array(each, np.int32))
    wide = {
        **EXAMPLES[0],
        "tree": amp.Tree(
            *columns,
            np.arange(10, dtype=np.int32) % 7,
        ),
    }
    columns = []
    for each in (range(-1, 9), [0] * 10):
        columns.append(np.array(each, np.int32))
    long = {
        **EXAMPLES[0],
        "tree": amp.Tree(
            *columns,
            np.arange(10, dtype=np.int32) % 7,
        ),
    }
    batched = batched_as("steps", star)
    for examples in ([wide, EXAMPLES[2]], [long, EXAMPLES[2]]):
        batch = batched.pack(examples)
        grads = jax.grad(
            lambda p, batch=batch: weighted(
                batched,
                p,
                batch,
            )[0]
        )(PARAMS)

        def own(p, examples=examples):
            values = jnp.stack([star(p, each) for each in examples])
            return jnp.sum(values * jnp.cos(jnp.arange(2)))

        compare(grads, jax.grad(own)(PARAMS))


def test_one_program_serves_other_depths():
    """A chain of 9 and one of 12 have the same shapes: how many steps there are is told at run time."""

    def chain(p, s):
        return jnp.sum(
            amp.scan(
                lambda h, x: (jnp.tanh(h @ p["u"] + x), None),
                jnp.zeros(3),
                s,
            )[0]
        )

    batched = batched_as("steps", chain, spec="float32[n,3]")
    compute = jax.jit(
        jax.value_and_grad(
            lambda p, batch: jnp.sum(
                batched(
                    p,
                    batch,
                )
            )
        )
    )
    x = RNG.normal(size=(12, 3)).astype(np.float32)
    for n in (10, 12):
        found = compute(PARAMS, batched.pack([x[:n]]))
        compare(
            found,
            jax.value_and_grad(
                lambda p, n=n: chain(
                    p,
                    x[:n],
                )
            )(PARAMS),
        )
    assert compute._cache_size() == 1


@pytest.mark.nightly
def test_nothing_comes_of_rows_that_no_step_computes():
    """Rows behind the last step would divide by zero if the rows held zeros."""

    def quotients(p, s):
        def step(h, x):
            y = x[0] * p["b"][0]
            return h / y + jnp.log(y), None

        return amp.scan(step, 1.0, s["x"])[0]

    examples = []
    for each in EXAMPLES:
        examples.append(
            {
                **each,
                "x": np.abs(each["x"]) + 0.5,
            }
        )
    params = {**PARAMS, "b": np.abs(PARAMS["b"]) + 0.5}
    batched = batched_as("steps", quotients)
    batch = batched.pack(examples, size=9)
    grads = jax.grad(
        lambda p: jnp.sum(
            batched(
                p,
                batch,
            )
            * batch.weights
        )
    )(params)
    own = lambda p: sum(quotients(p, each) for each in examples)
    compare(grads, jax.grad(own)(params), 1e-4)  # quotients grow


def directional(batched, batch, params):
    """The derivative in a direction, forwards and backwards."""
    direction = jax.tree.map(
        lambda x: jnp.cos(jnp.arange(x.size)).reshape(x.shape),
        params,
    )
    loss = lambda p: weighted(batched, p, batch)[0]
    _, forward = jax.jvp(loss, (params,), (direction,))
    grads = jax.grad(loss)(params)
    backward = sum(
        jax.tree.leaves(
            jax.tree.map(
                lambda g, d: jnp.sum(g * d),
                grads,
                direction,
            )
        )
    )
    return loss, direction, forward, backward


@pytest.mark.nightly
@pytest.mark.parametrize("function", [of_sequences, of_trees])
def test_forward_derivatives_and_those_of_gradients(function):
    steps, scans = both(function)
    loss, direction, forward, backward = directional(
        steps,
        steps.pack(EXAMPLES),
        PARAMS,
    )
    compare(forward, backward, 1e-4)  # sums of many terms in another order
    other = directional(scans, scans.pack(EXAMPLES), PARAMS)[0]
    found = jax.jvp(
        jax.grad(loss),
        (PARAMS,),
        (direction,),
    )[1]
    compare(
        found,
        jax.jvp(
            jax.grad(other),
            (PARAMS,),
            (direction,),
        )[1],
        1e-4,
    )  # second derivatives


@pytest.mark.nightly
def test_a_gradient_of_a_gradient():
    """A second derivative of a loop in steps equals the same derivative of a loop by `lax.scan`."""

    def chain(p, s):
        step = lambda h, x: (
            jnp.tanh(h @ p["u"] + x),
            None,
        )
        return jnp.sum(amp.scan(step, p["b"][:3], s["x"])[0])

    found = []
    for batched in both(chain):
        batch = batched.pack(EXAMPLES)
        loss = lambda p, batched=batched, batch=batch: weighted(batched, p, batch)[0]
        steep = lambda p, loss=loss: jnp.sum(jax.grad(loss)(p)["u"] ** 2)
        found.append(jax.grad(steep)(PARAMS))
    compare(*found)


@pytest.mark.nightly
def test_transformations_of_a_batch():
    """An ensemble, a checkpoint, two devices."""
    batched = batched_as("steps", of_trees)
    batch = batched.pack(EXAMPLES[:4])
    loss = lambda p, batch: jnp.sum(
        batched(
            p,
            batch,
        )
        * batch.weights
    )
    want = jax.grad(loss)(PARAMS, batch)
    compare(
        jax.grad(jax.checkpoint(loss))(PARAMS, batch),
        want,
    )
    several = jax.tree.map(
        lambda x: jnp.stack([0.3 * x, x]),
        PARAMS,
    )
    ensemble = jax.vmap(
        jax.grad(loss),
        in_axes=(0, None),
    )(
        several,
        batch,
    )
    compare(
        jax.tree.map(lambda x: x[1], ensemble),
        want,
    )
    parts = batched.pack(EXAMPLES[:4], parts=2)
    mesh = Mesh(
        np.array(jax.devices()[:2]),
        ("device",),
    )

    def own(p, batch):
        part = jax.tree.map(lambda x: x[0], batch)
        return jax.lax.psum(
            jax.grad(loss)(p, part),
            "device",
        )

    specs = PartitionSpec(), PartitionSpec("device")
    every = jax.shard_map(
        own, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
    )
    compare(jax.jit(every)(PARAMS, parts), want)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("bfloat16", 0.1), ("float64", 1e-12)],
)
def test_other_dtypes(dtype, tolerance):
    with jax.enable_x64(dtype == "float64"):
        params = jax.tree.map(
            lambda x: jnp.asarray(x, dtype),
            PARAMS,
        )
        spec = {**SPEC, "x": f"{dtype}[n,3]"}
        examples = []
        for each in EXAMPLES:
            examples.append(
                {
                    **each,
                    "x": jnp.asarray(each["x"], dtype),
                }
            )

        def states(p, s):
            start = (
                jnp.zeros(
                    3,
                    dtype,
                ),
                p["b"][:3],
            )
            step = lambda ch, x: (cell(p, *ch, x), None)
            return jnp.sum(
                amp.scan(
                    step,
                    start,
                    s["x"],
                )[0][1]
            )

        found = []
        for form in ("steps", "scan"):
            batched = batched_as(form, states, params, spec)
            batch = batched.pack(examples)
            loss = lambda p, batched=batched, batch=batch: jnp.sum(
                batched(
                    p,
                    batch,
                )
            )
            found.append(jax.value_and_grad(loss)(params))
        assert found[0][0].dtype == dtype
        compare(*found, tolerance)  # bfloat16 has 8 bits


def test_empty_batches_of_elements():
    batched = batched_as("steps", of_sequences)
    nothing = EXAMPLES[1]
    values, grads = jax.value_and_grad(
        lambda p: jnp.sum(
            batched(
                p,
                [nothing],
            )
        )
    )(PARAMS)
    want = jax.value_and_grad(lambda p: of_sequences(p, nothing))(PARAMS)
    compare((values, grads), want)


@pytest.mark.parametrize(
    "function",
    [of_trees, *left_to_nightly([of_sequences])],
)
def test_no_step_copies_an_arena_and_no_read_becomes_a_scatter(function):
    """A compiled step writes slices of its carried arrays; no step copies a whole arena or scatters into one."""
    batched = batched_as("steps", function)
    batch = batched.pack([example(seed, 20, 20, 0) for seed in range(20)])
    compute = jax.jit(
        jax.value_and_grad(
            lambda p, batch: jnp.sum(
                batched(
                    p,
                    batch,
                )
            )
        )
    )
    bodies = bodies_of_loops(
        compute.lower(
            PARAMS,
            batch,
        )
        .compile()
        .as_text()
    )
    assert len(bodies) > 8
    for lines in bodies.values():
        for line in lines:
            match = re.search(r"= \w+\[([\d,]*)\]\S* (copy|scatter)\(", line)
            if match is not None:
                shape = []
                for n in match[1].split(","):
                    if n:
                        shape.append(int(n))
                assert match[2] == "copy" and np.prod(shape) < 100, line


def test_a_recursion_that_starts_somewhere_copies_no_arena():
    """A choice between a state and the start is computed again from the state, which is kept already: XLA copies an array that a step reads twice."""

    def model(p, s):
        def each(recur, before, x):
            return jnp.tanh(recur(before) @ p["u"] + x)

        states = amp.recurse(
            each,
            jnp.zeros(3),
            s["before"],
            s["x"],
        )
        return jnp.sum(amp.take(states, -1) ** 2)

    n = 200
    chain = {
        "before": np.arange(-1, n - 1, dtype=np.int32),
        "x": np.ones((n, 3), np.float32),
    }
    params = {"u": np.eye(3, dtype=np.float32)}
    spec = {"before": "int32[t]", "x": "float32[t,3]"}
    batched = batched_as("steps", model, params, spec)
    batch = batched.pack([chain])
    compute = jax.jit(jax.grad(lambda p, batch: jnp.sum(batched(p, batch))))
    text = compute.lower(params, batch).compile().as_text()
    bodies = bodies_of_loops(text)
    assert bodies
    for lines in bodies.values():
        for line in lines:
            match = re.search(r"= \w+\[([\d,]*)\]\S* copy\(", line)
            if match is not None:
                shape = []
                for k in match[1].split(","):
                    if k:
                        shape.append(int(k))
                assert np.prod(shape) < n, line
