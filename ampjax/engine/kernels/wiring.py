"""The steps that all kernels of a stage share: from arenas to input rows, and from results back to arenas.

A kernel gathers input rows by slot, computes, and scatters result rows by slot, in one call. Arenas that it writes to are donated, so the
writes are in place. Rows beyond the last message are padding: they repeat a real input row and write to the trash slot 0. Their cotangents
are removed with `where`, since multiplying with a mask would turn infinity into NaN.

All integers are in one array, the pack, `[n_lines, k]`: lines of slots, and a line that starts with the number of real rows
(`sched.decisions.packs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ampjax.engine.kernels.scatter import add_rows, read_rows, set_rows
from ampjax.sched.layout.columns import N_HEAD, TRASH


@dataclass(frozen=True)
class Wiring:
    """The arenas of a stage's ports and outputs, and how their gradients are stored.

    Args:
      ports: For each port, its arena's place in `(*values, *read)`, the arenas that a kernel is given; None for host ports.
      outputs: For each output, the place of its arena.
      sole: For each port, whether its stage is the only consumer of its messages: it then writes their gradients, and else adds to them.
      written: For each output, whether its messages have a sole consumer, so that adjoint rows need not start from zero.
    """

    ports: tuple[int | None, ...]
    outputs: tuple[int, ...]
    sole: tuple[bool, ...] = ()
    written: tuple[bool, ...] = ()

    def of_port(self, pack: Array, port: int) -> Array:
        """The slots of a port's rows, `[k]`."""
        return pack[N_HEAD + port]

    def of_output(self, pack: Array, output: int) -> Array:
        """The slots of an output's rows, `[k]`."""
        return pack[N_HEAD + len(self.ports) + output]

    def mask(self, pack: Array) -> Array:
        """A mask of the rows that are not padding, `[k]`."""
        return jnp.arange(pack.shape[1]) < pack[N_HEAD + len(self.ports) + len(self.outputs), 0]


def mask_rows(mask: Array, x: Array) -> Array:
    """`x` with zeros in the rows where the mask is false."""
    return jnp.where(
        mask.reshape(mask.shape + (1,) * (x.ndim - 1)),
        x,
        jnp.zeros((), x.dtype),
    )


def gather_inputs(
    wiring: Wiring,
    arenas: tuple[Array, ...],
    host: tuple[Array, ...],
    pack: Array,
) -> tuple[Array, ...]:
    """The input rows of each port, `[k, *shape]`: gathered from its arena, or passed from the host."""
    from_host = iter(host)
    result = []
    for port, place in enumerate(wiring.ports):
        result.append(
            next(from_host)
            if place is None
            else read_rows(arenas[place], wiring.of_port(pack, port))
        )
    return tuple(result)


def write_outputs(
    wiring: Wiring,
    arenas: tuple[Array, ...],
    pack: Array,
    outs: tuple[Array, ...],
) -> tuple[Array, ...]:
    """The output arenas with the output rows in their slots."""
    new = list(arenas)
    for j, (place, y) in enumerate(zip(wiring.outputs, outs, strict=True)):
        new[place] = set_rows(
            new[place],
            wiring.of_output(pack, j),
            y,
        )
    return tuple(new)


def new_gradients(
    wiring: Wiring,
    grads: tuple[Any, ...],
    pack: Array,
) -> tuple[Any, ...]:
    """The adjoint rows, with zeros for new outputs where consumers will add gradients."""
    new = list(grads)
    for j, place in enumerate(wiring.outputs):
        if new[place] is not None and not wiring.written[j]:
            new[place] = set_rows(
                new[place],
                wiring.of_output(pack, j),
                0,
            )
    return tuple(new)


def cotangents(
    wiring: Wiring,
    grads: tuple[Any, ...],
    pack: Array,
    mask: Array,
    outs: tuple[Array, ...],
) -> tuple[Array, ...]:
    """The cotangents of the outputs `outs`: their adjoint rows, without padding."""
    result = []
    for j, (place, y) in enumerate(zip(wiring.outputs, outs, strict=True)):
        if grads[place] is None:
            result.append(jnp.zeros(y.shape, jax.dtypes.float0))
        else:
            result.append(
                mask_rows(
                    mask,
                    read_rows(grads[place], wiring.of_output(pack, j)),
                )
            )
    return tuple(result)


def add_gradients(
    float_ports: tuple[bool, ...],
    wiring: Wiring,
    grads: tuple[Any, ...],
    pack: Array,
    mask: Array,
    cotangents: Sequence[Array],
) -> tuple[Any, ...]:
    """Puts input cotangents into the adjoint rows of the input slots; padding goes to the trash slot.

    Args:
      float_ports: For each port, whether it takes a gradient.
      wiring: The stage's.
      grads: The adjoint rows of the kernel's arenas.
      pack: The dispatch's slots.
      mask: Which rows are not padding, `[k]`.
      cotangents: `[k, *shape]` for each port that takes one.

    Returns:
      The adjoint rows, changed.
    """
    out = list(grads)
    values = iter(cotangents)
    for port, place in enumerate(wiring.ports):
        if place is not None and float_ports[port]:
            # Padding repeats a real input row; its gradient, zero, goes to the trash slot.
            slots = jnp.where(mask, wiring.of_port(pack, port), TRASH)
            out[place] = put_gradients(
                out[place],
                slots,
                mask_rows(mask, next(values)),
                wiring.sole[port],
            )
    return tuple(out)


def put_gradients(
    grads: Array,
    slots: Array,
    cotangents: Array,
    sole: bool,
) -> Array:
    """Adjoint rows with cotangents written at slots, where the port is the sole consumer, or else added."""
    return (set_rows if sole else add_rows)(grads, slots, cotangents)
