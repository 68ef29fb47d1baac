"""The places of a graph's parameters, the way copies are kept together, and the staleness of gradients: a table and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ampjax.errors import SettingsError
from ampjax.ir.nodes import Node
from ampjax.train.runs.session import Session
from ampjax.utils.counted import count_of
from ampjax.utils.setting_checks import spelling
from ampjax.utils.text_tables import html_table, text_table

_TOGETHER = {
    "epoch": "copies are averaged after each epoch",
    "none": "copies are not averaged",
    "every_k": "copies are averaged when one has made {}",
    "message": "copies take a mean after {}, without waiting",
    "rounds": "copies make each step together, from the sum of their gradients",
}


@dataclass(frozen=True)
class ParameterReport:
    """The parameters of a node, or of the copies of a node.

    Args:
      name: The node's name, without a copy's number.
      nodes: The nodes that read them.
      copies: How many copies of the parameters there are.
      shape: The shape of a table, or of the only array; None if there are several arrays.
      n_bytes: Bytes of one copy, without gradients and optimizer state.
      workers: The workers that run these nodes.
      in_host_memory: Whether they are a table in host memory, whose rows are pulled and pushed.
      together: How what several nodes learn comes together; empty for one node.
      updates: Updates in the last run, of all copies.
      staleness_mean: The mean staleness of the gradient rows in these updates, in versions.
      staleness_max: The largest.
    """

    name: str
    nodes: tuple[str, ...]
    copies: int
    shape: tuple[int, ...] | None
    n_bytes: int
    workers: tuple[int, ...]
    in_host_memory: bool
    together: str
    updates: int
    staleness_mean: float
    staleness_max: int


@dataclass(frozen=True)
class TrainerExplanation:
    """A trainer's parameters; prints as a table.

    Args:
      parameters: By node, in the graph's order.
      run: The run whose updates are counted; empty before the first one.
    """

    parameters: Sequence[ParameterReport]
    run: str

    def __getitem__(self, name: str) -> ParameterReport:
        reports = {report.name: report for report in self.parameters}
        if name not in reports:
            where = "parameters to explain"
            expected = f"one of {list(reports)}"
            raise SettingsError(where, expected, f"{name!r}", spelling(str(name), reports))
        return reports[name]

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
        return f"Parameters; updates of {self.run}" if self.run else "Parameters"

    def _rows(self) -> Iterator[list[str]]:
        for p in self.parameters:
            shape = "" if p.shape is None else f" {list(p.shape)}"
            home = "host memory" if p.in_host_memory else "device"
            workers = ", ".join(map(str, p.workers))
            stale = (f"{p.staleness_mean:.2f}", f"{p.staleness_max}") if p.updates else ("", "")
            yield [
                f"{p.name}{shape}",
                f"{p.n_bytes:,}",
                f"{p.copies}",
                home,
                workers,
                f"{p.updates}",
                *stale,
            ]

    def _notes(self) -> Iterator[str]:
        yield from (f"{p.name}: {p.together}" for p in self.parameters if p.together)


_HEADERS = (
    "parameters",
    "bytes",
    "copies",
    "home",
    "workers",
    "updates",
    "staleness,\nmean",
    "largest",
)


def explain(session: Session) -> TrainerExplanation:
    """The explanation of a trainer.

    Args:
      session: What it works with.

    Returns:
      A table to print, with one entry for each node, or for the copies of each node.
    """
    roles: dict[str, list[Node]] = {}
    for node in session.plan.graph.parameterised.values():
        roles.setdefault(node.role, []).append(node)
    # once: hosts send them
    statistics = session.passes.statistics.training
    params = session.executor.store.params
    reports = []
    for role, owners in roles.items():
        reports.append(_report(session, params, role, owners))
    return TrainerExplanation(reports, statistics.run)


def _report(
    session: Session,
    params: Mapping[str, Any],
    role: str,
    owners: Sequence[Node],
) -> ParameterReport:
    names = {node.name for node in owners}
    table = owners[0].table
    readers = tuple(
        n.name for n in session.plan.graph.nodes.values() if n.has_params and n.params_name in names
    )
    if table is None:
        leaves = jax.tree.leaves(params[owners[0].name])
    else:
        leaves = [table]
    counts = session.passes.statistics.training.nodes
    seen = [counts[name] for name in sorted(names & counts.keys())]
    rows = sum(node.gradients for node in seen)
    return ParameterReport(
        name=role,
        nodes=readers,
        copies=len(owners),
        shape=tuple(leaves[0].shape) if len(leaves) == 1 else None,
        n_bytes=sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves),
        workers=tuple(sorted({session.plan.worker_of[name] for name in readers})),
        in_host_memory=table is not None,
        together=_together(session, owners, readers),
        updates=sum(node.updates for node in seen),
        staleness_mean=sum(node.staleness_sum for node in seen) / rows if rows else 0.0,
        staleness_max=max((node.staleness_max for node in seen), default=0),
    )


def _together(
    session: Session,
    owners: Sequence[Node],
    readers: Sequence[str],
) -> str:
    """Describes how copies of parameters stay together, or how several nodes share one; empty for a node with its own."""
    if len(owners) > 1:
        sync = session.settings.sync_rule
        rule = sync.rule if session.settings.mode == "async" else "rounds"
        return _TOGETHER[rule].format(count_of(sync.every, "update"))
    if len(readers) > 1:
        return f"one for {', '.join(readers)}; their gradients add up to one update"
    return ""
