"""What is said when nothing moves: who waits, from where it should come, what those last did, and what the throttle says."""

import asyncio
import re
import warnings

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import graphs
from support.control import admit, scheduler_for
from support.hangs import FIX, GOOD, HANGS, at, times, without

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import DeadlockError, MessageError
from ampjax.sched.diagnose.deadlock import report, standstill


def hang(graph, data):
    """What is said of instances that can't end, before anything of them runs."""
    with pytest.raises(DeadlockError) as caught:
        admit(scheduler_for(graph), data)
    return str(caught.value)


def test_an_instance_that_is_still_pumped_to():
    s = scheduler_for(graphs.chain(1))
    s.open(np.array([7]))
    assert str(standstill(s.snapshot())) == HANGS["an instance that is still pumped to"][-1]


def test_what_waits_in_queues_is_told():
    s = scheduler_for(graphs.chain(2))
    admit(s, [GOOD] * 3)
    assert "queues: forward of `f0` 3" in report(s.snapshot())


def test_a_group_that_waits_for_messages_of_another_group():
    """The doctor looks no further back than to the next group."""
    with ag.Graph() as g:
        rows = ag.pump("rows", (), ragged=True)
        label = ag.pump("label")
        inner = ag.group(
            ag.ungroup(rows, "i"),
            size=lambda s: 2,
            by=(),
            name="inner",
        )
        outer = ag.group(
            ag.ungroup(inner, "j"),
            size=lambda s: 3,
            by=(),
            name="outer",
        )
        ag.loss("loss", graphs.square, join=("instance",))(
            ag.npt("sum", jnp.sum)(
                ag.reduce(
                    "all",
                    lambda x, ids, n: jnp.zeros(n).at[ids].add(x),
                    outer,
                )
            ),
            label,
        )
    text = hang(
        g,
        [
            {
                "rows": np.ones(1, np.float32),
                "label": np.float32(0),
            }
        ],
    )
    assert (
        "port sum of `loss` is fed by NPT `sum`: nothing of instance 0 from it waits anywhere"
        in text
    )
    assert "group `inner` with State(instance=0, i=0) waits for 1 more of 2 member(s)" in text


@pytest.mark.parametrize("workers", [1, 2])
def test_the_trainer_says_it_too(workers):
    trainer = amp.Trainer(
        graphs.chain(1),
        optax.sgd(0.1),
        workers=workers,
        fuse=False,
    )
    with pytest.raises(DeadlockError) as caught:
        trainer.fit([GOOD, without("label", GOOD)], progress=False)
    assert str(caught.value).splitlines() == [
        "before instance 1 is admitted: expected messages that all find their partners, got some that wait for ever: "
        f"node `loss` has State(instance=1) on port f0 and waits for the same key on port label. {FIX}",
        "  port label of `loss` is fed by Pump `label`: nothing of instance 1 from it waits anywhere",
        "  instance 1 comes to:",
        "    `f0`, State(instance=1)",
    ]


# Loops that never end


def test_a_loop_of_control_nodes_that_never_ends():
    """Nothing is dispatched in it, so it would hold the whole run up."""
    with ag.Graph() as g:
        t = ag.phi("t")
        more, done = ag.cond(
            ag.isu(
                t,
                lambda s: s.replace(t=s.t + 1),
                lambda s: s.replace(t=s.t - 1),
            ),
            lambda s: s.t != 0,
            name="more",
        )
        t.connect(ag.pump("x", fields=("t",)), more)
        ag.sink("end", done)
    s = scheduler_for(g)
    with pytest.raises(MessageError) as caught:
        admit(s, [{"x": at(1)}])
    text = str(caught.value)
    assert text.startswith("node `") and text.endswith(
        " Mend the condition that should let it out of the loop."
    )
    assert (
        "expected messages that reach a payload node, a group or a sink, got one that has passed 100000 control nodes, State(instance=0, t="
        in text
    )


