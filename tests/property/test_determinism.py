"""Law 7: with a virtual clock, one seed gives one schedule and one set of parameters, bit for bit, in any process."""

import hashlib
import json
from dataclasses import replace

import jax
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import NIGHTLY, examples
from support.laws import (
    GRAPHS,
    SIZES,
    Costs,
    Engine,
    Schedule,
    frozen,
    random_one,
    replayed,
    run_control,
    run_python,
    schedule_of,
    schedules,
    start,
)

OPTIMIZER = optax.adam(0.01)

costs = st.builds(
    Costs,
    st.integers(0, 99),
    st.sampled_from([1, 2, 100]),
)

TRAINING = Schedule(
    frozen(
        max_active_keys=4, max_dispatch_size=4, workers=2, min_update_interval=3, affinity="paper"
    ),
    costs=Costs(7),
)


def trained(seed, schedule):
    """A digest of the schedule and of the parameters after one pass that trains."""
    engine = Engine(
        random_one(seed).graph,
        start(seed),
        schedule,
        OPTIMIZER,
    ).run(random_one(seed).instances)
    digest = hashlib.sha256("\n".join(schedule_of(engine)).encode())
    for node, params in engine.params.items():
        digest.update(node.encode())
        for leaf in jax.tree.leaves(params):
            digest.update(leaf.tobytes())
    return digest.hexdigest()


def controlled(seeds):
    """A digest of the schedules of some graphs without payloads."""
    return hashlib.sha256(
        "\n".join(line for s in seeds for line in schedule_of(run_control(s, TRAINING))).encode()
    ).hexdigest()


@pytest.mark.nightly
@settings(max_examples=examples(150))
@given(GRAPHS, schedules(), costs)
def test_the_same_schedule_twice(seed, schedule, costs):
    schedule = replace(schedule, costs=costs)
    with replayed("run_control", seed, schedule):
        assert schedule_of(run_control(seed, schedule)) == schedule_of(run_control(seed, schedule))


@settings(max_examples=examples(25))
@given(
    st.integers(0, 5 if NIGHTLY else 1),
    schedules(sizes=SIZES, min_update_interval=3),
    costs,
)
def test_the_same_parameters_twice(seed, schedule, costs):
    schedule = replace(schedule, costs=costs)
    with replayed("test_determinism.trained", seed, schedule):
        assert trained(seed, schedule) == trained(seed, schedule)


IN_ANOTHER_PROCESS = """
import json, property.test_determinism as t
print(json.dumps([t.trained(0, t.TRAINING), t.controlled(range(12))]))
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "hash_seed",
    ["0", pytest.param("12345", marks=pytest.mark.nightly)],
)
def test_the_same_in_any_process(hash_seed):
    found = json.loads(run_python(IN_ANOTHER_PROCESS, PYTHONHASHSEED=hash_seed).splitlines()[-1])
    assert found == [trained(0, TRAINING), controlled(range(12))]
