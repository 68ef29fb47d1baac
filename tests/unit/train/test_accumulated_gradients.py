"""Gradients that nodes have accumulated and not yet used: counted right, whatever comes between."""

import numpy as np
import optax
import pytest
from support import graphs

import ampjax as amp


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("restored", [False, True])
def test_rows_that_were_accumulated_on_purpose_break_no_law(mode, restored, tmp_path):
    """They are more than the interval asks for, so the next gradient brings an update of all of them."""
    data = graphs.chain_data(6)
    options = {"mode": mode, "min_update_interval": 2, "max_dispatch_size": 1, "check": True}
    trainer = amp.Trainer(graphs.chain(1), optax.sgd(0.01), **options)
    trainer.accumulate(data, update=False)
    (total, n) = trainer.gradients["f0"]
    assert n == 6
    if restored:
        trainer.save(tmp_path / "saved")
        trainer = amp.Trainer(graphs.chain(1), optax.sgd(0.01), **options)
        trainer.restore(tmp_path / "saved")
    before = trainer.params["f0"]
    trainer.accumulate(data[:1])
    if mode == "async":
        assert trainer.statistics.nodes["f0"].updates == 1 and trainer.gradients["f0"][1] == 0
        one = amp.Trainer(graphs.chain(1), optax.sgd(0.01), min_update_interval=1 << 40)
        one.accumulate(data[:1])
        mean = (total + one.gradients["f0"][0]) / 7
        np.testing.assert_allclose(trainer.params["f0"], before - 0.01 * mean, rtol=1e-6)
    trainer.fit(data, epochs=1, progress=False)
