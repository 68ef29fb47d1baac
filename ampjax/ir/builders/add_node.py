"""Adds a node to the graph whose `with` block we are in."""

from __future__ import annotations

from typing import Any

from ampjax.ir.graph import current_graph
from ampjax.ir.wires import Wire


def add_with_one_output(
    op: Any,
    inputs: tuple[Wire | None, ...],
    name: str | None,
) -> Wire:
    """Adds a node with one output.

    Args:
      op: What it does.
      inputs: The wires that feed it; None leaves a port open.
      name: Its name; None for its kind and a number.

    Returns:
      The output.

    Raises:
      GraphError: Outside of a graph, or if the node can't be added to it.
    """
    return current_graph().add(name, op, inputs, 1).outputs[0]
