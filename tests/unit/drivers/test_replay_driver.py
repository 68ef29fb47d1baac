"""The replay driver: where it departs from a recording, and what it says then."""

import asyncio

import numpy as np
import pytest
from support import graphs
from support.control import tell
from support.engines import Told, engine

from ampjax.drivers.replay_driver import Follower, RecordingEnds, ReplayDriver
from ampjax.drivers.run import DriverLoop
from ampjax.drivers.virtual_driver import VirtualDriver
from ampjax.errors import DeadlockError, ReplayError
from ampjax.plan.passes import Pass
from ampjax.trace.journal import FAILED, FINISHED, INTERRUPTED, Done, Issue, Journal
from ampjax.trace.recording import Recorder, Recording

pytestmark = pytest.mark.slow

DATA = graphs.chain_data(3)
FIX = ". Replay with the graph, data, optimizer, callbacks and versions of the recorded run."


def chain(data=DATA, **settings):
    """A chain on two workers, without payloads."""
    e = engine(
        graphs.chain(2),
        {"f1": 1},
        (0, 0),
        fuse=False,
        **{"max_dispatch_size": 2, **settings},
    )
    e.executor = None
    return e, e.sources(data)


def decisions(data=DATA):
    """What a run in virtual time decides, its pass included."""
    made = []
    e, sources = chain(data)
    journal = Journal(made.append, e.scheduler.contents.messages_of)
    journal.begins(Pass(data, np.arange(len(data))))
    try:
        VirtualDriver(
            DriverLoop(e.scheduler, None, sources, [journal]),
            lambda d: 1,
        ).run()
    finally:
        journal.ends(None)
    return made


def follow(path, made, data=DATA, reason=FINISHED, **settings):
    """Follows decisions with such a chain; returns its dispatches in words."""
    recorder = Recorder(path / "run.trace", {})
    for decision in made:
        recorder.take(decision)
    recorder.close(reason)
    e, sources = chain(data, **settings)
    follower = Follower(Recording(path / "run.trace"), e.scheduler.contents.messages_of)
    said = []
    loop = DriverLoop(
        e.scheduler,
        None,
        sources,
        [
            Told(e.scheduler, lambda d: said.append(tell(d))),
            follower.journal,
        ],
    )
    follower.journal.begins(
        Pass(
            data,
            np.arange(len(data)),
        )
    )
    policy = e.scheduler.settings.policy
    try:
        asyncio.run(ReplayDriver(loop, follower).run())
        follower.journal.ends(None)
        follower.require_end()
    finally:
        assert e.scheduler.settings.policy is policy
    return said


def departs(path, made, text, **options):
    with pytest.raises(ReplayError) as caught:
        follow(path, made, **options)
    assert str(caught.value) == f"recording `{path / 'run.trace'}`, {text}{FIX}"


def test_it_does_what_was_done(tmp_path):
    assert follow(tmp_path, decisions())[:3] == [
        "forward f0 [0, 1]",
        "forward f0 [2]",
        "forward f1 [0, 1]",
    ]


def changed(made, kind, n, **fields):
    """The decisions with the `n`-th of a kind changed, and its place, from 1."""
    place = [i for i, d in enumerate(made) if isinstance(d, kind)][n]
    return [
        *made[:place],
        made[place]._replace(**fields),
        *made[place + 1 :],
    ], place + 1


def test_other_messages_in_a_dispatch(tmp_path):
    made, place = changed(decisions(), Issue, 0, states=255)
    got = str(decisions()[place - 1]).replace("stage 0", "`f0`")
    expected = got.replace(
        got.split("states ")[1][:8],
        "000000ff",
    )
    departs(tmp_path, made, f"decision {place}: expected {expected}, got {got}")


def test_a_queue_that_is_not_ready(tmp_path):
    made, place = changed(decisions(), Issue, 0, direction=1)
    expected = str(made[place - 1]).replace("stage 0", "`f0`")
    departs(
        tmp_path,
        made,
        f"decision {place}: expected {expected}, got forward of `f0` as all that is ready on worker 0",
    )


@pytest.mark.parametrize("worker", [1, 9])
def test_a_worker_that_has_nothing_to_do_or_is_none(tmp_path, worker):
    made, place = changed(decisions(), Issue, 0, worker=worker)
    expected = str(made[place - 1]).replace("stage 0", "`f0`")
    departs(tmp_path, made, f"decision {place}: expected {expected}, got nothing to be done")


def test_a_dispatch_that_is_not_under_way(tmp_path):
    made, place = changed(decisions(), Done, 0, dispatch=7)
    departs(
        tmp_path,
        made,
        f"decision {place}: expected the messages of dispatch 7 travelling on, got nothing to be done",
    )


def test_another_number_of_instances_in_flight(tmp_path):
    made = decisions()
    text = "decision 2: expected 0 instance(s) ending and 3 admitted, got 0 instance(s) ending and 2 admitted"
    departs(tmp_path, made, text, max_active_keys=2)


def test_other_data(tmp_path):
    made = decisions()
    expected = made[0]
    got = decisions(graphs.chain_data(2))[0]
    departs(
        tmp_path, made, f"decision 1: expected {expected}, got {got}", data=graphs.chain_data(2)
    )


def test_a_pass_that_ends_too_early(tmp_path):
    made = [d for i, d in enumerate(decisions()) if i < 6]
    made.append(decisions()[-1])
    departs(
        tmp_path,
        made,
        "decision 7: expected the end of the pass, with parameters 00000000000000000000000000000000, got 3 instance(s) still in flight",
    )


def test_a_recording_that_goes_on(tmp_path):
    made = decisions()
    departs(
        tmp_path,
        [*made, made[0]],
        f"decision {len(made) + 1}: expected {made[0]}, got the end of the run",
    )


def test_an_interrupted_run_ends_where_it_was_interrupted(tmp_path):
    with pytest.raises(RecordingEnds):
        follow(tmp_path, decisions()[:7], reason=INTERRUPTED)
    with pytest.raises(RecordingEnds):
        follow(tmp_path, decisions(), reason=INTERRUPTED)


def test_a_run_that_stood_still_does_so_again(tmp_path):
    data = [{"x": np.float32(1)}]
    e, sources = chain(data)
    made = []
    journal = Journal(made.append, e.scheduler.contents.messages_of)
    journal.begins(Pass(data, np.arange(1)))
    with pytest.raises(DeadlockError) as first:
        VirtualDriver(
            DriverLoop(e.scheduler, None, sources, [journal]),
            lambda d: 1,
        ).run()
    assert len(made) == 1  # nothing was decided but to begin
    with pytest.raises(DeadlockError) as again:
        follow(tmp_path, made, data=data, reason=FAILED)
    assert str(again.value) == str(first.value)
