"""Tuning a tiny graph: in virtual time, so that every figure but the budget is that of the model alone; and once on this machine."""

import functools
import json
import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import optax
import pytest
from support import table_models

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import GraphError, SettingsError, TuningWarning
from ampjax.simulation import FlopsCost
from ampjax.tuning.budget import Budget
from ampjax.tuning.predictor import Predictor
from ampjax.tuning.tuned import Tuned

SLOW = partial(FlopsCost, flops=1e6, latency_ns=1000)
SPACE = {
    "max_active_keys": (1, 4),
    "max_dispatch_size": (1, 4),
    "min_update_interval": (1, 4),
    "policy": ("balanced",),
}
FIXED: dict[str, Any] = {"workers": 1, "min_admission": 1}


@functools.cache
def net(n=1):
    """`n` hidden layers, and the squared error of one number."""
    with ag.Graph() as g:
        x = ag.pump("x", (4,))
        label = ag.pump("label")
        for i in range(n):
            x = ag.ppt(
                f"layer{i}",
                amp.nn.Linear(4, 4),
            )(x)
        ag.loss("loss", squared)(
            ag.ppt(
                "last",
                amp.nn.Linear(4, 1),
            )(x),
            label,
        )
    return g


def squared(y, label):
    """A loss of one number and its label."""
    return (y[0] - label) ** 2


def data(n=40):
    x = np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)
    return [{"x": row, "label": row.sum()} for row in x]


def tuned(**options: Any) -> Tuned:
    usual: dict[str, Any] = {
        "target": 0.01,
        "space": SPACE,
        "cost": SLOW,
        "progress": False,
        "budget_s": 120.0,
    }
    return amp.tune(
        net(),
        data(),
        optax.sgd(0.03),
        **{**usual, **FIXED, **options},
    )


