"""The transfer model: ways add up, the network card is a bound, and rates are numbers above 0."""

import pytest

from ampjax.errors import SettingsError
from ampjax.parallel.planning.cluster_model import ClusterRates, Load, step_seconds

RATES = ClusterRates(
    reduce=4.0,
    gather=2.0,
    stream=1.0,
    merge=0.5,
    link=10.0,
)


def test_ways_add_up() -> None:
    load = Load(
        reduced=4.0,
        gathered=2.0,
        streamed=1.0,
        folded=1.0,
        merged=0.5,
        network=8.0,
    )
    assert step_seconds(load, RATES, compute=1.0) == 1 + 1 + 1 + 2 + 1


def test_the_network_card_is_a_bound() -> None:
    assert (
        step_seconds(
            Load(reduced=4.0, network=100.0),
            RATES,
            compute=1.0,
        )
        == 1 + 5
    )


def test_a_rate_is_above_zero() -> None:
    with pytest.raises(SettingsError, match="rate `merge`"):
        ClusterRates(
            reduce=4.0,
            gather=2.0,
            stream=1.0,
            merge=0.0,
            link=10.0,
        )
