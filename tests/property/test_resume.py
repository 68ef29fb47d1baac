"""A law: a fit that was killed anywhere and resumed ends with the bits of one that was not."""

import functools
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import resumed
from support.effort import examples

pytestmark = pytest.mark.slow

RUNS = {
    "virtual": {"cost": resumed.cost},
    "workers": {
        "cost": resumed.cost,
        "workers": 2,
        "affinity": "paper",
        "max_dispatch_size": 2,
        "max_staleness": 1,
    },
    "stashed": {"cost": resumed.cost, "weights": "stashed", "drop_staler_than": 0},
    "estimated": {
        "cost": resumed.cost,
        "weights": "estimated",
        "workers": 2,
        "max_dispatch_size": 2,
    },
    "replicas": {
        "cost": resumed.cost,
        "replicas": 2,
        "replica_sync": ("message", 2),
        "max_staleness": 0,
    },
    "pipeline": {"mode": "pipeline", "exact_staleness": 2},
    "sync": {"mode": "sync"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("snapshots")


@functools.cache
def undisturbed(folder, name, every):
    """A fit that nobody kills."""
    one = resumed.trainer(folder / f"{name}-{every}", every, **RUNS[name])
    return one, resumed.fit(one)


@pytest.mark.nightly
@settings(max_examples=examples(24))
@given(
    st.sampled_from(list(RUNS)),
    st.sampled_from([3, 4, 13]),
    st.lists(
        st.integers(0, 60),
        min_size=1,
        max_size=2,
    ),
)
def test_killed_and_resumed(folder, name, every, kills):
    """Twice at most, so that a run goes on from what a resumed run has written."""
    first, told = undisturbed(folder, name, every)
    again = folder / "again"
    shutil.rmtree(again, ignore_errors=True)
    n_killed = sum(
        resumed.killed(resumed.trainer(again, every, **RUNS[name]), n, resume=True) for n in kills
    )
    last = resumed.trainer(again, every, **RUNS[name])
    history = resumed.fit(last, resume=True)
    resumed.require_same(first, last, (told, history))
    assert len(history.resumed) <= n_killed
    left = sorted(path.name for path in again.iterdir())
    assert len(left) == min(2, 30 // every + 1) and all(
        name.startswith("snapshot-") for name in left
    ), left


@pytest.mark.first_case
@pytest.mark.parametrize("name", ["pipeline", "sync"])
def test_snapshots_between_updates_change_nothing(folder, name):
    """In synchronous and pipeline training the reference may be a run without any."""
    first, told = undisturbed(folder, name, 4)
    plain = resumed.trainer(folder / f"plain-{name}", None, **RUNS[name])
    resumed.require_same(first, plain, (told, resumed.fit(plain)))
