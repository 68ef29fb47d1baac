"""What is told after an epoch with which training can't work, and what is not told."""

import re
import warnings

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import graphs

import ampjax as amp


def model(p, s):
    h = amp.map(
        lambda w: p["embed"][w],
        s["words"],
    )
    return jnp.sum((amp.sum(h) @ p["out"] - s["y"]) ** 2)


PARAMS = {
    "embed": np.full((5, 3), 0.1, np.float32),
    "out": np.full((3, 2), 0.1, np.float32),
}
SPEC = {"words": "int32[t]", "y": "float32[]"}
DATA = [
    {
        "words": np.arange(5, dtype=np.int32),
        "y": np.float32(1),
    }
] * 40


def told(fit):
    """The warnings of a fit, as texts."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit()
    return [str(one.message) for one in found]


def trainer(tx=None, **options):
    compiled = amp.compile(model, PARAMS, SPEC)
    return amp.Trainer(
        compiled.graph,
        tx or optax.sgd(1e-4),
        **options,
    ), compiled.data(DATA)


@pytest.mark.nightly
def test_a_node_that_hardly_updates_is_told_with_an_interval_for_fifty_updates():
    runs, data = trainer(min_update_interval=101)
    (text,) = told(lambda: runs.fit(data, epochs=3, progress=False))
    assert text.startswith(
        "epoch 1: expected at least 2 updates of each node, got 1 of `embed`, and of 1 more: it has got 200 gradient rows, and its interval is 101. "
        "Lower `min_update_interval`: with 4 it makes about 50."
    )


@pytest.mark.nightly
def test_a_frozen_node_need_not_update():
    runs, data = trainer(min_update_interval=101, frozen=("embed", "out"))
    assert told(lambda: runs.fit(data, epochs=2, progress=False)) == []


def test_a_node_with_an_interval_of_its_own():
    def cell(p, s):
        return jnp.sum(
            amp.node("slow", min_update_interval=1000)(lambda h: jnp.tanh(h * p["w"]))(s) * p["v"]
        )

    compiled = amp.compile(
        cell,
        {
            "w": np.ones(2, np.float32),
            "v": np.ones(2, np.float32),
        },
        "float32[2]",
    )
    runs = amp.Trainer(
        compiled.graph,
        optax.sgd(0.1),
        min_update_interval=2,
    )
    (text,) = told(
        lambda: runs.fit(
            compiled.data([np.ones(2, np.float32)] * 100),
            progress=False,
        )
    )
    assert "got 0 of `slow`: it has got 100 gradient rows, and its interval is 1,000" in text
    assert "with 2 it makes about 50" in text


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [
        {
            "min_update_interval": 100
        },  # two updates of one node; of the other one, all instances are 40 rows
        {"mode": "sync", "min_update_interval": 1000},
        {
            "mode": "pipeline",
            "max_active_keys": 40,
        },  # one round over all data is a choice, not an accident
    ],
)
def test_enough_updates_or_rounds_of_the_controller_are_not_told(options):
    runs, data = trainer(**options)
    texts = told(lambda: runs.fit(data, epochs=2, progress=False))
    assert [text for text in texts if "`embed`" in text] == []


def test_few_rows_that_come_in_one_dispatch_are_not_told():
    """No interval would make more than one update of them."""
    runs = amp.Trainer(graphs.chain(1), optax.sgd(0.01))
    assert (
        told(
            lambda: runs.fit(
                graphs.chain_data(4),
                progress=False,
            )
        )
        == []
    )


def late(**options):
    """A graph of many nodes, with many instances in flight, of which each is an update."""
    return amp.Trainer(
        graphs.chain(2),
        optax.sgd(0.0),
        fuse=False,
        max_dispatch_size=1,
        policy=late_first,
        **options,
    )


def late_first(queues, now):
    """The oldest gradients come last."""
    return max(queues, key=lambda queue: queue.direction == "forward")


@pytest.mark.nightly
def test_gradients_that_come_late_are_told_with_what_to_lower():
    runs = late(max_active_keys=64)
    (text,) = told(
        lambda: runs.fit(
            graphs.chain_data(256),
            epochs=2,
            progress=False,
        )
    )
    mean = max(node.staleness_mean for node in runs.statistics.nodes.values())
    first = re.match(
        r"epoch 1: expected gradients at most 10 updates late in the mean, got ([\d.]+) at `f\d`, and of 1 more\.",
        text,
    )
    assert first and float(first[1]) > 10
    lower = re.search(
        r"Lower `max_active_keys` \(64\) to about (\d+), or raise `min_update_interval` \(1\) to about (\d+)",
        text,
    )
    assert lower and mean > 10
    # What it proposes helps.
    for options in (
        {"max_active_keys": int(lower[1])},
        {"max_active_keys": 64, "min_update_interval": int(lower[2])},
    ):
        better = late(**options)
        assert (
            told(
                lambda better=better: better.fit(
                    graphs.chain_data(256),
                    progress=False,
                )
            )
            == []
        )


@pytest.mark.nightly
def test_late_gradients_that_were_limited_or_that_a_round_waits_for_are_not_told():
    for options in ({"max_staleness": 20}, {"mode": "pipeline"}, {"max_active_keys": 4}):
        runs = late(**{"max_active_keys": 64, **options})
        assert (
            told(
                lambda runs=runs: runs.fit(
                    graphs.chain_data(128),
                    progress=False,
                )
            )
            == []
        )


# Parameters that are lost


def exploding(**options):
    return trainer(optax.sgd(1e30), max_active_keys=2, **options)


@pytest.mark.parametrize("hosts", [None, 2])
def test_training_ends_when_parameters_are_lost(hosts):
    if hosts is None:
        options = {}
    else:
        options = {"hosts": amp.Hosts(hosts, "threads", hosts), "workers": hosts}
    runs, data = exploding(**options)
    called = []
    with pytest.warns(RuntimeWarning, match="expected a finite") as caught:
        history = runs.fit(
            data,
            epochs=5,
            callbacks=[lambda trainer, epoch: called.append(epoch.epoch)],
            progress=False,
        )
    runs.close()
    (text,) = {str(one.message) for one in caught}
    assert history.diverged
    assert not history.interrupted
    assert len(history) == 1
    assert called == [1]
    assert "parameters of `embed`, `out` are not finite any more" in text
    assert (
        "Training ends here, since nothing that follows would be a number; `fit(..., stop_on_nan=False)` goes on."
        in text
    )
    assert "lower the learning rate" in text and "diverged" in repr(history)


@pytest.mark.nightly
def test_training_goes_on_if_that_is_wanted():
    runs, data = exploding()
    with pytest.warns(RuntimeWarning, match="are not finite any more") as caught:
        history = runs.fit(data, epochs=3, progress=False, stop_on_nan=False)
    assert len(caught) == 1 and "Training ends here" not in str(caught[0].message)
    assert len(history) == 3 and not history.diverged


@pytest.mark.nightly
def test_parameters_that_are_lost_by_the_last_update_of_an_epoch_are_seen():
    """The loss of that epoch was finite."""
    runs, data = trainer(
        optax.scale(-np.inf),
        mode="pipeline",
        max_active_keys=40,
    )
    with pytest.warns(
        RuntimeWarning,
        match=r"epoch 1: expected finite parameters, got others: parameters of `\w+`",
    ):
        history = runs.fit(data, epochs=3, progress=False)
    assert history.diverged and np.isfinite(history[-1].train["loss"])


@pytest.mark.nightly
def test_a_loss_alone_that_is_not_finite_ends_nothing():
    """The optimizer leaves such gradients out."""
    compiled = amp.compile(model, PARAMS, SPEC)
    data = compiled.data(
        [
            *DATA[:5],
            DATA[0] | {"y": np.float32(np.nan)},
        ]
    )
    runs = amp.Trainer(
        compiled.graph,
        optax.apply_if_finite(optax.sgd(1e-4), 1000),
        max_dispatch_size=1,
        max_active_keys=2,
    )
    with pytest.warns(RuntimeWarning, match="expected a finite training loss, got nan"):
        history = runs.fit(data, epochs=2, progress=False)
    assert len(history) == 2 and not history.diverged


@pytest.mark.nightly
def test_lost_parameters_are_in_no_snapshot(tmp_path):
    """So whoever resumes goes on from numbers."""

    def rate(step):
        return jnp.where(step < 30, 1e-4, 1e30)

    runs, data = trainer(
        optax.sgd(rate),
        max_dispatch_size=1,
        max_active_keys=1,
        snapshot=tmp_path,
    )
    with pytest.warns(RuntimeWarning, match="Training ends here"):
        history = runs.fit(data, epochs=4, progress=False)
    assert history.diverged
    again, data = trainer(
        optax.sgd(rate), max_dispatch_size=1, max_active_keys=1, snapshot=tmp_path
    )
    with pytest.warns(RuntimeWarning, match="Training ends here"):
        resumed = again.fit(data, epochs=4, progress=False, resume=True)
    assert [epoch.epoch for epoch in resumed.epochs] == [epoch.epoch for epoch in history.epochs]


@pytest.mark.nightly
def test_a_recording_of_a_run_that_was_lost_can_be_replayed(tmp_path):
    for stops in (True, False):
        runs, data = exploding()
        with pytest.warns(RuntimeWarning, match="not finite"):
            history = runs.fit(
                data, epochs=3, progress=False, record=tmp_path / f"{stops}", stop_on_nan=stops
            )
        again, data = exploding()
        with pytest.warns(RuntimeWarning, match="not finite"):
            replayed = amp.replay(tmp_path / f"{stops}", again, data, progress=False)
        assert len(replayed) == len(history) == (1 if stops else 3)


def rising(mode, rate):
    """A trainer whose loss grows sevenfold in each epoch of steps that are too long."""
    compiled = amp.compile(
        lambda p, s: jnp.sum((p["w"] - s) ** 2),
        {"w": np.ones(2, np.float32)},
        "float32[2]",
    )
    runs = amp.Trainer(
        compiled.graph,
        optax.sgd(rate),
        mode=mode,
        max_active_keys=2,
    )
    return runs, compiled.data([np.zeros(2, np.float32)] * 4)


@pytest.mark.parametrize(
    "mode",
    ["batch", pytest.param("pipeline", marks=pytest.mark.nightly)],
)
def test_a_loss_that_grows_is_told_once(mode):
    runs, data = rising(mode, rate=1.3)
    (text,) = told(lambda: runs.fit(data, epochs=4, progress=False))
    assert text.startswith("epoch 4: expected a loss of about that of the first epoch, ")
    assert "training diverges. Lower the learning rate, or clip gradients" in text


def test_noise_of_a_loss_that_has_converged_is_not_told():
    compiled = amp.compile(
        lambda p, s: (p["w"] @ s["x"] - s["y"]) ** 2,
        {"w": np.zeros(3, np.float32)},
        {"x": "float32[3]", "y": "float32[]"},
    )
    rng = np.random.default_rng(0)
    examples = []
    for x in rng.normal(size=(40, 3)).astype(np.float32):
        examples.append({"x": x, "y": x.sum()})
    runs = amp.Trainer(
        compiled.graph,
        optax.adam(0.3),
        mode="batch",
        max_active_keys=8,
    )
    data = compiled.data(examples)
    runs.fit(data, epochs=40, progress=False)
    assert told(lambda: runs.fit(data, epochs=30, progress=False)) == []


def test_a_loss_that_falls_or_is_negative_is_not_told():
    runs, data = rising("batch", rate=0.1)
    assert told(lambda: runs.fit(data, epochs=3, progress=False)) == []
    compiled = amp.compile(
        lambda p, s: -jnp.sum(p["w"] * s),
        {"w": np.ones(2, np.float32)},
        "float32[2]",
    )
    falling = amp.Trainer(
        compiled.graph,
        optax.sgd(10.0),
        mode="batch",
    )
    ones = compiled.data([np.ones(2, np.float32)] * 4)
    assert told(lambda: falling.fit(ones, epochs=3, progress=False)) == []
