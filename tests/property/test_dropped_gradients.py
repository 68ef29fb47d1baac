"""Gradients that are staler than `drop_staler_than` are dropped: they go on backward, but are neither accumulated nor counted; all others are."""

import functools
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import chains, graphs
from support.effort import examples
from support.laws import (
    GRAPHS_THAT_SHARE,
    Costs,
    Engine,
    assert_empty,
    gives_gradients,
    random_one,
    replayed,
    rows_at,
    schedule_of,
    schedules,
    updated,
)

import ampjax.graphs as ag
from ampjax.sched.decisions.dispatch import FORWARD
from ampjax.sched.decisions.parameter_changes import Average, Merge, Update, nodes_of
from ampjax.testing import reference


class Kept:
    """Finds anew, from nothing but the order of dispatches and their parameter changes, what is accumulated and what is dropped."""

    def __init__(self, graph, limits):
        self.limits = limits
        self.versions = dict.fromkeys(graph.parameterised, 0)
        self.seen = {}
        self.dropped = Counter()
        self.stalest = Counter()
        self.kept = []

    def __call__(self, d):
        if d.stage is None:
            keys = []
        else:
            keys = []
            for state in d.states.tolist():
                keys.append((d.stage.number, *state))
        if keys and d.direction == FORWARD and d.stage.outputs:
            self.seen |= {key: dict(self.versions) for key in keys}
        elif keys and gives_gradients(d):
            seen = []
            for key in keys:
                seen.append(self.seen.pop(key) if d.stage.outputs else self.versions)
            self._compare(d, seen)
        for change in d.changes:
            if isinstance(change, Update | Average | Merge):
                for node in nodes_of(change):
                    self.versions[node] += 1

    def _compare(self, d, seen):
        for node in d.stage.params:
            ages = [self.versions[node] - versions[node] for versions in seen]
            late = {age > self.limits.get(node, age) for age in ages}
            assert len(late) == 1, "what is dropped and what is not shares a dispatch"
            assert late == {node in d.dropped}
            if node in d.dropped:
                self.dropped[node] += d.n_rows * sum(
                    each.params_name == node for each in d.stage.parameterised
                )
            else:
                self.stalest[node] = max(self.stalest[node], *ages)
                self.kept += [(node, state) for state in map(tuple, d.states.tolist())]


def run(seed, schedule, limits):
    """A case without payloads; returns the engine, and what has been found anew."""
    schedule = replace(schedule, settings=replace(schedule.settings, drop_staler_than=limits))
    engine = Engine(random_one(seed).graph, None, schedule)
    nodes = engine.graph.parameterised
    found = Kept(
        engine.graph,
        limits
        if isinstance(limits, dict)
        else {}
        if limits is None
        else dict.fromkeys(nodes, limits),
    )
    engine.watchers.append(found)
    return engine.run(random_one(seed).instances), found


weights = st.sampled_from(["current", "stashed", "estimated"])


@pytest.mark.nightly
@settings(max_examples=examples(120))
@given(
    GRAPHS_THAT_SHARE,
    schedules(),
    weights,
    st.integers(1, 5),
    st.integers(0, 3),
    st.data(),
)
def test_what_is_too_stale_is_dropped_and_all_else_is_accumulated(
    seed, schedule, weights, interval, most, data
):
    names = list(random_one(seed).graph.parameterised)
    if names:
        some = st.dictionaries(
            st.sampled_from(names),
            st.integers(0, 2),
        )
    else:
        some = st.just({})
    limits = data.draw(st.just(most) | some)
    schedule = replace(
        schedule, settings=replace(schedule.settings, min_update_interval=interval, weights=weights)
    )
    with replayed("property.test_dropped_gradients.run", seed, schedule, limits):
        engine, found = run(seed, schedule, limits)
        nodes = engine.scheduler.counts.read().nodes
        assert {name: node.dropped for name, node in nodes.items()} == {
            name: found.dropped[name] for name in names
        }
        assert {name: node.staleness_max for name, node in nodes.items()} == {
            name: found.stalest[name] for name in names
        }
        assert updated(engine) + Counter(engine.gradient_rows) + found.dropped == +rows_at(engine)
        assert all(update.count >= interval for update in engine.updates())
        assert all(count < interval for count in engine.gradient_rows.values())
        assert_empty(engine)


@settings(max_examples=examples(60))
@given(GRAPHS_THAT_SHARE, schedules(min_update_interval=2))
def test_a_limit_that_nothing_exceeds_changes_nothing(seed, schedule):
    with replayed("property.test_dropped_gradients.run", seed, schedule, None):
        free, _ = run(seed, schedule, None)
        limited, _ = run(
            seed,
            schedule,
            free.scheduler.counts.read().staleness_max,
        )
        assert schedule_of(limited) == schedule_of(free)
        assert repr(limited.scheduler.counts.read()) == repr(free.scheduler.counts.read())


@settings(max_examples=examples(24))
@given(
    GRAPHS_THAT_SHARE,
    schedules(min_update_interval=1),
    st.sampled_from(["pipeline", "sync"]),
)
def test_where_the_controller_updates_nothing_is_dropped(seed, schedule, mode):
    schedule = replace(schedule, settings=replace(schedule.settings, mode=mode))
    with replayed("property.test_dropped_gradients.run", seed, schedule, 0):
        assert schedule_of(run(seed, schedule, 0)[0]) == schedule_of(run(seed, schedule, None)[0])


