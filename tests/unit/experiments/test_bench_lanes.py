"""The bench of lanes: forms of a work agree, solvers find minima, chains by hand equal a library's, and a run measures every form."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from scipy.optimize import minimize

from ampjax.errors import SettingsError
from experiments.bench.lanes import driver
from experiments.bench.lanes.chain_machine import machine_of_chains
from experiments.bench.lanes.driver import LanesBench
from experiments.bench.lanes.works import WORKS
from experiments.results.batch_tables import loops


def test_a_run_measures_all_forms(tmp_path: Path) -> None:
    console = Console(record=True, width=100)
    options = LanesBench(
        work=("loops-uniform",), rounds=1, size=0.005, json=tmp_path / "lanes.jsonl"
    )
    (row,) = driver.main(options, console)
    assert json.loads((tmp_path / "lanes.jsonl").read_text()) == row
    assert row["elements"] == 5
    assert row["to_best"] <= row["to_vmap"]
    assert row["rows"] <= row["rows_vmap"]
    assert "loops-uniform" in console.export_text()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "work",
    [
        "loops-equal",
        "loops-lognormal",
        "loops-one-long",
        "loop-in-a-loop",
        "early-exit-128",
        "lbfgs",
    ],
)
def test_all_forms_agree(work: str) -> None:
    driver.main(
        LanesBench(
            work=(work,),
            rounds=1,
            size=0.01,
        ),
        Console(quiet=True),
    )


def test_unknown_works_are_refused() -> None:
    with pytest.raises(SettingsError, match="bench lanes: expected works of loops-equal"):
        driver.main(LanesBench(work=("loop",)))


def test_forms_by_hand_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = WORKS["loops-equal"]

    def with_hand(n: int):
        work = equal(n)
        return replace(
            work,
            by_hand={"mine": jax.vmap(work.function)},
        )

    monkeypatch.setitem(WORKS, "loops-equal", with_hand)
    console = Console(record=True, width=100)
    options = LanesBench(
        work=("loops-equal",),
        rounds=1,
        size=0.003,
    )
    (row,) = driver.main(options, console)
    assert row["to_hand"] == row["by_hand_ms"]["mine"] / row["chosen_ms"]
    assert f"{row['to_hand']:.2f}" in console.export_text()


def test_other_results_by_hand_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    work = WORKS["loops-equal"](3)
    wrong = replace(
        work,
        by_hand={"mine": lambda *args: 1 + jax.vmap(work.function)(*args)},
    )
    monkeypatch.setitem(WORKS, "loops-equal", lambda n: wrong)
    with pytest.raises(ValueError, match="loops-equal, mine: results differ by 1"):
        driver.main(
            LanesBench(work=("loops-equal",), rounds=1),
            Console(quiet=True),
        )


@pytest.mark.parametrize(
    "work",
    [
        "newton",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("lbfgs", "lbfgs-optimistix", "lbfgs-jaxopt", "bfgs-jaxopt")
        ),
    ],
)
def test_solvers_find_minima(work: str) -> None:
    """Against SciPy in double precision."""
    try:
        solved = WORKS[work](5)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is in the extra `bench`")
    found = jax.jit(jax.vmap(solved.function))(*solved.args)
    starts, scales = (np.asarray(arg, np.float64) for arg in solved.args)
    for start, scale, least in zip(starts, scales, found, strict=True):
        right = minimize(
            lambda x, scale=scale: scale @ np.logaddexp(x, -2 * x) + 0.05 * x.sum() ** 2,
            start,
            options={"gtol": 1e-7},
        )
        np.testing.assert_allclose(
            least,
            right.fun,
            rtol=2e-3,
        )


def chains(bundles: bool, n: int, draws: int = 12):
    """Leapfrogs of chains in two dimensions of unequal width."""
    narrow = jnp.array([1.0, 0.2])
    machine = machine_of_chains(
        lambda x: -0.5 * jnp.sum((x / narrow) ** 2),
        0.15,
        draws,
        bundles=bundles,
    )
    starts = jnp.linspace(-1, 1, 2 * n).reshape(
        n,
        2,
    )
    return np.asarray(
        machine(
            jax.random.split(
                jax.random.key(3),
                6,
            )[:n],
            starts,
        )
    )


def test_chains_take_the_same_steps_in_both_forms() -> None:
    together = chains(True, 6)
    np.testing.assert_array_equal(
        chains(False, 6),
        together,
    )
    assert len(np.unique(together)) > 3
    # trees are full, but for the last subtree
    assert together.min() >= 1 and together.max() < 1 << 10


@pytest.mark.nightly
def test_chains_by_hand_are_those_of_blackjax() -> None:
    pytest.importorskip("blackjax", reason="blackjax is in the extra `bench`")
    for name in ("nuts-funnel", "nuts-mixture"):
        work = WORKS[name](3)
        wanted = jax.jit(jax.vmap(work.function))(*work.args)
        for compute in work.by_hand.values():
            # later draws may part by rounding
            np.testing.assert_array_equal(
                compute(*work.args)[:, :10],
                wanted[:, :10],
            )


def test_the_results_page_shows_what_is_by_hand_where_it_was_measured() -> None:
    fields = ("vmap_ms", "map_ms", "lanes_ms", "chosen_ms", "to_vmap", "to_best")
    counts = dict.fromkeys(
        ("elements", "rows", "rows_vmap", "rows_lanes"),
        1,
    )
    record = {"work": "nuts-funnel", **dict.fromkeys(fields, 1.0), **counts}
    assert "by hand" not in loops({"a": [record]})
    assert "| 1.00 | 3.00 | 1.0, 1.0 |" in loops({"a": [record, record | {"to_hand": 3.0}]})
