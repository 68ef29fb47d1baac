"""Measured times, and cost models made from them."""

from functools import partial

import numpy as np
import optax
import pytest
from support import chains, graphs

import ampjax as amp
import ampjax.graphs as ag
from ampjax.drivers.cost import FlopsCost, Stragglers
from ampjax.engine.executor import Executor
from ampjax.errors import DataError, SettingsError
from ampjax.simulation.profile import PARTS, Profile, medians, note, quickest
from ampjax.simulation.profile_cost import HostedCost, ProfileCost
from ampjax.simulation.simulate import profile
from experiments.models.mlp import mlp

pytestmark = pytest.mark.slow

TIMES = {
    "forward a": {1: 100.0, 4: 400.0, 8: 500.0},
    "update a": {1: 50.0},
}


def test_between_sizes_and_beyond():
    times = Profile(TIMES)
    assert [times.ns("forward a", n) for n in (1, 2, 4, 6, 8, 16)] == [
        100,
        200,
        400,
        450,
        500,
        1000,
    ]
    assert times.ns("update a", 1) == 50
    assert repr(times).splitlines()[:2] == [
        "Profile of 2 kernels",
        "  forward a: 0.5 us for 8 rows",
    ]


def test_a_host_with_more_to_do_needs_more_time_for_each_dispatch():
    times = Profile(
        TIMES,
        TIMES,
        TIMES,
        {"forward a": {1: 5.0, 4: 7.0}},
    ).with_control(10.0)
    assert (
        times.control == {"forward a": {1: 15.0, 4: 17.0}} and times.issue == times.kernels == TIMES
    )


def test_what_was_never_measured_is_told():
    with pytest.raises(
        SettingsError, match=r"profile, `backward a`: expected one of \['forward a', 'update a'\]"
    ):
        Profile(TIMES).ns("backward a", 1)


def test_it_is_kept_in_a_file(tmp_path):
    Profile(TIMES).save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == Profile(TIMES)
    with pytest.raises(DataError, match="expected a profile"):
        Profile.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    "times", ["{}", '{"0": 1.0}', '{"1": -1.0}', '{"1": NaN}', '{"x": 1}', "3", "[" * 100_000]
)
def test_a_file_of_times_that_are_none(tmp_path, times):
    others = ", ".join(f'"{part}": {{}}' for part in PARTS[1:])
    (tmp_path / "profile.json").write_text(f'{{"times": {{"forward a": {times}}}, {others}}}')
    with pytest.raises(DataError, match="expected a profile"):
        Profile.load(tmp_path / "profile.json")


def instances(n, size=4):
    rng = np.random.default_rng(0)
    result = []
    for _ in range(n):
        result.append(
            {
                "image": rng.normal(size=(2, size)).astype(np.float32),
                "label": np.zeros(2, np.int32),
            }
        )
    return result


@pytest.mark.nightly
def test_every_kernel_of_a_graph_is_measured_and_a_simulation_adds_them_up():
    graph = mlp((4, 5, 3), 2)
    settings = {"workers": 2, "max_active_keys": 1, "fuse": False, "max_dispatch_size": 1}
    measured = profile(graph, instances(6), passes=2, **settings)
    assert {what.split()[0] for what in measured.times} == {"forward", "backward", "update"}
    assert all(
        max(sizes.values()) > 0
        for what, sizes in measured.times.items()
        if not what.startswith("update")
    )
    run = amp.simulate(
        graph,
        instances(6),
        cost=lambda plan: ProfileCost(plan, measured),
        **settings,
    )
    updating = set()
    for what in measured.times:
        if what.endswith(", updating"):
            updating.add(what.removesuffix(", updating"))
    assert updating == {"backward linear1", "backward linear2"}, "each is measured both ways"
    assert {"backward linear1", "update linear1"} <= set(measured.times)
    apart = updating | {"update linear1", "update linear2"}
    one_each = sum(sizes[max(sizes)] for what, sizes in measured.times.items() if what not in apart)
    assert run.seconds == pytest.approx(6 * one_each / 1e9, rel=0.01), (
        "one at a time: nothing overlaps"
    )


