"""Compilations: counted, bounded, and done before training begins."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import graphs
from support.control import columns
from support.engines import engine

import ampjax as amp
import ampjax.graphs as ag
from ampjax.engine.compilation import ladders
from ampjax.engine.executor import Executor
from ampjax.engine.kinds.idle_launch import sizes_to_compile
from ampjax.engine.timing.compilation_count import _spend, compilations, compiling_s
from ampjax.plan.ladders import segment_sizes
from ampjax.plan.stage_kinds import COLLECT, REDUCE
from ampjax.sched.dry_run import dry_run

pytestmark = pytest.mark.slow


def test_the_time_of_compilations_is_counted_once(monkeypatch):
    """What is compiled within something else is a part of its time."""
    function = jax.jit(lambda x: x * 1.25 + 3)
    before = compiling_s()
    function(jnp.ones(7)).block_until_ready()
    after = compiling_s()
    function(jnp.ones(7)).block_until_ready()
    assert before < after == compiling_s()
    ends = iter([1e9 + 10.0, 1e9 + 12.0, 1e9 + 13.0, 1e9 + 20.0])
    monkeypatch.setattr(
        "ampjax.engine.timing.compilation_count.time",
        SimpleNamespace(perf_counter=lambda: next(ends)),
    )
    for seconds in (1.0, 1.0, 5.0, 2.0):
        _spend(seconds)
    assert compiling_s() - after == pytest.approx(5.0 + 2.0)


def test_compilations_are_counted():
    before = compilations()
    function = jax.jit(lambda x: jnp.tan(x) * 0.123)
    function(jnp.ones(7))
    after = compilations()
    assert after > before
    function(jnp.ones(7))
    assert compilations() == after


def test_the_number_of_compilations_is_bounded_by_the_ladder():
    """However the dispatches fall out, a stage is compiled at the ladder's steps only."""
    data = graphs.chain_data(40)
    e = engine(
        graphs.chain(2),
        fuse=False,
        max_active_keys=40,
        max_dispatch_size=16,
    )
    sizes = set()
    e.virtual(
        data,
        on_dispatch=lambda d: sizes.add((d.stage.name, d.direction, d.n_rows)),
    )
    before = compilations()
    for n in (3, 5, 7, 9, 11, 13):
        e.virtual(data[:n])
    # sizes 1, 4 and 16; f0 and f1 in two directions, and the loss
    ladder_steps = 3
    kernels = 5
    assert compilations() - before <= ladder_steps * kernels


@pytest.mark.nightly
def test_nothing_is_compiled_after_the_first_epoch():
    trainer = amp.Trainer(
        graphs.rnn(),
        optax.adam(1e-2),
        workers=2,
        max_active_keys=4,
        min_update_interval=4,
    )
    lengths = [1, 2, 3, 2, 3, 1] * 2
    history = trainer.fit(
        graphs.rnn_data(lengths),
        graphs.rnn_data(lengths[:4]),
        epochs=2,
        progress=False,
    )
    assert [epoch.compilations for epoch in history.epochs[1:]] == [0]


def test_nothing_is_compiled_after_the_warm_up():
    options = {
        "max_active_keys": 4,
        "min_update_interval": 4,
        "compile_ahead": True,
        "drop_staler_than": 0,
    }
    trainer = amp.Trainer(
        graphs.rnn(),
        optax.sgd(1e-2),
        **options,
    )
    lengths = [1, 2, 3] * 4
    history = trainer.fit(
        graphs.rnn_data(lengths),
        graphs.rnn_data(lengths[:4]),
        progress=False,
    )
    assert history[0].compilations == 0 < history[0].dropped


