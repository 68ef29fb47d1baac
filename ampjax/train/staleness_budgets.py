"""Staleness budgets: how stale the gradients of each node may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph

MOST = (1 << 16) - 1
"""The largest budget: a node has a counter for each version that gradients in flight may have seen."""


def check_budgets(max_staleness: Any) -> None:
    """Checks the setting `max_staleness`.

    Args:
      max_staleness: What the user passed.

    Raises:
      SettingsError: If it is neither None, nor versions, nor versions by node.
    """
    if max_staleness is None:
        return
    for k in max_staleness.values() if isinstance(max_staleness, Mapping) else [max_staleness]:
        if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= MOST:
            expected = f"versions from 0 to {MOST}, or such a number for each of some nodes"
            fix = "Pass an integer, as in `max_staleness=4` or `max_staleness={'embed': 4}`, or leave it out."
            raise SettingsError("setting `max_staleness`", expected, f"{max_staleness!r:.80}", fix)


def budgets_of(graph: Graph, max_staleness: int | Mapping[str, int] | None) -> dict[str, int]:
    """Gives each node its budget.

    Args:
      graph: A closed graph.
      max_staleness: Versions for all nodes, or by node; None for no budget.

    Returns:
      Versions by node, of those that have a budget.

    Raises:
      SettingsError: If a node is named that has no parameters of its own.
    """
    nodes = graph.parameterised
    if max_staleness is None:
        return {}
    if not isinstance(max_staleness, Mapping):
        return dict.fromkeys(nodes, max_staleness)
    for name in max_staleness:
        if name not in nodes:
            node = graph.nodes.get(name)
            shares = None if node is None or node.params_name == name else node.params_name
            got = "no node of the graph" if node is None else "a node without parameters of its own"
            fix = f"Name `{shares}`, whose parameters it uses." if shares in nodes else "Name one of these."
            raise SettingsError("setting `max_staleness`", f"names among {list(nodes)}", f"{name!r}, {got}", fix)
    return dict(max_staleness)
