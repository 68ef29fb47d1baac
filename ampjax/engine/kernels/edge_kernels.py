"""Kernels of chains: a dispatch's graphs in one call, from the rows that come in to the rows that go out.

Messages over edges exist in here only. A way's bodies work once on each row that is sent over it, however many edges it leaves by; what arrives is a sum
of such rows. Senders come in one array, padded to a size for each way: padding repeats a real sender (or row 0, where a way has none), and no edge carries
what is made of it; its cotangents are removed with `where`. Padding edges have a receiver out of range, so that they are dropped.
Of the forward pass, what was collected is recorded beside the output rows, with what else the row-wise nodes' adjoint needs; the adjoint of
what is sent needs its sender's row only.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ampjax.engine.kernels.edge_sizes import PaddedEdges, Sizes
from ampjax.engine.kernels.looped import Kernel, kernel
from ampjax.engine.kernels.residuals import Kept, over_rows, row_vjp
from ampjax.engine.kernels.rows import (
    TRASH,
    Wiring,
    add_gradients,
    cotangents,
    gathered,
    masked,
    new_gradients,
    written_rows,
)
from ampjax.engine.kernels.scatter import INSIDE, set_rows
from ampjax.engine.kernels.shared_kernels import shared
from ampjax.engine.kernels.stage_program import ChainProgram, Program
from ampjax.engine.kernels.weight_gradients import accumulate
from ampjax.jaxprs.axis_products import over_one_axis

Seeds = tuple[Array | None, tuple[Array | None, ...]]
"""Random numbers of the rows, and of what is sent on each way."""


@shared
def forward(program: ChainProgram, wiring: Wiring) -> Kernel:
    """`kernel(params, written, read, host, pack, edges, sizes) -> written`: a chain in inference.

    `edges` is a `PaddedEdges` of these sizes. The other arguments are those of `kernels.forward`.
    """

    @kernel(changed=(1,), static=(6,))
    def forward(params: Any, written: Any, read: Any, host: Any, pack: Any, edges: Any, sizes: Sizes) -> Any:
        inputs = gathered(wiring, (*written, *read), host, pack)
        ways, own = program.split(params)
        collected = _collected(program, ways, inputs[0], edges, sizes, None)
        outs = (collected,) if program.rows is None else over_rows(program.rows, None)(own, (collected, *inputs))
        return written_rows(wiring, written, pack, outs)

    return forward


@shared
def forward_train(program: ChainProgram, wiring: Wiring, kept: Kept) -> Kernel:
    """`kernel(params, written, grads, records, read, host, pack, seeds, edges, sizes) -> (written, grads, records)`: a chain in training."""

    @kernel(changed=(1, 2, 3), static=(9,))
    def forward_train(
        params: Any,
        written: Any,
        grads: Any,
        records: Any,
        read: Any,
        host: Any,
        pack: Any,
        seeds: Seeds | None,
        edges: Any,
        sizes: Sizes,
    ) -> Any:
        inputs = gathered(wiring, (*written, *read), host, pack)
        of_rows, of_edges = seeds or (None, None)
        ways, own = program.split(params)
        collected = _collected(program, ways, inputs[0], edges, sizes, of_edges)
        outs: tuple[Array, ...] = (collected,)
        if program.rows is not None:
            outs, values = kept.forward(program.rows, own, (collected, *inputs), of_rows)
            values = (collected, *values) if records else ()
            records = [set_rows(r, wiring.of_output(pack, 0), x) for r, x in zip(records, values, strict=True)]
        return written_rows(wiring, written, pack, outs), new_gradients(wiring, grads, pack), tuple(records)

    return forward_train


@shared
def backward(program: ChainProgram, wiring: Wiring, kept: Kept) -> Kernel:
    """`kernel(params, arenas, grads, accumulators, records, host, pack, seeds, edges, sizes) -> (grads, accumulators)`: a chain's adjoint."""

    @kernel(changed=(2, 3), static=(9,))
    def backward(
        params: Any,
        arenas: Any,
        grads: Any,
        accumulators: Any,
        records: Any,
        host: Any,
        pack: Any,
        seeds: Seeds | None,
        edges: Any,
        sizes: Sizes,
    ) -> Any:
        inputs = gathered(wiring, arenas, host, pack)
        of_rows, of_edges = seeds or (None, None)
        ways, own = program.split(params)
        real = _real(wiring, pack)
        row_grads: tuple[Any, ...] = ()
        to_inputs: list[Any] = []
        if program.rows is None:
            (back,) = cotangents(wiring, grads, pack, real, inputs[:1])
        else:
            slots = wiring.of_output(pack, 0)
            slots = jnp.where(real, slots, slots[0])
            collected, *rest = (r.at[slots].get(**INSIDE) for r in records)
            outs, pull = kept.backward(program.rows, own, (collected, *inputs), of_rows, rest)
            returned = cotangents(wiring, grads, pack, real, outs)
            row_grads, back, *to_inputs = over_one_axis(lambda: pull(returned), (collected, *inputs, *outs))
        way_grads, to_senders = _to_senders(program, ways, inputs[0], back, edges, sizes, of_edges)
        if to_senders is not None:
            to_inputs[:1] = [to_inputs[0] + to_senders if to_inputs else to_senders]
        mask = wiring.mask(pack)
        return (
            add_gradients(program.float_ports, wiring, grads, pack, mask, to_inputs),
            accumulate(accumulators, program.joined((*way_grads, *row_grads))),
        )

    return backward


