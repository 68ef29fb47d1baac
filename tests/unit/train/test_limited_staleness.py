"""The settings `max_staleness`, `drop_staler_than` and `exact_staleness`: what is refused, and that all ways of training heed them."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs, resumed
from support.effort import examples
from support.transforms import sgd

import ampjax as amp
import ampjax.graphs as ag
from ampjax.drivers.cost import FlopsCost
from ampjax.errors import ReplayError, SettingsError
from ampjax.optim import delayed
from ampjax.plan.node_memory import kept_bytes
from ampjax.sched.layout import columns as c
from ampjax.sparse import Table
from ampjax.trace.instruments import Instrument
from ampjax.trace.update_log import read_update_log

QUIET = {"progress": False}
OPTIONS = {"max_active_keys": 6, "max_dispatch_size": 1, "policy": "wavefront", "fuse": False}


def trained(graph, data, epochs=2, **options):
    fit = {}
    for name in ("record", "update_log", "resume"):
        if name in options:
            fit[name] = options.pop(name)
    trainer = amp.Trainer(
        graph,
        sgd(1e-5),
        **{**OPTIONS, **options},
    )
    trainer.fit(data, epochs=epochs, **QUIET, **fit)
    return trainer


def stalest(trainer):
    result = {}
    for name, node in trainer.statistics.nodes.items():
        result[name] = node.staleness_max
    return result


def test_each_node_keeps_its_own_budget():
    data = graphs.chain_data(30)
    free = stalest(trained(graphs.chain(2), data))
    assert min(free.values()) >= 4
    assert stalest(
        trained(
            graphs.chain(2),
            data,
            max_staleness=1,
        )
    ) == {"f0": 1, "f1": 1}
    assert stalest(trained(graphs.chain(2), data, max_staleness={"f0": 2}))["f0"] == 2


MISTAKES = {
    "negative": -1,
    "a fraction": 1.0,
    "truth": True,
    "text": "4",
    "too large": 1 << 16,
    "a node's": {"f0": -1},
    "a NumPy number": np.int64(1),
}


@pytest.mark.parametrize("setting", ["max_staleness", "drop_staler_than", "exact_staleness"])
@pytest.mark.parametrize("value", MISTAKES.values(), ids=MISTAKES)
def test_what_is_no_number_of_versions(setting, value):
    expected = rf"setting `{setting}`: expected versions from 0 to 65535, or .*\n?.*{setting}=\{{'embed': 4\}}"
    with pytest.raises(SettingsError, match=expected):
        amp.Settings(**{setting: value})


@pytest.mark.parametrize("setting", ["max_staleness", "drop_staler_than", "exact_staleness"])
@pytest.mark.parametrize(
    ("name", "got", "fix"),
    [
        ("f9", "no node of the graph", "Name one of these"),
        ("loss", "a node without parameters of its own", "Name one of these"),
        ("x", "a node without parameters of its own", "Name one of these"),
        ("twin", "a node without parameters of its own", "Name `f`, whose parameters it uses"),
    ],
)
def test_what_has_no_parameters(setting, name, got, fix):
    with ag.Graph() as graph:
        first = ag.ppt(
            "f",
            graphs.times,
            params=graphs.one(),
        )(ag.pump("x"))
        twin = ag.ppt("twin", graphs.times, params_of="f")(first)
        ag.loss("loss", graphs.square)(twin, ag.pump("label"))
    expected = rf"setting `{setting}`: expected names among \['f'\], got '{name}', {got}\.?\s*{fix}"
    with pytest.raises(SettingsError, match=expected):
        amp.Trainer(graph, **{setting: {name: 1}})
    with pytest.raises(SettingsError, match=expected):
        amp.simulate(
            graph,
            graphs.chain_data(2),
            cost=FlopsCost,
            **{setting: {name: 1}},
        )


def test_the_trainer_says_so():
    assert "max_staleness" not in repr(amp.Trainer(graphs.chain(2)))
    assert repr(
        amp.Trainer(
            graphs.chain(2),
            max_staleness=3,
        )
    ).endswith(", max_staleness=3)")
    assert repr(
        amp.Trainer(
            graphs.chain(2),
            exact_staleness=3,
        )
    ).endswith(", exact_staleness=3)")
    assert repr(
        amp.Trainer(
            graphs.chain(2),
            drop_staler_than=3,
        )
    ).endswith(", drop_staler_than=3)")


@pytest.mark.parametrize(
    ("limits", "most"),
    [(1, 1), ({"f0": 2}, 2)],
    ids=["for all", "for one"],
)
def test_each_node_drops_what_is_staler_than_its_limit(tmp_path, limits, most):
    trainer = trained(
        graphs.chain(2),
        graphs.chain_data(30),
        epochs=1,
        drop_staler_than=limits,
        update_log=tmp_path / "log",
    )
    nodes = trainer.statistics.nodes
    assert nodes["f0"].dropped > 0
    assert (nodes["f1"].dropped > 0) == (limits == 1)
    for node in nodes.values():
        assert node.gradients + node.dropped == 30
    assert nodes["f0"].staleness_max == most
    assert f"{nodes['f0'].dropped} of 30 gradient rows dropped" in repr(trainer.statistics)
    own = [update for update in read_update_log(tmp_path / "log") if update.node == "f0"]
    assert (
        sum(update.rows for update in own)
        == sum(update.gradient_rows.sum() for update in own)
        == nodes["f0"].gradients
    )
    assert max(update.staleness.max() for update in own) == most
    assert (
        0 < sum(update.dropped for update in own) <= nodes["f0"].dropped
    )  # some may have come after the last update
    assert any("dropped before" in repr(update) for update in own)
    history = trainer.fit(graphs.chain_data(30), **QUIET)
    assert history[0].dropped == history[0].record()["dropped"] == trainer.statistics.dropped > 0


@pytest.mark.parametrize("fuse", [True, False])
def test_one_of_two_fused_nodes_drops_while_the_other_updates(fuse):
    """The kernel of both can't make the updates itself then: one has none."""
    places = {
        "workers": 2,
        "affinity": {"f0": 0, "f1": 0, "f2": 1, "loss": 1},
        "fuse": fuse,
    }
    trainer = trained(
        graphs.chain(3),
        graphs.chain_data(20),
        epochs=1,
        drop_staler_than={"f0": 0},
        **places,
    )
    nodes = trainer.statistics.nodes
    assert nodes["f0"].dropped > 0
    assert nodes["f0"].updates == 20 - nodes["f0"].dropped
    assert nodes["f1"].updates == nodes["f2"].updates == 20