@pytest.mark.nightly
def test_every_size_is_measured_with_its_updates_and_apart():
    """A size that came only with updates at once was said to take 64 times that of one row."""
    settings = {
        "max_active_keys": 4,
        "max_dispatch_size": 4,
        "min_update_interval": 1,
        "fuse": False,
        "policy": "largest",
    }
    measured = profile(
        mlp((4, 5, 3), 2),
        instances(5),
        passes=1,
        **settings,
    )
    for part in (measured.times, measured.kernels, measured.issue):
        assert (
            part["backward linear1"].keys() == part["backward linear1, updating"].keys() == {1, 4}
        )


def test_a_size_that_was_not_measured_with_its_updates_takes_the_parts_time():
    ways = {}
    for way in ("forward", "backward"):
        for name in ("relu1", "linear1", "linear2"):
            ways[f"{way} {name}"] = {1: 0.0}
    parts = {
        **ways,
        "forward xent": {1: 0.0},
        "backward linear1": {1: 100.0, 4: 100.0},
        "update linear1": {1: 30.0},
    }
    times = {
        **parts,
        "update linear2": {1: 0.0},
        "backward linear1, updating": {2: 1.0, 4: 1.0},
    }
    settings = {"max_active_keys": 1, "fuse": False, "min_update_interval": 1}
    run = amp.simulate(
        mlp((4, 5, 3), 2),
        instances(3),
        cost=lambda plan: ProfileCost(plan, Profile(times)),
        **settings,
    )
    assert run.seconds == pytest.approx(3 * 130e-9)
    more = {**times, "backward linear1, updating": {1: 110.0, 4: 110.0}}
    run = amp.simulate(
        mlp((4, 5, 3), 2),
        instances(3),
        cost=lambda plan: ProfileCost(plan, Profile(more)),
        **settings,
    )
    assert run.seconds == pytest.approx(3 * 110e-9)


def test_layers_by_flops_and_the_rest_as_measured():
    graph = mlp((4, 5, 3), 2)
    settings = {"max_active_keys": 1, "fuse": False, "max_dispatch_size": 1}
    flops = amp.simulate(
        graph, instances(4), cost=partial(FlopsCost, flops=1e6), **settings
    ).seconds
    names = ["relu1"]
    rest = Profile(
        {f"{way} {name}": {1: 1000.0} for way in ("forward", "backward") for name in names}
    )
    rest = Profile({**rest.times, "forward xent": {1: 3000.0}})

    def cost(plan):
        return ProfileCost(plan, rest, FlopsCost(plan, 1e6))

    assert amp.simulate(graph, instances(4), cost=cost, **settings).seconds == pytest.approx(
        flops + 4 * 5e-6, rel=1e-3
    )


def test_a_sink_which_training_never_reaches_takes_no_time():
    with ag.Graph() as graph:
        y = ag.ppt(
            "f",
            amp.nn.Linear(2, 2),
        )(ag.pump("x", (2,)))
        ag.sink("seen", y)
        ag.loss(
            "squared",
            lambda y, label: ((y - label) ** 2).sum(),
        )(
            y,
            ag.pump("label"),
        )
    data = []
    for _ in range(4):
        data.append(
            {
                "x": np.ones(2, np.float32),
                "label": np.float32(0.5),
            }
        )
    measured = profile(graph, data)
    assert not any("seen" in what for what in measured.times)
    for cost in (
        lambda plan: ProfileCost(plan, measured),
        lambda plan: HostedCost(plan, measured, 2),
    ):
        assert amp.simulate(graph, data, cost=cost, train=False).seconds > 0


def test_a_straggler_is_slower():
    def cost(plan):
        return Stragglers(lambda dispatch: 100, {0: 3.0})

    s = {"max_active_keys": 1, "max_dispatch_size": 1}
    slow = amp.simulate(
        graphs.chain(2),
        graphs.chain_data(3),
        cost=cost,
        **s,
    ).seconds
    even = amp.simulate(
        graphs.chain(2),
        graphs.chain_data(3),
        cost=lambda plan: lambda dispatch: 100,
        **s,
    ).seconds
    assert slow == pytest.approx(3 * even)