# Against oracles: parameters stay as they are, and the optimizer's state adds up the gradients of all updates.

SUMMING = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda grads, total, params=None: (
        jax.tree.map(jnp.zeros_like, grads),
        jax.tree.map(jnp.add, total, grads),
    ),
)


def sums(graph, params, instances, schedule, limit):
    """The sum of all gradients by node; what was kept: nodes and states of messages; and the columns of states."""
    options = {"drop_staler_than": limit, "gradient": "sum"}
    schedule = replace(schedule, settings=replace(schedule.settings, **options))
    engine = Engine(graph, params, schedule, SUMMING)
    found = Kept(graph, dict.fromkeys(graph.parameterised, limit))
    engine.watchers.append(found)
    engine.run(instances)
    store = engine.executor.store
    totals = {}
    for node in graph.parameterised:
        state = store.opt_state[node]
        total = state.inner if node in store.estimated else state
        totals[node] = np.asarray(total + store.accumulators[node])
    return totals, found.kept, engine.plan.layout.columns


STEPS = 3


@functools.cache
def recurrence():
    """`h ← tanh(a h + x_t)`, then `(b h - label)²`; each step's `x_t` is a product with `c`."""
    with ag.Graph() as g:
        tokens = ag.pump("tokens", fields=("t", "n"))
        h0 = ag.pump("h0", fields=("t", "n"))
        h = ag.phi("h")
        x = ag.ppt(
            "c",
            graphs.times,
            params=graphs.one(),
        )(tokens)
        z = ag.ppt(
            "a",
            lambda p, x, h: jnp.tanh(p * h + x),
            params=graphs.one(),
        )(
            x,
            h,
        )
        more, done = ag.cond(
            ag.relabel(
                z,
                lambda s: s.replace(t=s.t + 1),
            ),
            lambda s: s.t < s.n,
        )
        h.connect(h0, more)
        y = ag.ppt(
            "b",
            graphs.times,
            params=graphs.one(),
        )(
            ag.relabel(
                done,
                lambda s: s.drop("t", "n"),
            )
        )
        ag.loss("loss", graphs.square)(y, ag.pump("label"))
    return g


def unrolled(params, x, label):
    """The same with parameters of its own for each step."""
    h = 0.0
    for t in range(len(x)):
        h = jnp.tanh(params["a"][t] * h + params["c"][t] * x[t])
    return (params["b"] * h - label) ** 2


def gradients(x, label):
    """By node, and for `a` and `c` by step."""
    steps = {
        "a": np.full(len(x), PARAMS["a"]),
        "b": PARAMS["b"],
        "c": np.full(len(x), PARAMS["c"]),
    }
    return jax.grad(unrolled)(steps, x, label)


PARAMS = {
    "a": np.float32(0.7),
    "b": np.float32(1.3),
    "c": np.float32(0.9),
}


@pytest.mark.nightly
@settings(max_examples=examples(24))
@given(
    schedules(sizes=(1, 3), rich=True, max_active_keys=5),
    st.integers(1, 2),
    st.integers(0, 1),
    weights,
)
def test_gradients_that_count_are_those_of_the_composed_function(
    schedule, interval, limit, weights
):
    """Step by step: what is dropped at one step still reaches the steps before it."""
    rng = np.random.default_rng(0)
    data = []
    for i in range(12):
        data.append(
            (
                rng.normal(size=1 + i % STEPS).astype(np.float32),
                np.float32(i % 4),
            )
        )
    instances = []
    for x, label in data:
        instances.append(
            {
                "tokens": ag.messages(
                    x,
                    t=np.arange(len(x)),
                    n=len(x),
                ),
                "h0": ag.messages(
                    np.zeros(1, np.float32),
                    t=0,
                    n=len(x),
                ),
                "label": label,
            }
        )
    schedule = replace(
        schedule, settings=replace(schedule.settings, min_update_interval=interval, weights=weights)
    )
    found, kept, columns = sums(recurrence(), PARAMS, instances, schedule, limit)
    expected = dict.fromkeys(PARAMS, 0.0)
    grads = [gradients(x, label) for x, label in data]
    for node, state in kept:
        own = grads[state[columns["instance"]]][node]
        expected[node] += float(own if node == "b" else own[state[columns["t"]]])
    for node in PARAMS:
        np.testing.assert_allclose(
            found[node],
            expected[node],
            rtol=1e-5,
            atol=1e-5,
        )


@pytest.mark.nightly
@settings(max_examples=examples(8))
@given(
    schedules(
        sizes=(3,),
        fuse=True,
        workers=1,
        affinity="default",
        max_active_keys=4,
    ),
    st.integers(0, 99),
    st.integers(0, 1),
)
def test_what_is_dropped_at_the_edges_of_graphs(schedule, costs, limit):
    """Each node sees an instance once, so the sum is over the instances that count at it."""
    graph = chains.propagation(steps=1)
    instances = chains.odd_instances() * 2
    params = {}
    for node in graph.parameterised:
        params[node] = np.full(chains.FEATURES, 0.8, np.float32)
    schedule = replace(
        schedule,
        costs=Costs(costs),
        settings=replace(schedule.settings, min_update_interval=3),
    )
    found, kept, columns = sums(graph, params, instances, schedule, limit)
    for node, total in found.items():
        own = []
        for name, state in kept:
            if name == node:
                own.append(instances[state[columns["instance"]]])
        if own:
            expected = reference(graph, params, own).grads[node]
        else:
            expected = np.zeros_like(total)
        np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-5)
