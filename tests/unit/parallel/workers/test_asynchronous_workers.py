"""Asynchronous training over processes: no gradient is lost, none counts twice, and none is older than allowed."""

import collections
import signal
import sys
import threading
import time

import cloudpickle
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.worker_runners import TWO, batch, equal, here, kill, make, same_model

import ampjax.parallel as px
from ampjax import optim
from ampjax.errors import HostDiedError, ParameterError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import a test
ONE_SERVER = {
    "machines": [{**machine, "servers": i} for i, machine in enumerate(TWO["machines"])],
}


def counted_loss(params, batch):
    """Gradients that don't depend on parameters: each is `y`, so that what was applied can be counted."""
    return jnp.sum((params["table"][batch["ids"]] + params["w"]) * batch["y"][:, None])


def counted_batch(number):
    rng = np.random.default_rng(number)
    return {
        "ids": rng.integers(0, 20, 6),
        "y": rng.integers(1, 9, 6).astype(np.float32),
    }


def counting(folder):
    params = {
        "table": np.zeros((20, 2), np.float32),
        "w": np.zeros(2, np.float32),
    }
    checkpoint = px.Checkpoints(folder, every_steps=2)
    config = px.ParallaxConfig(
        sync=False, max_staleness=1, alpha_threshold=2.0, checkpoint=checkpoint
    )
    return px.get_runner(counted_loss, params, optax.sgd(1.0), ONE_SERVER, config)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
@pytest.mark.parametrize(
    "faults",
    [
        (),
        pytest.param(
            (1, 0),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["", "lost"],
)
def test_every_gradient_counts_once_although_processes_are_lost(faults, tmp_path):
    wanted = collections.defaultdict(float)
    ages = []
    losses = []
    with counting(tmp_path / "c") as runner:
        assert [state.role for state in runner.hosts] == ["server", "worker", "worker"]
        for number in range(7):
            metrics = runner.run(counted_batch(number))
            losses.append(metrics)
            ages += metrics.staleness
            for row, y in zip(
                *counted_batch(number).values(),
                strict=True,
            ):
                wanted[int(row)] += y
            if number in (2, 4) and faults:
                kill(runner.hosts[faults[number == 4]], signal.SIGKILL)
                assert np.isfinite(metrics.loss)  # it is read when its process may be gone
        with pytest.raises(ParameterError, match="of replica 1 in step 8 were dropped"):
            runner.run(
                {
                    **counted_batch(7),
                    "y": np.array(
                        [1, 1, 1, 1, 1, np.nan],
                        np.float32,
                    ),
                }
            )
            runner.wait()
        for row in counted_batch(7)["ids"][:3]:
            wanted[int(row)] += 1.0
        assert len(runner.recoveries) == len(faults)
        assert set(ages) == {0, 1}
        table = np.array(
            [wanted[row] for row in range(20)],
            np.float32,
        )
        np.testing.assert_array_equal(
            runner.params["table"],
            -np.stack([table, table], 1),
        )
        np.testing.assert_array_equal(
            runner.params["w"],
            [-table.sum()] * 2,
        )
        assert all(np.isfinite(metrics.loss) for metrics in losses)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
@pytest.mark.parametrize(
    "number",
    [0, 3],
    ids=["server", "worker"],
)
def test_processes_are_asynchronous_as_devices_are(number, tmp_path):
    """Bit for bit, with a remedy that asks how old gradients are, and a second result, for which each step waits."""
    options = {
        "sync": False,
        "max_staleness": 3,
        "tx": optax.chain(optax.adam(0.1), optim.scale_by_staleness()),
    }
    with make(TWO, tmp_path / "c", **options) as runner:
        runners = (
            here(folder=tmp_path / "h", **options),
            runner,
        )  # a checkpoint waits for all that is under way
        for seed in range(6):
            wanted, found = (each.run(batch(seed)) for each in runners)
            equal(
                (found.loss, found.aux, found.staleness),
                (wanted.loss, wanted.aux, wanted.staleness),
            )
            if seed == 1:
                [each.resplit(3) for each in runners]
                same_model(runners)
            if seed == 4:
                kill(runner.hosts[number], signal.SIGKILL)
        same_model(runners)
        assert len(runner.recoveries) == 1 and max(wanted.staleness) > 0


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
def test_an_update_that_waits_for_a_worker_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setenv("AMPJAX_HOST_SILENCE_S", "2")
    with counting(tmp_path / "c") as runner:
        assert np.isfinite(runner.run(counted_batch(0)).loss)  # its workers have nothing to do
        kill(runner.hosts[2], signal.SIGSTOP)
        for number in (
            1,
            2,
            3,
        ):  # the first worker's gradients wait at the server until the second one has pulled
            runner.run(counted_batch(number))
        total = sum(float(counted_batch(number)["y"].sum()) for number in range(4))
        np.testing.assert_array_equal(runner.params["w"], [-total] * 2)
        (recovery,) = runner.recoveries
        assert recovery.error.startswith(
            "worker-1 on machine `b`: expected a running process, got no sign of life"
        )


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ampjax.errors.EquivalenceWarning")
def test_a_restart_waits_for_workers_that_still_use_the_old_tables(tmp_path):
    """Gradients under way are dropped, but what computes them pulls and pushes until it has ended. No process may die of that."""
    params = {
        "table": np.zeros((20, 2), np.float32),
        "w": np.zeros(2, np.float32),
    }
    config = px.ParallaxConfig(sync=False, max_staleness=1, alpha_threshold=2.0)
    total = float(counted_batch(3)["y"].sum())
    with px.get_runner(
        counted_loss,
        params,
        optax.sgd(1.0),
        ONE_SERVER,
        config,
    ) as runner:
        runner.build(counted_batch(0)).save(tmp_path / "first")
        workers = [state for state in runner.hosts if state.role == "worker"]
        for restart in (lambda: runner.reset(params), lambda: runner.restore(tmp_path / "first")):
            for worker in workers:
                kill(worker, signal.SIGSTOP)
            dropped = runner.run(counted_batch(1))
            go_on = threading.Timer(
                0.3, lambda: [kill(worker, signal.SIGCONT) for worker in workers]
            )
            go_on.start()
            restart()
            np.testing.assert_array_equal(
                runner.params["table"], 0
            )  # servers forget the old rows now
            assert runner.run(counted_batch(3)).staleness == []
            assert all(np.isfinite(np.asarray(loss)) for loss in dropped.losses)
            np.testing.assert_array_equal(runner.params["w"], [-total] * 2)
            go_on.join()
        kill(runner.hosts[-1], signal.SIGSTOP)  # so that it can't have computed its loss
        unread = runner.run(counted_batch(1))
        kill(runner.hosts[-1], signal.SIGKILL)
        time.sleep(
            0.1
        )  # nobody has noticed: the checkpoint is to be read into new processes all the same
        runner.restore(tmp_path / "first")
        runner.run(counted_batch(3))
        np.testing.assert_array_equal(runner.params["w"], [-total] * 2)
        with pytest.raises(
            HostDiedError, match="none: its processes were lost, and others started"
        ):
            np.asarray(unread.losses[1])
