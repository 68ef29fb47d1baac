"""A stage as one pure function of a row: its nodes' bodies, wired together.

Programs are values: equal stages of different graphs have equal programs and share their compiled kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from ampjax.ir.bodies import Body
from ampjax.ir.payload import Compute, Loss, RouteBy
from ampjax.sched.stages import HOST, Stage

Ref = tuple[str, int, int]
"""Where an input comes from: `("port", p, 0)`, or `("node", k, output)`."""


@dataclass(frozen=True)
class Call:
    """One node in a program.

    Args:
      body: What it computes.
      inputs: Where its inputs come from.
      params: Its place among the program's parameters, or None.
      salt: A number of its own, so that two random nodes get different keys.
    """

    body: Body
    inputs: tuple[Ref, ...]
    params: int | None
    salt: int


@dataclass(frozen=True)
class Program:
    """A stage's computation on one row.

    Args:
      calls: Its nodes, sources first.
      outputs: Where its outputs come from (for a loss: the loss body's result).
      on_host: For each port, whether its rows are passed from host memory.
      float_ports: For each port, whether it takes a gradient: floats that lie on a device.
    """

    calls: tuple[Call, ...]
    outputs: int
    on_host: tuple[bool, ...]
    float_ports: tuple[bool, ...]

    @property
    def random(self) -> bool:
        """Whether some node takes a PRNG key."""
        return any(call.body.rng for call in self.calls)

    def __call__(self, params: tuple[Any, ...], inputs: tuple[Any, ...], seed: Any = None) -> Any:
        """The outputs for one row: a tuple of arrays, or a loss body's result.

        Args:
          params: One pytree per parameterised node.
          inputs: One payload per port.
          seed: In training, the row's random number; None otherwise.
        """
        results: list[tuple[Any, ...]] = []
        out: Any = ()
        for call in self.calls:
            values = [inputs[ref[1]] if ref[0] == "port" else results[ref[1]][ref[2]] for ref in call.inputs]
            own = () if call.params is None else params[call.params]
            options: dict[str, Any] = {}
            if call.body.rng:
                options["key"] = None if seed is None else jax.random.fold_in(jax.random.key(call.salt), seed)
            out = call.body.apply(own, *values, **options)
            results.append(tuple(out) if isinstance(out, (tuple, list)) else (out,))
        return out if self.outputs == 0 else results[-1]


def make_program(stage: Stage) -> Program:
    """The program of a `rows` or `loss` stage."""
    entries: dict[Any, Ref] = {}
    names = [node.name for node in stage.nodes]
    calls: list[Call] = []
    n_params = 0
    next_port = 0
    for node in stage.nodes:
        op = node.op
        assert isinstance(op, (Compute, RouteBy, Loss))
        refs: list[Ref] = []
        for wire in node.inputs:
            assert wire is not None
            if wire.source.name in names:
                refs.append(("node", names.index(wire.source.name), wire.port))
                continue
            if wire not in entries:
                entries[wire] = ("port", next_port, 0)
                next_port += 1
            refs.append(entries[wire])
        has_params = op.body.init is not None
        calls.append(
            Call(op.body, tuple(refs), n_params if has_params else None, _salt(node.name) if op.body.rng else 0)
        )
        n_params += has_params
    return Program(
        tuple(calls),
        len(stage.outputs),
        tuple(port.space == HOST for port in stage.ports),
        tuple(port.space != HOST and port.type.is_float for port in stage.ports),
    )


def _salt(name: str) -> int:
    """A number from a name that is the same in every process."""
    value = 0
    for byte in name.encode():
        value = (value * 131 + byte) % (1 << 31)
    return value
