"""The command that kills the process that trains."""

import json

import pytest
from rich.console import Console

from ampjax.errors import SettingsError
from experiments.__main__ import parse
from experiments.chaos import hosts, runner
from experiments.chaos.driver import ChaosOptions, main


def test_options():
    options = parse(["chaos", "--kills", "3", "--ways", "sync", "virtual"])
    assert (options.kills, options.ways) == (3, ("sync", "virtual"))
    with pytest.raises(SettingsError, match=r"`--ways`|--ways"):
        main(ChaosOptions(ways=("backwards",)))
    with pytest.raises(SettingsError, match="numbers above 0"):
        main(ChaosOptions(kills=0))


@pytest.mark.slow
@pytest.mark.nightly
def test_a_kill(tmp_path):
    options = ChaosOptions(
        kills=1,
        ways=("virtual",),
        n_train=400,
        epochs=2,
        within_s=1.0,
        json=tmp_path / "chaos.jsonl",
    )
    (found,) = main(options, Console(quiet=True))
    assert found["exact"]
    assert not found["left_behind"]
    assert found["kills"] == 1
    assert found["lives"] >= 2
    assert json.loads((tmp_path / "chaos.jsonl").read_text())["way"] == "virtual"


def test_options_of_hosts():
    options = parse(["chaos-hosts", "--kills", "3", "--hangs", "0", "--models", "trees"])
    assert options.kills == 3
    assert options.hangs == 0
    assert options.models == ("trees",)
    with pytest.raises(SettingsError, match="--models"):
        hosts.main(hosts.ChaosHostsOptions(models=("forest",)))
    with pytest.raises(SettingsError, match="numbers above 0"):
        hosts.main(hosts.ChaosHostsOptions(kills=0, hangs=0))


@pytest.mark.slow
@pytest.mark.nightly
def test_a_host_that_is_killed(tmp_path):
    options = hosts.ChaosHostsOptions(
        kills=1, hangs=0, models=("list-reduction",), n_train=40, epochs=4, every_instances=20, within_s=0.5,
        json=tmp_path / "chaos.jsonl",
    )  # fmt: skip
    (found,) = hosts.main(options, Console(quiet=True))
    assert found["exact"]
    assert found["kill"]["n"] == 1
    assert found["hang"]["n"] == 0
    assert 0 < found["kill"]["noticed_s"]["worst"] < found["kill"]["to_go_on_s"]["worst"]
    assert json.loads((tmp_path / "chaos.jsonl").read_text())["model"] == "list-reduction"


def test_options_of_a_runner():
    options = parse(["chaos-runner", "--kills", "3", "--hangs", "0", "--model", "nmt"])
    assert options.kills == 3
    assert options.hangs == 0
    assert options.model == "nmt"
    assert options.workers == 2
    with pytest.raises(
        SettingsError, match="setting `steps_between`: expected an integer of at least 1, got 0"
    ):
        runner.main(runner.ChaosRunnerOptions(steps_between=0))


@pytest.mark.slow
@pytest.mark.nightly
def test_a_server_or_worker_that_is_killed(tmp_path):
    options = runner.ChaosRunnerOptions(
        kills=1,
        hangs=0,
        steps_between=4,
        seed=3,
        json=tmp_path / "chaos.jsonl",
    )
    found = runner.main(options, Console(quiet=True))
    assert found["exact"] and found["recoveries"] == 1
    (fault,) = json.loads((tmp_path / "chaos.jsonl").read_text())["faults"]
    assert fault["sign"] == "SIGKILL" and 0 < fault["noticed_s"] < fault["seconds"]
