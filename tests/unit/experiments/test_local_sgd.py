"""Asynchronous local SGD: the published clock, the delayed rule as synchronous training, and the engine beside a plain loop."""

import json
from typing import Any

import jax
import numpy as np
import optax
import pytest

from ampjax.errors import SettingsError
from experiments.data import clusters
from experiments.local_sgd import driver
from experiments.local_sgd.driver import LocalSgdOptions
from experiments.local_sgd.inner_training import init, make_training, rates
from experiments.local_sgd.server import LocalSgd, VisitData, keep_params, train
from experiments.local_sgd.visits import in_order_of_admission, plan_visits, staleness_of

PRINTED = [209.0, 406.4, 603.8, 801.4, 999.0, 1207.8, 1404.2, 1600.6, 1800.2, 1998.6]
"""Seconds after each 800 inner steps, as the study prints them (arXiv 2401.09135, its notebook)."""

DATA = clusters.generate(640, 2, seed=0)


def test_visits_end_when_the_study_says():
    visits = plan_visits(400, 20, 0.5, seed=0)
    assert [round(visits[n - 1].back, 2) for n in range(40, 401, 40)] == PRINTED


def test_an_endless_grace_time_lets_all_wait():
    visits = plan_visits(20, 20, 1000.0, seed=0)
    assert [round(visit.end, 1) for visit in visits[::4]] == [66.6, 133.2, 199.8, 266.4, 333.0]
    assert set(staleness_of(visits)) == {0, 1, 2, 3}  # within a group, one after the other
    shards = [
        sorted(visit.shard for visit in visits[n : n + 4])
        for n in range(
            0,
            20,
            4,
        )
    ]
    assert shards == [[0, 1, 2, 3]] * 5


def test_the_delayed_rule_is_synchronous_training():
    """The study's check, to six digits: a sum over four visits, for which all wait."""
    outcomes = []
    for way in ("synchronous", "delayed"):
        settings = LocalSgd(
            hidden=6,
            inner_steps=3,
            phases=4,
            way=way,
        )
        outcomes.append(
            train(
                settings,
                DATA,
                optax.sgd(0.5),
                grace=1000.0,
                moments=4,
            )
        )
    one, other = outcomes
    np.testing.assert_allclose(
        one.params,
        other.params,
        rtol=1e-6,
        atol=1e-7,
    )
    assert one.seconds == other.seconds
    assert one.clock == other.clock == pytest.approx(4 * 3 * 3.33)
    assert one.staleness == other.staleness == {0: 16}


@pytest.mark.parametrize(
    "momentum",
    [None, 0.9],
    ids=["sgd", "nesterov"],
)
def test_the_engine_does_what_a_plain_loop_does(momentum):
    settings = LocalSgd(
        hidden=5,
        inner_steps=3,
        phases=6,
        seed=1,
    )
    outer = optax.sgd(
        0.3,
        momentum=momentum,
        nesterov=momentum is not None,
    )
    found = train(settings, DATA, outer, moments=6)

    planned = plan_visits(
        settings.n_visits,
        3,
        0.5,
        settings.seed,
    )
    admitted = in_order_of_admission(planned)
    data = VisitData(DATA, admitted, settings)
    inner = jax.jit(
        make_training(
            settings.hidden,
            settings.decay,
        )
    )
    versions: list[Any] = [
        init(
            settings.seed,
            settings.hidden,
        )
    ]
    ends = [0.0]
    state = outer.init(versions[0])
    for visit in planned[: settings.n_visits]:
        seen = versions[sum(end <= visit.begin for end in ends) - 1]
        moved = seen - inner(
            seen,
            *data.batches(admitted.index(visit)),
        )
        updates, state = outer.update(0.5 * moved, state)
        versions.append(
            optax.apply_updates(
                versions[-1],
                updates,
            )
        )
        ends.append(visit.end)

    for params, n in zip(
        found.params,
        found.visits,
        strict=True,
    ):
        np.testing.assert_allclose(
            params,
            versions[n],
            rtol=1e-5,
            atol=1e-6,
        )
    ages = np.unique(
        staleness_of(planned),
        return_counts=True,
    )
    assert found.staleness == dict(
        zip(
            ages[0].tolist(),
            ages[1].tolist(),
            strict=True,
        )
    )
    assert found.clock == pytest.approx(max(visit.back for visit in planned))


def test_learning_rates_follow_a_cosine_but_for_the_first():
    found = rates(
        first_step=40,
        inner_steps=20,
        total=100,
    )
    assert found[0] == np.float32(2e-4)
    wanted = 1e-6 + (2e-4 - 1e-6) * 0.5 * (
        1
        + np.cos(
            np.pi
            * np.arange(
                41,
                60,
            )
            / 100
        )
    )
    np.testing.assert_allclose(
        found[1:],
        wanted,
        rtol=1e-6,
    )


def test_parameters_are_kept_before_some_updates():
    tx = optax.chain(
        keep_params(2, 2),
        optax.sgd(1.0),
    )
    params = np.zeros(1, np.float32)
    state: Any = tx.init(params)
    for _ in range(6):
        updates, state = tx.update(
            -np.ones(1, np.float32),
            state,
            params,
        )
        params = optax.apply_updates(params, updates)
    assert state[0].kept.ravel().tolist() == [0.0, 2.0]


def test_clusters_lie_around_centres_of_length_one():
    data = clusters.generate(4003, 1, seed=3)
    assert len(data) == 4000 and data.features.dtype == np.float32
    assert np.bincount(data.labels).tolist() == [1000] * 4
    centre = data.features[data.labels == 2].mean(0)
    assert np.linalg.norm(centre) == pytest.approx(1, abs=0.15)
    assert (data.features[:1000] - data.features[:1000].mean(0)).std() == pytest.approx(0.5, 0.02)


def test_the_command(tmp_path, capsys):
    options = LocalSgdOptions(
        what="rules",
        rule=("nesterov+scale",),
        rate=(0.1,),
        phases=2,
        hidden=4,
        examples=256,
        clusters=1,
        moments=2,
        json=tmp_path / "a.jsonl",
        out=tmp_path,
    )
    records = driver.main(options)
    assert len(records) == 2
    assert (tmp_path / "local-sgd.png").stat().st_size > 10_000
    written = []
    for line in (tmp_path / "a.jsonl").read_text().splitlines():
        written.append(json.loads(line))
    assert [each["losses"] for each in written] == [each["losses"] for each in records]
    assert records[0]["seconds"][-1] == pytest.approx(2 * 66.6)
    assert "asynchronous, nesterov+scale 0.1" in capsys.readouterr().out


def test_mistakes():
    with pytest.raises(
        SettingsError,
        match="--rule: expected some of",
    ):
        driver.main(
            LocalSgdOptions(
                what="rules",
                rule=("lars",),
            )
        )
    with pytest.raises(
        SettingsError,
        match="--seed: expected numbers from 0 on",
    ):
        driver.main(LocalSgdOptions(seed=()))
    with pytest.raises(
        SettingsError,
        match="hidden",
    ):
        driver.main(LocalSgdOptions(hidden=0))
