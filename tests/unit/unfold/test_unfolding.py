"""Unfolding against the scheduler that runs the same instances to their end, the reference interpreter, and itself."""

from collections import Counter
from dataclasses import fields

import numpy as np
import pytest
from support import graphs
from support.control import columns, drain, plan_for, scheduler_for
from support.models import MODELS, model
from support.random_graphs.random_case import random_case

import ampjax.graphs as ag
from ampjax.drivers.controller import LoopInstances
from ampjax.errors import MessageError
from ampjax.ir.state import State
from ampjax.plan.affinity import assign
from ampjax.plan.passes import PURPOSES
from ampjax.plan.planner import make_plan
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.scheduler import Scheduler
from ampjax.testing import reference
from ampjax.train.initial_params import initial_params
from ampjax.unfold.demand import demand, messages, work
from ampjax.unfold.unfolder import Unfolder

ODD = 3
"""Instances have numbers that are not their places: `3 k + 1`."""


def numbered(n):
    return ODD * np.arange(n) + 1


def planned(graph, workers=1, fuse=True):
    """A plan whose workers have memory spaces of their own."""
    return make_plan(
        graph,
        assign(graph, workers),
        tuple(range(workers)),
        fuse,
    )


def assert_agrees(plan, data, purpose, **settings):
    """As many messages as the scheduler dispatches, of as many rows; the same numbers stand for the same things everywhere."""
    ids = numbered(len(data))
    batch = data.gather(np.arange(len(data)))
    unfolder = Unfolder(plan)
    programs = unfolder.end(unfolder.unfold([batch], ids, purpose, assume=True))
    scheduler = Scheduler(
        plan,
        SchedulerSettings(max_active_keys=len(ids), **{"max_dispatch_size": 5, **settings}),
    )
    handles = scheduler.open(ids, purpose)
    scheduler.pump(handles, batch)
    scheduler.close(handles)
    forth = []
    for d in drain(scheduler):
        if d.stage is not None and d.direction != "backward":
            forth.append(d)
    made = Counter()
    for d in forth:
        for key, rows in zip(
            d.stage.arenas,
            d.out_rows,
            strict=True,
        ):
            made[key] += len(rows)
    assert +Counter({key: int(rows.sum()) for key, rows in demand(plan, programs).items()}) == +made
    assert work(plan, programs).sum() == sum(d.n_rows for d in forth)
    way_there = {}
    for name, own in scheduler.counts.read().stages.items():
        way_there[name] = own.forward + own.infer
    assert messages(plan, programs) == way_there
    assert_well_formed(programs)


def assert_well_formed(programs):
    """Inputs and consumptions say the same; every row has one maker; numbers stay within their instance."""
    n = programs.n_invocations
    local = programs.first[:-1][programs.instance_of]
    consumer = np.repeat(
        np.arange(n),
        np.diff(programs.in_start),
    )
    owner = np.repeat(
        np.arange(n),
        np.diff(programs.out_start),
    )
    into = sorted(
        zip(
            (programs.in_from + local[consumer]).tolist(),
            consumer.tolist(),
            strict=True,
        )
    )
    outof = sorted(
        zip(
            owner.tolist(),
            (programs.out_to + local[owner]).tolist(),
            strict=True,
        )
    )
    assert into == outof
    assert (programs.owed >= np.diff(programs.out_start)).all()
    same = owner[1:] == owner[:-1]
    assert (programs.out_rank[1:][same] >= programs.out_rank[:-1][same]).all()
    for name in (
        f.name
        for f in fields(programs)
        if f.name not in ("edges", "ids", "first", "pick_first", "asks")
    ):
        assert getattr(programs, name).dtype == (np.int16 if name == "out_rank" else np.int32), name


# The project's models, and random graphs


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("name", MODELS)
def test_models(name, purpose):
    graph, data = model(name)
    assert_agrees(planned(graph), data, purpose)


@pytest.mark.parametrize(
    "name", ["sequences in replicas", "trees", "molecules, edge by edge", "perceptron in copies"]
)
def test_models_on_several_workers_and_unfused(name):
    graph, data = model(name)
    assert_agrees(planned(graph, workers=3), data, "train", max_dispatch_size=2)
    assert_agrees(planned(graph, fuse=False), data, "train")


