import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ampjax.jaxprs.inlining import inline_calls
from ampjax.jaxprs.lanes import (
    Given,
    LaneBatch,
    LaneInputs,
    LaneRun,
    Numbers,
    Of,
    Same,
    find_groups,
)
from ampjax.jaxprs.primitives import opened

N = 5
TABLES = [jnp.ones((10 + k, 3)) for k in range(N)]
IDS = jnp.zeros((4, N), jnp.int32)


def groups_of(function, *args):
    """The groups around reads of the first N arguments, by primitive, and the open jaxpr."""
    jaxpr = inline_calls(opened(jax.make_jaxpr(function)(*args))[0])
    given = dict.fromkeys(jaxpr.invars[:N], "table")
    reads = []
    for i, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name == "gather" and eqn.invars[0] in given:
            reads.append(i)
    found = find_groups(jaxpr, given, reads, jaxpr.invars[N:])
    by_name = {}
    for group in found.values():
        by_name.setdefault(group.equation.primitive.name, []).append(group)
    return by_name, jaxpr


def test_reads_and_what_leads_to_them_are_found():
    groups, jaxpr = groups_of(
        lambda *a: [jnp.tanh(a[k][a[N][:, k]]).sum(1) for k in range(N)],
        *TABLES,
        IDS,
    )
    assert {*groups} == {
        "slice",
        "squeeze",
        "lt",
        "add",
        "select_n",
        "broadcast_in_dim",
        "gather",
        "tanh",
        "reduce_sum",
    }
    assert all(len(group.places) == N for (group,) in groups.values())
    (slices,) = groups["slice"]
    (added,) = groups["add"]
    (read,) = groups["gather"]
    assert slices.starts.tolist() == [[0, k] for k in range(N)]
    assert isinstance(slices.operands[0], Same)
    assert isinstance(added.operands[1], Numbers)
    assert added.operands[1].values.tolist() == [
        10,
        11,
        12,
        13,
        14,
    ]
    assert isinstance(read.operands[0], Given)
    assert read.given == tuple(jaxpr.invars[:N])
    assert isinstance(read.operands[1], Of)
    assert read.operands[1].lanes == (0, 1, 2, 3, 4)


def test_inputs_of_one_kind_are_lanes():
    groups, _ = groups_of(
        lambda *a: [a[k][a[N + k]] for k in range(N)],
        *TABLES,
        *[IDS[:, 0]] * N,
    )
    assert isinstance(groups["lt"][0].operands[0], LaneInputs)


def test_what_is_computed_several_times_is_one_thing():
    groups, _ = groups_of(
        lambda *a: [a[k][(a[N][:, k] + k) % (a[N].max() + 3)] for k in range(N)],
        *TABLES,
        IDS,
    )
    assert "rem" in groups  # its divisor is computed for each of them


@pytest.mark.parametrize(
    "function",
    [
        lambda *a: [a[k][a[N][:, k]] for k in range(3)],  # too few
        lambda *a: [a[k][a[N][: k + 1, 0]] for k in range(N)],  # of other shapes
        lambda *a: [a[N][:, k] * 2 for k in range(N)],  # no reads
        lambda *a: jax.lax.fori_loop(
            0,
            3,
            lambda i, s: s + sum(a[k][a[N][i, k]] for k in range(N)),
            jnp.zeros(3),
        ),
    ],
)
def test_what_is_left_alone(function):
    assert groups_of(function, *TABLES, IDS)[0] == {}


def test_matrix_products_are_not_made_at_once():
    w = jnp.ones((3, 3))
    groups, _ = groups_of(
        lambda *a: [a[k][a[N][:, k]] @ w for k in range(N)],
        *TABLES,
        IDS,
    )
    assert "dot_general" not in groups and "gather" in groups


def test_lanes_of_a_batch():
    batch = LaneBatch(jnp.arange(24.0).reshape(4, 2, 3))
    np.testing.assert_array_equal(batch.lane(2), batch.array[2])
    assert batch.take((0, 1, 2, 3)) is batch.array
    for lanes in [(1, 2), (3, 0, 2), (2,)]:
        np.testing.assert_array_equal(
            batch.take(lanes),
            batch.array[np.array(lanes)],
        )
    for axis in (0, 1):
        wanted = np.concatenate(
            [batch.array[lane] for lane in (2, 3, 0)],
            axis,
        )
        np.testing.assert_array_equal(
            LaneRun(batch, (2, 3, 0), axis).whole(),
            wanted,
        )
