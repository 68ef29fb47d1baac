"""A change of the state without an inverse: messages go on with their payloads, gradients find back, equal states stay two messages."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs
from support.effort import examples
from support.laws import Engine, Schedule, assert_empty, assert_gradients, schedules

import ampjax.graphs as ag
from ampjax.errors import MessageError
from ampjax.ir.state import State
from ampjax.testing import init_params, reference

few = st.integers(1, 4)


@dataclass(frozen=True)
class Coarser:
    """`t` is divided, rounding down; `u` goes; `v` comes: a remainder, so that several states become one."""

    by: int
    mod: int

    def __call__(self, s):
        return s.replace(
            t=s.t // self.by,
            v=s.u % self.mod,
        ).drop("u")


def one_wire(change, end):
    with ag.Graph() as graph:
        x = ag.ppt(
            "before",
            graphs.times,
            params=graphs.one(),
        )(ag.pump("x", fields=("t", "u")))
        end(ag.relabel(x, change, name="coarser"))
    return graph


def scaled_loss(wire):
    ag.loss("loss", lambda x: jnp.sin(x))(
        ag.ppt(
            "scale",
            graphs.times,
            params=graphs.one(),
        )(wire)
    )


@pytest.mark.nightly
@settings(max_examples=examples(40))
@given(
    few,
    few,
    st.sets(
        st.tuples(
            st.integers(-5, 5),
            st.integers(-5, 5),
        ),
        min_size=1,
        max_size=6,
    ),
    schedules(),
)
def test_gradients_find_back_though_states_are_equal(by, mod, states, schedule):
    change = Coarser(by, mod)
    graph = one_wire(change, scaled_loss)
    t, u = np.array(sorted(states)).T
    data = []
    for i in range(3):
        data.append(
            {
                "x": ag.messages(
                    np.linspace(-1, 1, len(t)) + i,
                    t=t,
                    u=u,
                )
            }
        )
    engine = Engine(graph, init_params(graph), schedule).run(data)
    assert_gradients(engine, reference(graph, init_params(graph), data, oracle="eager"))
    assert_empty(engine)
    after = change(State.of(t=t, u=u))
    at = []
    for d in engine.dispatches:
        if d.stage.name == "scale":
            at.append(d.states)
    columns = []
    for name in ("t", "v", "u"):
        columns.append(graph.layout.column(name))
    want = np.stack(
        [after.t, after.v, 0 * t],
        axis=1,
    ).tolist()
    assert sorted(np.concatenate(at)[:, columns].tolist()) == sorted(want * 6), (
        "three instances, forward and backward"
    )


@pytest.mark.first_case
@pytest.mark.parametrize(
    "schedule",
    [Schedule(), Schedule(costs=lambda d: 1)],
    ids=["asyncio", "virtual time"],
)
def test_a_loop_is_left_with_the_state_of_the_instance_alone(schedule):
    with ag.Graph() as graph:
        h = ag.phi("h")
        z = ag.ppt(
            "cell",
            graphs.times,
            params=graphs.one(),
        )(h)
        more, done = ag.cond(
            ag.relabel(
                z,
                lambda s: s.replace(t=s.t + 1),
            ),
            lambda s: s.t < s.n,
        )
        h.connect(
            ag.pump("x", fields=("t", "n")),
            more,
        )
        ag.loss("loss", graphs.square)(
            ag.relabel(done, lambda s: s.drop("t", "n")),
            ag.pump("label"),
        )
    assert graph.nodes["relabel2"].outputs[0].type.fields == ()
    data = []
    for n in (1, 2, 5):
        data.append(
            {
                "x": ag.messages([1.0 + n], t=0, n=n),
                "label": np.float32(0.5),
            }
        )
    params = init_params(graph)

    def by_hand(p):
        return sum((p**n * (1.0 + n) - 0.5) ** 2 for n in (1, 2, 5))

    engine = Engine(graph, params, schedule).run(data)
    assert engine.gradients["cell"] == pytest.approx(
        float(jax.grad(by_hand)(params["cell"])), rel=1e-5
    )
    assert_gradients(engine, reference(graph, params, data, oracle="eager"))


def test_a_join_refuses_messages_that_have_become_equal():
    graph = one_wire(
        Coarser(2, 1),
        lambda w: ag.loss(
            "loss",
            graphs.square,
            join=("instance", "t"),
        )(w, ag.pump("y", fields=("t",))),
    )
    data = [
        {
            "x": ag.messages(
                [1.0, 2.0],
                t=[0, 1],
                u=0,
            ),
            "y": ag.messages([1.0], t=0),
        }
    ]
    text = r"node `loss`, port coarser: expected one message per key, got a second one with State\(instance=0, t=0, v=0\)"
    with pytest.raises(MessageError, match=text):
        Engine(graph, None, Schedule()).run(data)