def looping(leaves):
    """A step that is taken until `leaves(s)`."""
    with ag.Graph() as g:
        t = ag.phi("t")
        y = ag.isu(
            times("step", t),
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        done, more = ag.cond(y, leaves, name="leave")
        t.connect(ag.pump("x", fields=("t",)), more)
        ag.sink("end", done)
    return g


def test_a_loop_that_never_ends_is_found_before_the_training(monkeypatch):
    monkeypatch.setattr("ampjax.unfold.unfolding.WARN_ROUNDS", 0)  # looked at in every round
    monkeypatch.setattr("ampjax.unfold.unfolding.MOST_ROUNDS", 100)
    text = (
        r"node `step`: expected instances that end, got one that goes on after 100 stages one after the other, State\(instance=0, t=\d+\)\. "
        r"Mend the condition that should let it out of the loop\."
    )
    with pytest.raises(MessageError, match=text):
        amp.Trainer(looping(lambda s: s.t < 0)).fit(
            [{"x": at(1)}],
            progress=False,
        )


def test_a_loop_that_may_never_end_is_told_while_it_is_unfolded(monkeypatch):
    """Once it is unfolded, it is known how many messages come, however many these are."""
    monkeypatch.setattr("ampjax.unfold.unfolding.WARN_ROUNDS", 50)
    monkeypatch.setattr("ampjax.drivers.run.PATIENCE", 50)
    long = amp.Trainer(
        looping(lambda s: s.t > 120),
        policy="backward_first",
    )
    with pytest.warns(RuntimeWarning) as told:
        long.accumulate([{"x": at(1)}], update=False)
    for text in {str(one.message) for one in told}:
        assert text.startswith(
            "instance 0 has passed 50 stages one after the other, the last one `step`:"
        )
        assert "a loop that they never leave" in text


def test_a_loop_that_may_never_end_is_told_while_it_goes_on(monkeypatch):
    monkeypatch.setattr("ampjax.drivers.run.PATIENCE", 50)
    graph = choosing(lambda x: (x > 0.01).astype(jnp.int32))
    long = amp.Trainer(
        graph,
        params={"step": np.float32(0.9)},
        policy="backward_first",
    )
    with pytest.warns(RuntimeWarning) as told:
        long.accumulate(
            [
                {
                    "x": ag.messages(
                        np.ones(1, np.float32),
                        t=0,
                        more=0,
                    )
                }
            ],
            update=False,
        )
    (only,) = (str(one.message) for one in told)
    assert re.match(
        r"no instance has ended during (5\d|6[0-7]) messages, with 1 in flight: does a loop never end\?",
        only,
    ), "up to 16 dispatches are decided on at once"
    assert "instance 0 is the oldest; lately:" in only


def long_loop(p, s):
    h, _ = amp.scan(
        lambda h, x: (
            jnp.tanh(h * p["w"] + x),
            None,
        ),
        jnp.ones(()),
        s["x"],
    )
    return h


def long_map(p, s):
    return amp.sum(
        amp.map(
            lambda x: x * p["w"],
            s["x"],
        )
    )


def loop_that_reads(p, s):
    """Its rounds are bounded by `most`, so that it ends, too."""
    return amp.while_loop(
        lambda h: amp.read(h > 0.01),
        lambda h: h * p["w"],
        amp.sum(s["x"]) * p["w"],
        most=90,
    )


@pytest.mark.first_case
@pytest.mark.parametrize("model", [long_loop, long_map, loop_that_reads])
def test_compiled_models_end(monkeypatch, model):
    monkeypatch.setattr("ampjax.unfold.unfolding.WARN_ROUNDS", 50)
    monkeypatch.setattr("ampjax.unfold.unfolding.MOST_ROUNDS", 60)
    monkeypatch.setattr("ampjax.drivers.run.PATIENCE", 50)
    compiled = amp.compile(
        model,
        {"w": jnp.float32(0.99)},
        {"x": "float32[n]"},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = amp.Trainer(
            compiled.graph,
            optax.sgd(0.0),
            min_update_interval=1 << 40,
        )
        trainer.accumulate(
            compiled.data(
                [
                    {
                        "x": np.full(
                            100,
                            0.01,
                            np.float32,
                        )
                    }
                ]
            )
        )
    assert trainer.statistics.messages >= 100


@pytest.mark.parametrize("run", ["fit", "simulate"])
def test_many_messages_in_which_instances_have_ended_are_no_loop(monkeypatch, run):
    """Several dispatches are decided at once: those who are in flight afterwards did not need all their messages."""
    monkeypatch.setattr("ampjax.drivers.run.PATIENCE", 30)
    data = [{"x": at(1)}] * 64
    graph = looping(lambda s: s.t > 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if run == "fit":
            amp.Trainer(graph, max_active_keys=64).fit(data, progress=False)
        else:
            amp.simulate(graph, data, max_active_keys=64)


def choosing(goes_on=lambda x: jnp.ones_like(x, jnp.int32)):
    """A step that is taken until a payload says otherwise; which it never does, unless told."""
    with ag.Graph() as g:
        h = ag.phi("h")
        y = ag.isu(
            times("step", h),
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        again = ag.npt("again", goes_on)(y)
        routed = ag.route_by(
            y,
            again,
            "more",
            assume=lambda s: s.t < 3,
            name="route",
        )
        done, more = ag.cond(
            routed,
            lambda s: s.more,
            name="leave",
        )
        h.connect(
            ag.pump("x", fields=("t", "more")),
            more,
        )
        ag.sink("end", done)
    return g


def test_a_loop_that_never_ends_is_told_when_it_is_interrupted():
    """It is no standstill: messages move. Whoever interrupts it reads where the oldest instance goes round."""
    running = []

    def interrupting(queues, now):
        if now > 60:
            running[0].cancel()
        return queues[0]

    data = [
        {
            "x": ag.messages(
                np.ones(1, np.float32),
                t=0,
                more=0,
            )
        }
    ]
    trainer = amp.Trainer(choosing(), policy=interrupting, arena_rows=1024)

    async def cell():
        running.append(asyncio.create_task(trainer.fit_async(data, progress=False)))
        return await running[0]

    assert asyncio.run(cell()).interrupted
    assert "instance 0 is the oldest; lately:" in trainer.left_over
    told = [line for line in trainer.left_over if "`again" in line or "`step" in line]
    numbers = []
    for line in told:
        numbers.append(int(re.match(r" +dispatch (\d+): forward ", line)[1]))
    assert numbers and max(numbers) > 50
