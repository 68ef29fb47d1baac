"""Runs in virtual time whose traces several tests look at."""

import functools

import ampjax as amp
from ampjax.drivers.cost import FlopsCost
from ampjax.trace.trace import Trace
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.by_hand.tree_lstm_graph import tree_lstm
from experiments.data import list_reduction, sst
from experiments.models.tree_lstm import Cells

COST = functools.partial(FlopsCost, flops=1e9, other_ns=500)


@functools.cache
def rnn(mode="async", n=24, max_dispatch_size=4):
    """The list-reduction RNN on two workers: its graph and a trace."""
    data = list_reduction.Sequences(list_reduction.generate(n), hidden=8)
    return traced(list_reduction_rnn(8), data, mode=mode, max_dispatch_size=max_dispatch_size)


@functools.cache
def trees(mode="async", n=12):
    """The Tree-LSTM on synthetic trees and two workers: its graph and a trace."""
    found, _ = sst.synthetic(n, 2)
    return traced(
        tree_lstm(
            len(found.vocabulary),
            Cells("tai", 8, 8, 0.5),
        ),
        sst.TreeInstances(found),
        mode=mode,
    )


def traced(graph, data, **options):
    """A graph and the trace of a pass over some instances; nothing is computed."""
    trace = Trace()
    options = {"workers": 2, "max_active_keys": 6, "min_update_interval": 8, **options}
    amp.simulate(graph, data, cost=COST, trace=trace, **options)
    return graph, trace
