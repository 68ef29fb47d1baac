"""Parameter changes: what a scheduler asks an executor for, and how replicas are kept together."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Update:
    """An optimizer step of a node from `count` accumulated gradient rows; `mean_staleness` is theirs.

    Which `version` of the node's parameters it makes is for those who watch: it is no part of what is done.
    """

    node: str
    count: int
    mean_staleness: float = 0.0
    version: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Average:
    """Replicas of a group take the mean of their parameters."""

    group: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contribute:
    """A replica hands in its parameters for the next mean (arXiv version, §5)."""

    group: str
    node: str


@dataclass(frozen=True, slots=True)
class Merge:
    """All replicas of a group have handed in: each takes the mean, plus what it has learnt since it handed in."""

    group: str
    nodes: tuple[str, ...]


Change = Update | Average | Contribute | Merge


def nodes_of(change: Change) -> tuple[str, ...]:
    """Gives the nodes that a change concerns.

    Args:
      change: The change.
    """
    return change.nodes if isinstance(change, Average | Merge) else (change.node,)


@dataclass(frozen=True)
class ReplicaSync:
    """How replicas are kept together.

    Args:
      rule: `epoch`: average at the end of each epoch (the paper's); `every_k`: all average when one has made `every` updates since
        the last time; `message`: the asynchronous protocol of the arXiv version's §5: the first that has made `every` updates
        triggers, each member hands in its parameters at its next update, and when all have, each takes the mean plus what it has
        learnt since it handed in; nobody waits.
      every: Updates between synchronisations.
    """

    rule: str = "epoch"
    every: int = 0