def assert_random_graph_agrees(seed):
    case = random_case(seed)
    plan = planned(
        case.graph,
        1 + seed % 3,
        fuse=seed % 4 > 0,
    )
    try:
        for purpose in PURPOSES if seed % 5 == 0 else ("train", "both"):
            assert_agrees(plan, case.instances, purpose, max_dispatch_size=1 + seed % 7)
    except AssertionError as error:
        error.add_note(case.replay)
        raise


@pytest.mark.first_case
@pytest.mark.parametrize("seed", range(10))
def test_random_graphs(seed):
    assert_random_graph_agrees(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 600))
def test_many_random_graphs(seed):
    assert_random_graph_agrees(seed)


@pytest.mark.first_case
@pytest.mark.parametrize(
    "seed",
    [0, 1, 3, 6, 7, 11],
)
def test_as_many_messages_arrive_as_in_the_reference_interpreter(seed):
    case = random_case(seed, size=4, n_instances=2)
    plan = planned(case.graph, fuse=False)
    unfolder = Unfolder(plan)
    programs = unfolder.end(
        unfolder.unfold(
            [case.instances.gather(np.arange(2))],
            range(2),
            "both",
            assume=True,
        )
    )
    expected = reference(
        case.graph,
        initial_params(case.graph, {}, 0),
        case.data,
        gradients=False,
    ).messages
    arrived = np.bincount(
        np.repeat(programs.stage, np.diff(programs.in_start)),
        minlength=len(plan.stages),
    ).tolist()
    found = {}
    for stage, n in zip(plan.stages, arrived, strict=True):
        if not stage.kind.is_transfer:
            found[stage.name] = n
    assert found == {name: expected[name] for name in found}


# A program is the instance's own


def one(programs, place):
    """An instance's part of programs, by column."""
    own = slice(programs.first[place], programs.first[place + 1])
    inputs = slice(
        programs.in_start[own.start],
        programs.in_start[own.stop],
    )
    outputs = slice(
        programs.out_start[own.start],
        programs.out_start[own.stop],
    )
    picks = slice(programs.pick_first[place], programs.pick_first[place + 1])
    parts = {}
    for name in ("stage", "states", "rows", "row", "size", "owed", "asks"):
        parts[name] = own
    parts |= {name: inputs for name in ("in_from", "in_row", "in_size")}
    parts |= {name: outputs for name in ("out_to", "out_rank")} | {"picks": picks}
    result = {}
    for name, part in parts.items():
        result[name] = getattr(programs, name)[part].tolist()
    return result


def assert_begins_as(longer, shorter):
    """What is known of an instance stays as it is: its invocations, rows and picks keep their numbers."""
    assert len(longer["stage"]) >= len(shorter["stage"])
    for name in (
        "stage",
        "states",
        "rows",
        "row",
        "size",
        "asks",
        "in_from",
        "in_row",
        "in_size",
        "picks",
    ):
        assert longer[name][: len(shorter[name])] == shorter[name], name


@pytest.mark.parametrize(
    "name", ["sequences", "trees", "tagger", "molecules, edge by edge", "questions", "experts"]
)
def test_a_program_does_not_depend_on_the_instances_beside_it(name):
    graph, data = model(name)
    unfolder = Unfolder(planned(graph))
    n = len(data)
    together = unfolder.end(
        unfolder.unfold(
            [data.gather(np.arange(n))],
            range(n),
            assume=True,
        )
    )
    for k in range(n):
        alone = unfolder.end(
            unfolder.unfold(
                [data.gather(np.array([k]))],
                [k],
                assume=True,
            )
        )
        assert one(alone, 0) == one(together, k)


def test_what_is_pumped_later_comes_at_the_end_of_the_program():
    def loop(length):
        instance = graphs.rnn_instance(length)
        yield {"h0": instance["h0"], "label": instance["label"]}
        for t in range(length):
            yield {
                "tokens": ag.messages(
                    np.zeros(1, np.int32),
                    t=t,
                    length=length,
                )
            }

    graph = graphs.rnn()
    data = LoopInstances(loop, [2, 4, 1])
    plan = planned(graph)
    steps = data.steps(np.arange(3))
    assert len(steps) == 5
    unfolder = Unfolder(plan)
    unfolding = unfolder.start(numbered(3))
    before = unfolder.programs(unfolding)
    for batch in steps:
        unfolding.pump(batch)
        now = unfolder.programs(unfolding)
        for k in range(3):
            assert_begins_as(one(now, k), one(before, k))
        before = now
    assert unfolding.workspace.empty


