"""AllReduce for all variables over processes: each machine has its own tables, and all stay equal."""

import signal

import numpy as np
import pytest
from support.worker_runners import TWO, batch, equal, here, kill, make, same_model, same_step


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
def test_tables_on_every_machine_are_those_of_one_process(tmp_path):
    with make(TWO, tmp_path / "c", run_option="ar") as runner:
        runners = here(run_option="ar"), runner
        for seed in range(3):
            same_step(runners, seed, following=seed + 1)
            if seed == 1:
                [each.resplit(3) for each in runners]
        tables = runner.step.tables["['table']"]
        assert [table.placement for table in tables] == [(0, 0, 0), (1, 1, 1)]
        np.testing.assert_array_equal(
            tables[0].dense(),
            tables[1].dense(),
        )
        kill(runner.hosts[1], signal.SIGKILL)
        wanted, found = (each.run(batch(3)) for each in runners)
        equal(
            (found.loss, found.aux),
            (wanted.loss, wanted.aux),
        )
        assert len(runner.recoveries) == 1
        same_model(runners)
