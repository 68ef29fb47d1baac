"""A stage as one pure function of a row: its nodes' bodies, wired together.

Programs are values: equal stages of different graphs have equal programs and share their compiled kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.ir.bodies import NodeBody
from ampjax.ir.nodes import Node
from ampjax.ir.ops.payload_nodes import Compute, Loss, RouteBy
from ampjax.ir.wires import Wire
from ampjax.plan.stages import HOST, Stage
from ampjax.utils.threefry import fold_in

Ref = tuple[str, int, int]
"""Where an input comes from: `("port", p, 0)`, or `("node", k, output)`."""


@dataclass(frozen=True)
class NodeCall:
    """One node in a program.

    Args:
      body: What it computes.
      inputs: Where its inputs come from.
      params: Its place among the program's parameters, or None.
      salt: A number of its own, so that two random nodes get different keys.
    """

    body: NodeBody
    inputs: tuple[Ref, ...]
    params: int | None
    salt: int


@dataclass(frozen=True)
class StageProgram:
    """A stage's computation on one row.

    Args:
      calls: Its nodes, sources first.
      outputs: Where its outputs come from (for a loss: the loss body's result).
      on_host: For each port, whether its rows are passed from host memory.
      float_ports: For each port, whether it takes a gradient: floats that lie on a device.
    """

    calls: tuple[NodeCall, ...]
    outputs: int
    on_host: tuple[bool, ...]
    float_ports: tuple[bool, ...]

    @property
    def random(self) -> bool:
        """Whether some node takes a PRNG key."""
        return any(call.body.rng for call in self.calls)

    def __call__(
        self,
        params: tuple[Any, ...],
        inputs: tuple[Any, ...],
        seed: Any = None,
    ) -> Any:
        """The outputs for one row: a tuple of arrays, or a loss body's result.

        Args:
          params: The pytrees of its nodes' parameters; those that nodes share once.
          inputs: One payload per port.
          seed: In training, the row's random number; None otherwise.
        """
        results: list[tuple[Any, ...]] = []
        out: Any = ()
        # Sources come first, so each call finds its inputs' values.
        for call in self.calls:
            values = []
            for ref in call.inputs:
                values.append(inputs[ref[1]] if ref[0] == "port" else results[ref[1]][ref[2]])
            of_node = () if call.params is None else params[call.params]
            options: dict[str, Any] = {}
            if call.body.rng:
                options["key"] = None if seed is None else _key(call.salt, seed)
            out = call.body.apply(of_node, *values, **options)
            results.append(tuple(out) if isinstance(out, (tuple, list)) else (out,))
        return out if self.outputs == 0 else results[-1]


def make_program(stage: Stage) -> StageProgram:
    """The program of a `rows` or `loss` stage."""
    takes = tuple(port.space != HOST and port.type.is_float for port in stage.ports)
    calls = _calls(stage.nodes, {})
    return StageProgram(
        calls,
        len(stage.outputs),
        tuple(port.space == HOST for port in stage.ports),
        takes,
    )


@dataclass(frozen=True)
class ChainProgram:
    """The computation of an `edges` stage.

    Args:
      edge_types: For each type of edges, what turns a sender's row into the row that travels.
      rows: From what a row has collected, and the rows of the stage's ports, to the outputs; None if that is what is collected itself.
      float_ports: For each port, whether it takes a gradient.
      places: For the nodes of each edge type, then for those on rows: which of the stage's parameters they have.
    """

    edge_types: tuple[StageProgram, ...]
    rows: StageProgram | None
    float_ports: tuple[bool, ...]
    places: tuple[tuple[int, ...], ...]

    @property
    def random(self) -> bool:
        """Whether some node takes a PRNG key."""
        return any(
            program.random for program in (*self.edge_types, self.rows) if program is not None
        )

    def split(
        self,
        params: tuple[Any, ...],
    ) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
        """Splits the stage's parameters: the ones of the nodes of each edge type, and the ones of the nodes on rows."""
        *of_edges, of_rows = [tuple(params[place] for place in places) for places in self.places]
        return of_edges, of_rows

    def join_gradients(self, grads: Sequence[Any]) -> tuple[Any, ...]:
        """Joins gradients of the nodes of each edge type, then of the nodes on rows, into the gradients of the stage's parameters."""
        total: dict[int, Any] = {}
        for place, grad in zip(
            (place for places in self.places for place in places), grads, strict=True
        ):
            if place in total:
                total[place] = jax.tree.map(
                    jnp.add,
                    total[place],
                    grad,
                )
            else:
                total[place] = grad
        return tuple(total[place] for place in sorted(total))


def make_chain_program(stage: Stage) -> ChainProgram:
    """The program of an `edges` stage."""
    chain = stage.chain
    assert chain is not None
    on_host = tuple(port.space == HOST for port in stage.ports)
    takes = tuple(
        not host and port.type.is_float for host, port in zip(on_host, stage.ports, strict=True)
    )
    edge_types = []
    for edge_type in chain.edge_types:
        calls = _calls(
            edge_type.nodes,
            {chain.distribute.outputs[edge_type.output]: ("port", 0, 0)},
        )
        edge_types.append(
            StageProgram(
                calls or (PASS,),
                1,
                on_host[:1],
                takes[:1],
            )
        )
    wires = dict.fromkeys(
        (
            chain.distribute.inputs[0],
            *(w for n in stage.row_nodes for w in n.inputs),
        )
    )
    outside = []
    for w in wires:
        if w is not None and w.source not in stage.nodes:
            outside.append(w)
    entries = {}
    for p, w in enumerate((chain.collect.outputs[0], *outside)):
        entries[w] = ("port", p, 0)
    rows = StageProgram(
        _calls(stage.row_nodes, entries),
        len(stage.outputs),
        (False, *on_host),
        (True, *takes),
    )
    places = tuple(
        _places(stage, nodes)
        for nodes in (*(edge_type.nodes for edge_type in chain.edge_types), stage.row_nodes)
    )
    return ChainProgram(tuple(edge_types), rows if stage.row_nodes else None, takes, places)


def _places(
    stage: Stage,
    nodes: Sequence[Node],
) -> tuple[int, ...]:
    """The places of some nodes' parameters among a stage's, in the order of their program's."""
    names = dict.fromkeys(node.params_name for node in nodes if node.has_params)
    return tuple(stage.params.index(name) for name in names)


def _calls(
    nodes: Sequence[Node],
    entries: dict[Wire, Ref],
) -> tuple[NodeCall, ...]:
    """The calls of nodes, sources first; wires from outside that `entries` lacks are added to `entries` as found."""
    names = [node.name for node in nodes]
    calls: list[NodeCall] = []
    params: dict[str, int] = {}
    for node in nodes:
        op = node.op
        assert isinstance(op, (Compute, RouteBy, Loss))
        refs: list[Ref] = []
        for wire in node.inputs:
            assert wire is not None
            if wire.source.name in names:
                refs.append(("node", names.index(wire.source.name), wire.port))
            else:
                refs.append(entries.setdefault(wire, ("port", len(entries), 0)))
        if node.has_params:
            place = params.setdefault(node.params_name, len(params))
        else:
            place = None
        calls.append(
            NodeCall(
                op.body,
                tuple(refs),
                place,
                _salt(node.role) if op.body.rng else 0,
            )
        )
    return tuple(calls)


def _same(params: Any, row: Any) -> Any:
    return row


PASS = NodeCall(
    NodeBody(_same),
    (("port", 0, 0),),
    None,
    0,
)
"""A call that hands its row on."""


def row_key(role: str, seed: Any) -> jax.Array:
    """The key that a random node's body gets for a row.

    Args:
      role: The node's name; of a copy, that of all copies.
      seed: The row's random number, uint32.
    """
    return _key(_salt(role), seed)


def _key(salt: int, seed: Any) -> jax.Array:
    return fold_in(jax.random.key(salt), seed)


def _salt(name: str) -> int:
    """A number from a name that is the same in every process."""
    value = 0
    for byte in name.encode():
        value = (value * 131 + byte) % (1 << 31)
    return value