@pytest.mark.parametrize("name", ["experts", "pondering"])
def test_payloads_decide_one_after_the_other(name):
    """Told what `assume` would say, unfolding comes to the same end as if it had been assumed."""
    graph, data = model(name)
    plan = planned(graph)
    batch = data.gather(np.arange(len(data)))
    unfolder = Unfolder(plan)
    assumed = unfolder.end(
        unfolder.unfold(
            [batch],
            range(len(data)),
            assume=True,
        )
    )
    unfolding = unfolder.unfold([batch], range(len(data)))
    before = unfolder.programs(unfolding)
    assert before.asks.any() and before.n_invocations < assumed.n_invocations
    asked = 0
    while unfolding.asked:
        asked += 1
        choices = {}
        for number, states in unfolding.asked.items():
            stage = plan.stages[number]
            state = State(
                states,
                plan.layout,
                stage.ports[0].type.fields,
            )
            choices[number] = stage.route_by.assumed(stage.name, state)
        unfolding.resume(choices)
        now = unfolder.programs(unfolding)
        for k in range(len(data)):
            assert_begins_as(one(now, k), one(before, k))
        before = now
    assert asked == (1 if name == "experts" else 12)
    for k in range(len(data)):
        assert one(before, k) == one(assumed, k)


def test_choices_are_assumed_from_the_states_of_what_goes_on():
    """Messages may have a field that their choices lack."""
    with ag.Graph() as g:
        x = ag.npt(
            "double",
            lambda x: 2 * x,
        )(ag.pump("x", fields=("t",)))
        way = ag.npt(
            "choose",
            lambda x: x.astype("int32"),
        )(ag.pump("way"))
        routed = ag.route_by(
            x,
            way,
            "way",
            assume=lambda s: s.t % 3,
            join=("instance",),
        )
        for i, wire in enumerate(
            ag.cond(
                routed,
                lambda s: s.way,
                3,
            )
        ):
            ag.sink(f"way{i}", wire)
    data = []
    for t in range(7):
        data.append(
            {
                **at(t),
                "way": np.float32(0),
            }
        )
    plan = planned(g)
    unfolder = Unfolder(plan)
    programs = unfolder.end(
        unfolder.unfold(
            [columns(g, data)],
            numbered(7),
            "sinks",
            assume=True,
        ),
    )
    arrived = messages(plan, programs)
    assert [arrived[f"way{i}"] for i in range(3)] == [3, 2, 2]


def test_only_some_choices_may_be_known():
    graph, data = model("experts")
    unfolding = Unfolder(planned(graph)).unfold(
        [data.gather(np.arange(len(data)))],
        range(len(data)),
    )
    (number,) = unfolding.asked
    unfolding.resume({})
    assert list(unfolding.asked) == [number]


# Tables are used again


def test_tables_are_as_good_as_new():
    graph, data = model("tagger")
    plan = planned(graph)
    ids = np.arange(len(data))
    unfolder = Unfolder(plan)
    first = unfolder.end(unfolder.unfold([data.gather(ids)], ids))
    for order in (ids[::-1], ids[:2], ids):
        again = unfolder.end(unfolder.unfold([data.gather(order)], order))
        for k, i in enumerate(order.tolist()):
            assert one(again, k) == one(first, i)
    assert len(unfolder._spare) == 1


def test_tables_in_which_messages_wait_are_not_used_again():
    unfolder = Unfolder(plan_for(graphs.chain(1)))
    unfolding = unfolder.unfold(
        [
            columns(
                graphs.chain(1),
                [{"x": np.float32(1)}],
            )
        ],
        [0],
    )
    unfolder.end(unfolding)
    assert unfolder._spare == []


# Hangs


