"""Virtual runs: time, throughput, numerics, mistakes."""

import math
from functools import partial
from typing import Any

import numpy as np
import optax
import pytest

import ampjax as amp
import ampjax.graphs as ag
from ampjax.drivers.cost import FlopsCost
from ampjax.errors import GraphError, SettingsError
from ampjax.simulation.simulate import simulate
from ampjax.trace.trace import Trace
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.data.list_reduction import Buckets, generate

LINEAR = 2 * 8 * 8


def chain(layers: int = 2) -> ag.Graph:
    with ag.Graph() as graph:
        x = ag.pump("x", (8,))
        for i in range(layers):
            x = ag.ppt(
                f"linear{i}",
                amp.nn.Linear(8, 8),
            )(x)
        ag.loss(
            "loss",
            lambda x: (x**2).mean(),
        )(x)
    return graph


def vectors(n: int) -> list[dict[str, Any]]:
    result = []
    for i in range(n):
        result.append({"x": np.full(8, i, np.float32)})
    return result


def test_no_work_is_done_in_no_time() -> None:
    """A layer of 8 x 8 takes less than a nanosecond on the paper's device."""
    found = simulate(chain(1), vectors(10), max_active_keys=1)
    assert 9e-9 < found.seconds < 1e-6


def test_one_layer_takes_its_flops_time() -> None:
    """Appendix C: 2 k d d for each of forward, backward and weight gradient, d d for an update."""
    found = simulate(
        chain(1),
        vectors(10),
        cost=partial(FlopsCost, flops=1e9),
        max_active_keys=1,
    )
    assert found.instances == 10
    assert found.seconds == pytest.approx(
        10 * (3 * LINEAR + 64) / 1e9,
        rel=1e-6,
    )
    assert found.per_s == pytest.approx(10 / found.seconds)


def test_two_workers_overlap_instances() -> None:
    slow = partial(FlopsCost, flops=1e9)
    run = partial(
        simulate,
        chain(),
        vectors(64),
        cost=slow,
        max_dispatch_size=1,
        min_update_interval=64,
    )
    one = run(workers=1)
    two = run(workers=2)
    assert 1.7 < two.per_s / one.per_s <= 2.0
    assert run(workers=2, max_active_keys=1).per_s == pytest.approx(one.per_s, rel=0.05)


def test_four_replicas_give_three_and_a_half_times_the_throughput() -> None:
    """AMPNet's figure 4b in virtual time; the experiment's command does the same with more sequences."""
    from experiments.virtual import VirtualOptions, main

    rows = main(
        VirtualOptions(
            replicas=(1, 4),
            max_active_keys=(16,),
            n=8000,
        )
    )
    assert rows[-1]["replicas"] == 4
    assert rows[-1]["ratio"] >= 3.5


def test_the_trace_covers_the_run() -> None:
    trace = Trace()
    found = simulate(
        chain(),
        vectors(5),
        cost=partial(FlopsCost, flops=1e9),
        workers=2,
        trace=trace,
    )
    assert found.trace is trace and len(trace)
    assert trace.span_ns == round(found.seconds * 1e9)


@pytest.mark.nightly
@pytest.mark.slow
def test_numerics_train_the_parameters_as_a_trainer_does() -> None:
    options: dict[str, Any] = {
        "max_active_keys": 4,
        "min_update_interval": 3,
        "seed": 1,
    }
    graph = list_reduction_rnn(8, batch=10)
    data = Buckets(generate(200), 10, 8)
    found = simulate(
        graph,
        data,
        numerics=True,
        tx=optax.sgd(0.1),
        **options,
    )
    trainer = amp.Trainer(graph, optax.sgd(0.1), **options)
    metrics = trainer.accumulate(data)
    assert found.metrics["loss"] == pytest.approx(metrics["loss"], rel=1e-6)
    assert found.metrics["accuracy"] == metrics["accuracy"]
    assert found.stats.updates == trainer.statistics.updates
    np.testing.assert_allclose(
        found.params["linear1"]["w"],
        trainer.params["linear1"]["w"],
        rtol=1e-6,
        atol=1e-7,
    )


def test_without_numerics_there_are_counts_only() -> None:
    found = simulate(chain(), vectors(5))
    assert not found.metrics and not found.params
    assert found.stats.instances == 5
    assert repr(found).startswith("Simulation(5 instances in ")


def test_between_hosts_a_transfer_takes_the_time_of_their_link() -> None:
    """A row of 32 bytes crosses once forth and once back; two workers are on one host, or on two."""

    def seconds(workers_per_host: int | None) -> float:
        links: dict[str, Any] = {
            "latency_ns": 10,
            "bytes_per_s": 32e9,
            "host_latency_ns": 1000,
            "host_bytes_per_s": 32e6,
        }
        cost = partial(FlopsCost, flops=math.inf, workers_per_host=workers_per_host, **links)
        affinity = {"linear0": 0, "linear1": 1, "loss": 1}
        return simulate(
            chain(),
            vectors(1),
            cost=cost,
            workers=2,
            affinity=affinity,
        ).seconds

    assert seconds(None) == seconds(2) == pytest.approx(2 * 11e-9)
    assert seconds(1) == pytest.approx(2 * 2000e-9)


def test_inference_makes_no_updates() -> None:
    found = simulate(
        chain(),
        vectors(5),
        cost=partial(FlopsCost, flops=1e9),
        train=False,
    )
    assert found.stats.updates == 0 and found.seconds > 0


def test_the_same_seed_gives_the_same_run() -> None:
    slow = partial(FlopsCost, flops=1e9)
    runs = []
    for _ in range(2):
        runs.append(
            simulate(
                chain(),
                vectors(20),
                cost=slow,
                workers=2,
                affinity="paper",
                seed=3,
                trace=Trace(),
            )
        )
    assert runs[0].trace == runs[1].trace
    assert runs[0].seconds == runs[1].seconds


def test_mistakes_are_told() -> None:
    with pytest.raises(SettingsError, match="setting `max_keys`: expected one of"):
        simulate(chain(), vectors(1), max_keys=3)
    with pytest.raises(SettingsError, match="data: expected at least one instance, got none"):
        simulate(chain(), [])
    with ag.Graph() as graph:
        ag.sink("end", ag.pump("x", (8,)))
        with pytest.raises(GraphError, match="simulate: expected a closed graph"):
            simulate(graph, vectors(1))


def test_rates_must_be_above_zero():
    with pytest.raises(
        SettingsError,
        match=r"FlopsCost, `flops`, `bytes_per_s` and `host_bytes_per_s`: expected numbers above 0, got 0",
    ):
        simulate(
            chain(),
            vectors(1),
            cost=partial(FlopsCost, flops=0),
        )
    with pytest.raises(
        SettingsError, match="FlopsCost, `workers_per_host`: expected at least 1, got 0"
    ):
        simulate(
            chain(),
            vectors(1),
            cost=partial(FlopsCost, workers_per_host=0),
        )
    assert (
        simulate(
            chain(),
            vectors(3),
            cost=partial(FlopsCost, flops=math.inf),
        ).seconds
        == 0
    )
