"""What graphs can say without nodes of their own: attention over a memory of any number of rows, and messages that carry a state only."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from support import graphs
from support.effort import examples
from support.laws import Engine, Schedule, assert_gradients, frozen, schedules

import ampjax.graphs as ag
from ampjax.testing import init_params, reference

D = 3
HOPS = 2


def scored(p, row, query):
    """A row of the memory behind its score for a query."""
    return jnp.concatenate(
        [(row @ p)[None] @ query[:, None], row[None]],
        axis=1,
    )[0]


def softmax_sum(rows, segments, n):
    """The mean of each segment's rows, weighted by the softmax of their scores."""
    score = rows[:, 0]
    rows = rows[:, 1:]
    score = jnp.exp(score - jax.ops.segment_max(score, segments, n)[jnp.clip(segments, 0, n - 1)])
    share = score / jax.ops.segment_sum(score, segments, n)[jnp.clip(segments, 0, n - 1)]
    return jax.ops.segment_sum(share[:, None] * rows, segments, n)


@functools.cache
def memory_network():
    """A query reads a memory in some hops: it is repeated for each row, rows are scored, and their weighted mean joins it."""
    with ag.Graph() as g:
        memory = ag.pump(
            "memory",
            (D,),
            fields=("hop", "n"),
            ragged=True,
        )
        rows = ag.phi("rows")
        query = ag.phi("query")
        each = ag.ppt(
            "score",
            scored,
            params=lambda key: jax.random.normal(key, (D, D)),
        )
        read = ag.reduce(
            "read",
            softmax_sum,
            each(rows, ag.repeat(query, lambda s: s.n)),
        )
        after = ag.npt(
            "add",
            lambda q, r: jnp.tanh(q + r),
        )(
            query,
            read,
        )
        query_on, done = ag.cond(
            ag.relabel(
                after,
                lambda s: s.replace(hop=s.hop + 1),
            ),
            lambda s: s.hop < HOPS,
        )
        rows_on, left = ag.cond(
            ag.relabel(
                rows,
                lambda s: s.replace(hop=s.hop + 1),
            ),
            lambda s: s.hop < HOPS,
        )
        ag.sink("left", left)
        query.connect(
            ag.pump("query0", (D,), fields=("hop", "n")),
            query_on,
        )
        rows.connect(memory, rows_on)
        ag.loss(
            "loss",
            lambda q: jnp.sum(jnp.sin(q)),
        )(
            ag.relabel(
                done,
                lambda s: s.drop("hop", "n"),
            )
        )
    return g


def questions(lengths):
    rng = np.random.default_rng(0)
    result = []
    for n in lengths:
        result.append(
            {
                "memory": ag.messages(
                    rng.normal(size=(n, D)),
                    hop=0,
                    n=n,
                    sizes=[n],
                ),
                "query0": ag.messages(
                    rng.normal(size=(1, D)),
                    hop=0,
                    n=n,
                ),
            }
        )
    return result


DATA = questions([2, 1, 5, 3])


def by_hand(w):
    total = jnp.zeros(())
    for instance in DATA:
        (q,) = instance["query0"].payload
        rows = instance["memory"].payload
        for _ in range(HOPS):
            q = jnp.tanh(q + jax.nn.softmax((rows @ w) @ q) @ rows)
        total += jnp.sum(jnp.sin(q))
    return total


@pytest.mark.users
@settings(max_examples=examples(15))
@given(schedules(sizes=(2, 16)))
def test_attention_is_repeat_a_row_wise_node_and_reduce(schedule):
    params = init_params(memory_network())
    engine = Engine(memory_network(), params, schedule).run(DATA)
    np.testing.assert_allclose(
        engine.gradients["score"],
        jax.grad(by_hand)(params["score"]),
        rtol=1e-4,
        atol=1e-6,
    )


@functools.cache
def placed():
    """Rows get their state, with a length that they did not have, from messages that carry nothing else."""
    with ag.Graph() as g:
        place = ag.pump(
            "place",
            (0,),
            "int8",
            fields=("t", "n"),
        )
        x = ag.ppt(
            "scale",
            graphs.times,
            params=graphs.one(),
        )(ag.pump("x", fields=("t",)))
        y = ag.npt(
            "placed",
            lambda place, x: jnp.sin(x),
            join=("instance", "t"),
        )(
            place,
            x,
        )
        ag.sink("y", y)
        ag.loss("loss", jnp.square)(y)
    return g


@pytest.mark.parametrize(
    "settings",
    [{}, {"fuse": True}, {"workers": 2}],
    ids=str,
)
def test_messages_that_carry_a_state_only(settings):
    data = []
    for n in (1, 3, 0):
        data.append(
            {
                "place": ag.messages(
                    np.zeros((n, 0)),
                    t=np.arange(n),
                    n=n,
                ),
                "x": ag.messages(
                    np.arange(1.0, n + 1),
                    t=np.arange(n),
                ),
            }
        )
    params = {"scale": graphs.one()}
    want = reference(placed(), params, data, oracle="eager")
    assert [state["n"] for state, _ in want.outputs["y"]] == [1, 3, 3, 3]
    engine = Engine(
        placed(),
        params,
        Schedule(frozen(**settings), devices=settings.get("workers", 1)),
    ).run(data)
    assert_gradients(engine, want)
    assert engine.executor.arenas.host[-1, (0,), "int8"].nbytes == 0