@pytest.mark.nightly
def test_dispatches_that_a_run_issues_in_one_call_are_measured_so(monkeypatch):
    """Measured alone, each would take a call's time, of which a run has one for several."""
    run = Executor.run
    calls = []

    def noted(self, launches):
        calls.append(len(launches))
        return run(self, launches)

    settings = {"max_active_keys": 8, "min_update_interval": 1_000, "policy": "largest"}
    data = graphs.rnn_data([6] * 8)
    with monkeypatch.context() as patch:
        patch.setattr(Executor, "run", noted)
        amp.Trainer(
            graphs.rnn(),
            optax.sgd(0.1),
            **settings,
        ).fit(
            data,
            progress=False,
        )
        trained = [n for n in calls if n > 1]
        calls.clear()
        measured = profile(graphs.rnn(), data, passes=1, **settings)
    assert trained and [n for n in calls if n > 1]
    assert measured.times.keys() == measured.issue.keys() == measured.kernels.keys()


def test_a_call_for_several_dispatches_is_shared_out_among_them():
    found = {}
    note(found, "times", "forward a", [3, 4, 4], 900)
    note(found, "times", "forward a", [4], 100)
    note(found, "times", "forward a", [8], None)
    assert found == {
        "times": {
            "forward a": {
                3: [300],
                4: [300, 300, 100],
                8: [],
            }
        }
    }


def test_what_predictions_alone_need_is_measured_too():
    """A loss has fused the layer that the sink sees."""
    with ag.Graph() as graph:
        y = ag.ppt(
            "f",
            amp.nn.Linear(2, 2),
        )(ag.pump("x", (2,)))
        ag.sink("seen", y)
        ag.loss(
            "squared",
            lambda y: (y**2).sum(),
        )(y)
    data = []
    for _ in range(4):
        data.append({"x": np.ones(2, np.float32)})
    measured = profile(graph, data, passes=1)
    assert set(measured.times) >= {"forward f+squared", "forward f"}
    cost = lambda plan: ProfileCost(plan, measured)
    one = amp.simulate(
        graph,
        data,
        cost=cost,
        train=False,
        max_active_keys=1,
        max_dispatch_size=1,
    )
    assert {stage: n.dispatches for stage, n in one.stats.stages.items()}["f"] == 0, "for the loss"
    trainer = amp.Trainer(graph, cost=cost, max_active_keys=1)
    assert len(trainer.predict(data)["seen"]) == 4
    assert trainer.session.position.virtual_ns > 0


def test_least_times_count_beside_other_programs_and_never_fall_with_the_rows():
    passes = [
        {
            "times": {
                "forward a": {
                    1: [9.0],
                    4: [5.0],
                    8: [60.0],
                }
            }
        },
        {
            "times": {
                "forward a": {
                    1: [3.0, 4.0],
                    4: [70.0],
                    8: [8.0],
                    2: [6.0],
                }
            }
        },
    ]
    assert quickest(passes).times == {"forward a": {1: 3.0, 2: 5.0, 4: 5.0, 8: 8.0}}
    assert medians(passes).times == {"forward a": {1: 4.0, 2: 6.0, 4: 37.5, 8: 34.0}}


@pytest.mark.nightly
def test_edges_of_instances_that_have_ended_are_known_where_they_are_measured():
    """The host is ahead of the devices, so an instance can end, and another get its handle, before its last dispatch is issued."""
    rng = np.random.default_rng(0)
    data = []
    for n in (9, 2, 7, 1, 8, 3, 6, 2, 9, 1):
        data.append(chains.instance(rng, n, 2 * n))
    found = profile(
        chains.propagation(),
        data,
        passes=1,
        max_active_keys=3,
        max_dispatch_size=8,
    )
    assert any(key.startswith("backward") for key in found.kernels)
