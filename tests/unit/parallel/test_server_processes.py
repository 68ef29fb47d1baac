"""A runner whose servers are processes: the same training bit for bit, and what comes after one of them has ended."""

import dataclasses
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import ServerError, SettingsError
from ampjax.parallel.homes.dense_homes import DenseOnDevices
from ampjax.sparse.servers.processes import ServerProcesses

pytestmark = pytest.mark.slow

TX = optax.chain(optax.clip_by_global_norm(0.2), optax.adam(0.1))


def loss(params, batch):
    return jnp.mean((params["table"][batch["ids"]] @ params["w"] - batch["y"]) ** 2)


def machines():
    first, second = jax.local_devices()[:2]
    return Resources(
        (
            Machine("a", (first,)),
            Machine("b", (second,)),
        )
    )


@pytest.fixture(scope="module")
def processes():
    """Two servers for all runners of this module that let them live."""
    with ServerProcesses(2) as servers:
        yield servers


def make(processes=None, **options):
    rng = np.random.default_rng(0)
    params = {
        "table": rng.normal(size=(20, 3)).astype(np.float32),
        "w": np.ones(3, np.float32),
    }
    config = px.ParallaxConfig(
        alpha_threshold=1.0, server_processes=processes is not None, **options
    )
    runner = px.get_runner(loss, params, TX, machines(), config)
    if processes:
        runner._training.setup = dataclasses.replace(runner.setup, processes=processes)
    return runner


def batch(seed):
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(0, 20, 8),
        "y": rng.normal(size=8).astype(np.float32),
    }


def equal(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"boundary_among_servers": False, "wire_dtype": "bfloat16"}, marks=pytest.mark.nightly
        ),
        {"run_option": "ps", "sync": False},
    ],
    ids=str,
)
def test_training_is_the_same_bit_for_bit(processes, options):
    runners = [make(own, **options) for own in (processes, None)]
    fetch = "gradients" if runners[0].setup.config.sync else ()
    for seed in range(3):
        metrics = []
        for runner in runners:
            metrics.append(runner.run(batch(seed), fetch=fetch))
        equal(metrics[0].loss, metrics[1].loss)
        if fetch:
            rows = [own.fetched["gradients"]["table"] for own in metrics]
            equal(
                (rows[0].ids, rows[0].values),
                (rows[1].ids, rows[1].values),
            )
        assert metrics[0].traffic == metrics[1].traffic
        assert metrics[0].traffic.balanced
        if seed == 1:
            [runner.resplit(3) for runner in runners]
    equal(
        (runners[0].params, runners[0].opt_state),
        (runners[1].params, runners[1].opt_state),
    )
    (table,) = runners[0].step.tables["['table']"]
    clients, servers = table.traffic
    assert clients == servers and sum(own.pulled for own in clients) > 0


@pytest.mark.nightly
def test_training_goes_on_from_a_checkpoint_to_the_same_bits_after_a_server_was_killed(tmp_path):
    with make(ServerProcesses(2)) as runner:
        [runner.run(batch(seed)) for seed in range(2)]
        runner.save(tmp_path / "c")
        [runner.run(batch(seed)) for seed in range(2, 4)]
        wanted = runner.params, runner.opt_state
        os.kill(runner.setup.processes.ids[1], signal.SIGKILL)
        with pytest.raises(
            ServerError, match=r"killed by SIGKILL\. Its rows are lost: restore the last checkpoint"
        ):
            runner.run(batch(4))
        runner.restore(tmp_path / "c")
        [runner.run(batch(seed)) for seed in range(2, 4)]
        equal((runner.params, runner.opt_state), wanted)

    with pytest.raises(ServerError, match="got no process: the servers were closed"):
        runner.run(batch(0))


@pytest.mark.nightly
def test_a_step_that_had_been_made_when_an_interrupt_came_through_is_counted(monkeypatch):
    runner = make()
    wanted = make()
    adopt = DenseOnDevices.adopt

    def interrupted(*args):
        adopt(*args)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(DenseOnDevices, "adopt", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner.run(batch(0))
    wanted.run(batch(0))
    assert runner.steps == wanted.steps == 1
    equal(runner.params, wanted.params)


@pytest.mark.nightly
def test_gradients_under_way_are_dropped_where_another_state_comes(tmp_path):
    runner = make(sync=False)
    other = make(sync=False)
    runner.run(batch(0))
    runner.save(tmp_path / "c")
    runner.run(batch(1))
    for each in (runner, other):
        each.restore(tmp_path / "c")
        each.run(batch(1))
    equal(runner.params, other.params)


def test_a_model_without_tables_starts_no_server():
    runner = make(ServerProcesses(2), keep_dense=("table",))
    runner.run(batch(0))
    assert runner.setup.processes.ids == [None, None]


def test_who_asks_for_processes_gets_one_for_each_server():
    runner = px.get_runner(
        loss,
        make().params,
        TX,
        machines(),
        px.ParallaxConfig(server_processes=True),
    )
    assert len(runner.setup.processes) == 2


def test_where_there_are_no_servers_they_are_no_processes():
    with pytest.raises(
        SettingsError,
        match="setting `server_processes`: expected False where run_option is `ar`, got True",
    ):
        px.ParallaxConfig(server_processes=True, run_option="ar")