@pytest.mark.nightly
def test_long_instances_that_meet_in_a_group_compile_nothing_after_the_warm_up():
    """Those that are looked at at random are short, nearly all; an epoch's last group is not."""
    settings = {
        "max_active_keys": 8,
        "min_admission": 8,
        "group_by_size": 8,
        "min_update_interval": 4,
        "compile_ahead": True,
    }
    trainer = amp.Trainer(
        graphs.rnn(),
        optax.sgd(1e-2),
        **settings,
    )
    data = graphs.rnn_data([1, 2, 3, 4] * 198 + [60] * 8)
    history = trainer.fit(data, data, epochs=2, progress=False)
    assert [epoch.compilations for epoch in history.epochs] == [0, 0]
    assert not trainer.session.executor.arenas.grown


def test_instances_of_unequal_length_compile_nothing_after_the_warm_up():
    """The few instances that are in flight together may all be long ones, and training instances may be shorter than others."""
    trainer = amp.Trainer(
        graphs.rnn(),
        optax.sgd(1e-2),
        max_active_keys=2,
        min_update_interval=4,
        compile_ahead=True,
    )
    lengths = [1] * 90 + [60] * 10
    history = trainer.fit(
        graphs.rnn_data(lengths),
        graphs.rnn_data([60] * 4),
        epochs=2,
        progress=False,
    )
    assert [epoch.compilations for epoch in history.epochs] == [0, 0]


@pytest.mark.nightly
def test_a_warm_up_of_its_own_changes_nothing_but_when_things_are_compiled():
    data = graphs.rnn_data([3, 1, 2] * 4)
    histories = []
    for warm in (True, False):
        trainer = amp.Trainer(
            graphs.rnn(),
            optax.sgd(1e-2),
            min_update_interval=4,
        )
        if warm:
            trainer.warm_up(data, data, progress=False)
        before = compilations()
        histories.append(trainer.fit(data, data, epochs=1, progress=False))
        assert not warm or compilations() == before
    assert (
        histories[0][0].train == histories[1][0].train
        and histories[0][0].valid == histories[1][0].valid
    )


@pytest.mark.nightly
def test_kernels_may_be_compiled_when_they_are_needed():
    """The first update comes sooner; nothing else differs, and after the first epoch nothing is compiled."""
    data = graphs.rnn_data(
        [3, 1, 2, 5] * 4,
        features=6,
    )
    histories = []
    first = []
    for ahead in (False, True):
        jax.clear_caches()
        trainer = amp.Trainer(
            graphs.rnn(6),
            optax.sgd(1e-2),
            min_update_interval=4,
            compile_ahead=ahead,
        )
        before = compilations()
        trace = amp.Trace()
        histories.append(
            trainer.fit(
                data,
                data[:3],
                epochs=3,
                progress=False,
                trace=trace,
            )
        )
        first.append([epoch.compilations for epoch in histories[-1].epochs])
        assert compilations() > before
    assert first[0][0] > 0 == first[0][1] == first[0][2]
    assert first[1] == [0, 0, 0]
    assert [epoch.train for epoch in histories[0].epochs] == [
        epoch.train for epoch in histories[1].epochs
    ]


@pytest.mark.nightly
def test_what_nobody_has_needed_is_compiled_after_the_first_epoch(monkeypatch):
    data = graphs.rnn_data([1, 2, 3])
    warmed = []
    warm = Executor.warm
    seen = []
    trainer = amp.Trainer(
        graphs.rnn(),
        optax.sgd(1e-2),
        min_update_interval=4,
        compile_ahead=False,
    )
    monkeypatch.setattr(
        Executor,
        "warm",
        lambda *args: (warmed.append(args), warm(*args)),
    )

    def note(trainer, epoch):
        seen.append(len(warmed))

    trainer.evaluate(data)
    trainer.fit(data, epochs=3, callbacks=[note], progress=False)
    trainer.fit(data, callbacks=[note], progress=False)
    assert seen[0] == 0 < seen[1] == seen[2] == seen[3]


