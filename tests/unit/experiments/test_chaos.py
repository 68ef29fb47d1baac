"""The command that kills the process that trains."""

import json

import pytest
from rich.console import Console

from ampjax.errors import SettingsError
from experiments.__main__ import parse
from experiments.chaos import ChaosOptions, main


def test_options():
    options = parse(["chaos", "--kills", "3", "--ways", "sync", "virtual"])
    assert (options.kills, options.ways) == (3, ("sync", "virtual"))
    with pytest.raises(SettingsError, match=r"`--ways`|--ways"):
        main(ChaosOptions(ways=("backwards",)))
    with pytest.raises(SettingsError, match="numbers above 0"):
        main(ChaosOptions(kills=0))


@pytest.mark.slow
@pytest.mark.full
def test_a_kill(tmp_path):
    options = ChaosOptions(
        kills=1, ways=("virtual",), n_train=400, epochs=2, within_s=1.0, json=tmp_path / "chaos.jsonl"
    )
    (found,) = main(options, Console(quiet=True))
    assert found["exact"] and not found["left_behind"] and found["kills"] == 1 and found["lives"] >= 2
    assert json.loads((tmp_path / "chaos.jsonl").read_text())["way"] == "virtual"
