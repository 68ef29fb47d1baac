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
          GraphError: If it is not closed, or no graph.
        """
        if isinstance(self.source, Graph) or not callable(self.source):
            require_closed("tune", self.source)
            return self.source
        key = repr(sorted(knobs.items()))
        if key not in self._built:
            graph = self.source(**knobs)
            if not isinstance(graph, Graph):
                fix = "Return the graph that was built."
                raise GraphError("tune, `graph`", "a function that gives an `amp.Graph`", type(graph).__name__, fix)
            require_closed("tune", graph)
            self._built[key] = graph
        return self._built[key]
