"""Parameter changes: the scheduler's requests to an executor, and the settings that keep replicas together."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Update:
    """An optimizer step of a node from `count` accumulated gradient rows; `mean_staleness` is theirs.

    A mean over `examples` divides the gradient by their number, and not by that of its rows; 0 in asynchronous training. Which `version` of the
    node's parameters it makes is for those who watch: it is no part of what is done.
    """

    node: str
    count: int
    mean_staleness: float = 0.0
    version: int = field(default=0, compare=False, repr=False)
    examples: int = field(default=0, repr=False)

    @property
    def divisor(self) -> int:
        """The divisor that turns the summed gradient into a mean."""
        return self.examples or self.count


@dataclass(frozen=True, slots=True)
class JointUpdate:
    """One optimizer step of all nodes of a group, from the gradients that the nodes have accumulated over some examples.

    `counts` are the gradient rows of each node and `versions` the versions of its parameters that the step makes, for those who watch.
    """

    group: str
    nodes: tuple[str, ...]
    examples: int
    counts: tuple[int, ...] = field(
        default=(),
        compare=False,
        repr=False,
    )
    versions: tuple[int, ...] = field(
        default=(),
        compare=False,
        repr=False,
    )


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
    """All replicas of a group have handed in: each takes the mean, plus its own progress since then."""

    group: str
    nodes: tuple[str, ...]


Change = Update | JointUpdate | Average | Contribute | Merge


def nodes_of(change: Change) -> tuple[str, ...]:
    """Gives the nodes that a change concerns."""
    return (change.node,) if isinstance(change, Update | Contribute) else change.nodes


def updates_in(change: Change) -> list[Update]:
    """Gives the updates of nodes that a change consists of: none if the change only keeps replicas together."""
    if isinstance(change, Update):
        return [change]
    if not isinstance(change, JointUpdate):
        return []
    lines = zip(change.nodes, change.counts, change.versions, strict=True)
    result = []
    for node, count, version in lines:
        result.append(Update(node, count, 0.0, version, change.examples))
    return result


@dataclass(frozen=True)
class ReplicaSync:
    """The rule by which replicas are kept together.

    Args:
      rule: `epoch`: average at the end of each epoch (the paper's); `every_k`: all average when one has made `every` updates since
        the last time; `message`: the asynchronous protocol of the arXiv version's §5: the first that has made `every` updates
        triggers, each member hands in its parameters at its next update, and when all have, each takes the mean plus what it has
        learnt since it handed in; nobody waits.
      every: Updates between synchronisations.
    """

    rule: str = "epoch"
    every: int = 0
