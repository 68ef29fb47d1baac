"""Predicts how long a step takes on a cluster that is not at hand: bytes on each way divided by the way's rate (Parallax §2, §3).

Table 3 counts bytes; time also depends on what carries them. An AllReduce runs on devices and their links. An AllGatherv goes through
host memory. A worker's connections to servers have a rate of their own, however many workers a machine has. And a server adds its
clients' row gradients on a processor: with each client it writes the sum so far anew, as TensorFlow's accumulators do. Each way has a
rate; the rates are the model's only parameters. Pure arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from ampjax.errors import SettingsError


@dataclass(frozen=True)
class Load:
    """Bytes of one step.

    Args:
      reduced: AllReduce: sent and received by a machine.
      gathered: AllGatherv: sent and received by a machine.
      streamed: Dense variables at servers: pulled and pushed by one worker (or by one machine, where its workers go together) over
        the network, either way.
      folded: Gradients that one machine takes and gives back because it computes for all servers (no +OPAU), either way.
      merged: What one server writes while it merges row gradients: after each client, the rows of the sum so far.
      network: All that a machine sends and receives.
    """

    reduced: float = 0.0
    gathered: float = 0.0
    streamed: float = 0.0
    folded: float = 0.0
    merged: float = 0.0
    network: float = 0.0


@dataclass(frozen=True)
class ClusterRates:
    """Bytes per second of each way.

    Args:
      reduce: AllReduce, sent and received by a machine.
      gather: AllGatherv, sent and received by a machine.
      stream: One client's pulls and pushes.
      merge: Row gradients that a server writes, with the pulls that come with them.
      link: A machine's network card, each way.

    Raises:
      SettingsError: If a rate is not above 0.
    """

    reduce: float
    gather: float
    stream: float
    merge: float
    link: float

    def __post_init__(self) -> None:
        for name, rate in vars(self).items():
            if not rate > 0:
                raise SettingsError(
                    f"cluster, rate `{name}`",
                    "bytes per second above 0",
                    f"{rate!r}",
                    "Measure it.",
                )


def step_seconds(load: Load, rates: ClusterRates, compute: float) -> float:
    """The seconds of a step: the computation, then one way after the other, and not less than the network card takes for all bytes.

    Args:
      load: The step's bytes.
      rates: The cluster's.
      compute: Seconds of the forward and backward pass on one device.

    Returns:
      Seconds.

    >>> rates = ClusterRates(reduce=4e9, gather=1e9, stream=1e9, merge=1e9, link=1e10)
    >>> step_seconds(Load(reduced=2e9, network=2e9), rates, compute=0.25)
    0.75
    """
    ways = (
        load.reduced / rates.reduce,
        load.gathered / rates.gather,
        (load.streamed + load.folded) / rates.stream,
        load.merged / rates.merge,
    )
    return compute + max(sum(ways), load.network / (2 * rates.link))