def test_a_budget_leaves_nothing_to_drop():
    trainer = trained(
        graphs.chain(2),
        graphs.chain_data(30),
        max_staleness=2,
        drop_staler_than=2,
    )
    assert trainer.statistics.dropped == 0 and trainer.statistics.staleness_max == 2


@pytest.mark.nightly
def test_shared_parameters_have_one_budget():
    data = graphs.tied_data([3, 1, 2, 4, 2, 3, 1, 2, 3, 4])
    free = trained(graphs.tied(), data, min_update_interval=2)
    assert max(stalest(free).values()) > 1
    assert (
        max(
            stalest(
                trained(
                    graphs.tied(),
                    data,
                    min_update_interval=2,
                    max_staleness=1,
                )
            ).values()
        )
        == 1
    )


def test_tables_have_budgets():
    with ag.Graph() as graph:
        ids = ag.pump("ids", dtype="int32")
        label = ag.pump("label")
        rows = ag.ppt(
            "rows",
            amp.nn.TableEmbed(
                Table(
                    np.ones((5, 1), np.float32),
                    optax.sgd(0.1),
                )
            ),
        )(ids)
        ag.loss(
            "loss",
            lambda row, label: (jnp.sum(row) - label) ** 2,
        )(
            rows,
            label,
        )
    data = []
    for i in range(20):
        data.append(
            {
                "ids": np.int32(i % 5),
                "label": np.float32(i),
            }
        )
    assert stalest(trained(graph, data))["rows"] >= 4
    assert stalest(trained(graph, data, max_staleness=1)) == {"rows": 1}
    with pytest.raises(
        SettingsError,
        match=r"exact_staleness`: expected nodes with .*, got `rows`, whose rows a table",
    ):
        amp.Trainer(graph, exact_staleness=1)


def test_in_other_modes_a_budget_changes_nothing():
    data = graphs.chain_data(12)
    for mode in ("sync", "pipeline"):
        params = []
        for k in (None, 0):
            params.append(
                trained(
                    graphs.chain(2),
                    data,
                    mode=mode,
                    max_staleness=k,
                ).params
            )
        assert params[0] == params[1]


@pytest.mark.first_case
@pytest.mark.parametrize("setting", ["max_staleness", "drop_staler_than"])
@pytest.mark.parametrize(
    "budget",
    [1, {"f0": 1}],
    ids=["for all", "for one"],
)
def test_a_recording_knows_the_budget(tmp_path, setting, budget):
    data = graphs.chain_data(12)
    file = tmp_path / "run"
    options = {**OPTIONS, setting: budget}
    params = trained(
        graphs.chain(2),
        data,
        record=file,
        **options,
    ).params
    again = amp.Trainer(
        graphs.chain(2),
        sgd(1e-5),
        **options,
    )
    amp.replay(file, again, data, **QUIET)
    assert again.params == params
    assert (
        len(
            amp.replay(
                file,
                graphs.chain(2),
                data,
                tx=sgd(1e-5),
                **QUIET,
            )
        )
        == 2
    ), "with the recorded settings"
    other = amp.Trainer(
        graphs.chain(2),
        sgd(1e-5),
        **{**options, setting: 2},
    )
    with pytest.raises(ReplayError, match=rf"settings, {setting}: expected .*1.*, got 2"):
        amp.replay(file, other, data, **QUIET)


