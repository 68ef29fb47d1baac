"""What happens when a host fails: the driver raises an error that names it, nothing hangs, and what was carried out is counted."""

import numpy as np
import optax
import pytest
from support.hosted import fails_once, pipeline, trainer

import ampjax as amp
from ampjax.errors import HostError
from ampjax.hosts import fleet as fleets

N = 60


@pytest.mark.first_case
@pytest.mark.parametrize(
    "most",
    [(2, 3), (fleets.FEW, fleets.MOST)],
)
@pytest.mark.parametrize(
    ("host", "after"),
    [(0, 1), (1, 3), (0, 8), (1, 20)],
)
def test_an_error_on_a_host_names_it_and_leaves_counts_that_are_true(
    monkeypatch, host, after, most
):
    monkeypatch.setattr(fleets, "FEW", most[0])
    monkeypatch.setattr(fleets, "MOST", most[1])
    options = {
        "affinity": {"a": 0, "b": 1, "loss": 1},
        "min_update_interval": 1 << 40,
        "gradient": "sum",
    }
    there = trainer(
        pipeline(),
        optax.sgd(0.1),
        2,
        2,
        max_active_keys=4,
        max_dispatch_size=1,
        fuse=False,
        **options,
    )
    data = []
    for i in range(N):
        data.append({"x": np.float32(i)})
    fails_once(monkeypatch, host, after)
    with pytest.raises(
        HostError,
        match=rf"host `host{host}`, dispatch \d+ of `.*` \((forward|backward), 1 messages of instances \d+\)(?s:.*)a body's own mistake",
    ):
        there.fit(data, epochs=1, progress=False)
    for total, rows in there.gradients.values():
        assert float(total) == rows < N
    before = {}
    for node, (_, rows) in there.gradients.items():
        before[node] = rows
    there.fit(data, epochs=1, progress=False)
    assert {node: rows for node, (_, rows) in there.gradients.items()} == {
        n: rows + N for n, rows in before.items()
    }
    for total, rows in there.gradients.values():
        assert float(total) == rows
    assert [state.state for state in there.hosts] == ["running"] * 2
    there.close()


@pytest.mark.first_case
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    ("host", "after"),
    [(0, 9), (1, 20), (1, 31)],
)
def test_updates_that_a_host_has_not_made_are_taken_back(
    monkeypatch, host, after, recorded, tmp_path
):
    """Each row has a gradient of 1, and updates add them up: so parameters and what waits count rows. A recording needs objects of all dispatches."""
    monkeypatch.setattr(fleets, "FEW", 2)
    monkeypatch.setattr(fleets, "MOST", 3)
    options = {
        "affinity": {"a": 0, "b": 1, "loss": 1},
        "min_update_interval": 4,
        "gradient": "sum",
        "fuse": False,
    }
    there = trainer(
        pipeline(),
        optax.sgd(-1.0),
        2,
        2,
        max_active_keys=4,
        max_dispatch_size=1,
        **options,
    )
    data = []
    for i in range(N):
        data.append({"x": np.float32(i)})
    record = {"record": tmp_path / "run.trace"} if recorded else {}
    fails_once(monkeypatch, host, after)
    with pytest.raises(HostError, match="a body's own mistake"):
        there.fit(data, epochs=1, progress=False, **record)

    def rows_used():
        waiting = there.gradients
        assert all(float(total) == rows for total, rows in waiting.values())
        result = {}
        for node, (_, rows) in waiting.items():
            result[node] = float(there.params[node]) + rows
        return result

    before = rows_used()
    assert all(0 < rows < N for rows in before.values())
    there.fit(data, epochs=1, progress=False)
    assert rows_used() == {node: rows + N for node, rows in before.items()}
    there.close()


def test_a_question_that_can_not_be_answered(monkeypatch):
    there = trainer(pipeline(), optax.sgd(0.1), 2, 2)
    with pytest.raises(
        HostError, match=r"host `host1`: expected an answer, got an error there(?s:.*)KeyError"
    ):
        there.session.executor.fleet.ask(
            [1],
            "trees",
            which="params",
            nodes=["nobody"],
        )
    assert set(there.params) == {"a", "b"}
    there.close()


def test_a_closed_trainer_says_how_to_go_on():
    there = amp.Trainer(
        pipeline(),
        optax.sgd(0.1),
        hosts=amp.Hosts(2, "threads"),
    )
    data = []
    for i in range(4):
        data.append({"x": np.float32(i)})
    before = there.evaluate(data, progress=False)
    there.close()
    with pytest.raises(
        HostError, match=r"Unless the trainer was closed, (?s:.*)Call `trainer.restart_hosts\(\)`"
    ):
        there.evaluate(data, progress=False)
    there.restart_hosts()
    assert there.evaluate(data, progress=False) == before
    there.close()
