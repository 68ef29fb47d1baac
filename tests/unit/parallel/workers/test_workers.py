"""A runner whose servers and replicas are processes: the training of one process bit for bit, and what comes after one was lost."""

import gc
import os
import signal
import sys
import threading
import time

import cloudpickle
import jax
import numpy as np
import pytest
from support.processes import is_there
from support.worker_runners import TWO, batch, equal, here, kill, loss, make, same_model, same_step

import ampjax.parallel as px
from ampjax.errors import HostDiedError, ParameterError, SettingsError, TableError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import a test


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
def test_processes_train_to_the_bits_of_one_and_go_on_when_one_was_killed(tmp_path):
    with make(TWO, tmp_path / "c") as runner:
        assert {state.state for state in runner.hosts} == {"not started"}
        runners = here(), runner
        for seed in range(3):
            same_step(runners, seed, following=1 if seed == 0 else None)
            if seed == 1:
                [each.resplit(3) for each in runners]
        same_model(runners)
        (table,) = runner.step.tables["['table']"]
        clients, servers = table.traffic
        assert clients == servers and sum(own.pulled for own in clients) > 0
        assert "equivalence: joined batch's loss" in str(runner.explain())

        refused(runners[1])
        interrupted_between_workers(runner)
        same_model(runners)

        names = [state.name for state in runner.hosts]
        roles = [state.role for state in runner.hosts]
        assert names == ["server-0", "server-1", "worker-0", "worker-1"]
        assert roles[1:3] == [
            "server",
            "worker",
        ]
        assert [state.machine for state in runner.hosts] == ["a", "b"] * 2
        assert {state.state for state in runner.hosts} == {"running"}

        for each in runners:  # it is assigned again when the step before has been repeated
            each.opt_state = jax.tree.map(
                lambda leaf: leaf / 2 if leaf.dtype == np.float32 else leaf, each.opt_state
            )
        kill(runner.hosts[3], signal.SIGKILL)
        wanted, found = (each.run(batch(3)) for each in runners)
        equal(
            (found.loss, found.aux),
            (wanted.loss, wanted.aux),
        )
        (recovery,) = runner.recoveries
        assert (recovery.step, recovery.restored) == (4, 2)
        assert recovery.error.startswith(
            "worker-1 on machine `b`: expected a running process, got the end of its process: killed by SIGKILL."
        )
        same_step(runners, 4)
        same_model(runners)

        runner._training.recoverer = None  # as without checkpoints
        kill(runner.hosts[0], signal.SIGKILL)
        with pytest.raises(
            HostDiedError,
            match=r"server-0 on machine `a`: .* killed by SIGKILL\. .* `ParallaxConfig\(",
        ):
            runner.run(batch(5))
        assert [state.state for state in runner.hosts][:2] == [
            "killed by SIGKILL",
            "ended with the others",
        ]
        with pytest.raises(
            HostDiedError, match=r"its processes, got none \(server-0: killed by SIGKILL\)"
        ):
            runner.run(batch(5))
    with pytest.raises(
        HostDiedError, match=r"its processes, got none: it was closed\. Make another runner"
    ):
        runner.run(batch(5))


@pytest.mark.slow
@pytest.mark.nightly
def test_dense_variables_at_servers_are_the_same_bits_too():
    runner = make(TWO, run_option="ps")
    runners = here(run_option="ps"), runner
    for seed in range(3):
        same_step(runners, seed)
    same_model(runners)
    processes = [state.process for state in runner.hosts]
    del runner, runners
    gc.collect()
    assert not any(map(is_there, processes))  # when nobody holds the runner, they end


@pytest.mark.slow
@pytest.mark.nightly
def test_without_a_table_servers_are_watched_too():
    def dense(params, batch):
        return px.mean((batch["y"] * params["w"][0] - 1) ** 2)

    with make(TWO, loss=dense) as runner:
        runner.run(batch(0))
        kill(runner.hosts[1], signal.SIGKILL)
        with pytest.raises(HostDiedError, match=r"server-1 on machine `b`: .* killed by SIGKILL"):
            [runner.run(batch(seed)) for seed in range(50)]


def refused(runner):
    """Steps with numbers that are not finite change nothing."""
    with pytest.raises(
        ParameterError, match=r"step 4, gradients: expected finite numbers, got a loss of inf"
    ):
        runner.run(batch(3, np.inf), following=batch(3))
    with pytest.raises(
        TableError,
        match=r"variable `table`, push, gradients: expected finite numbers, got nan in row",
    ):
        runner.run(batch(3, hole=0.0))


def interrupted_between_workers(runner):
    """Ctrl-C when only one of the workers has been told of a step: the step is not taken, and the next one is a step of all."""
    group = runner.setup.group
    tell_one = runner.setup.group._send

    def tell(worker, message):
        tell_one(worker, message)
        group._send = tell_one
        os.kill(os.getpid(), signal.SIGINT)

    group._send = tell
    with pytest.raises(KeyboardInterrupt):
        runner.run(batch(3))


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
def test_an_interrupted_recovery_is_made_anew_with_the_next_step(tmp_path):
    with make(TWO, tmp_path / "c") as runner:
        runners = here(), runner
        same_step(runners, 0)
        recoverer = runner._training.recoverer
        assert recoverer is not None
        take_again = recoverer.again

        def interrupted(parts):
            recoverer.again = take_again
            raise KeyboardInterrupt

        recoverer.again = interrupted
        kill(runner.hosts[2], signal.SIGKILL)
        with pytest.raises(KeyboardInterrupt):
            runner.run(batch(1))
        assert runner.steps == 1
        same_step(runners, 1)
        same_model(runners)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
@pytest.mark.parametrize(
    "number",
    [1, 3],
    ids=["server", "worker"],
)
def test_a_process_that_hangs_is_noticed_within_two_seconds(number, tmp_path, monkeypatch):
    monkeypatch.setenv("AMPJAX_HOST_SILENCE_S", "2")
    with make(TWO, tmp_path / "c") as runner:
        runners = here(), runner
        same_step(runners, 0)
        stopped = runner.hosts[number]
        started = []
        begin = runner.setup.group.start

        def start():
            started.append(time.monotonic())
            return begin()

        runner.setup.group.start = start
        kill(stopped, signal.SIGSTOP)
        begun = time.monotonic()
        [each.run(batch(1)) for each in runners]
        assert started[0] - begun < 3.0  # 2 s without a beat; the rest is for a busy machine
        assert (
            f"{stopped.name} on machine `b`: expected a running process, got no sign of life for 2."
            in (runner.recoveries[0].error)
        )
        same_model(runners)


def test_every_machine_needs_a_server_for_its_own_tables():
    machines = []
    for machine, servers in zip(
        TWO["machines"],
        (1, 0),
        strict=True,
    ):
        machines.append({**machine, "servers": servers})
    with pytest.raises(
        SettingsError,
        match=r"machine `b`, `servers`: expected at least 1 where run_option is `ar`, got 0\. A server on",
    ):
        make({"machines": machines}, run_option="ar")


def test_a_loss_that_cannot_travel():
    lock = threading.Lock()

    def locked(params, batch):
        with lock:
            return loss(params, batch)

    with pytest.raises(
        SettingsError,
        match=r"the optimizer: expected something that can travel .*`loss_fn`.*`lock`, a lock",
    ):
        make(TWO, loss=locked)