def test_a_simulation_keeps_the_budget():
    run = functools.partial(
        amp.simulate,
        graphs.chain(2),
        graphs.chain_data(40),
        cost=FlopsCost,
        workers=2,
        **OPTIONS,
    )
    assert run(max_staleness=1).stats.staleness_max == 1 < run().stats.staleness_max
    assert (
        run(drop_staler_than=1).stats.staleness_max == 1
        and run(drop_staler_than=1).stats.dropped > 0
    )


def test_a_resumed_fit_counts_on():
    one = trained(
        graphs.chain(2),
        graphs.chain_data(12),
        epochs=1,
        max_staleness={"f1": 0},
        drop_staler_than=0,
    )
    other = amp.Trainer(graphs.chain(2), max_staleness=0, **OPTIONS)
    counts = other.session.scheduler.counts
    counts.resume(one.session.scheduler.counts.state())
    told = counts.read()
    assert repr(told) == repr(one.session.scheduler.counts.read())
    assert "held back" in repr(told) and "rows dropped" in repr(told)
    assert told.closed_for == one.statistics.closed_for > 0


def test_a_meeting_that_was_put_off_comes_before_the_run_ends():
    """One replica updates while the other's only message is in flight, whose gradient is too few for an update. The next run may not change parameters, so the meeting is not left to it."""
    with ag.Graph() as graph:
        f = ag.ppt("f", graphs.times, params=graphs.one())
        copied = ag.replicate(
            f,
            2,
            route=lambda s: s.instance == 0,
        )(ag.pump("x"))
        ag.loss("loss", graphs.square)(copied, ag.pump("label"))
    options = {"max_staleness": 0, "min_update_interval": 2, "replica_sync": ("every_k", 1)}
    trainer = amp.Trainer(
        graph,
        optax.sgd(1e-3),
        **OPTIONS,
        **options,
    )
    put_off = trainer.session.scheduler.tables.t.clock[c.N_PUT_OFF :][:1]
    late = []

    class Watch(Instrument):
        def decided(self, dispatch):
            late.append(int(put_off[0]))

    with trainer.session.passes.watched(Watch()):
        trainer.accumulate(graphs.chain_data(3))
    before = trainer.params
    assert any(late)
    assert not put_off[0]
    assert before["f/0"] == before["f/1"] != graphs.one()
    trainer.accumulate(graphs.chain_data(3), update=False)
    assert trainer.params == before


class Interrupt(Instrument):
    """Interrupts a run between two dispatches, once something is so."""

    def __init__(self, when):
        self.when = when

    def carried_out(self):
        if self.when():
            self.when = lambda: False
            raise KeyboardInterrupt


class Fail(Instrument):
    """Fails before a kernel, once something was so when all had been issued."""

    def __init__(self, when):
        self.when = when
        self.is_so = False

    def carried_out(self):
        self.is_so = self.when()

    def before_kernels(self, dispatches):
        if self.is_so:
            raise ZeroDivisionError


def test_an_interrupted_fit_makes_the_updates_that_were_held(tmp_path):
    """Nothing is in flight afterwards, so nothing is waited for, and the next fit begins as any other. The log has these updates, too."""
    trainer = amp.Trainer(
        graphs.chain(2),
        sgd(1e-5),
        cost=resumed.cost,
        **{**OPTIONS, "max_active_keys": 20, "max_staleness": 0},
    )
    held = trainer.session.scheduler.tables.t.nodes[:, c.HELD_SINCE]
    updates = trainer.session.scheduler.updates
    with trainer.session.passes.watched(Interrupt(held.any)):
        assert trainer.fit(
            graphs.chain_data(25),
            update_log=tmp_path / "log",
            **QUIET,
        ).interrupted
    logged = Counter(update.node for update in read_update_log(tmp_path / "log"))
    assert logged["f1"] == 1 == trainer.statistics.nodes["f1"].held_updates
    assert logged == Counter(updates.versions), "a line for each update that was made"
    assert not held.any()
    assert not trainer.session.scheduler.tables.t.nodes[:, c.AWAITED :].any()
    assert (
        not trainer.fit(graphs.chain_data(12), **QUIET).interrupted
        and max(stalest(trainer).values()) == 0
    )


