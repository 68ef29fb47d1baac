"""Law 3: a state's inverse change leads back, for every state; a wrong inverse is refused when the graph is built."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.laws import Engine, assert_empty, schedules

import ampjax.graphs as ag
from ampjax.errors import GraphError
from ampjax.ir.state import State, sample

FIELDS = ("t", "u", "v")
small = st.integers(-5, 5)


@dataclass(frozen=True)
class Affine:
    """`t' = a t + b u + c v + d`, then `u' = e u + f t' + g`, `v' = -v + h`: integers, not all of them units."""

    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    g: int
    h: int

    def __call__(self, s):
        t = self.a * s.t + self.b * s.u + self.c * s.v + self.d
        return s.replace(
            t=t,
            u=self.e * s.u + self.f * t + self.g,
            v=self.h - s.v,
        )

    def back(self, s):
        u = (s.u - self.g - self.f * s.t) // self.e
        v = self.h - s.v
        return s.replace(
            t=(s.t - self.d - self.b * u - self.c * v) // self.a,
            u=u,
            v=v,
        )


nonzero = small.filter(bool)
changes = st.builds(
    Affine,
    nonzero,
    small,
    small,
    small,
    nonzero,
    small,
    small,
    small,
)


def graph_with(function, inverse):
    """`x -> isu -> scale -> loss`."""
    with ag.Graph() as graph:
        x = ag.isu(
            ag.pump("x", fields=FIELDS),
            function,
            inverse,
        )
        ag.loss("loss", lambda x: x * x)(
            ag.ppt(
                "scale",
                lambda p, x: p * x,
                params=np.float32(2),
            )(x)
        )
    return graph


@settings(max_examples=examples(300))
@given(
    changes,
    st.lists(
        st.tuples(*[st.integers(-1000, 1000)] * 3),
        min_size=1,
        max_size=8,
    ),
)
def test_the_way_back_leads_back(change, states):
    columns = dict(
        zip(
            FIELDS,
            np.array(states).T,
            strict=True,
        )
    )
    before = State.of(instance=0, **columns)
    after = change.back(change(before))
    assert np.array_equal(before.array, after.array)
    assert before.fields == after.fields


@settings(max_examples=examples(40))
@given(
    changes,
    st.sets(
        st.tuples(small, small, small),
        min_size=1,
        max_size=6,
    ),
    schedules(),
)
def test_a_right_inverse_is_accepted_and_messages_find_back(change, states, schedule):
    graph = graph_with(change, change.back)
    columns = dict(
        zip(
            FIELDS,
            np.array(sorted(states)).T,
            strict=True,
        )
    )
    engine = Engine(graph, None, schedule).run(
        [
            {
                "x": ag.messages(
                    np.ones(len(states)),
                    **columns,
                )
            }
        ]
        * 3
    )
    changed = change(State.of(**columns))
    at_scale = []
    for d in engine.dispatches:
        if d.stage.name == "scale":
            for row in d.states:
                at_scale.append(row[2:].tolist())
    want = np.stack(
        [getattr(changed, name) for name in FIELDS],
        axis=1,
    ).tolist()
    assert sorted(at_scale) == sorted(want * 6), "three instances, forward and backward"
    assert_empty(engine)


@settings(max_examples=examples(60))
@given(changes, st.sampled_from("abcdefgh"), nonzero)
def test_a_wrong_inverse_is_refused(change, coefficient, by):
    """Wrong for most states, that is: it is tried on a few, and rounding down in the division may make a wrong one right."""
    value = getattr(change, coefficient) + by
    wrong = Affine(**(vars(change) | {coefficient: value or 7}))
    states = sample(FIELDS, 200, seed=1)
    assume((wrong.back(change(states)).array != states.array).any(axis=1).mean() > 0.5)
    with pytest.raises(GraphError, match="isu"):
        graph_with(change, wrong.back)


def test_an_inverse_that_forgets_a_field_is_refused():
    with pytest.raises(GraphError, match="isu"), ag.Graph():
        ag.isu(
            ag.pump("x", fields=("t",)),
            lambda s: s.replace(k=s.t),
            lambda s: s,
        )
