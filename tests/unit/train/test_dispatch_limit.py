"""The largest dispatch: its default by the mode."""

import jax
import numpy as np
import optax
import pytest
from support import graphs

import ampjax as amp
from ampjax.errors import SettingsError

QUIET = {"epochs": 1, "progress": False}


def trained(mode, **settings):
    trainer = amp.Trainer(
        graphs.chain(2),
        optax.sgd(1e-4),
        mode=mode,
        max_active_keys=256,
        min_admission=256,
        policy="wavefront",
        min_update_interval=256,
        **settings,
    )
    trainer.fit(graphs.chain_data(256), **QUIET)
    return trainer


@pytest.mark.parametrize("mode", ["async", "pipeline"])
def test_it_is_64_in_asynchronous_mode_and_512_where_a_round_ends_with_an_update(mode):
    by_default = trained(mode)
    limit = {"async": 64, "pipeline": 512}[mode]
    with_limit = trained(mode, max_dispatch_size=limit)
    assert by_default.statistics.dispatches == with_limit.statistics.dispatches
    jax.tree.map(np.testing.assert_array_equal, by_default.params, with_limit.params)

    small = trained("pipeline", max_dispatch_size=64)
    if mode == "pipeline":
        assert by_default.statistics.dispatches < small.statistics.dispatches
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        jax.tree.map(close, by_default.params, small.params)


def test_a_snapshot_goes_on_with_the_default_where_it_was_the_same_number(tmp_path):
    data = graphs.chain_data(32)
    first = amp.Trainer(
        graphs.chain(2),
        optax.sgd(0.0),
        max_dispatch_size=64,
        snapshot=tmp_path,
    )
    first.fit(data, **QUIET)

    by_default = amp.Trainer(
        graphs.chain(2),
        optax.sgd(0.0),
        snapshot=tmp_path,
    )
    history = by_default.fit(
        data,
        epochs=2,
        progress=False,
        resume=True,
    )
    assert len(history) == 2


def test_it_is_at_least_one():
    with pytest.raises(SettingsError, match="max_dispatch_size"):
        amp.Settings(max_dispatch_size=0)