def _collected(
    program: ChainProgram, params: list[Any], rows: Array, edges: PaddedEdges, sizes: Sizes, seeds: Any
) -> Array:
    """What arrives at each row, `[k, ...]`: the senders' rows, sent along each way, and added up in the order of ways and edges."""
    parts = _senders(rows, edges, sizes)
    sent = [
        over_rows(way, _seeds(way, seeds, number))(own, (part,))[0]
        for number, (way, own, part) in enumerate(zip(program.ways, params, parts, strict=True))
    ]
    places, receivers = edges.ends
    carried = jnp.concatenate(sent).at[places].get(**INSIDE)
    return jnp.zeros((len(rows), *carried.shape[1:]), carried.dtype).at[receivers].add(carried, mode="drop")


def _to_senders(
    program: ChainProgram, params: list[Any], rows: Array, back: Array, edges: PaddedEdges, sizes: Sizes, seeds: Any
) -> tuple[list[Any], Array | None]:
    """The adjoint of `_collected`: weight gradients of the nodes on each way, and the rows' cotangents (None for rows that take none)."""
    places, receivers = edges.ends
    carried = masked(receivers < len(rows), back.at[receivers].get(mode="clip"))
    returned = jnp.zeros((len(edges.senders), *back.shape[1:]), back.dtype).at[places].add(carried, **INSIDE)
    there = [jnp.arange(size) < total for size, total in zip(sizes[:-1], edges.totals, strict=True)]
    weights: list[Any] = []
    sent_back: list[Array] = []
    parts = zip(program.ways, params, _senders(rows, edges, sizes), _parts(returned, sizes), there, strict=True)
    for number, (way, own, part, cotangent, real) in enumerate(parts):
        _, pull = row_vjp(way, own, (part,), _seeds(way, seeds, number))
        own_grads, *to_rows = over_one_axis(functools.partial(pull, (cotangent,)), (part, cotangent))
        # A way on which nothing is sent repeats a row that may be none of its kind: what comes of that is dropped.
        weights += jax.tree.map(functools.partial(_if, edges.totals[number] > 0), own_grads)
        sent_back += [masked(real, x) for x in to_rows]
    if not program.float_ports[0]:
        return weights, None
    return weights, jnp.zeros_like(rows).at[edges.senders].add(jnp.concatenate(sent_back), **INSIDE)


def _senders(rows: Array, edges: PaddedEdges, sizes: Sizes) -> list[Array]:
    """The rows that are sent, way by way: gathered for each way, as XLA would copy the parts of one array."""
    return [rows.at[senders].get(**INSIDE) for senders in _parts(edges.senders, sizes)]


def _parts(rows: Any, sizes: Sizes) -> list[Array]:
    """What is sent, `[sum(sent), ...]`, way by way."""
    return jnp.split(rows, np.cumsum(sizes[:-1])[:-1].tolist())


def _seeds(way: Program, seeds: Any, number: int) -> Array | None:
    return seeds[number] if seeds is not None and way.random else None


def _real(wiring: Wiring, pack: Array) -> Array:
    """Which rows of the outputs are no padding: padding goes to the trash slot."""
    return wiring.of_output(pack, 0) != TRASH


def _if(some: Array, gradient: Array) -> Array:
    return jnp.where(some, gradient, 0)
