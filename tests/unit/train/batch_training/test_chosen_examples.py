"""Training by whole batches on examples that were chosen from a larger data set."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support.batch_mode import assert_close, compiled, examples, trainer

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.ir.instances import InstanceList

CHOSEN = np.array([7, 2, 2, 11, 0, 5, 9, 4])


@dataclass(frozen=True)
class Window:
    """A few examples of a data set; the next epoch has the following ones."""

    data: Any
    n: int
    start: int = 0

    def __len__(self):
        return self.n

    def reshuffle(self, rng):
        del rng
        return replace(self, start=self.start + self.n)

    def gather(self, ids):
        return self.data.gather(self.locate(ids)[1])

    def locate(self, ids):
        return self.data, (self.start + np.asarray(ids)) % len(self.data)


def fitted(data, mode="batch", epochs=2):
    own = trainer(mode)
    own.fit(
        data,
        epochs=epochs,
        progress=False,
    )
    return own


def test_a_subset_trains_as_its_examples_do():
    data = examples()
    whole = compiled().data(data)
    alone = compiled().data([data[i] for i in CHOSEN])
    one = fitted(amp.Subset(whole, CHOSEN))
    other = fitted(alone)
    assert_close(one.params, other.params)
    found = one.evaluate(amp.Subset(whole, CHOSEN))
    want = other.evaluate(alone)
    assert found.keys() == want.keys()
    for metric, value in found.items():
        np.testing.assert_allclose(
            value,
            want[metric],
            rtol=1e-5,
        )


def test_a_subset_of_a_subset_is_found_in_the_data():
    data = examples()
    whole = compiled().data(data)
    within = np.array([3, 0, 6])
    one = trainer()
    some = amp.Subset(amp.Subset(whole, CHOSEN), within)
    alone = compiled().data([data[i] for i in CHOSEN[within]])
    told = one.predict(some)["guess"].payload
    np.testing.assert_allclose(
        told,
        one.predict(alone)["guess"].payload,
        rtol=1e-5,
    )


@pytest.mark.nightly
def test_a_window_that_moves_on_trains_as_through_messages():
    data = compiled().data(examples(24))
    one = fitted(Window(data, 8), epochs=4)
    other = fitted(Window(data, 8), "pipeline", epochs=4)
    assert_close(one.params, other.params)


def test_what_they_were_chosen_from_must_be_the_models():
    pumped = InstanceList([{"words": 3}])
    with pytest.raises(
        SettingsError,
        match=r"mode='batch', data: expected what `compiled\.data\(examples\)` gives, got InstanceList",
    ):
        fitted(amp.Subset(pumped, np.array([0])))
