"""Routing by payload: what a kernel computes is read back and decides the way."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from support.engines import engine, spread

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import MessageError

pytestmark = pytest.mark.slow


@functools.cache
def sorting(n=3, bias=0):
    """Each number goes to the sink that its integer part names; a second choice halves it or not."""
    with ag.Graph() as g:
        x = ag.pump("x")
        doubled = ag.npt("double", lambda x: 2 * x)(x)
        choices = ag.npt(
            "choose",
            lambda x: jnp.stack(
                [
                    x.astype("int32") + bias,
                    (x % 1 > 0.5).astype("int32"),
                ]
            ),
        )(x)
        routed = ag.route_by(
            doubled,
            choices,
            "bin",
            "high",
            assume=lambda s: (s.instance % n, 0),
            name="route",
        )
        for i, wire in enumerate(
            ag.cond(
                routed,
                lambda s: s.bin,
                n,
                name="bins",
            )
        ):
            low, high = ag.cond(
                wire,
                lambda s: s.high,
                name=f"halves{i}",
            )
            ag.sink(f"low{i}", low)
            ag.sink(f"high{i}", high)
    return g


NUMBERS = np.array(
    [0.2, 1.7, 2.9, 0.6, 1.1, 2.3, 0.1],
    np.float32,
)
WANTED = {
    "low0": [0.2, 0.1],
    "high0": [0.6],
    "low1": [1.1],
    "high1": [1.7],
    "low2": [2.3],
    "high2": [2.9],
}


def arrived(e):
    found = {}
    for arrival in e.arrived:
        name = e.plan.stages[arrival.stage].name
        for state, row in zip(
            arrival.states,
            np.asarray(arrival.rows)[: arrival.n_rows],
            strict=True,
        ):
            found.setdefault(
                name,
                [],
            ).append((int(state[0]), float(row)))
    return {name: [x for _, x in sorted(rows)] for name, rows in found.items()}


@pytest.mark.parametrize("driver", ["wall", "virtual"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("size", [1, 64])
def test_payloads_decide_the_way(driver, workers, size):
    graph = sorting()
    e = engine(
        graph,
        spread(graph, workers),
        tuple(range(workers)),
        max_dispatch_size=size,
        max_active_keys=4,
    )
    getattr(e, driver)(
        [{"x": x} for x in NUMBERS],
        train=False,
    )
    want = {}
    for name, xs in WANTED.items():
        want[name] = [2 * x for x in xs]
    got = arrived(e)
    assert got.keys() == want.keys() and e.scheduler.idle
    for name, values in want.items():
        assert got[name] == pytest.approx(values)


def test_choices_straight_from_a_pump_are_read_on_the_host():
    with ag.Graph() as g:
        x = ag.pump("x")
        way = ag.pump("way", (), "int32")
        routed = ag.route_by(
            ag.npt("double", lambda x: 2 * x)(x),
            way,
            "way",
        )
        for i, wire in enumerate(
            ag.cond(
                routed,
                lambda s: s.way,
                2,
            )
        ):
            ag.sink(f"way{i}", wire)
    e = engine(g)
    e.wall(
        [{"x": np.float32(i), "way": np.int32(i % 2)} for i in range(5)],
        train=False,
    )
    assert arrived(e) == {
        "way0": [0.0, 4.0, 8.0],
        "way1": [2.0, 6.0],
    }


def test_without_numerics_the_assumption_decides():
    data = [{"x": x} for x in NUMBERS]
    guessed = amp.simulate(sorting(), data, train=False).stats.stages
    assert [guessed[f"low{i}"].infer + guessed[f"high{i}"].infer for i in range(3)] == [3, 2, 2]
    computed = amp.simulate(
        sorting(),
        data,
        train=False,
        numerics=True,
    ).stats.stages
    assert {name: computed[name].infer for name in WANTED} == {
        name: len(xs) for name, xs in WANTED.items()
    }


def test_a_choice_that_no_branch_has_is_told_with_its_state():
    with pytest.raises(
        MessageError,
        match=r"node `bins`, condition: expected an output's number in \[0, 3\), got 3",
    ) as e:
        amp.Trainer(sorting(3, 1)).predict([{"x": x} for x in NUMBERS])
    assert "bin=3" in str(e.value)


def test_nothing_is_left_after_an_error():
    trainer = amp.Trainer(sorting(3, 1))
    with pytest.raises(MessageError):
        trainer.predict([{"x": np.float32(2.5)}])
    found = trainer.predict([{"x": np.float32(1.25)}])
    assert {name: list(np.asarray(p.payload)) for name, p in found.items() if len(p.payload)} == {
        "low2": [2.5]
    }
