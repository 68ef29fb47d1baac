"""Training by whole batches that is interrupted or saved goes on to the same bits."""

import numpy as np
import optax
import pytest
from support import batch_mode
from support.batch_mode import compiled, examples, same_bits, trainer
from support.effort import left_to_nightly

import ampjax as amp

DATA = examples(27)


class Killed(Exception):
    """The end of a process."""


def without_time(history):
    result = []
    for record in history.records():
        kept = {}
        for name, value in record.items():
            if name.startswith(("train_", "valid_")) and not name.endswith("per_s"):
                kept[name] = value
        result.append(kept)
    return result


@pytest.mark.first_case
@pytest.mark.parametrize("function", [batch_mode.model, batch_mode.dropped])
@pytest.mark.parametrize(
    "every",
    [5, *left_to_nightly([None])],
)
def test_a_fit_that_was_killed_goes_on_to_the_same_bits(tmp_path, monkeypatch, every, function):
    data = compiled(function).data(DATA)
    valid = compiled(function).data(DATA[:9])
    tx = optax.adam(0.05)

    def made(folder):
        snapshots = amp.Snapshots(
            tmp_path / folder,
            every_instances=every,
        )
        return trainer(
            tx=tx,
            function=function,
            snapshot=snapshots,
            group_by_size=4,
        )

    whole = made("whole")
    want = whole.fit(
        data,
        valid,
        epochs=3,
        progress=False,
    )
    killed = made("killed")
    passes = killed.session.passes
    programs = passes._programs
    steps = []
    train = type(programs).train

    def train_until(self, batches, seed, places):
        steps.extend(batches)
        if len(steps) > 11:
            raise Killed
        return train(self, batches, seed, places)

    monkeypatch.setattr(
        type(programs),
        "train",
        train_until,
    )
    with pytest.raises(Killed):
        killed.fit(
            data,
            valid,
            epochs=3,
            progress=False,
        )
    monkeypatch.undo()
    again = made("killed")
    history = again.fit(
        data,
        valid,
        epochs=3,
        progress=False,
        resume=True,
    )
    assert same_bits(again.params, whole.params)
    assert same_bits(again.opt_state, whole.opt_state)
    assert without_time(history) == without_time(want)
    assert history.resumed == [{"epoch": 2, "instances": 12 if every else 0}]


@pytest.mark.nightly
def test_snapshots_by_the_clock_are_taken_between_rounds(tmp_path):
    data = compiled().data(DATA)
    snapshots = amp.Snapshots(
        tmp_path,
        every_seconds=1e-9,
    )
    one = trainer(snapshot=snapshots)
    one.fit(data, progress=False)
    other = trainer()
    other.fit(data, progress=False)
    assert same_bits(one.params, other.params)
    assert len(list(tmp_path.glob("snapshot-*"))) == 2


def test_a_checkpoint_goes_on_to_the_same_bits(tmp_path):
    data = compiled().data(DATA)
    whole = trainer()
    whole.fit(data, progress=False)
    whole.save(tmp_path / "saved")
    whole.fit(data, progress=False)
    other = trainer()
    other.restore(tmp_path / "saved")
    other.fit(data, progress=False)
    assert same_bits(whole.params, other.params)
    assert same_bits(whole.opt_state, other.opt_state)


@pytest.mark.nightly
def test_an_interrupted_epoch_leaves_whole_rounds(monkeypatch):
    one = trainer()
    programs = one.session.passes._programs
    train = type(programs).train

    def interrupted(self, batch, seed, place):
        train(self, batch, seed, place)
        raise KeyboardInterrupt

    monkeypatch.setattr(
        type(programs),
        "train",
        interrupted,
    )
    history = one.fit(
        compiled().data(DATA),
        progress=False,
    )
    monkeypatch.undo()
    assert history.interrupted and not len(history)
    assert one.session.passes.losses.take(True) == []
    assert not same_bits(one.params, trainer().params)
    assert np.isfinite(one.evaluate(compiled().data(DATA))["loss"])
