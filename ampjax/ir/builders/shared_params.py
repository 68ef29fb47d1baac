"""Finds the node with whose parameters another is to compute, and checks that the two fit each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

from ampjax.errors import GraphError
from ampjax.ir.bodies import NodeBody
from ampjax.ir.graph import Graph
from ampjax.ir.host_tables import HostTable
from ampjax.ir.nodes import Node, NodeOptions
from ampjax.ir.wires import Wire

OWNERS = ("tx", "min_update_interval", "weights", "gradient")
"""The options that belong to parameters, not to a node that computes with them."""


def check_sharing(name: str, params: Any, options: NodeOptions) -> None:
    """Checks that a node which computes with another's parameters is not given options that belong to the parameters.

    Args:
      name: The node's name.
      params: The parameters that it was given; should be None.
      options: Its options.

    Raises:
      GraphError: If it was given parameters, or options of theirs.
    """
    settings = ["params"] * (params is not None) + [
        o for o in OWNERS if getattr(options, o) is not None
    ]
    if settings:
        raise GraphError(
            f"node `{name}`",
            f"no `{settings[0]}` beside `params_of`",
            f"`{settings[0]}`",
            "Give it to the node that has the parameters: they have one tree, one optimizer state and one update rule.",
        )


class _Named(Protocol):
    """A node's builder, of which only the name is read."""

    name: str


def find_owner(
    graph: Graph,
    name: str,
    params_of: str | Wire | _Named,
) -> Node:
    """Finds the node that has the parameters.

    Args:
      graph: The graph that is being built.
      name: The name of the node that is to compute with them.
      params_of: The name of a PPT, the PPT as `ppt` gave it, or one of its wires; it may itself compute with another's parameters.

    Returns:
      The node whose parameters they are.

    Raises:
      GraphError: If there is no such PPT yet, or it is in a copy of a part of the graph in which the other node is not.
    """
    where = f"node `{name}`, params_of"
    if isinstance(params_of, Wire):
        owner_name = params_of.source.name
    else:
        owner_name = str(getattr(params_of, "name", params_of))
    if isinstance(params_of, Wire):
        source = params_of.source if graph.nodes.get(owner_name) is params_of.source else None
    else:
        source = next(
            (graph.nodes[n] for n in graph.copies.names_from_here(owner_name) if n in graph.nodes),
            None,
        )
    if source is None or not source.has_params:
        owners = [f"`{owner}`" for owner in graph.parameterised]
        raise GraphError(
            where,
            f"a PPT that has been called before: {', '.join(owners) or 'there is none yet'}",
            f"`{owner_name}`" if source is None else f"the {source.kind} `{source.name}`",
            "Call the node that has the parameters first, and name it.",
        )
    owner = graph.nodes[source.params_name]
    if owner.copies != graph.copies.around[: len(owner.copies)]:
        raise GraphError(
            where,
            "a PPT outside of all copies, or in the same copy",
            f"`{owner.name}`, in a copy of `{owner.copies[-1].name}`",
            f"Build both nodes in the function of `{owner.copies[-1].name}`: each copy has its own parameters.",
        )
    return owner


def shared_options(
    owner: Node, name: str, options: NodeOptions, others: Iterable[Node]
) -> NodeOptions:
    """The options of a node that computes with another's parameters: the owner's options where these concern parameters.

    Args:
      owner: The node that has the parameters.
      name: The other node's name.
      options: What the user set for it.
      others: All nodes that compute with these parameters already.

    Raises:
      GraphError: If it is to be on another worker than they are.
    """
    for other in others:
        if (
            None not in (options.worker, other.options.worker)
            and options.worker != other.options.worker
        ):
            raise GraphError(
                f"node `{name}`, worker",
                f"worker {other.options.worker}, that of `{other.name}`, as the two compute with the parameters of `{owner.name}`",
                f"worker {options.worker}",
                "Put the two on one worker, or leave one of them to the affinity rule.",
            )
    return replace(
        options,
        params_of=owner.name,
        **{option: getattr(owner.options, option) for option in OWNERS},
    )


def check_no_table(name: str, body: NodeBody, owner: Node) -> None:
    """Checks that neither of two nodes that share parameters has a table in host memory, whose rows any nodes may look up anyway.

    Args:
      name: The name of the node that is to compute with the other's parameters.
      body: Its body.
      owner: The node that has the parameters.

    Raises:
      GraphError: If one has.
    """
    if body.table is not None or owner.table is not None:
        raise GraphError(
            f"node `{name}`, params_of",
            "parameters that lie on a device",
            f"a table in host memory, beside `{owner.name}`",
            "Give both nodes a `TableEmbed` of the table, without `params_of`; what reads all rows needs them on a device: `amp.nn.Embed`.",
        )


def with_own_transform(
    name: str, options: NodeOptions, tx: Any, table: HostTable | None
) -> NodeOptions:
    """The options of a node whose layer has an optimizer of its own, whether its parameters are a table or on the device.

    Args:
      name: The node's name.
      options: What the user set for it.
      tx: The layer's transform.
      table: The table that has it already, if there is one.

    Returns:
      The options.

    Raises:
      GraphError: If the user set a transform, too.
    """
    if options.tx is not None:
        raise GraphError(
            f"node `{name}`, tx",
            "none: its layer has an optimizer of its own",
            "a transform",
            "Leave `tx` out, and give the table its optimizer when it is made.",
        )
    return options if table is not None else replace(options, tx=tx)


def options_at_table(
    graph: Graph, name: str, table: HostTable, options: NodeOptions
) -> NodeOptions:
    """The options of a node that looks rows of a table up. All that do so in a graph, copies included, share its parameters.

    Returns:
      The options; with `params_of`, if another node looks rows of this table up already.

    Raises:
      GraphError: If it has a transform, which is the table's own; or other options of its parameters than that other node.
    """
    if options.tx is not None:
        fix = "Pass it to the table: `Table(values, tx)`."
        raise GraphError(
            f"node `{name}`, tx", "none: its table has an optimizer of its own", "a transform", fix
        )
    owner = next(
        (node for node in graph.parameterised.values() if node.table is table),
        None,
    )
    if owner is None:
        return options
    for option in OWNERS:
        of_node = getattr(options, option)
        of_owner = getattr(owner.options, option)
        if of_node not in (None, of_owner):
            raise GraphError(
                f"node `{name}`, {option}",
                f"{of_owner!r}, as at `{owner.name}`, which looks rows of the same table up",
                f"{of_node!r}",
                "Set it at the first of these nodes only: they have one update rule.",
            )
    return shared_options(owner, name, options, graph.users[owner.name])
