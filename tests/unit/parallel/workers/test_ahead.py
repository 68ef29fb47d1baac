"""The next step's share, dealt out while a step is computed: the same bits, whatever comes instead of that step."""

import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.worker_runners import TWO, batch, here, kill, make, same_model, same_step

import ampjax.parallel as px
from ampjax.cluster.wire.channel import Window
from ampjax.errors import ParameterError
from ampjax.parallel.workers import deals


def is_ahead(runner):
    return known(runner) is not None


def known(runner):
    """What workers know of the next step."""
    return runner.step._ahead


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
@pytest.mark.parametrize(
    "options",
    [{"table_mode": "lazy"}, {"run_option": "ps"}],
    ids=["lazy", "faithful-ps"],
)
def test_steps_that_know_the_next_one_are_the_same(options, tmp_path, monkeypatch):
    """In lazy mode a step leaves rows as they are that it does not touch, so that they are pulled before its update."""
    monkeypatch.setattr(deals, "EARLY_BYTES", 0)
    with make(TWO, tmp_path / "c", **options) as runner:
        runners = here(**options), runner
        for seed in range(3):
            same_step(runners, seed, following=seed + 1)
        assert is_ahead(runner)
        (work,) = known(runner).works[0].tables.values()  # pyright: ignore[reportOptionalMemberAccess]
        assert (work.early is not None) == (options.get("table_mode") == "lazy")
        same_step(runners, 8, following=4)  # another batch than was announced
        [each.resplit(3) for each in runners]  # rows have moved since they were asked for
        same_step(runners, 4, following=5)
        with pytest.raises(ParameterError, match=r"got a loss of \[?inf"):
            runner.run(batch(6, np.inf), following=batch(5))
        same_step(runners, 5, following=6)  # announced by a step that was not taken
        own = batch(7)
        same_step(runners, 6)
        runners[0].run(own)
        runner.run({**own}, following=own)
        own["ids"][:] = 3  # in place: what was announced is another batch now
        assert runner.run(own).loss == runners[0].run(own).loss
        runner.run(
            batch(9),
            following={"ids": np.zeros(4)},
        )  # no batch at all
        assert not is_ahead(runner)
        runners[0].run(batch(9))
        same_model(runners)
        for number in (3, 0):
            same_step(runners, 10, following=11)
            assert is_ahead(runner)
            kill(runner.hosts[number], signal.SIGKILL)
            same_step(runners, 11, following=12)
        assert len(runner.recoveries) == 2
        same_model(runners)


def two_tables(params, batch):
    rows = []
    for name in ("a", "b"):
        rows.append(params[name][batch["ids"]])
    return jnp.mean((rows[0] * rows[1] - batch["y"]) ** 2)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
def test_rows_of_several_tables_that_are_more_than_fits_in_a_channel_do_not_let_worker_and_server_wait_for_each_other():
    """Had the worker asked for both ahead, the server would wait until it takes the first ones, and the worker until the server takes what it pushes."""
    n = 9_000
    width = 1_000
    nbytes = 4 * n * width
    assert nbytes < Window().nbytes < 2 * nbytes
    batches = []
    for k in range(4):
        batches.append(
            {
                "ids": np.arange(n, dtype=np.int32) + (k % 2) * n,
                "y": np.full((n, 1), k, np.float32),
            }
        )
    params = {}
    for name in ("a", "b"):
        params[name] = np.ones(
            (2 * n, width),
            np.float32,
        )
    config = px.ParallaxConfig(alpha_threshold=1.0)
    one = {
        "machines": [{"host": "a", "address": "localhost", "devices": [0]}],
    }
    with px.get_runner(
        two_tables,
        params,
        optax.sgd(10.0),
        one,
        config,
    ) as runner:
        losses = []

        def train():
            for this, following in zip(
                batches,
                [*batches[1:], None],
                strict=True,
            ):
                losses.append(float(runner.run(this, following=following).loss))

        training = threading.Thread(target=train, daemon=True)
        training.start()
        training.join(120)
        assert not training.is_alive()
    step = jax.jit(jax.value_and_grad(two_tables))
    wanted = []
    for batch_of_step in batches:
        value, grads = step(params, batch_of_step)
        wanted.append(float(value))
        params = jax.tree.map(
            lambda p, g: p - 10.0 * g,
            params,
            grads,
        )
    np.testing.assert_allclose(losses, wanted, rtol=1e-5, atol=1e-7)