def test_a_fit_that_fails_while_an_update_is_held_makes_none():
    """What had not been issued is taken back, and the gradients wait for the next update, which is then due at once."""
    trainer = amp.Trainer(
        graphs.chain(2),
        sgd(1e-5),
        cost=resumed.cost,
        check=True,
        **{**OPTIONS, "max_active_keys": 20, "max_staleness": 0},
    )
    held = trainer.session.scheduler.tables.t.nodes[:, c.HELD_SINCE]
    before = trainer.params

    with trainer.session.passes.watched(Fail(held.any)), pytest.raises(ZeroDivisionError):
        trainer.fit(graphs.chain_data(25), **QUIET)
    assert trainer.params == before
    assert trainer.session.scheduler.updates.counts["f1"] > 0
    trainer.fit(graphs.chain_data(12), **QUIET)
    assert max(stalest(trainer).values()) == 0 and trainer.params != before


# Exact staleness


@functools.cache
def noting():
    """Gradient descent that also keeps the staleness of each update that it was told."""

    def update(updates, state, params=None, *, staleness, **extra):
        return jax.tree.map(
            lambda g: -RATE * g,
            updates,
        ), jnp.roll(state, -1).at[-1].set(staleness)

    return optax.GradientTransformationExtraArgs(lambda params: jnp.full(200, -1.0), update)


RATE = 1e-3


@pytest.mark.nightly
@pytest.mark.slow
@settings(max_examples=examples(18))
@given(
    st.integers(
        0,
        4,
    ),
    st.integers(1, 7),
    st.integers(1, 5),
    st.sampled_from(["async", "pipeline"]),
)
def test_each_gradient_is_applied_so_many_updates_after_its_forward_pass(
    folder, k, interval, in_flight, mode
):
    """From the log of which instances each update is made of, all parameters that there ever were follow: those of a chain of one node, with pencil and paper."""
    options = {"max_active_keys": in_flight, "min_update_interval": interval, "mode": mode}
    trainer = amp.Trainer(
        graphs.chain(1),
        noting(),
        **{**OPTIONS, **options, "exact_staleness": k},
    )
    data = []
    for i in range(30):
        data.append(
            {
                "x": np.float32(1 + i % 5 / 5),
                "label": np.float32(i % 3),
            }
        )
    trainer.fit(data, epochs=2, update_log=folder / "log", **QUIET)
    weights = [float(graphs.one())]
    gradients = []
    for update in read_update_log(folder / "log"):
        own = []
        for i, n in zip(
            update.instance.tolist(),
            update.gradient_rows.tolist(),
            strict=True,
        ):
            if n:
                own.append(data[i])
        gradients.append(
            np.mean([2 * (weights[-1] * each["x"] - each["label"]) * each["x"] for each in own])
        )
        weights.append(weights[-1] - (RATE * gradients[-1 - k] if len(gradients) > k else 0))
    np.testing.assert_allclose(
        trainer.params["f0"],
        weights[-1],
        rtol=1e-5,
    )  # float32
    inner = trainer.session.executor.store.opt_state["f0"]
    told = np.asarray(inner.inner if k else inner)
    # The first one waited while nothing changed, so it is not stale; those that follow have seen one change after another.
    assert told[told >= 0].tolist() == [min(n, k) for n in range(max(0, len(gradients) - k))]


def test_some_nodes_may_have_an_exact_staleness():
    trainer = trained(
        graphs.chain(2),
        graphs.chain_data(30),
        exact_staleness={"f0": 2},
        max_staleness=3,
    )
    assert stalest(trainer) == {"f0": 0, "f1": 3}, "as gradients come, before they wait"
    with pytest.raises(
        SettingsError, match="exact_staleness`: expected at most `max_staleness`, 1 for `f0`, got 2"
    ):
        amp.Trainer(
            graphs.chain(2),
            exact_staleness={"f0": 2},
            max_staleness=1,
        )


def test_gradients_that_wait_count_where_device_memory_is_short():
    sizes = []
    for k in (0, 1, 3):
        sizes.append(
            kept_bytes(graphs.chain(1), transforms={"f0": delayed(optax.sgd(0.1), k)})["f0"]
        )
    assert sizes[2] - sizes[1] == 2 * (4 + 4 + 4), "a gradient, its version and its staleness each"
    assert sizes[0] < sizes[1]
    with pytest.raises(SettingsError, match="device_memory"):
        amp.Trainer(
            graphs.chain(1),
            optax.sgd(0.1),
            device_memory=sizes[1],
            exact_staleness=9,
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")
