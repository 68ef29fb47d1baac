"""Data sets that are drawn anew for each epoch, as data for compiled models."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import DataError
from ampjax.frontend.compile_model import Compiled
from ampjax.ir.instances import Instances
from experiments.data.list_reduction import Buckets, generate

SPEC = {"tokens": "int32[t,2]", "label": "int32[2]"}


def compiled() -> Compiled:
    def model(p, s):
        h, _ = amp.scan(
            lambda h, token: (
                h + token.sum() * p["w"],
                None,
            ),
            jnp.float32(0),
            s["tokens"],
        )
        return h * s["label"].sum()

    return amp.compile(
        model,
        {"w": jnp.ones(())},
        SPEC,
    )


def test_buckets_are_drawn_anew():
    buckets = Buckets(generate(40), 2)
    model = compiled()
    data = model.data(buckets)
    assert isinstance(data, Instances)
    assert len(data) == len(buckets)
    assert data.n_examples == 40
    assert model.data(data) is data
    other = data.reshuffle(np.random.default_rng(1))
    want = model.data(buckets.reshuffle(np.random.default_rng(1)).plain())
    ids = np.arange(len(want))
    found = other.gather(ids)
    wanted = want.gather(ids)
    before = data.gather(ids)
    for name, messages in wanted.items():
        np.testing.assert_array_equal(found[name].payload, messages.payload)
    assert any((found[name].payload != before[name].payload).any() for name in wanted)
    with pytest.raises(DataError, match=r"what another model's `compiled.data` gave"):
        compiled().data(data)


def test_data_without_labels_are_drawn_once():
    data = compiled().data(
        Buckets(generate(10), 2),
        labels=False,
    )
    assert not hasattr(data, "reshuffle")


@pytest.mark.parametrize("method", ["verify", "loss"])
def test_the_model_itself_takes_the_instances_themselves(method):
    model = compiled()
    buckets = Buckets(generate(12), 2)
    if method == "verify":
        check = model.verify
    else:
        check = lambda data: model.loss(model.initial_params, data)
    given: list[tuple[Any, str]] = [(buckets, "a data set that makes them, Buckets")]
    for data, what in [
        *given,
        (model.data(buckets), r"what `compiled\.data`"),
    ]:
        with pytest.raises(
            DataError,
            match=f"{method}, instances: expected instances as the model takes them, got {what}",
        ):
            check(data)
