"""The graphs of all choices, each built once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ampjax.errors import GraphError
from ampjax.ir.graph import Graph
from ampjax.train.assemble import require_closed
from ampjax.tuning.search_space import GraphOrBuilder


@dataclass(frozen=True)
class Graphs:
    """Builds graphs from knobs.

    Args:
      source: A graph, or a function that builds one from a choice's knobs.
    """

    source: GraphOrBuilder
    _built: dict[str, Graph] = field(default_factory=dict)

    def of(self, knobs: Mapping[str, Any]) -> Graph:
        """The graph of a choice.

        Args:
          knobs: The choice's knobs, by name.

        Raises:
          GraphError: If it is not closed, or no graph, or trials would train the same table.
        """
        if isinstance(self.source, Graph) or not callable(self.source):
            return _checked(self.source)
        key = repr(sorted(knobs.items()))
        if key not in self._built:
            graph = self.source(**knobs)
            if not isinstance(graph, Graph):
                fix = "Return the graph that was built."
                raise GraphError("tune, `graph`", "a function that gives an `amp.Graph`", type(graph).__name__, fix)
            self._built[key] = _checked(graph)
        return self._built[key]


def _checked(graph: Graph) -> Graph:
    """A graph of which there can be several trainers.

    Raises:
      GraphError: If it is not closed, or no graph, or trials would train the same table.
    """
    require_closed("tune", graph)
    for name, node in graph.parameterised.items():
        if node.table is not None:
            fix = "Tune with `amp.nn.Embed` in its place, and few rows."
            got = f"node `{name}`, whose table in host memory all trials would train"
            raise GraphError("tune, `graph`", "parameters of which each trial has its own", got, fix)
    return graph
