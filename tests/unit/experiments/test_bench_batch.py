"""The bench of batches: both forms of each work are the same, and a run measures them."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest
from rich.console import Console

import ampjax as amp
from ampjax.errors import SettingsError
from experiments import gpu
from experiments.__main__ import parse
from experiments.bench.batch import driver
from experiments.bench.batch.driver import BatchBench
from experiments.bench.batch.work import Amount
from experiments.gpu import GpuOptions

TINY = Amount(0.1, synthetic=True)
ORDINARY = ("attention-64", "soft-dtw")


def works() -> list[Any]:
    """All works; in an ordinary run two."""
    result = []
    for name in driver.WORKS:
        result.append(
            pytest.param(
                name,
                marks=() if name in ORDINARY else (pytest.mark.nightly,),
            )
        )
    return result


@pytest.mark.first_case
@pytest.mark.slow
@pytest.mark.parametrize("name", works())
def test_both_forms_of_a_work_are_the_same(name: str) -> None:
    work = driver.WORKS[name](Amount(0.002, synthetic=True) if "chain" in name else TINY)
    batched = amp.vmap(
        work.model,
        work.spec,
        params=work.params,
    )
    driver.require_same(
        name,
        work,
        driver.mean_of(batched),
        batched.pack(work.examples),
    )


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in driver.GROUPS["attention-forms"] if "64" in name]
)
def test_forms_of_attention_are_the_same_by_hand(name: str) -> None:
    work = driver.GROUPS["attention-forms"][name](TINY)
    batched = amp.vmap(
        work.model,
        work.spec,
        params=work.params,
    )
    driver.require_same(
        name,
        work,
        driver.mean_of(batched),
        batched.pack(work.examples),
    )


@pytest.mark.nightly
def test_works_that_differ_are_refused() -> None:
    work = driver.WORKS["chain"](Amount(0.001))
    batched = amp.vmap(
        work.model,
        work.spec,
        params=work.params,
    )
    batch = batched.pack(work.examples)
    twice = lambda params, batch: 2 * batched(params, batch).mean()
    with jax.disable_jit(), pytest.raises(ValueError, match=r"chain\[0\]: both forms lie 1 apart"):
        driver.require_same(
            "chain",
            work,
            twice,
            batch,
        )


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_measures_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    options = BatchBench(
        work=("attention-64",),
        rounds=1,
        size=0.05,
        seconds=0.001,
        json=path,
    )
    (row,) = driver.main(options)
    assert json.loads(path.read_text()) == json.loads(json.dumps(row))
    assert min(row["ours_ms"], row["plain_ms"], row["ratio"]) > 0
    assert min(row["pack_ms"], row["pack_us_per_row"]) > 0
    assert all(seconds > 0 for seconds in row["first_s"])


@pytest.mark.nightly
@pytest.mark.slow
def test_an_accelerators_works_are_measured_while_there_is_time(tmp_path, monkeypatch) -> None:
    path = tmp_path / "results.jsonl"
    seconds = iter((0.0, 0.0, 61.0, 62.0))
    clock = lambda: next(seconds)
    monkeypatch.setattr(gpu, "WORKS", ("attention-64", "soft-dtw", "chain"))
    console = Console(record=True, width=120)
    options = GpuOptions(minutes=1, rounds=1, size=0.05, json=path)
    (row,) = gpu.main(options, console, clock)
    printed = console.export_text()
    assert json.loads(path.read_text())["work"] == row["work"] == "attention-64"
    assert "attention-64: same loss and gradients" in printed
    assert "Left out, the time was over: soft-dtw, chain" in printed


def test_an_accelerators_options_are_checked() -> None:
    with pytest.raises(SettingsError, match="at least 1 round"):
        gpu.main(GpuOptions(rounds=0))


def test_works_can_be_named() -> None:
    options = parse(["bench", "batch", "--work", "trees", "tagger", "--size", "0.5"])
    assert (options.work, options.size) == (("trees", "tagger"), 0.5)


def test_unknown_works_are_refused() -> None:
    with pytest.raises(SettingsError, match="works of trees, tagger"):
        driver.main(BatchBench(work=("cake",)))
