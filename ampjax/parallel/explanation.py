"""The explanation of how a runner keeps each variable, and why: a table to print and numbers to read.

It only presents what the plan, the steps and the searches know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampjax.errors import SettingsError
from ampjax.parallel.equivalence.watch import Equivalence
from ampjax.parallel.planning.partition_search import SearchResult
from ampjax.parallel.planning.transfer_costs import PredictedBytes
from ampjax.utils.counted import count_of
from ampjax.utils.text_tables import html_table, text_table


@dataclass(frozen=True)
class VariableReport:
    """One variable.

    Args:
      path: Its name.
      shape: Its shape.
      dtype: Its dtype.
      sparse: Whether detection found it sparse.
      reason: Its reads, or the use that made it dense.
      alpha: The share of its rows that a replica touched in a step, averaged over steps; None if it is dense.
      predicted: The bytes of the paper's Table 3 for both architectures.
      measured: Bytes that a machine sent and received for it in a step, averaged over steps; None before the first step.
      choice: Where it lives.
      partitions: Its partitions.
      placement: For each partition its server; empty if it is at none.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    sparse: bool
    reason: str
    alpha: float | None
    predicted: PredictedBytes
    measured: float | None
    choice: str
    partitions: int
    placement: tuple[int, ...]


@dataclass(frozen=True)
class Explanation:
    """A runner's variables; prints as a table.

    Args:
      variables: In the parameters' order.
      machines: Number of machines.
      replicas: Number of replicas.
      servers: Number of servers that were started.
      searches: Partition searches that have ended.
      equivalence: The result of the comparison with the joined batch.
    """

    variables: Sequence[VariableReport]
    machines: int
    replicas: int
    servers: int
    searches: Sequence[SearchResult]
    equivalence: Equivalence

    def __getitem__(self, path: str) -> VariableReport:
        by_path = {variable.path: variable for variable in self.variables}
        if path not in by_path:
            fix = "Take a path from the table that it prints."
            raise SettingsError("explain", f"one of {', '.join(by_path)}", f"{path!r}", fix)
        return by_path[path]

    def __str__(self) -> str:
        return text_table(
            _HEADERS,
            self._rows(),
            self._title,
            self._notes(),
        )

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(
            _HEADERS,
            self._rows(),
            self._title,
            self._notes(),
        )

    @property
    def _title(self) -> str:
        there_are = {
            "machine": self.machines,
            "replica": self.replicas,
            "server": self.servers,
        }
        return ", ".join(count_of(n, name) for name, n in there_are.items())

    def _rows(self) -> Iterator[list[str]]:
        for v in self.variables:
            alpha = "" if v.alpha is None else f"{v.alpha:.3g}"
            measured = "" if v.measured is None else _bytes(v.measured)
            numbers = (
                alpha,
                _bytes(v.predicted.ar),
                _bytes(v.predicted.ps),
                measured,
                f"{v.partitions}",
            )
            yield [
                f"{v.path} {list(v.shape)}",
                "sparse" if v.sparse else "dense",
                *numbers,
                _home(v),
            ]

    def _notes(self) -> Iterator[str]:
        if self.machines == 1:
            yield "one machine: nothing travels between machines, so all bytes are 0"
        yield from (f"{v.path}: {v.reason}" for v in self.variables)
        yield from map(str, self.searches)
        yield str(self.equivalence)


_HEADERS = ("variable", "kind", "alpha", "AR\nbytes", "PS\nbytes", "measured", "parts", "home")


def _home(variable: VariableReport) -> str:
    if not variable.placement:
        return variable.choice
    shown = ", ".join(map(str, variable.placement[:8])) + (
        ", ..." if len(variable.placement) > 8 else ""
    )
    return f"{variable.choice} ({shown})"


def _bytes(number: float) -> str:
    for unit in ("", "k", "M", "G"):
        if number < 1000 or unit == "G":
            return f"{number:.3g}{unit}"
        number /= 1000
    return ""
