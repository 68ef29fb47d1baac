"""Runs on hosts: the same trainer in this process and on hosts that are threads of it."""

import jax
import numpy as np

import ampjax as amp


def trainer(graph, tx, n_hosts, spaces, **options):
    """A trainer on so many hosts, with `spaces` memory spaces; 0 hosts: in this process."""
    if n_hosts:
        return amp.Trainer(graph, tx, hosts=amp.Hosts(n_hosts, "threads", spaces), **options)
    options = {"workers": spaces} | options
    return amp.Trainer(graph, tx, devices=[jax.devices()[0]] * spaces, **options)


def assert_same(one, other):
    """Both have the same bits."""
    jax.tree.map(np.testing.assert_array_equal, one, other)