class Ticks:
    """A clock of which a hundredth of a second passes whenever it is read."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 0.01
        return self.now_s


@pytest.fixture
def ticks(monkeypatch):
    """Budgets go by such a clock."""
    monkeypatch.setattr("ampjax.tuning.tune.Budget", partial(Budget, now=Ticks()))


@pytest.fixture(scope="module")
def found():
    return tuned()


@pytest.mark.nightly
@pytest.mark.slow
def test_the_chosen_settings_reach_the_target(found):
    assert found.is_reached and found.best.tried.seconds_to_target > 0  # type: ignore[union-attr]
    assert found.spent_s < found.budget_s
    trainer = amp.Trainer(
        found.graph,
        optax.sgd(0.03),
        **found.settings,
    )
    history = trainer.fit(
        data(),
        data(),
        epochs=10,
        progress=False,
    )
    assert history.first_to(0.01, "loss") is not None


def test_no_trial_that_ran_as_often_was_sooner_than_the_chosen_one(found):
    tried = []
    for c in found.candidates:
        if c.tried and c.tried.seconds_to_target:
            tried.append(c.tried)
    seconds = []
    for t in tried:
        if t.runs == max(t.runs for t in tried):
            seconds.append(t.seconds_to_target)
    assert len(found.candidates) == 12 and len(seconds) >= 1
    assert found.best.tried.seconds_to_target == min(seconds)


def test_what_is_tried_is_on_the_front(found):
    assert found.front
    assert all(c.is_on_front for c in found.candidates if c.tried)
    assert all(c.simulated.per_s > 0 and c.simulated.updates > 0 for c in found.candidates)
    rates = [c.simulated.per_s for c in found.front]
    assert rates == sorted(rates, reverse=True)


def test_measured_figures_of_virtual_time_are_near_the_simulated_ones(found):
    tried = found.best
    assert tried.tried.per_s == pytest.approx(tried.simulated.per_s, rel=0.3)


@pytest.mark.nightly
def test_the_same_seed_chooses_the_same(found):
    again = tuned()
    assert again.settings == found.settings
    assert [c.simulated for c in again.front] == [c.simulated for c in found.front]


def test_it_prints_a_table_and_writes_data_and_pictures(found, tmp_path):
    text = repr(found)
    assert (
        "chosen" in text and "interval" in text and "seed 0." in text and "loss 0.01 after" in text
    )
    assert "<table>" in found._repr_html_()
    found.save(tmp_path / "deep" / "tuned.jsonl")
    lines = []
    for line in (tmp_path / "deep" / "tuned.jsonl").read_text().splitlines():
        lines.append(json.loads(line))
    assert len(lines) == 12
    assert lines[0]["is_best"]
    assert lines[0]["tried_seconds_to_target"] > 0
    for name, picture in (("front.png", found.picture), ("epochs.svg", found.epochs_picture)):
        picture(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.slow
def test_a_builder_gets_the_names_that_are_no_settings():
    built = []

    def graph(n):
        built.append(n)
        return net(n)

    space = {
        **SPACE,
        "max_active_keys": (4,),
        "max_dispatch_size": (4,),
        "n": (1, 2),
    }
    found = amp.tune(
        graph,
        data(),
        optax.sgd(0.03),
        target=0.01,
        space=space,
        cost=SLOW,
        progress=False,
        **FIXED,
    )
    assert built == [1, 2]
    assert found.knobs in ({"n": 1}, {"n": 2})
    assert found.graph is net(found.knobs["n"])
    assert "n" in found.varied and "n" not in found.settings


def test_a_later_plan_that_takes_too_long_is_given_up(monkeypatch):
    clock = Ticks()
    prepare = Predictor.prepare
    monkeypatch.setattr("ampjax.tuning.tune.Budget", partial(Budget, now=clock))

    def slow(self, choices, metric):
        if choices[0].knobs == {"n": 2}:
            clock.now_s += 70.0
            self.budget.check()
        return prepare(self, choices, metric)

    monkeypatch.setattr(Predictor, "prepare", slow)
    space = {
        **SPACE,
        "max_active_keys": (4,),
        "max_dispatch_size": (4,),
        "n": (1, 2),
    }
    options: dict[str, Any] = {
        "target": 0.01,
        "budget_s": 100.0,
        "space": space,
        "cost": SLOW,
        "progress": False,
    }
    found = amp.tune(
        net,
        data(),
        optax.sgd(0.03),
        **options,
        **FIXED,
    )
    assert found.knobs == {"n": 1} and found.is_reached
    assert all((c.simulated is None) == (c.knobs == {"n": 2}) for c in found.candidates)


@pytest.mark.nightly
@pytest.mark.slow
def test_on_this_machine_kernels_are_measured_and_shared():
    space = {
        "max_active_keys": (8,),
        "max_dispatch_size": (1, 8),
        "min_update_interval": (1, 8),
        "policy": ("balanced",),
    }
    found = tuned(space=space, cost=None, valid=data(10))
    assert found.is_reached
    assert all(c.simulated for c in found.candidates)


@pytest.mark.nightly
def test_a_target_that_is_not_reached_is_told_with_the_best_value(ticks):
    match = r"tune, `target`: expected loss -1 within 1.5 s, got .* at best, after .* of training\. The settings are those"
    with pytest.warns(TuningWarning, match=match):
        found = tuned(target=-1.0, budget_s=1.5)
    assert not found.is_reached and found.spent_s < 1.6
    assert "was not reached: the best was" in repr(found)


def test_without_a_target_it_gets_as_far_as_possible(ticks):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tuned(target=None, budget_s=1.5)
    assert found.best.tried is not None
    assert found.best.tried.best == min(
        c.tried.best for c in found.candidates if c.tried and math.isfinite(c.tried.best)
    )


def test_a_budget_for_nothing_is_told():
    match = r"tune, `budget_s`: expected enough to try a single choice, got 1e-06 s, spent after 0 plans .* Give several times that"
    with pytest.raises(SettingsError, match=match):
        tuned(budget_s=1e-6)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"metric": "f1"},
            r"tune, `metric`: expected one of \['loss'\], got 'f1'\. Choose one of these",
        ),
        ({"target": math.nan}, r"tune, `target`: expected a finite number, or None, got nan"),
        ({"target": "0.9"}, r"tune, `target`: expected a finite number, or None, got '0.9'"),
        (
            {"space": {"max_activ_keys": (1,)}},
            r"got an unknown name. Did you mean `max_active_keys`\? For an argument",
        ),
        (
            {"space": {"keys": (1,)}},
            r"tune, `space`, `keys`: expected one of the settings \[.*\], got an unknown name",
        ),
        (
            {"space": {"policy": "largest"}},
            r"tune, `space`, `policy`: expected a list of values to choose from, got 'largest'",
        ),
        (
            {"space": {"workers": ()}},
            r"tune, `space`, `workers`: expected a list of values to choose from, got \(\)",
        ),
        (
            {"space": {"workers": (1, 2)}},
            r"tune, `workers`: expected values in `space`, or one setting, got both",
        ),
        (
            {"space": {"max_active_keys": (0,)}},
            r"setting `max_active_keys`: expected an integer of at least 1, got 0",
        ),
        (
            {"space": {"max_active_keys": (None,)}},
            r"setting `max_active_keys`: expected an integer of at least 1, got No",
        ),
        (
            {"space": ["policy"]},
            r"tune, `space`: expected values by name, or None, got \['policy'\]\. Write for example",
        ),
        (
            {"cores": 0},
            r"tune, `cores`: expected a finite number above 0, or None, got 0\. Leave it out",
        ),
        (
            {
                "target": 1e9,
                "space": {name: values[:1] for name, values in SPACE.items()},
            },
            r"tune, `target`: expected a value that takes training, got 1e\+09, and loss .* before it\. Choose a target",
        ),
        ({"seed": -1}, r"setting `seed`: expected an integer of at least 0, got -1"),
        ({"wrkers": 1}, r"setting `wrkers`: expected one of"),
    ],
)
def test_mistakes_are_told(options, match):
    with pytest.raises(SettingsError, match=match):
        tuned(**options)


def test_a_machine_without_time_is_told():
    with pytest.raises(
        SettingsError,
        match="tune, `cost`: expected a machine on which training takes time, got one where",
    ):
        tuned(cost=partial(FlopsCost, flops=math.inf))


def test_a_table_in_host_memory_is_refused():
    graph, _ = table_models.with_table(optax.sgd(0.1))
    match = r"tune, `graph`: expected parameters of which each trial has its own, got node `embed`, whose table in host memory"
    with pytest.raises(GraphError, match=match):
        amp.tune(graph, data(4), target=0.1)


def test_mistakes_in_data_and_graphs_are_told():
    with pytest.raises(SettingsError, match="data: expected at least one instance, got none"):
        amp.tune(net(), [], target=0.1)
    with pytest.raises(
        SettingsError,
        match=r"tune, `data`: expected two instances at least, .* got one\. Pass more",
    ):
        amp.tune(net(), data(1), target=0.1)
    with pytest.raises(SettingsError, match="validation data: expected at least one instance"):
        amp.tune(
            net(),
            data(4),
            target=0.1,
            valid=[],
        )
    with pytest.raises(
        GraphError, match=r"tune, `graph`: expected an `amp\.graphs\.Graph`, got int"
    ):
        amp.tune(3, data(4), target=0.1)  # type: ignore[arg-type]
    match = r"tune, `space`: expected names of settings, and .*, got \['m'\] for `<lambda>\(n=1\)`: .*'m'\. Check their"
    with pytest.raises(SettingsError, match=match):
        amp.tune(
            lambda n=1: net(n),
            data(4),
            target=0.1,
            space={"m": (1,)},
        )
    with pytest.raises(
        GraphError,
        match=r"tune, `graph`: expected a function that gives an `amp.graphs.Graph`, got int",
    ):
        amp.tune(
            lambda n: n,
            data(4),
            target=0.1,
            space={"n": (1,)},
        )  # type: ignore[arg-type]
