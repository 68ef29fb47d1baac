"""Copies of a part of the graph, which share the work and are kept together by the trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampjax.errors import GraphError
from ampjax.ir.builders.control_builders import cond, phi
from ampjax.ir.builders.payload_builders import NodeBuilder
from ampjax.ir.graph import Graph, current_graph
from ampjax.ir.state import StateFn
from ampjax.ir.wires import Wire


def replicate(
    part: NodeBuilder | Callable[..., Any],
    n: int,
    route: str | StateFn = "round_robin",
    name: str | None = None,
) -> Callable[..., Any]:
    """Makes `n` copies of a part of the graph between a cond and a phi (AMPNet, figure 4b); `replica_sync` keeps their parameters together.

    The part is a node, or a function from wires to wires that builds any number of nodes, loops and losses included. In a copy, names that
    the user gives end in the copy's number (`linear1/0`, `linear1/1`, ...). Nodes with parameters start from the same values in all copies,
    their losses are reported as one, and their sinks' messages come under one name. The affinity `default` puts each whole copy on a worker
    of its own, if there are enough workers. A node's own `worker` holds in all copies.

    Args:
      part: A node, not yet called: `amp.graphs.ppt("linear1", layer)`; or a function of wires that returns a wire, a tuple of wires, or None.
      n: Number of copies; 1 leaves the part as it is.
      route: `round_robin` (by instance), or a state function that gives the copy's number.
      name: The part's name; by default the node's, or the function's, with a number where that is taken.

    Returns:
      A function of the input wires that gives the output wire, or a tuple of them if the part has several outputs. Topologies are
      not routed: every copy has all of them.

    Raises:
      GraphError: If n < 1; if a function builds pumps, uses wires from outside that are not its arguments, or lets wires out that it does
        not return; or if it returns different things in different copies.
    """
    build = part.again if isinstance(part, NodeBuilder) else part
    called = (
        name
        or getattr(part, "name", None)
        or getattr(part, "__name__", "part").replace("<lambda>", "part")
    )
    is_named = name is not None or isinstance(part, NodeBuilder)
    where = f"replicate `{called}`"
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise GraphError(
            where,
            "n >= 1",
            f"n = {n!r}",
            "Pass the number of replicas; 1 leaves the part as it is.",
        )
    if n == 1:
        return part
    in_turn = route == "round_robin"
    if not in_turn and not callable(route):
        raise GraphError(
            f"{where}, route",
            "`round_robin` or a state function",
            f"{route!r}",
            "Pass a function of the state.",
        )

    def copies(*inputs: Wire) -> Wire | tuple[Wire, ...] | None:
        graph = current_graph()
        name = called if is_named else _free_part(graph, called)
        dealt = graph.copies.dealt
        if callable(route):
            choose: StateFn = route
        else:
            choose = lambda s: s.instance // dealt % n
        branches = []
        for i, wire in enumerate(inputs):
            branches.append(
                (wire,) * n
                if wire.is_topology
                else cond(wire, choose, n, name=f"{name}/route{i or ''}")
            )
        results = []
        for i in range(n):
            entries = [branch[i] for branch in branches]
            with graph.copies.copy(name, i, entries, n if in_turn else 1) as copy:
                results.append(build(*entries))
                copy.exits = _as_tuple(results[-1])
        outputs = [_as_tuple(result) for result in results]
        if len({len(wires) for wires in outputs}) > 1:
            got = " and ".join(str(len(wires)) for wires in outputs)
            raise GraphError(
                where, "as many outputs of each copy", got, "Build the same in every call."
            )
        joined = tuple(
            phi(f"{name}/join{k or ''}", *wires)
            for k, wires in enumerate(zip(*outputs, strict=True))
        )
        if isinstance(results[0], tuple):
            return joined
        return (joined or (None,))[0]

    return copies


def _as_tuple(result: Wire | tuple[Wire, ...] | None) -> tuple[Wire, ...]:
    if isinstance(result, tuple):
        return result
    if result is None:
        return ()
    return (result,)


def _free_part(graph: Graph, name: str) -> str:
    """A name that no part has that is copied here, with a number if need be."""
    free = name
    number = 2
    while graph.copies.full_name(f"{free}/route") in graph.nodes:
        free = f"{name}{number}"
        number = number + 1
    return free
