"""The account of a pass: its products are those of the model, counted here by hand, and its times are there."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

import ampjax as amp
import ampjax.graphs as ag
from ampjax.drivers.cost import product_shapes
from experiments.bench import account, workload
from experiments.bench.workloads import SentimentBench
from experiments.data import sst

pytestmark = pytest.mark.slow


def test_products_of_a_body_are_found_wherever_they_are() -> None:
    def body(params: Any, x: Any) -> Any:
        return jax.jit(lambda y: jax.nn.softmax(y @ y.T))(jax.nn.relu(x @ params))

    with ag.Graph() as g:
        x = ag.pump("x", (5, 3))
        ag.sink(
            "y",
            ag.ppt(
                "linear",
                amp.nn.Linear(3, 4),
            )(x),
        )
        ag.sink(
            "z",
            ag.ppt(
                "two",
                body,
                params=np.ones((3, 2), np.float32),
            )(x),
        )
        ag.sink(
            "w",
            ag.npt("none", jax.nn.relu)(x),
        )
    found = {}
    for name in ("linear", "two", "none"):
        found[name] = product_shapes(g.nodes[name])
    assert found == {
        "linear": [(5, 3, 4)],
        "two": [(5, 3, 2), (5, 2, 5)],
        "none": [],
    }
    assert product_shapes(g.nodes["x"]) == []


@pytest.mark.nightly
def test_a_pass_of_trees_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaf of 6 features has two gates of 4, a branch five on both children's 4, a node five classes; the way back has twice as many operations."""
    monkeypatch.setattr(account, "cache_compilations", lambda: None)
    n = 4
    sizes = {
        "cell": "tai",
        "embedding": 6,
        "hidden": 4,
        "n_train": 4,
        "max_active_keys": 1,
        "synthetic": True,
    }
    found = account.measured("sentiment", 1, **sizes)
    trees, _ = sst.synthetic()
    nodes = trees.words[: trees.ptr[n]]
    leaves = np.count_nonzero(nodes >= 0)
    branches = np.count_nonzero(nodes < 0)
    flops = 2 * (leaves * 6 * 2 * 4 + branches * 8 * 5 * 4 + len(nodes) * 4 * 5)
    assert sum(row["mflop"] for row in found["stages"]) * 1e6 * n == pytest.approx(3 * flops)
    rows = {}
    for row in found["stages"]:
        rows[(row["stage"], row["direction"])] = row
    assert {direction for _, direction in rows} == {"forward", "backward"}
    assert (
        rows["branch", "forward"]["dispatches"] * rows["branch", "forward"]["rows"] * n == branches
    )
    assert rows["branch", "backward"]["mflop"] == 2 * rows["branch", "forward"]["mflop"]
    assert found["product"] == [256, 8, 20]
    assert (
        min(
            found["wall_us"],
            found["host_us"],
            found["kernels_us"],
            found["issue_us"],
            found["gflop_per_s"],
        )
        > 0
    )
    assert found["products_us"] == pytest.approx(3 * flops / n / found["gflop_per_s"] / 1e3)
    assert min(row["kernels_us"] for row in found["stages"]) > 0


def test_a_bench_prints_the_account_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(workload, "compare", lambda *_, **options: [])
    asked: list[Any] = []
    row = {"stage": "s", "direction": "forward", "dispatches": 2.0, "rows": 3.0}
    row |= {"kernels_us": 4.0, "mflop": 5.0, "products_us": 6.0}
    times = dict.fromkeys(("host_us", "others_us", "kernels_us", "issue_us", "gflop_per_s"), 7.0)
    found = {
        "stages": [row],
        "product": [256, 2, 3],
        "wall_us": 12.0,
        "products_us": 6.0,
        **times,
    }

    def instead(
        function: Any,
        arguments: dict[str, Any],
        environment: dict[str, Any],
    ) -> dict[str, Any]:
        asked.append((function, json.loads(json.dumps(arguments)), environment))
        return found

    monkeypatch.setattr(account, "in_a_process", instead)
    printed = StringIO()
    options = SentimentBench(
        account=True,
        max_active_keys=(32, 1),
        synthetic=True,
        json=tmp_path / "account.jsonl",
    )
    workload.main(options, Console(file=printed, width=200))
    ((function, arguments, environment),) = asked
    assert (
        function is account.measured
        and arguments["max_active_keys"] == arguments["min_admission"] == 32
    )
    assert environment == options.entries()[0].environment
    assert (
        "sentiment, 32 in flight" in printed.getvalue() and "0.50 of a pass" in printed.getvalue()
    )
    (line,) = (tmp_path / "account.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "bench": "account",
        "of": "sentiment",
        "setting": "32 in flight",
        **found,
    }