HANGS = {
    "no label": (
        graphs.chain(1),
        [*graphs.chain_data(1), {"x": np.float32(1)}],
    ),
    "a group that never gets all members": (
        graphs.grouping(),
        [
            {
                **graphs.grouping_instance(2),
                "size": ag.messages(
                    np.zeros(1, np.float32),
                    n=3,
                ),
            }
        ],
    ),
    "a group that is never opened": (
        graphs.grouping(),
        [{k: v for k, v in graphs.grouping_instance(1).items() if k != "size"}],
    ),
    "a group that gets too many members": (
        graphs.grouping(),
        [
            {
                **graphs.grouping_instance(2),
                "size": ag.messages(
                    np.zeros(1, np.float32),
                    n=1,
                ),
            }
        ],
    ),
    "no start": (
        graphs.rnn(),
        [{k: v for k, v in graphs.rnn_instance(3).items() if k != "h0"}],
    ),
}


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize(
    ("graph", "data"),
    HANGS.values(),
    ids=HANGS,
)
def test_who_waits_for_ever_is_owed_for_ever(graph, data, fuse):
    plan = plan_for(graph, fuse=fuse)
    batch = columns(graph, data)
    unfolder = Unfolder(plan)
    unfolding = unfolder.unfold([batch], numbered(len(data)))
    programs = unfolder.programs(unfolding)
    space = unfolding.workspace
    assert not space.empty
    never = programs.owed - np.diff(programs.out_start)
    assert never.sum() == sum(
        table.waiting for table in (*space.joins.values(), *space.groups.values())
    )
    assert not never[programs.instance_of < len(data) - 1].any()  # the last one is at fault


# Mistakes: what the scheduler says, and of one instance


def late(wrong):
    """A state function that is right on the samples that are tried when the graph is built."""
    return lambda s, *i: wrong(s, *i) if len(s) and s.t.max() > 50 else s.t * 0


def stateful(end):
    with ag.Graph() as g:
        wire = end(
            ag.npt("f", lambda x: x)(
                ag.pump(
                    "x",
                    fields=("t",),
                )
            )
        )
        ag.sink("end", wire[0] if isinstance(wire, tuple) else wire)
        if isinstance(wire, tuple):
            ag.sink("other", wire[1])
    return g


def at(t):
    return {
        "x": ag.messages(
            np.ones(1, np.float32),
            t=t,
        )
    }


def molecule(topology):
    instance = {
        "atoms": np.zeros((2, 2), np.float32),
        "label": np.float32(0),
    }
    return graphs.molecule(), [instance if topology is None else {**instance, "maps": topology}]


def grouped(**changed):
    return graphs.grouping(), [{**graphs.grouping_instance(2), **changed}]


def sized(*n):
    return ag.messages(
        np.zeros(len(n), np.float32),
        n=n,
    )


def fails(s, *i):
    raise KeyError("what")


MISTAKES = {
    "an unknown pump": (graphs.chain(1), [{"y": 1.0}]),
    "a field too many": (
        graphs.chain(1),
        [{"x": ag.messages([1.0], t=0)}],
    ),
    "a second message": (
        graphs.chain(1),
        [
            {
                "x": ag.messages([1.0, 2.0]),
                "label": 0.0,
            }
        ],
    ),
    "a second message, later": (
        graphs.fan_out(1),
        [
            {
                "x": ag.messages([1.0]),
                "label": ag.messages([1.0, 2.0]),
            }
        ],
    ),
    "other numbers of rows": (
        graphs.repeating(),
        [
            {
                **graphs.repeating_instance(3),
                "rows": ag.messages(
                    np.zeros(2, np.float32),
                    sizes=[2],
                    n=3,
                ),
            }
        ],
    ),
    "no topology": molecule(None),
    "too few maps": molecule(
        ag.Topology(
            ([0],),
            ([0],),
            2,
        )
    ),
    "a row outside": molecule(
        ag.Topology(
            ([0], [2]),
            ([0], [0]),
            2,
        )
    ),
    "too few places": molecule(
        ag.Topology(
            ([0], [1]),
            ([0], []),
            2,
        )
    ),
    "too few scatter maps": molecule(
        ag.Topology(
            ([0], [1]),
            ([0],),
            2,
        )
    ),
    "a group that is opened twice": grouped(size=sized(3, 3)),
    "a group of negative size": grouped(size=sized(-1)),
    "a function that raises": (
        stateful(lambda w: ag.cond(w, late(fails), name="c")),
        [at(99)],
    ),
    "an output outside": (
        stateful(
            lambda w: ag.cond(
                w,
                late(lambda s: s.t * 0 + 2),
                name="c",
            )
        ),
        [at(99)],
    ),
    "floats": (
        stateful(
            lambda w: ag.cond(
                w,
                late(lambda s: s.t / 2),
                name="c",
            )
        ),
        [at(99)],
    ),
    "another length": (
        stateful(
            lambda w: ag.cond(
                w,
                late(lambda s: np.zeros(3, int)),
                name="c",
            )
        ),
        [at(99)],
    ),
    "a negative count": (
        stateful(
            lambda w: ag.flatmap(
                w,
                late(lambda s: s.t * 0 - 1),
                lambda s, i: s.replace(i=i),
                name="m",
            )
        ),
        [at(99)],
    ),
}


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize(
    ("graph", "data"),
    MISTAKES.values(),
    ids=MISTAKES,
)
def test_mistakes_are_told_as_the_scheduler_tells_them(graph, data, fuse):
    scheduler = scheduler_for(graph, fuse=fuse)
    batch = columns(graph, data)
    plan = scheduler.plan
    with pytest.raises(MessageError) as expected:
        scheduler.pump(scheduler.open(np.array([7])), batch)
    with pytest.raises(MessageError) as got:
        Unfolder(plan).unfold([batch], [7])
    assert str(got.value) == str(expected.value)