@pytest.mark.nightly
def test_an_interrupted_compilation_after_the_first_epoch_loses_no_epoch(monkeypatch):
    data = graphs.rnn_data([1, 2, 3])
    trainer = amp.Trainer(
        graphs.rnn(),
        optax.sgd(1e-2),
        min_update_interval=4,
        compile_ahead=False,
    )
    with monkeypatch.context() as patch:
        patch.setattr(Executor, "warm", interrupted_at(2, Executor.warm))
        history = trainer.fit(data, epochs=3, progress=False)
    assert history.interrupted and [epoch.epoch for epoch in history.epochs] == [1]
    trainer.fit(data, epochs=2, progress=False, history=history)
    assert [epoch.epoch for epoch in history.epochs] == [1, 2, 3]
    assert history.epochs[-1].compilations == 0


@pytest.mark.nightly
def test_a_pass_without_training_is_prepared_whole():
    with ag.Graph() as g:
        ag.sink(
            "y",
            ag.ppt(
                "f",
                amp.nn.Linear(9, 3),
            )(ag.pump("x", (9,))),
        )  # a shape that no other test has
    trainer = amp.Trainer(g, arena_rows=77, compile_ahead=True)
    data = [{"x": np.ones(9, np.float32)}] * 40
    before = []
    run = trainer.session.passes.run

    async def noted(*args):
        before.append(compilations())
        outputs = await run(*args)
        before.append(compilations())
        return outputs

    trainer.session.passes.run = noted
    trainer.predict(data)
    assert before[0] == before[1]


@pytest.mark.nightly
def test_a_warm_up_that_was_interrupted_is_taken_up_again(monkeypatch):
    with ag.Graph() as g:
        x = ag.pump("x", (7,))  # a shape that no other test has
        ag.loss(
            "loss",
            lambda x: x.sum(),
        )(
            ag.ppt(
                "f",
                amp.nn.Linear(7, 7),
            )(x)
        )
    trainer = amp.Trainer(
        g,
        optax.adam(1e-2),
        fuse=False,
        compile_ahead=True,
    )
    data = [{"x": jnp.ones(7)}] * 8
    with monkeypatch.context() as patch:
        patch.setattr(Executor, "warm", interrupted_at(4, Executor.warm))
        assert trainer.fit(data, progress=False).interrupted
    history = trainer.fit(data, progress=False)
    assert len(history) == 1 and history[0].compilations == 0


def interrupted_at(n, method):
    """A method whose `n`-th call is interrupted."""
    calls = []

    def method_until(*args):
        calls.append(args)
        if len(calls) == n:
            raise KeyboardInterrupt
        return method(*args)

    return method_until


@pytest.mark.nightly
def test_arenas_have_room_for_validation_too():
    """Instances of validation may be larger than those of training; a growing arena would compile its kernels again."""
    trainer = amp.Trainer(
        graphs.rnn(),
        optax.sgd(1e-2),
        max_active_keys=4,
        policy="wavefront",
        fuse=False,
        compile_ahead=True,
    )
    history = trainer.fit(
        graphs.rnn_data([1] * 8),
        graphs.rnn_data([30] * 8),
        epochs=1,
        progress=False,
    )
    assert history[0].compilations == 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    "sync",
    ["epoch", ("every_k", 2), ("message", 2)],
)
def test_averages_of_replicas_are_compiled_in_the_warm_up(sync):
    with ag.Graph() as g:
        x = ag.pump("x", (5,))  # a shape that no other test's parameters have
        ag.loss("loss", lambda x: x.sum())(
            ag.replicate(
                ag.ppt("f", amp.nn.Linear(5, 5)),
                2,
            )(x)
        )
    options = {"min_update_interval": 2, "replica_sync": sync, "workers": 2, "compile_ahead": True}
    trainer = amp.Trainer(g, optax.adam(1e-2), **options)
    history = trainer.fit(
        [{"x": jnp.ones(5)}] * 16,
        epochs=2,
        progress=False,
    )
    assert [epoch.compilations for epoch in history.epochs] == [0, 0]


