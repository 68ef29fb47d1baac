"""What is said when nothing moves: who waits, from where it should come, what those last did, and what the throttle says."""

import asyncio
import re

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import graphs
from support.control import admit, drain, scheduler_for
from support.hangs import GOOD, HANGS, at, times, without

import ampjax as amp
from ampjax.errors import DeadlockError, MessageError


def hang(graph, data, **settings):
    """What the doctor says of instances that can't end, without kernels."""
    s = scheduler_for(graph, **settings)
    admit(s, data)
    drain(s)
    error = s.diagnose()
    assert isinstance(error, DeadlockError) and s.report() == [line[2:] for line in str(error).splitlines()[1:]]
    return str(error)


@pytest.mark.parametrize(("graph", "data", "settings", "text"), HANGS.values(), ids=HANGS)
def test_hangs(graph, data, settings, text):
    if data is None:
        s = scheduler_for(graph, **settings)
        s.open(np.array([7]))
        assert str(s.diagnose()) == text
    else:
        assert hang(graph, data, **settings) == text


def test_only_the_first_are_examined():
    text = hang(graphs.chain(1), [without("label", GOOD)] * 12)
    assert "; and 4 more. Pump" in text and text.count("is fed by") == 3


def test_what_waits_in_queues_is_told():
    s = scheduler_for(graphs.chain(2))
    admit(s, [GOOD] * 3)
    assert "queues: forward of `f0` 3" in s.report()


def test_a_group_that_waits_for_messages_of_another_group():
    """The doctor looks no further back than to the next group."""
    with amp.Graph() as g:
        rows, label = amp.pump("rows", (), ragged=True), amp.pump("label")
        inner = amp.group(amp.ungroup(rows, "i"), size=lambda s: 2, by=(), name="inner")
        outer = amp.group(amp.ungroup(inner, "j"), size=lambda s: 3, by=(), name="outer")
        amp.loss("loss", graphs.square, join=("instance",))(
            amp.npt("sum", jnp.sum)(amp.reduce("all", lambda x, ids, n: jnp.zeros(n).at[ids].add(x), outer)), label
        )
    text = hang(g, [{"rows": np.ones(1, np.float32), "label": np.float32(0)}])
    assert "port sum of `loss` is fed by NPT `sum`: nothing of instance 0 from it waits anywhere" in text
    assert "group `inner` with State(instance=0, i=0) waits for 1 more of 2 member(s)" in text


@pytest.mark.parametrize("workers", [1, 2])
def test_the_trainer_says_it_too(workers):
    trainer = amp.Trainer(graphs.chain(1), optax.sgd(0.1), workers=workers, fuse=False)
    with pytest.raises(DeadlockError) as caught:
        trainer.fit([GOOD, without("label", GOOD)], progress=False)
    assert str(caught.value) == HANGS["a loss that never receives its label"][-1]


# Loops that never end


def test_a_loop_of_control_nodes_that_never_ends():
    """Nothing is dispatched in it, so it would hold the whole run up."""
    with amp.Graph() as g:
        t = amp.phi("t")
        more, done = amp.cond(
            amp.isu(t, lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1)), lambda s: s.t != 0, name="more"
        )
        t.connect(amp.pump("x", fields=("t",)), more)
        amp.sink("end", done)
    s = scheduler_for(g)
    with pytest.raises(MessageError) as caught:
        admit(s, [{"x": at(1)}])
    text = str(caught.value)
    assert text.startswith("node `") and text.endswith(" Mend the condition that should let it out of the loop.")
    assert (
        "expected messages that reach a payload node, a group or a sink, got one that has passed 100000 control nodes, State(instance=0, t="
        in text
    )


def looping(leaves):
    """A step that is taken until `leaves(s)`."""
    with amp.Graph() as g:
        t = amp.phi("t")
        y = amp.isu(times("step", t), lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1))
        done, more = amp.cond(y, leaves, name="leave")
        t.connect(amp.pump("x", fields=("t",)), more)
        amp.sink("end", done)
    return g


def test_a_loop_that_never_ends_is_found_before_the_training(monkeypatch):
    monkeypatch.setattr("ampjax.sched.demand.ENDLESS", 100)
    text = (
        r"node `step`: expected instances that end, got one that goes on after 100 dispatches without numbers, State\(instance=0, t=100\)\. "
        r"Mend the condition that should let it out of the loop\."
    )
    with pytest.raises(MessageError, match=text):
        amp.Trainer(looping(lambda s: s.t < 0)).fit([{"x": at(1)}], progress=False)


def test_a_loop_that_may_never_end_is_told_while_it_goes_on(monkeypatch):
    monkeypatch.setattr("ampjax.sched.demand.LONG", 50)
    monkeypatch.setattr("ampjax.engine.loop.PATIENCE", 50)
    long = amp.Trainer(looping(lambda s: s.t > 120), policy="backward_first")
    with pytest.warns(RuntimeWarning) as told:
        long.fit([{"x": at(1)}], progress=False)
    first, *_, second = (str(one.message) for one in told)
    assert first.startswith("Dispatch 50 on worker 0: forward `step`") and "a loop that they never leave" in first
    assert second.startswith("no instance has ended during 51 messages, with 1 in flight: does a loop never end?")
    assert "instance 0 is the oldest; lately:" in second


def test_a_loop_that_never_ends_is_told_when_it_is_interrupted():
    """It is no standstill: messages move. Whoever interrupts it reads where the oldest instance goes round."""
    last, running = [3], []

    def interrupting(queues, now):
        if now == 40:
            running[0].cancel()
        return queues[0]

    trainer = amp.Trainer(looping(lambda s: s.t > last[0]), policy=interrupting, arena_rows=1024)
    trainer.warm_up([{"x": at(1)}], progress=False)
    last[0] = 1 << 40

    async def cell():
        running.append(asyncio.create_task(trainer.fit_async([{"x": at(1)}], progress=False)))
        return await running[0]

    assert asyncio.run(cell()).interrupted
    assert "instance 0 is the oldest; lately:" in trainer.left_over
    number, t = re.fullmatch(
        r"  dispatch (\d+): forward `step` on worker 0, State\(instance=0, t=(\d+)\)", trainer.left_over[-1]
    ).groups()
    assert int(number) >= 40 and int(t) > 30
