"""Random cases build, end, have finite gradients, show every node kind, and are the same each time."""

from collections import Counter

import jax
import numpy as np
import pytest
from support.effort import NIGHTLY
from support.random_graphs.random_case import random_case

from ampjax.ir.ops.payload_nodes import Sink
from ampjax.testing import init_params, reference

pytestmark = pytest.mark.slow

SEEDS, OFTEN = (200, 5) if NIGHTLY else (60, 1)
"""Cases, and how many of them show each feature at least."""
KINDS = {
    *("Pump", "PPT", "NPT", "Loss", "Sink", "Concat", "Split", "Reduce", "Collect"),
    *("Cond", "Phi", "Isu", "Bcast", "Flatmap", "Repeat", "Ungroup", "Group", "Distribute"),
}


def same(a, b):
    """Whether two instances' values are equal: messages, topologies, arrays."""
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return sorted(a) == sorted(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dict__"):
        return same(vars(a), vars(b))
    return a == b


@pytest.mark.users
def test_cases_end_with_finite_gradients_and_show_everything():
    seen = Counter()
    reached = Counter()
    arrivals = []
    for seed in range(SEEDS):
        case = random_case(seed)
        got = reference(
            case.graph,
            init_params(case.graph, seed),
            case.instances,
        )
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got.grads)), case.replay
        assert np.isfinite(got.loss), case.replay
        arrivals.append(sum(got.messages.values()) / len(case.data))
        wires = []
        for node in case.graph.nodes.values():
            for wire in node.outputs:
                wires.append(wire)
        for node in case.graph.nodes.values():
            seen[node.kind] += 1
            reached[node.kind] += got.messages[node.name]
        seen["fan-out"] += any(len(wire.consumers) > 1 for wire in wires)
        seen["nested loop"] += any({"c0", "c1"} <= set(wire.type.fields) for wire in wires)
        seen["ragged in a loop"] += any(
            wire.type.ragged and "c0" in wire.type.fields for wire in wires
        )
        seen["replicas"] += any(node.options.replica_of for node in case.graph.nodes.values())
        dead = []
        for n in case.graph.nodes.values():
            if isinstance(n.op, Sink) and n.inputs[0].source.kind == "Cond":
                dead.append(n)
        seen["dead branch"] += bool(dead)
        seen["opener"] += any(
            n.kind == "Group" and len(n.inputs) == 2 for n in case.graph.nodes.values()
        )
        seen["empty rows"] += any(
            rows.shape[0] == 0
            for messages in got.outputs.values()
            for _, rows in messages
            if rows.ndim == 2
        )
        seen["no row at a PPT"] += 0 in got.rows.values()
    features = (
        "fan-out",
        "nested loop",
        "ragged in a loop",
        "replicas",
        "dead branch",
        "opener",
        "empty rows",
    )
    assert set(seen) >= KINDS | {*features, "no row at a PPT"}, seen
    assert all(seen[feature] >= OFTEN for feature in (*KINDS, *features)), seen
    assert all(reached[kind] for kind in KINDS - {"Pump"}), reached
    assert 20 < np.median(arrivals) < 100 and max(arrivals) < 600


@pytest.mark.parametrize("seed", [0, 7, 68])
def test_a_case_is_a_function_of_its_seed(seed):
    case = random_case(seed, size=10, n_instances=3)
    names = {}
    exec(case.replay, names)
    again = names["case"]
    assert [repr(n) for n in again.graph.nodes.values()] == [
        repr(n) for n in case.graph.nodes.values()
    ]
    assert len(case.instances) == len(case.data) == 3
    assert all(map(same, again.data, case.data))
    assert repr(case) == f"Case(replay={case.replay!r})"


@pytest.mark.nightly
def test_equal_bodies_are_equal_objects_across_cases():
    bodies = set()
    for seed in range(40):
        for node in random_case(seed).graph.nodes.values():
            if node.kind in ("PPT", "NPT", "Loss", "Concat", "Split"):
                bodies.add(node.op.body.apply)
    assert len(bodies) <= 20


@pytest.mark.nightly
def test_a_case_in_float64():
    with jax.enable_x64(True):
        case = random_case(3, dtype="float64")
        got = reference(case.graph, init_params(case.graph), case.instances)
        assert {leaf.dtype for leaf in jax.tree.leaves(got.grads)} == {np.dtype("float64")}