def test_a_dispatch_is_never_larger_than_what_has_been_compiled():
    """More instances than the warm-up has seen come in more dispatches, until a warm-up has seen them too."""
    trainer = amp.Trainer(
        graphs.chain(2),
        optax.sgd(1e-5),
        max_active_keys=64,
        min_update_interval=4,
        compile_ahead=True,
    )
    trainer.fit(graphs.chain_data(2), progress=False)
    before = compilations()
    trainer.accumulate(graphs.chain_data(60))
    assert compilations() == before
    dispatches = trainer.statistics.dispatches
    trainer.fit(graphs.chain_data(60), progress=False)
    assert trainer.statistics.dispatches < dispatches / 4


def test_equal_graphs_share_their_kernels():
    def build():
        with ag.Graph() as g:
            x = ag.pump("x", (3,))
            label = ag.pump("label", (3,))
            ag.loss("loss", distance)(
                ag.ppt(
                    "f",
                    amp.nn.Linear(3, 3),
                )(x),
                label,
            )
        return g

    def distance(x, y):
        return jnp.square(x - y).sum()

    data = [
        {
            "x": jnp.ones(3),
            "label": jnp.ones(3),
        }
    ]
    engine(build()).virtual(data)
    e = engine(build())
    before = compilations()
    e.virtual(data)
    assert compilations() == before


def test_the_warm_up_goes_up_to_twice_what_a_dry_run_has_seen():
    e = engine(graphs.chain(1), fuse=False, max_dispatch_size=8)
    seen = dry_run(
        e.plan,
        [columns(e.graph, graphs.chain_data(3))],
        range(3),
    ).stages
    found = list(
        ladders(
            e.executor,
            e.scheduler,
            seen,
            ["forward", "backward", "infer"],
        )
    )
    # Sizes 1, 4, 16; f0 in three directions, and the loss in two.
    assert [len(ladder.compilations) for ladder in found] == [3] * 5


@pytest.mark.nightly
def test_a_ragged_wire_that_was_empty_in_the_dry_run_still_gets_dispatches_of_several_messages():
    """Rare edge kinds: the instances that the warm-up looks at may have none of them."""

    def instance(n_rare: int) -> dict:
        nodes = np.arange(
            3 + (n_rare == 0)
        )  # those without are larger, so the warm-up looks at them
        kinds = np.where(nodes < n_rare, 1, 0)
        return {
            "x": np.ones((len(nodes), 3), np.float32),
            "kinds": ag.Topology.from_kinds(kinds, 2),
        }

    with ag.Graph() as g:
        x = ag.pump("x", (3,), ragged=True)
        kinds = ag.topology("kinds")
        often, rare = ag.distribute(x, kinds, 2)
        parts = []
        for name, w in (("often", often), ("rare", rare)):
            parts.append(
                ag.ppt(
                    name,
                    amp.nn.Linear(3, 3),
                )(w)
            )
        ag.loss(
            "loss",
            lambda y: jnp.square(y).sum(),
        )(ag.collect(parts, kinds))
    trainer = amp.Trainer(
        g,
        optax.sgd(1e-2),
        max_active_keys=16,
        fuse=False,
    )
    trainer.fit(
        [instance(0) for _ in range(64)],
        progress=False,
    )
    trainer.accumulate([instance(1) for _ in range(16)])
    stage = next(s for name, s in trainer.statistics.stages.items() if name.startswith("rare"))
    assert stage.dispatches == 2 and stage.largest_dispatch == 16


@pytest.mark.parametrize(
    ("kind", "rows", "messages"),
    [
        (REDUCE, 600, 30),
        (REDUCE, 5, 9),
        (COLLECT, 100, 7),
    ],
)
def test_segment_kernels_are_compiled_for_just_the_sizes_that_can_come(kind, rows, messages):
    most = messages if kind.reduces else rows
    reachable = set()
    for n in range(rows + 1):
        for m in range(1, most + 1):
            reachable.add(segment_sizes(n, m))
    compiled = sizes_to_compile(rows, most)
    assert set(compiled) == reachable and len(compiled) == len(reachable) <= 12
