"""Runs of one trainer that are asked for at the same time: they come one after the other, whatever threads and event loops they are in."""

import asyncio
import functools
import threading

import jax
import numpy as np
import optax
import pytest
from support import graphs
from support.graphs import labelled_data as data

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.utils.turns import Turns

pytestmark = pytest.mark.slow


def run(*coroutines):
    async def together():
        return await asyncio.gather(*coroutines, return_exceptions=True)

    return asyncio.run(together())


# Turns by themselves


def test_who_comes_first_is_served_first():
    turns = Turns("it")
    seen = []

    async def hold(name):
        async with turns.turn():
            seen.append(f"{name} begins")
            await asyncio.sleep(0)
            seen.append(f"{name} ends")

    run(*map(hold, "abc"))
    assert seen == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


def test_threads_with_loops_of_their_own_take_turns():
    turns = Turns("it")
    inside = []
    most = []

    async def hold():
        for _ in range(20):
            async with turns.turn():
                inside.append(1)
                await asyncio.sleep(0)
                most.append(len(inside))
                inside.pop()

    threads = []
    for _ in range(4):
        threads.append(threading.Thread(target=asyncio.run, args=[hold()]))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 80


@pytest.mark.parametrize(
    "yields",
    [0, 1, 2, 3, 4],
)
def test_who_is_cancelled_while_waiting_holds_nobody_up(yields):
    """Also at the very moment at which its turn comes."""
    turns = Turns("it")
    seen = []

    async def hold(name):
        async with turns.turn():
            await asyncio.sleep(0)
        seen.append(name)

    async def main():
        tasks = [asyncio.create_task(hold(name)) for name in "abc"]
        for _ in range(yields):
            await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        async with turns.turn():
            seen.append("free")

    asyncio.run(main())
    assert [name for name in seen if name != "b"] == ["a", "c", "free"]


def test_an_error_ends_a_turn():
    turns = Turns("it")

    async def fail():
        async with turns.turn():
            raise ValueError("mine")

    async def pass_by():
        async with turns.turn():
            return "free"

    error, free = run(fail(), pass_by())
    assert isinstance(error, ValueError) and free == "free"


# A trainer


def drop(x, *, key):
    if key is None:
        return x
    return x * 2 * jax.random.bernoulli(key, 0.5, x.shape)


@functools.cache
def dropping():
    with ag.Graph() as g:
        x = ag.pump("x", (4,))
        label = ag.pump("label", dtype="int32")
        y = ag.ppt(
            "linear",
            amp.nn.Linear(4, 3),
        )(ag.npt("drop", drop, rng=True)(x))
        ag.sink("logits", y)
        ag.loss("xent", graphs.xent)(y, label)
    return g


def new_trainer(rate=0.1):
    return amp.Trainer(
        dropping(),
        optax.sgd(rate),
        max_active_keys=4,
        max_dispatch_size=4,
        fuse=False,
        min_update_interval=5,
        seed=3,
    )


QUIET = {"progress": False}


@pytest.mark.first_case
@pytest.mark.parametrize("other", ["predict_async", "evaluate_async", "fit_async"])
def test_fit_beside_another_run_is_as_alone(other):
    """Also its random numbers, and what the other gives: as if it had run before, between epochs or after."""
    train = data(30)
    held_out = data(20, seed=1)
    still = new_trainer(rate=0.0)
    wanted = still.predict(held_out)["logits"].payload, still.evaluate(held_out)
    alone = new_trainer(rate=0.0)
    beside = new_trainer(rate=0.0)
    expected = []
    for epoch in alone.fit(train, epochs=2, **QUIET).epochs:
        expected.append(epoch.train)
    history, found = run(
        beside.fit_async(train, epochs=2, **QUIET),
        getattr(beside, other)(held_out),
    )
    if other == "fit_async":
        assert sorted(epoch.epoch for epoch in [*history.epochs, *found.epochs]) == [1, 2, 3]
        return
    assert [epoch.train for epoch in history.epochs] == expected
    if other == "predict_async":
        assert found["logits"].instance.tolist() == list(range(20))
        np.testing.assert_allclose(
            found["logits"].payload,
            wanted[0],
            rtol=1e-6,
        )
    else:
        assert found == pytest.approx(wanted[1])


def test_inference_beside_inference_is_as_alone():
    trainer = new_trainer()
    some = data(20, seed=1)
    others = data(7, seed=2)
    first = trainer.predict(some)
    second = trainer.predict(others)
    losses = trainer.evaluate(others)
    found = run(
        trainer.predict_async(some), trainer.evaluate_async(others), trainer.predict_async(others)
    )
    for prediction, wanted in zip(
        found[::2],
        [first, second],
        strict=True,
    ):
        np.testing.assert_array_equal(prediction["logits"].payload, wanted["logits"].payload)
    assert found[1] == losses


def test_a_run_that_fails_or_is_cancelled_leaves_the_others_alone():
    trainer = new_trainer(rate=0.0)
    some = data(20, seed=1)
    wanted = trainer.predict(some)["logits"].payload

    async def main():
        fails = trainer.predict_async([{"x": np.zeros(5, np.float32)}])
        cancelled = asyncio.create_task(trainer.fit_async(data(9), **QUIET))
        asyncio.get_running_loop().call_soon(cancelled.cancel)
        return await asyncio.gather(
            trainer.predict_async(some), fails, cancelled, return_exceptions=True
        )

    found, error, history = asyncio.run(main())
    np.testing.assert_array_equal(found["logits"].payload, wanted)
    assert isinstance(error, ValueError) and history.interrupted and not history.epochs


def test_a_call_that_would_wait_for_itself_is_refused():
    """A notebook's cell that calls `predict` while a `fit_async` is under way in the same event loop, and a data set that calls it in the middle of `fit`."""
    trainer = new_trainer()
    some = data(8)

    async def cells():
        fit = asyncio.create_task(trainer.fit_async(some, **QUIET))
        while not trainer.session.scheduler.admission.in_flight[True]:
            await asyncio.sleep(0)
        with pytest.raises(SettingsError, match=r"one run at a time.*[\s\S]*predict_async"):
            trainer.predict(some)
        return await fit

    assert len(asyncio.run(cells()).epochs) == 1

    class Curious(list):
        def __getitem__(self, i):
            trainer.predict(some)
            return super().__getitem__(i)

    with pytest.raises(SettingsError, match="one run at a time"):
        trainer.fit(Curious(some), **QUIET)
    assert len(trainer.predict(some)["logits"]) == 8


def test_a_callback_may_run_the_trainer():
    trainer = new_trainer()
    some = data(8)
    seen = []
    trainer.fit(
        some,
        epochs=2,
        callbacks=[lambda t, epoch: seen.append(len(t.predict(some)["logits"]))],
        **QUIET,
    )
    assert seen == [8, 8]
