"""Operations as numbers: what is read is what was written, for every launch that models make."""

import numpy as np
import pytest
from support.models import model

import ampjax as amp
from ampjax.engine.executor import Executor
from ampjax.hosts.operations import (
    CHANGE,
    FEED,
    FORGET,
    LAUNCH,
    PUT,
    TAKE,
    BatchWriter,
    Names,
    operations,
)
from ampjax.sched.decisions.packs import PackMemory
from ampjax.sched.decisions.parameter_changes import Average, Contribute, Merge, Update
from ampjax.sched.programs.feeds import Feed


def read(writer, names):
    return list(operations(writer.take(), names, PackMemory()))


def same(one, other):
    """Whether two launches, or parts of them, are the same numbers."""
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif one is not None and hasattr(one, "senders"):
        for field in ("senders", "receivers", "counts", "n_rows", "random"):
            same(getattr(one, field), getattr(other, field))
    elif isinstance(one, list | tuple) and not hasattr(one, "_fields"):
        for a, b in zip(one, other, strict=True):
            same(a, b)
    else:
        assert one == other


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("trees", {"weights": "stashed"}),
        ("sequences", {"weights": "estimated", "drop_staler_than": 0}),
        pytest.param("questions", {}, marks=pytest.mark.nightly),
        pytest.param("questions, edge by edge", {}, marks=pytest.mark.nightly),
        pytest.param("tagger", {}, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.slow
def test_launches(name, options, monkeypatch):
    graph, data = model(name)
    seen = []
    run = Executor.run
    monkeypatch.setattr(
        Executor,
        "run",
        lambda self, launches: (seen.extend(launches), run(self, launches))[1],
    )
    trainer = amp.Trainer(
        graph, max_active_keys=3, min_update_interval=2, arena_rows=256, **options
    )
    trainer.fit(data, epochs=1, progress=False)
    names = Names.of(trainer.plan)
    writer = BatchWriter(names)
    stages = [launch for launch in seen if launch.stage >= 0]
    assert any(launch.dropped for launch in stages) == ("drop_staler_than" in options)
    for number, launch in enumerate(stages):
        writer.launch(launch, TAKE if number % 2 else LAUNCH, number % 3)
    found = read(writer, names)
    assert writer.n == 0 and len(found) == len(stages) > 0
    for number, (launch, operation) in enumerate(zip(stages, found, strict=True)):
        assert operation.code == (TAKE if number % 2 else LAUNCH)
        assert operation.peer == number % 3
        for field in launch._fields:
            if field != "place":
                same(getattr(launch, field), getattr(operation.what, field))
        same(launch.rows, operation.what.rows)


def test_everything_else():
    graph, _ = model("sequences")
    plan = amp.Trainer(graph).plan
    names = Names.of(plan)
    a, b, *_ = names.nodes
    writer = BatchWriter(names)
    key = names.arenas[0]
    changes = [
        Update(a, 3, 0.5),
        Average("g", (a, b)),
        Contribute("h", b),
        Merge("h", (b, a)),
        Average("g", (b, a)),
    ]
    payload = np.zeros(
        (2, *key[1]),
        key[2],
    )
    slots = np.array([4, 5])
    writer.feed(Feed("x", key, slots, payload, 9))
    # a data set uses its buffers again
    slots[:] = 0
    payload[:] = 1
    for change in changes:
        writer.change(change, 7)
    writer.forget()
    feed, *others, last = read(writer, names)
    assert feed.code == FEED
    assert feed.what.arena == key
    assert feed.what.capacity == 9
    assert feed.what.slots.tolist() == [4, 5]
    assert not feed.what.payload.any()
    assert last.code == FORGET and PUT != TAKE
    assert [operation.code for operation in others] == [CHANGE] * 5
    update, first, contribute, merge, second = (operation.what for operation in others)
    assert update == changes[0]
    assert first.nodes == (a, b)
    assert contribute.node == b
    assert merge.nodes == (b, a)
    assert second.nodes == (b, a)
    assert first.group == second.group != contribute.group == merge.group
