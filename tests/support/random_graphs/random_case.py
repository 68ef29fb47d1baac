"""A random graph with instances for it, made from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from support.random_graphs.chance import Chance
from support.random_graphs.domains import OpenWire
from support.random_graphs.grower import Block, Grower
from support.random_graphs.loop_blocks import loop
from support.random_graphs.message_blocks import (
    binary,
    choice,
    concat,
    dead_branch,
    diamond,
    fan_out,
    loss,
    replicas,
    shift,
    two_outputs,
    unary,
)
from support.random_graphs.ragged_blocks import (
    distribute,
    flatmap,
    group,
    reduce,
    repeat,
    ungroup,
)

from ampjax.ir.graph import Graph
from ampjax.ir.instances import InstanceList


@dataclass(frozen=True)
class Case:
    """A random graph and instances for it.

    Args:
      graph: The graph, closed.
      instances: The instances as a data set.
      replay: A line of Python that rebuilds the case as `case`.
      data: The same instances as dictionaries.
    """

    graph: Graph = field(repr=False)
    instances: InstanceList = field(repr=False)
    replay: str
    data: list[dict[str, Any]] = field(repr=False)


def random_case(
    seed: int,
    *,
    size: int = 8,
    n_instances: int | None = None,
    dtype: str = "float32",
    sharing: bool = False,
) -> Case:
    """Makes a random graph, with instances; the same arguments give the same case.

    Args:
      seed: The seed.
      size: Blocks in the graph; a block is a few nodes. The graph also gets the pumps, losses and sinks that it needs.
      n_instances: How many instances; by default 1 to 6, at random.
      dtype: Of payloads and parameters. `float64` needs JAX's 64-bit mode.
      sharing: Whether many nodes compute with another's parameters; nothing else changes.

    Returns:
      The graph, with instances for its pumps.
    """
    chance = Chance(seed)
    with Graph() as graph:
        grower = Grower(chance, dtype, blocks_on, Chance(seed) if sharing else None)
        grower.add_pumps()
        grower.grow(size)
        grower.finish()
    n = chance.integer(1, 7) if n_instances is None else n_instances
    data = [grower.pumps.draw_instance() for _ in range(n)]
    ragged = []
    for name, node in graph.pumps.items():
        if node.op.type.ragged:
            ragged.append(name)
    options = f"size={size}, n_instances={n_instances}, dtype={dtype!r}, sharing={sharing}"
    replay = f"from support.random_graphs.random_case import random_case; case = random_case({seed}, {options})"
    return Case(graph, InstanceList(data, ragged), replay, data)


def blocks_on(
    grower: Grower,
    wire: OpenWire,
) -> Sequence[tuple[float, Block]]:
    """Lists the blocks that can be added on a wire; loops are nested at most once.

    Args:
      grower: The graph that is being built.
      wire: The wire.

    Returns:
      The blocks, each with its weight.
    """
    blocks: list[tuple[float, Block]] = [
        (3, unary), (2, binary), (1.5, concat), (1, two_outputs), (1, fan_out), (1, shift), (2, diamond), (0.7, dead_branch),
        (1, replicas), (1.5, choice), (0.5, loss), (1.5, flatmap), ((2.5, 4, 0)[grower.depth], loop),
    ]  # fmt: skip
    if wire.rows is None:
        return [*blocks, (1, repeat), (1.5, group)]
    return [
        *blocks,
        (2, ungroup),
        (3, reduce),
        (6, distribute),
    ]
