"""Law 6: in synchronous mode, training is plain optax training of the composed function, step by step."""

import functools
from dataclasses import dataclass, replace

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from support.effort import examples
from support.laws import GRAPHS, Engine, random_one, replayed, schedules, start

from ampjax.ir.instances import Instances
from ampjax.ir.state import INSTANCE
from ampjax.numerics.differences import compare, difference_table
from ampjax.testing import reference

pytestmark = pytest.mark.users

STEPS = 4
TRANSFORMS = {
    "sgd": optax.sgd(0.05),
    "momentum": optax.sgd(0.02, momentum=0.9),
    # Adam divides by the gradient's size: this eps keeps gradients that are mere rounding errors from being blown up to a full step.
    "adam": optax.adam(0.01, eps=1e-3),
}


@dataclass(frozen=True)
class Only:
    """Instance `i` of a data set, with its number, which control may read; those before it pump nothing."""

    data: Instances
    i: int

    def __len__(self):
        return self.i + 1

    def gather(self, ids):
        batch = self.data.gather(ids[self.i :])
        result = {}
        for pump, columns in batch.items():
            result[pump] = replace(columns, instance=columns.instance + self.i)
        return result


def roles(graph):
    """The parameterised nodes, copies of one node together."""
    found = {}
    for name, node in graph.parameterised.items():
        found.setdefault(node.role, []).append(name)
    return found.values()


@functools.cache
def by_hand(seed, name):
    """Parameters before each step and after the last one: one instance is a step of all nodes, and both a sum and a mean over it are its gradient."""
    case = random_one(seed)
    tx = TRANSFORMS[name]
    params = start(seed)
    states = {node: tx.init(value) for node, value in params.items()}
    history = [params]
    for i in range(len(case.data[:STEPS])):
        found = reference(case.graph, params, Only(case.instances, i))
        params = dict(params)
        for nodes in roles(case.graph):
            grads = jax.tree.map(
                lambda *copies: sum(copies),
                *(found.grads[node] for node in nodes),
            )
            for node in nodes:
                updates, states[node] = tx.update(
                    grads,
                    states[node],
                    params[node],
                )
                params[node] = optax.apply_updates(params[node], updates)
        history.append(params)
    return history


def parameters_used(seed, schedule, name):
    """Runs the engine; yields `(step, parameters by node)`: what each dispatch of an instance found, and at the end all."""
    case = random_one(seed)
    found = []
    engine = Engine(case.graph, start(seed), schedule, TRANSFORMS[name])

    def watch(dispatch):
        if dispatch.stage is not None and dispatch.stage.params:
            (instance,) = set(dispatch.states[:, INSTANCE].tolist())
            found.append(
                (
                    instance,
                    {
                        n: jax.tree.map(
                            np.array,
                            engine.executor.store.params[n],
                        )
                        for n in dispatch.stage.params
                    },
                )
            )

    engine.watchers.append(watch)
    data = case.data[:STEPS]
    engine.run(data)
    return [*found, (len(data), engine.params)]


# One combination of optimizer and gradient per graph: the oracle of each step runs once.
@pytest.mark.parametrize(
    "seed, name, gradient",
    [
        (0, "sgd", "sum"),
        (1, "adam", "mean"),
        (3, "momentum", "sum"),
        pytest.param(4, "sgd", "mean", marks=pytest.mark.users),
        pytest.param(6, "adam", "sum", marks=pytest.mark.users),
        pytest.param(10, "momentum", "mean", marks=pytest.mark.users),
        (-3, "adam", "mean"),
    ],
)  # fmt: skip
def test_equals_optax_on_the_composed_function(seed, name, gradient):
    expected = by_hand(seed, name)

    @settings(max_examples=examples(12))
    @given(
        schedules(
            sizes=(1, 4, 16),
            mode="sync",
            gradient=gradient,
            min_update_interval=1,
        )
    )
    def check(schedule):
        with replayed("test_synchronous.parameters_used", seed, schedule, name):
            for step, params in parameters_used(seed, schedule, name):
                differences = compare(
                    params,
                    {node: expected[step][node] for node in params},
                )
                assert max(d for *_, d in differences) <= 1e-5, (
                    f"step {step}\n{difference_table(differences)}"
                )

    check()


@settings(max_examples=examples(20))
@given(GRAPHS, schedules(mode="sync", min_update_interval=1))
def test_one_instance_at_a_time(seed, schedule):
    engine = Engine(random_one(seed).graph, None, schedule)
    order = []
    engine.watchers.append(lambda d: order.extend(np.unique(d.states[:, INSTANCE]).tolist()))
    engine.run(random_one(seed).instances)
    assert order == sorted(order)
