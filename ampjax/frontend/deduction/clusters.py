"""Clusters of equations that become one node: equations that read parameters of one node, with the light operations beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ampjax.frontend.deduction.equations import Equation, Name

OUTSIDE = -1
"""Stands for readers outside of the function."""


@dataclass(eq=False)
class Cluster:
    """Some equations that become one node; or one combinator.

    Args:
      number: Its place in `Clusters`.
      owner: What names the parameters that it reads; None as long as it reads none.
      equations: Its equations, in order.
      call: The combinator's equation; None otherwise.
      entries: Wires that enter it from outside the function.
      before: The clusters whose results it reads.
      is_late: Whether it reads a loop's carry.
      is_loss: Whether only losses and metrics read it.
    """

    number: int
    owner: str | None = None
    equations: list[Equation] = field(default_factory=list)
    call: Equation | None = None
    entries: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    is_late: bool = False
    is_loss: bool = False


class Clusters:
    """A function's equations, put into clusters one by one, in order.

    Attributes:
      made_in: The cluster that makes each variable.
    """

    def __init__(self) -> None:
        self._all: list[Cluster] = []
        self.made_in: dict[Name, Cluster] = {}

    def add_call(self, equation: Equation) -> None:
        """Adds a combinator, or a function that `amp.node` made."""
        self._put(self._new(), equation, is_call=True)

    def add_loss(self, equation: Equation) -> None:
        """Adds an operation that only losses and metrics read: all such operations are one cluster."""
        known = [cluster for cluster in self._all if cluster.is_loss]
        cluster = known[0] if known else self._new()
        cluster.is_loss = True
        self._put(cluster, equation, is_call=False)

    def add(
        self,
        equation: Equation,
        owner: str | None,
        entries: set[int],
        is_late: bool,
    ) -> None:
        """Adds an operation.

        An operation that reads parameters joins its owner's cluster, or takes over the one before it if that reads none. Any other joins
        the cluster that made its operands, unless it brings in a wire that is not there yet: what needs only a loop's input stays outside
        the loop's node. Where the loop's carry is there already, other wires may come. Without such a cluster it joins one that reads the same wires.

        Args:
          equation: The operation.
          owner: What names the parameters that it reads; None without.
          entries: Wires from outside the function that it reads.
          is_late: Whether one of these is a loop's carry.
        """
        producers = self._producers(equation)
        if owner is None:
            cluster = self._beside(producers, entries)
        else:
            cluster = self._of_owner(owner, producers)
            cluster.owner = owner
        cluster.entries |= entries
        cluster.is_late |= is_late
        self._put(cluster, equation, is_call=False)

    def in_order(self, results: Iterable[Name]) -> list[Cluster]:
        """Orders the clusters by dependence; a light cluster with only one reader has joined that reader.

        Args:
          results: Variables that are read outside the function.
        """
        outside = {self.made_in[name].number for name in results if name in self.made_in}
        for cluster in reversed(self._all):
            readers = [c for c in self._all if cluster.number in c.before]
            is_light = not (
                cluster.call or cluster.owner or cluster.is_loss or cluster.number in outside
            )
            if not is_light or len(readers) != 1 or readers[0].call or readers[0].is_loss:
                continue
            self._merge(cluster, readers[0])
        done: dict[int, Cluster] = {}

        def visit(cluster: Cluster) -> None:
            if cluster.number not in done:
                for number in sorted(cluster.before):
                    visit(self._all[number])
                done[cluster.number] = cluster

        for cluster in self._all:
            if cluster.call or cluster.equations:
                visit(cluster)
        return list(done.values())

    def readers(self) -> Mapping[Name, set[int]]:
        """Maps each variable to its readers among the other clusters; `OUTSIDE` for a metric, which goes where the loss goes."""
        readers: dict[Name, set[int]] = {}
        for cluster in self._all:
            used = cluster.call.call if cluster.call else None
            is_outside = used is not None and used.kind.with_loss
            number = OUTSIDE if is_outside else cluster.number
            for equation in [cluster.call] if cluster.call else cluster.equations:
                for atom in equation.inputs:
                    if isinstance(atom, Name) and self.made_in.get(atom, cluster) is not cluster:
                        readers.setdefault(atom, set()).add(number)
        return readers

    def _beside(
        self,
        producers: Sequence[Cluster],
        entries: set[int],
    ) -> Cluster:
        """The cluster of an operation that reads no parameters."""
        last = self._last(producers)
        if last is not None and last.call is None and (entries <= last.entries or last.is_late):
            return last
        if producers:
            return self._new()
        for c in self._all:
            if not c.call and not c.owner and c.entries == entries:
                return c
        return self._new()

    def _of_owner(
        self,
        owner: str,
        producers: Sequence[Cluster],
    ) -> Cluster:
        """The cluster of an operation that reads parameters."""
        for c in self._all:
            if c.owner == owner and not self._would_loop(c, producers):
                return c
        last = self._last(producers)
        if last is not None and last.call is None and last.owner is None:
            return last
        return self._new()

    def _new(self) -> Cluster:
        self._all.append(Cluster(len(self._all)))
        return self._all[-1]

    def _put(self, cluster: Cluster, equation: Equation, is_call: bool) -> None:
        cluster.before |= {p.number for p in self._producers(equation)} - {cluster.number}
        if is_call:
            cluster.call = equation
        else:
            cluster.equations.append(equation)
        self.made_in |= dict.fromkeys(equation.outputs, cluster)

    def _producers(self, equation: Equation) -> list[Cluster]:
        producers = []
        for atom in equation.inputs:
            if isinstance(atom, Name) and atom in self.made_in:
                producers.append(self.made_in[atom])
        return list({cluster.number: cluster for cluster in producers}.values())

    def _ancestors(self, cluster: Cluster) -> set[int]:
        seen: set[int] = set()
        waiting = [cluster.number]
        while waiting:
            for number in self._all[waiting.pop()].before - seen:
                seen.add(number)
                waiting.append(number)
        return seen

    def _last(self, producers: Sequence[Cluster]) -> Cluster | None:
        """The producer that all others come before."""
        for cluster in producers:
            if {p.number for p in producers} - {cluster.number} <= self._ancestors(cluster):
                return cluster
        return None

    def _would_loop(self, cluster: Cluster, producers: Sequence[Cluster]) -> bool:
        return any(p is not cluster and cluster.number in self._ancestors(p) for p in producers)

    def _merge(self, light: Cluster, reader: Cluster) -> None:
        reader.equations[:0] = light.equations
        reader.entries |= light.entries
        reader.is_late |= light.is_late
        reader.before = (reader.before | light.before) - {light.number, reader.number}
        for equation in light.equations:
            self.made_in |= dict.fromkeys(equation.outputs, reader)
        light.equations = []
        light.before = set()
