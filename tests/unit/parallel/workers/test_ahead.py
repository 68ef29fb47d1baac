"""The next step's share, dealt out while a step is computed: the same bits, whatever comes instead of that step."""

import signal

import numpy as np
import pytest
from support.worker_runners import TWO, batch, here, kill, make, same_model, same_step

from ampjax.errors import ParameterError
from ampjax.parallel.workers import deals


def is_ahead(runner):
    return known(runner) is not None


def known(runner):
    """What workers know of the next step."""
    return runner.step._ahead


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
@pytest.mark.parametrize("options", [{"table_mode": "lazy"}, {"run_option": "ps"}], ids=["lazy", "faithful-ps"])
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
        runner.run(batch(9), following={"ids": np.zeros(4)})  # no batch at all
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
