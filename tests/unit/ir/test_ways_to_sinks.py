"""Which pumps and which of their state fields decide on what arrives at sinks."""

import jax.numpy as jnp
import numpy as np
import pytest

import ampjax.graphs as ag
from ampjax.ir.ways_to_sinks import fields_before_sinks, nodes_before_sinks

FIELDS = ("a", "b", "c", "d")


def fields(build):
    """The fields of the pump `x` that decide, of a graph in which `build` leads from it to a sink."""
    with ag.Graph() as g:
        x = ag.pump("x", fields=FIELDS)
        ag.sink("y", build(x))
        ag.loss("loss", lambda v: v)(
            ag.flatmap(
                x,
                lambda s: s.d,
                lambda s, i: s,
            )
        )
    return set(fields_before_sinks(g)["x"])


def split(x, choose, n=2):
    first, *others = ag.cond(x, choose, n)
    for other in others:
        ag.discard(other)
    return first


def loop(x):
    """The field `a` counts the rounds up to `b`; `c` goes along."""
    h = ag.phi("h")
    turn = ag.relabel(
        ag.npt("f", lambda v: v + 1)(h),
        lambda s: s.replace(a=s.a + 1),
    )
    done, more = ag.cond(
        turn,
        lambda s: s.a >= s.b,
    )
    h.connect(x, more)
    return done


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda x: x, ""),
        (lambda x: split(x, lambda s: s.a > 0), "a"),
        (lambda x: split(x, lambda s: np.where(s.a > 1, s.b % 2, 0,),), "ab"),
        (lambda x: split(ag.relabel(x, lambda s: s.replace(a=s.b, c=0)), lambda s: s.a + s.c > 0), "b"),
        (lambda x: split(ag.relabel(x, lambda s: s.replace(a=s.b, c=s.d)), lambda s: s.a > 0), "b"),
        (lambda x: split(ag.isu(x, lambda s: s.replace(a=s.a + s.b), lambda s: s.replace(a=s.a - s.b)), lambda s: s.a > 3), "ab"),
        (lambda x: ag.flatmap(x, lambda s: s.a, lambda s, i: s.replace(b=i),), "a"),
        (lambda x: split(ag.flatmap(x, lambda s: 2, lambda s, i: s.replace(b=s.c + i)), lambda s: s.b > 0), "c"),
        (lambda x: ag.reduce("sum", lambda r, ids, n: jnp.zeros(n).at[ids].add(r), ag.group(x, by=("a",), size=lambda s: s.b, order=lambda s: s.c)), "abc"),
        (lambda x: ag.npt("add", jnp.add, join=("a",),)(x, ag.pump("z", fields=("a",)),), "a"),
        (lambda x: ag.npt("add", jnp.add, join=lambda s: (s.a, s.instance))(x, ag.pump("z", fields=("a",))), "a"),
        (loop, "ab"),
        # What becomes of a column is not followed here, so it counts as read.
        (lambda x: split(x, lambda s: np.asarray(s.a) > 0,), "a"),
        (lambda x: split(x, lambda s: s.array[:, 2] > 0,), "abcd"),
    ],
)  # fmt: skip
def test_fields_that_decide(build, wanted):
    assert fields(build) == set(wanted)


def test_pumps_and_nodes_that_lead_to_no_sink():
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.npt("f", lambda v: v)(x)
        ag.sink("y", y)
        ag.loss("loss", lambda a, b: a * b)(
            ag.npt("before the loss", lambda v: v)(y),
            label,
        )
    assert set(fields_before_sinks(g)) == {"x"}
    assert nodes_before_sinks(g) == {"x", "f", "y"}