def test_of_many_the_one_at_fault_is_named():
    graph, _ = MISTAKES["a function that raises"]
    data = columns(
        graph,
        [
            at(1),
            at(2),
            at(99),
            at(3),
            at(98),
        ],
    )
    text = r"node `c`, condition: expected a state function that works for every state, got KeyError: 'what', for State\(instance=30, t=99\)\. Let the function give a result for this state: it is called for all states that reach the node\."
    with pytest.raises(MessageError, match=text):
        Unfolder(plan_for(graph)).unfold(
            [data],
            [10, 20, 30, 40, 50],
        )


def test_of_many_ragged_ones_the_one_at_fault_is_named():
    graph = graphs.repeating()
    data = [graphs.repeating_instance(n) for n in (3, 1, 2)]
    data[1] = {
        **data[1],
        "rows": ag.messages(
            np.zeros(2, np.float32),
            sizes=[2],
            n=1,
        ),
    }
    with pytest.raises(MessageError, match=r"got 2 rows with State\(instance=1, n=1\)"):
        Unfolder(plan_for(graph)).unfold(
            [columns(graph, data)],
            range(3),
        )


def test_a_loop_that_never_ends(monkeypatch):
    monkeypatch.setattr("ampjax.unfold.unfolding.WARN_ROUNDS", 50)
    monkeypatch.setattr("ampjax.unfold.unfolding.MOST_ROUNDS", 200)
    with ag.Graph() as g:
        h = ag.phi("h")
        x = ag.ppt(
            "f",
            graphs.times,
            params=graphs.one(),
        )(h)
        more, done = ag.cond(
            x,
            lambda s: s.t >= 0,
            name="c",
        )
        h.connect(ag.pump("x", fields=("t",)), more)
        ag.sink("end", done)
    text = r"node `f`: expected instances that end, got one that goes on after 200 stages one after the other, State\(instance=4, t=1\)\."
    with (
        pytest.warns(
            RuntimeWarning,
            match="instance 4 has passed 50 stages one after the other, the last one `f`",
        ),
        pytest.raises(MessageError, match=text),
    ):
        Unfolder(plan_for(g)).unfold(
            [columns(g, [at(1)])],
            [4],
        )


def test_bytes_are_told():
    graph, data = model("sequences")
    unfolder = Unfolder(planned(graph))
    programs = unfolder.end(
        unfolder.unfold(
            [data.gather(np.arange(5))],
            range(5),
        )
    )
    assert programs.nbytes == sum(
        getattr(programs, f.name).nbytes for f in fields(programs) if f.name != "edges"
    )
    assert repr(programs).startswith(
        f"Programs(5 instances, {programs.n_invocations} invocations, "
    )


def test_large_states_are_kept():
    programs = Unfolder(plan_for(graphs.flat(), fuse=True))
    graph = graphs.flat()
    big = {
        "x": ag.messages(
            np.ones(1, np.float32),
            count=0,
        ),
        "label": ag.messages(
            np.zeros(0, np.float32),
            count=0,
            i=0,
        ),
    }
    small = programs.end(
        programs.unfold(
            [columns(graph, [big])],
            [0],
        )
    )
    assert small.states.dtype == np.int32
    big["label"] = ag.messages(
        np.zeros(1, np.float32),
        count=0,
        i=1 << 40,
    )
    large = programs.end(
        programs.unfold(
            [columns(graph, [big])],
            [0],
        )
    )
    assert large.states.dtype == np.int64
    assert large.states.max() == 1 << 40
