"""Kernels run on what the scheduler of integers decides, and give what they gave before."""

import importlib

import jax
import numpy as np
import optax
from support.in_place import InPlace
from support.models import model

simulate = importlib.import_module("ampjax.simulate")  # the package's name is the function's


def test_parameters_are_the_same_bit_by_bit(monkeypatch):
    """Where payloads decide, too: these are read back, and programs grow."""
    graph, data = model("pondering")
    options = {"workers": 2, "max_active_keys": 2, "max_dispatch_size": 4, "min_update_interval": 3}
    runs = []
    for scheduler in (simulate.Scheduler, InPlace):
        monkeypatch.setattr(simulate, "Scheduler", scheduler)
        runs.append(simulate.simulate(graph, data, numerics=True, tx=optax.sgd(0.01), **options))
    one, other = runs
    assert one.seconds == other.seconds and one.metrics == other.metrics
    assert all(np.array_equal(*pair) for pair in zip(*(jax.tree.leaves(run.params) for run in runs), strict=True))
