"""The graphs of all choices, each built once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ampjax.errors import GraphError, SettingsError
from ampjax.ir.graph import Graph
from ampjax.train.assemble import require_closed
from ampjax.tuning.search_space import GraphOrBuilder


@dataclass(frozen=True)
class BuiltGraphs:
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
          SettingsError: If the function does not take these knobs.
        """
        if isinstance(self.source, Graph) or not callable(self.source):
            return _check_graph(self.source)
        key = repr(sorted(knobs.items()))
        if key not in self._built:
            _require_knobs(self.source, knobs)
            graph = self.source(**knobs)
            if not isinstance(graph, Graph):
                fix = "Return the graph that was built."
                raise GraphError(
                    "tune, `graph`",
                    "a function that gives an `amp.graphs.Graph`",
                    type(graph).__name__,
                    fix,
                )
            self._built[key] = _check_graph(graph)
        return self._built[key]


def _require_knobs(
    source: Callable[..., Graph],
    knobs: Mapping[str, Any],
) -> None:
    """Checks that a function can be called with some knobs.

    Raises:
      SettingsError: If not.
    """
    try:
        signature = inspect.signature(source)
    except (TypeError, ValueError):  # of some functions that are not Python's nothing is known
        return
    try:
        signature.bind(**knobs)
    except TypeError as error:
        expected = "names of settings, and of the arguments of the function that builds the graph"
        got = f"{sorted(knobs)} for `{getattr(source, '__name__', source)}{signature}`: {error}"
        raise SettingsError("tune, `space`", expected, got, "Check their spelling.") from None


def _check_graph(graph: Graph) -> Graph:
    """A graph of which there can be several trainers.

    Raises:
      GraphError: If it is not closed, or no graph, or trials would train the same table.
    """
    require_closed("tune", graph)
    for name, node in graph.parameterised.items():
        if node.table is not None:
            fix = "Tune with `amp.nn.Embed` in its place, and few rows."
            got = f"node `{name}`, whose table in host memory all trials would train"
            raise GraphError(
                "tune, `graph`", "parameters of which each trial has its own", got, fix
            )
    return graph
