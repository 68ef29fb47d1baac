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

import ampjax as amp
from ampjax.testing import init_params, reference

D = 3
HOPS = 2


def scored(p, row, query):
    """A row of the memory behind its score for a query."""
    return jnp.concatenate([(row @ p)[None] @ query[:, None], row[None]], axis=1)[0]


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
    with amp.Graph() as g:
        memory = amp.pump(
            "memory",
            (D,),
            fields=("hop", "n"),
            ragged=True,
        )
        rows = amp.phi("rows")
        query = amp.phi("query")
        each = amp.ppt(
            "score",
            scored,
            params=lambda key: jax.random.normal(key, (D, D)),
        )
        read = amp.reduce(
            "read",
            softmax_sum,
            each(rows, amp.repeat(query, lambda s: s.n)),
        )
        after = amp.npt("add", lambda q, r: jnp.tanh(q + r))(
            query,
            read,
        )
        query_on, done = amp.cond(
            amp.relabel(
                after,
                lambda s: s.replace(hop=s.hop + 1),
            ),
            lambda s: s.hop < HOPS,
        )
        rows_on, left = amp.cond(
            amp.relabel(
                rows,
                lambda s: s.replace(hop=s.hop + 1),
            ),
            lambda s: s.hop < HOPS,
        )
        amp.sink("left", left)
        query.connect(
            amp.pump("query0", (D,), fields=("hop", "n")),
            query_on,
        )
        rows.connect(memory, rows_on)
        amp.loss("loss", lambda q: jnp.sum(jnp.sin(q)))(
            amp.relabel(done, lambda s: s.drop("hop", "n"))
        )
    return g


def questions(lengths):
    rng = np.random.default_rng(0)
    result = []
    for n in lengths:
        result.append(
            {
                "memory": amp.messages(
                    rng.normal(size=(n, D)),
                    hop=0,
                    n=n,
                    sizes=[n],
                ),
                "query0": amp.messages(
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
    with amp.Graph() as g:
        place = amp.pump(
            "place",
            (0,),
            "int8",
            fields=("t", "n"),
        )
        x = amp.ppt("scale", graphs.times, params=graphs.one())(amp.pump("x", fields=("t",)))
        y = amp.npt("placed", lambda place, x: jnp.sin(x), join=("instance", "t"))(
            place,
            x,
        )
        amp.sink("y", y)
        amp.loss("loss", jnp.square)(y)
    return g


@pytest.mark.parametrize("settings", [{}, {"fuse": True}, {"workers": 2}], ids=str)
def test_messages_that_carry_a_state_only(settings):
    data = []
    for n in (1, 3, 0):
        data.append(
            {
                "place": amp.messages(
                    np.zeros((n, 0)),
                    t=np.arange(n),
                    n=n,
                ),
                "x": amp.messages(
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
