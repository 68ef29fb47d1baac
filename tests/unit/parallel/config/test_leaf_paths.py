"""Leaves by path; keys may hold a `/`."""

import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.errors import DataError, ParameterError


def test_two_parameters_with_one_path_are_refused():
    params = {"a/b": np.ones(2, np.float32), "a": {"b": np.ones(2, np.float32)}}
    with pytest.raises(ParameterError, match=r"parameter `a/b`: .* two leaves with this name"):
        px.get_runner(lambda params, batch: 0.0, params, optax.sgd(0.1))


def test_two_leaves_of_a_batch_with_one_path_are_refused():
    runner = px.get_runner(
        lambda params, batch: (params["w"] * batch["a/b"]).mean(),
        {"w": np.float32(1)},
        optax.sgd(0.1),
    )
    batch = {"a/b": np.ones(4, np.float32), "a": {"b": np.ones(4, np.float32)}}
    with pytest.raises(DataError, match=r"batch, leaf `a/b`: .* two leaves with this name"):
        runner.run(batch)
    assert runner.steps == 0
