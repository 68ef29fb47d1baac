"""The explanation of a compiled model, in tables."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from ampjax.frontend.draft.graph_draft import GraphDraft
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.instances.instance_columns import CompiledInstances
from ampjax.ir.graph import Graph
from ampjax.simulation.simulate import simulate
from ampjax.utils.text_tables import fill_table, html_table

_IN_FLIGHT = 64


@dataclass(frozen=True)
class _ModelReport:
    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_text: bool = True


@dataclass(frozen=True)
class ModelExplanation:
    """The explanation of a compiled model; prints as tables, in notebooks too.

    Args:
      nodes: For each pump and each node that computes: its name, its kind, what there is one message of, and the user's lines that lead to it.
      fields: For each state field: its name, what it says, and the messages that carry it.
      dispatches: For each stage: its nodes, its messages and dispatches forward and backward, and rows a dispatch; empty without examples.
      assumes: Whether control reads computed values, for which the dispatches are those of what `amp.read` assumes.
    """

    nodes: Sequence[tuple[str, str, str, str]]
    fields: Sequence[tuple[str, str, str]]
    dispatches: Sequence[tuple[str, int, int, float]]
    assumes: bool = False

    def __str__(self) -> str:
        with io.StringIO() as text:
            console = Console(file=text, width=120, force_jupyter=False, force_terminal=False)
            for report in self._reports():
                table = fill_table(report.headers, report.rows, report.title)
                for column in table.columns[1:] if report.is_text else ():
                    column.justify = "left"
                console.print(table)
            return text.getvalue()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(
            html_table(report.headers, report.rows, report.title) for report in self._reports()
        )

    def _reports(self) -> Iterator[_ModelReport]:
        yield _ModelReport("Nodes", ("node", "kind", "one message for", "from"), self.nodes)
        yield _ModelReport("State fields", ("field", "what it says", "in messages of"), self.fields)
        if self.dispatches:
            rows = []
            for name, n, calls, mean in self.dispatches:
                rows.append((name, f"{n:,}", f"{calls:,}", f"{mean:.1f}"))
            title = f"Computed together, with {_IN_FLIGHT} instances in flight"
            if self.assumes:
                title += ", where each `amp.read` gives what it assumes"
            yield _ModelReport(
                title, ("stage", "messages", "dispatches", "messages\na dispatch"), rows, False
            )


def explain_model(
    graph: Graph, draft: GraphDraft, examples: CompiledInstances | None
) -> ModelExplanation:
    """Explains a compiled model.

    Args:
      graph: The graph.
      draft: How it was made.
      examples: Some instances; None leaves out what is computed together.
    """
    nodes = [
        (name, node.kind, repr(origin.region), origin.line)
        for name, node in graph.nodes.items()
        if (origin := draft.origins.get(node.role)) is not None
    ]
    spaces: dict[IndexSpace, None] = {}
    for origin in draft.origins.values():
        spaces |= dict.fromkeys(reversed(origin.region.space.around()))
    fields = []
    for space in spaces:
        for name, meaning in space.meanings.items():
            fields.append((name, meaning, repr(space)))
    known = {name for name, *_ in fields}
    guards = [guard.field for origin in draft.origins.values() for guard in origin.region.guards]
    fields += [
        (name, "which function runs", "none: the host knows it")
        for name in dict.fromkeys(guards)
        if name not in known
    ]
    dispatches: list[tuple[str, int, int, float]] = []
    if examples is not None:
        stages = simulate(graph, examples, max_active_keys=_IN_FLIGHT).stats.stages
        for name, stage in stages.items():
            n = stage.forward + stage.backward + stage.infer
            if stage.dispatches:
                dispatches.append((name, n, stage.dispatches, n / stage.dispatches))
    assumes = any(node.kind == "RouteBy" for node in graph.nodes.values())
    return ModelExplanation(nodes, fields, dispatches, assumes)
