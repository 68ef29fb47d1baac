"""Compiled float32 beside float64 operation by operation, at tiny sizes."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampjax.errors import SettingsError
from ampjax.numerics.guard import FLAG
from experiments import numerics
from experiments.numerics import NumericsOptions, difference

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    "name",
    ["perceptron", pytest.param("lm", marks=pytest.mark.long)],
)
def test_compiled_numbers_are_right(name: str, tmp_path: Path) -> None:
    """A graph of AMPNet's and a program of Parallax's."""
    numerics.keep_exact([name], True, 0, str(tmp_path))
    loss, grads = pickle.loads((tmp_path / name).read_bytes())
    assert all(leaf.dtype == np.float64 for leaf in numerics.jax.tree.leaves(grads))
    assert loss > 0
    (record,) = numerics.measure(
        [name],
        True,
        0,
        str(tmp_path),
    )
    assert (
        record["loss"] < 1e-5
    )  # float32 rounds each operation by 6e-8, and there are some tens in a row
    assert (
        0 < record["gradient"] < 1e-4
    )  # twice as many in a row; entries are added up that may cancel


def test_each_choice_of_fusions_has_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def in_a_process(function: Any, arguments: Any, environment: Any) -> Any:
        calls.append((function.__name__, environment["XLA_FLAGS"]))
        return [
            {
                "model": "lm",
                "loss": 0.5,
                "gradient": float(len(calls)),
                "parameter": "w",
                "jax": "1",
            }
        ]

    monkeypatch.setattr(numerics, "in_a_process", in_a_process)
    monkeypatch.setenv("XLA_FLAGS", f"--xla_a=1 --{FLAG}=dot")
    path = tmp_path / "numerics.jsonl"
    numerics.main(
        NumericsOptions(
            models=("lm",),
            fusions=("unguarded", "none"),
            json=path,
        )
    )
    assert calls == [
        ("keep_exact", f"--xla_a=1 --{FLAG}="),
        ("measure", f"--xla_a=1 --{FLAG}=+individual_dot"),
        ("measure", f"--xla_a=1 --{FLAG}="),
    ]
    written = []
    for line in path.read_text().splitlines():
        written.append(json.loads(line))
    assert [(r["fusions"], r["gradient"]) for r in written] == [("unguarded", 2.0), ("none", 3.0)]


def test_wrong_numbers_are_found() -> None:
    right = (
        2.0,
        {
            "a": {"w": np.array([1.0, -4.0])},
            "b": np.array([1.0]),
        },
    )
    wrong = (
        2.1,
        {
            "a": {"w": np.array([1.0, -3.0])},
            "b": np.array([1.1]),
        },
    )
    assert difference(wrong, right) == (pytest.approx(0.05), 0.25, "a['w']")
    assert difference(
        (float("nan"), right[1]),
        right,
    )[0] == float("inf")


def test_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"--models: expected some of .*got `gpt`"):
        numerics.main(NumericsOptions(models=("gpt",)))
