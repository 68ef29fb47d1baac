"""Programs that read many tables whose rows lie in one: the same losses and gradients, and no more of a program than for few tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.effort import left_to_nightly
from support.sparse_steps import assert_equal, quick_jit, reference

from ampjax.sparse.rewrite.pulled_step import rewrite
from ampjax.sparse.rewrite.stacks import Stack

pytestmark = pytest.mark.slow

N = 6
D = 3
B = 4
NAMES = [f"t{k}" for k in range(N)]
PATHS = [f"['{name}']" for name in NAMES]
RNG = np.random.default_rng(0)
PARAMS = {name: RNG.normal(size=(9 + k, D)).astype(np.float32) for k, name in enumerate(NAMES)} | {
    "w": RNG.normal(size=N * D).astype(np.float32),
    "u": RNG.normal(size=D).astype(np.float32),
    "V": RNG.normal(size=(N, D, 2)).astype(np.float32),
}
IDS = RNG.integers(-12, 20, (B, N)).astype(
    np.int32
)  # some are outside of each table, or count from its end
BAGS = RNG.integers(
    0,
    9,
    (B, N, 5),
).astype(np.int32)
MASK = RNG.random((B, N, 5)).astype(np.float32)
BY_NAME = {name: IDS[:, k] for k, name in enumerate(NAMES)}


def each(p, x, read):
    result = []
    for k, name in enumerate(NAMES):
        result.append(read(p[name], x[:, k]))
    return result


def at(table, ids):
    return table[ids]


def end(p, h):
    return jnp.tanh(h @ (p["w"] if h.shape[-1] == N * D else p["u"])).sum()


def in_branches(p, x):
    rows = jnp.concatenate(each(p, x, at), 1)
    return jax.lax.cond(
        x[0, 0] > 0,
        lambda: end(p, rows),
        lambda: end(p, p["t3"][x[0]]) + end(p, rows),
    )


def in_a_scan(p, x):
    def step(h, ids):
        return jnp.tanh(h + sum(p[name][ids[k]] for k, name in enumerate(NAMES))), None

    return end(
        p,
        jax.lax.scan(step, jnp.zeros(D), x)[0],
    )


@jax.jit
def embedded(table, ids):
    return jnp.take(table, ids, axis=0, mode="clip") * 2


PROGRAMS = {
    "concatenated": (lambda p, x: end(p, jnp.concatenate(each(p, x, at), 1,),), IDS),
    "taken": (lambda p, x: end(p, jnp.concatenate(each(p, x, lambda t, i: jnp.take(t, i, axis=0, fill_value=2)), -1)), IDS),
    "clipped": (lambda p, x: end(p, jnp.stack(each(p, x, lambda t, i: t.at[i].get(mode="clip")), 1)), IDS),
    "of functions": (lambda p, x: end(p, jnp.stack(each(p, x, embedded), 1,),), IDS),
    "along the first axis": (lambda p, x: end(p, jnp.concatenate(each(p, x, at), 0,),), IDS),
    "summed": (lambda p, x: end(p, sum(each(p, x, at)),), IDS),
    "bags": (lambda p, x: end(p, jnp.concatenate(each(p, x, lambda t, i: t[i].mean(1)), 1),), BAGS),
    "weighted bags": (lambda p, x: end(p, jnp.concatenate([(t * m[:, k, :, None]).sum(1) for m in [MASK] for k, t in enumerate(each(p, x, at))], 1)), BAGS),
    "single rows": (lambda p, x: end(p, jnp.concatenate([p[name][x[0, k]] for k, name in enumerate(NAMES)])), IDS),
    "in another order": (lambda p, x: end(p, jnp.concatenate(each(p, x, at)[::-1], 1,),), IDS),
    "some of them": (lambda p, x: end(p, jnp.stack(each(p, x, at)[1:5], 1)) + end(p, p["t0"][x[:, 0]] * p["t5"][x[:, 5]]), IDS),
    "one after the other": (lambda p, x: sum((k + 1.0) * end(p, h) for k, h in enumerate(each(p, x, at))), IDS),
    "with a layer each": (lambda p, x: sum(jnp.tanh(h @ p["V"][k]).sum() for k, h in enumerate(each(p, x, at))), IDS),
    "read twice": (lambda p, x: end(p, jnp.concatenate(each(p, x, at), 1)) + end(p, jnp.stack(each(p, x + 1, at), 1)), IDS),
    "hashed": (lambda p, x: end(p, jnp.concatenate([p[name][(x[:, k] * 7 + k) % len(p[name])] for k, name in enumerate(NAMES)], 1)), IDS),
    "by name": (lambda p, x: end(p, jnp.concatenate([p[name][x[name]] for name in NAMES], 1)), BY_NAME),
    "in half precision": (lambda p, x: end(p, jnp.concatenate(each(p, x, lambda t, i: t.astype(jnp.bfloat16)[i]), 1).astype(jnp.float32)), IDS),
    "beside dense ones": (lambda p, x: end(p, jnp.stack([*each(p, x, at), jnp.ones((B, D)), p["u"] * jnp.ones((B, 1))], 1)), IDS),
    "a row overwritten": (lambda p, x: end(p, jnp.stack(each(p, x, lambda t, i: t.at[2].set(0.0)[i]), 1)), IDS),
    "some overwritten": (lambda p, x: end(p, jnp.stack([*each(p, x, at)[:5], p["t5"].at[2].set(0.0)[x[:, 5]]], 1)), IDS),
    "of two joined": (lambda p, x: end(p, jnp.concatenate([p["t0"], p["t1"]])[x[:, 0]]) + end(p, jnp.stack(each(p, x, at), 1)), IDS),
    "in branches": (in_branches, IDS),
    "in a scan": (in_a_scan, IDS),
    "again in the backward pass": (lambda p, x: jax.checkpoint(lambda p: end(p, jnp.stack(each(p, x, at), 1)))(p), IDS),
    "with aux": (lambda p, x: (end(p, jnp.stack(each(p, x, at), 1)), {"rows": p["t2"][x[:, 2]]}), IDS),
}  # fmt: skip


def stacked(loss, batch, names=NAMES):
    return rewrite(
        loss,
        PARAMS,
        batch,
        sparse=PATHS,
        stacks={"all": [f"['{name}']" for name in names]},
    )


def step(program, params, batch):
    """The loss, and gradients like the parameters, computed from pulled rows in another order than that in which they are read."""
    dense, leaves = program.split(params)
    (stack,) = program.stacks.values()
    whole = jnp.concatenate([leaves[path] for path in stack.paths])
    ids = program.ids(dense, batch)["all"]
    rows = jnp.roll(whole, 5, 0)
    inverse = jnp.where(
        ids < len(whole),
        (ids + 5) % len(whole),
        len(whole),
    )
    out, (grads, row_grads) = program.value_and_grad(
        dense,
        {"all": rows},
        batch,
        {"all": inverse},
    )
    by_row = jnp.roll(row_grads["all"], -5, 0)
    return out, program.join(
        grads,
        {path: by_row[first:end] for path, (first, end) in stack.spans.items()},
    )


GROUPS = 5


@pytest.mark.parametrize(
    "group",
    [0, *left_to_nightly(range(1, GROUPS))],
)
def test_losses_and_gradients_are_those_of_the_programs(group):
    cases = list(PROGRAMS.items())[group::GROUPS]  # compiled together, which takes half the time
    order = []
    for k in (3, 0, 1, 5, 4, 2):
        order.append(NAMES[k])
    programs = [stacked(loss, batch, order) for _, (loss, batch) in cases]

    @quick_jit
    def both(params):
        result = []
        for program, (name, (loss, batch)) in zip(programs, cases, strict=True):
            result.append(
                (
                    step(program, params, batch),
                    reference(loss, params, batch, name == "with aux"),
                )
            )
        return result

    for (name, _), (got, want) in zip(
        cases,
        both(PARAMS),
        strict=True,
    ):
        assert_equal(got, want, name)


def equations(function, *args):
    return str(jax.make_jaxpr(function)(*args)).count(" = ")


def program_of(n, read):
    params = {f"t{k:02}": np.ones((20 + k, D), np.float32) for k in range(n)} | {
        "w": np.ones(n * D, np.float32)
    }

    def loss(p, x):
        return jnp.tanh(
            jnp.concatenate([read(p[f"t{k:02}"], x[:, k]) for k in range(n)], 1) @ p["w"]
        ).sum()

    batch = np.zeros((B, n), np.int32)
    return (
        rewrite(
            loss,
            params,
            batch,
            stacks={"all": [f"['t{k:02}']" for k in range(n)]},
        ),
        params,
        batch,
    )


@pytest.mark.parametrize(
    "read",
    [
        at,
        lambda t, i: jnp.take(t, i, axis=0) * 2,
        lambda t, i: t[i[:, None]].sum(1),
    ],
)
def test_a_program_is_as_long_for_many_tables_as_for_few(read):
    sizes = []
    for n in (4, 40):
        program, params, batch = program_of(n, read)
        dense = program.split(params)[0]
        rows = {"all": jnp.ones((8, D))}
        inverse = {
            "all": jnp.zeros(
                program.n_ids(batch)["all"],
                jnp.int32,
            )
        }
        step = equations(
            lambda *args, p=program: p.value_and_grad(*args),
            dense,
            rows,
            batch,
            inverse,
        )
        sizes.append((equations(program.ids, dense, batch), step))
    assert (
        sizes[1][0] <= sizes[0][0] + 2 and sizes[1][1] <= sizes[0][1] + 10
    )  # `concatenate` takes 16 operands at a time


def test_a_stack_knows_its_parameters():
    stack = Stack.of(
        ["b", "a", "c"],
        {"a": 3, "b": 5, "c": 2},
    )
    assert stack.starts == (0, 5, 8)
    assert stack.n_rows == 10
    assert stack.spans == {
        "b": (0, 5),
        "a": (5, 8),
        "c": (8, 10),
    }
    assert stack.counts(np.array([0, 4, 5, 9])).tolist() == [2, 1, 1]
    assert stack.sizes.tolist() == [
        5,
        3,
        2,
    ]
    parts = {}
    for path, ids, values in stack.parts(
        np.array([9, 0, 6]),
        np.arange(3),
    ):
        parts[path] = (ids.tolist(), values.tolist())
    assert parts == {
        "b": ([0], [1]),
        "a": ([1], [2]),
        "c": ([1], [0]),
    }


def test_a_stack_of_two_reads_each_by_itself():
    program = rewrite(
        lambda p, x: end(p, p["t0"][x]) + end(p, p["t1"][x]),
        PARAMS,
        IDS,
        stacks={"all": PATHS[:2]},
    )
    ids = program.ids(
        program.split(PARAMS)[0],
        np.array([[1, -1, 3]] * 4, np.int32),
    )["all"]
    assert ids.tolist() == [1, 8, 3] * 4 + [10, 18, 12] * 4
