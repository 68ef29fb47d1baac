"""Kernels of chains: a dispatch's graphs in one call, from the rows that come in to the rows that go out.

Messages over edges exist in here only. The bodies of an edge type work once on each row that is sent, however many edges it leaves by; what
arrives is a sum of such rows. Senders come in one array, padded to a size for each type: padding repeats a real sender (or row 0, where a
type has none), and no edge carries what is made of it; its cotangents are removed with `where`. Padding edges have a receiver out of range,
so that they are dropped. Of the forward pass, what was collected is recorded beside the output rows, with what else the row-wise nodes'
adjoint needs; the adjoint of what is sent needs its sender's row only.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ampjax.engine.kernels.edge_sizes import PaddedEdges, Sizes
from ampjax.engine.kernels.kernel import Kernel, PerDispatch, kernel
from ampjax.engine.kernels.residuals import Residuals, over_rows, row_vjp
from ampjax.engine.kernels.scatter import INSIDE, set_rows
from ampjax.engine.kernels.shared_kernels import shared
from ampjax.engine.kernels.stage_program import ChainProgram, StageProgram
from ampjax.engine.kernels.weight_gradients import Accumulating
from ampjax.engine.kernels.wiring import (
    Wiring,
    add_gradients,
    cotangents,
    gather_inputs,
    mask_rows,
    new_gradients,
    write_outputs,
)
from ampjax.jaxprs.axis_products import over_one_axis
from ampjax.jaxprs.wide_sums import wide_segment_sum, with_wide_sums
from ampjax.sched.layout.columns import TRASH

Seeds = tuple[Array | None, tuple[Array | None, ...]]
"""Random numbers of the rows, and of what is sent over each type of edges."""


@shared
def forward(program: ChainProgram, wiring: Wiring) -> Kernel:
    """`kernel(params, values, read, per_dispatch, sizes) -> values`: a chain in inference.

    `sizes` are the padded sizes of the dispatch's edges. The other arguments are those of `rows.forward`.
    """

    @kernel(takes_sizes=True)
    def edges_forward(
        params: Any, values: Any, read: Any, dispatch: PerDispatch, sizes: Sizes
    ) -> Any:
        inputs = gather_inputs(
            wiring,
            (*values, *read),
            dispatch.host,
            dispatch.pack,
        )
        edge_params, row_params = program.split(params)
        collected = _SentOverEdges(
            program, edge_params, inputs[0], dispatch.edges, sizes, None
        ).collect()
        if program.rows is None:
            outs = (collected,)
        else:
            outs = over_rows(program.rows, None)(row_params, (collected, *inputs))
        return write_outputs(wiring, values, dispatch.pack, outs)

    return edges_forward


@shared
def forward_train(program: ChainProgram, wiring: Wiring, residuals: Residuals) -> Kernel:
    """`kernel(params, (values, grads, records), read, per_dispatch, sizes) -> (values, grads, records)`: a chain in training."""

    @kernel(takes_sizes=True)
    def edges_forward_train(
        params: Any, donated: Any, read: Any, dispatch: PerDispatch, sizes: Sizes
    ) -> Any:
        values, grads, records = donated
        pack = dispatch.pack
        inputs = gather_inputs(wiring, (*values, *read), dispatch.host, pack)
        of_rows, of_edges = dispatch.seeds or (None, None)
        edge_params, row_params = program.split(params)
        collected = _SentOverEdges(
            program, edge_params, inputs[0], dispatch.edges, sizes, of_edges
        ).collect()
        outs: tuple[Array, ...] = (collected,)
        # The nodes on rows read what was collected. It is recorded, as the adjoint does not send
        # anything again for it.
        if program.rows is not None:
            outs, recorded = residuals.forward(
                program.rows,
                row_params,
                (collected, *inputs),
                of_rows,
            )
            recorded = (collected, *recorded) if records else ()
            records = [
                set_rows(r, wiring.of_output(pack, 0), x)
                for r, x in zip(records, recorded, strict=True)
            ]
        return (
            write_outputs(wiring, values, pack, outs),
            new_gradients(wiring, grads, pack),
            tuple(records),
        )

    return edges_forward_train


@shared
def backward(
    program: ChainProgram, wiring: Wiring, residuals: Residuals, consumer: Accumulating
) -> Kernel:
    """`kernel(params, (grads, accumulators), (arenas, records), per_dispatch, sizes) -> (grads, accumulators)`: a chain's adjoint."""

    @kernel(takes_sizes=True)
    def edges_backward(
        params: Any, donated: Any, read: Any, dispatch: PerDispatch, sizes: Sizes
    ) -> Any:
        grads, accumulators = donated
        arenas, records = read
        pack = dispatch.pack
        inputs = gather_inputs(wiring, arenas, dispatch.host, pack)
        of_rows, of_edges = dispatch.seeds or (None, None)
        edge_params, row_params = program.split(params)
        real = _real(wiring, pack)
        row_grads: tuple[Any, ...] = ()
        to_inputs: list[Any] = []
        # From the outputs back to what was collected: directly, or through the nodes on rows.
        if program.rows is None:
            (back,) = cotangents(
                wiring,
                grads,
                pack,
                real,
                inputs[:1],
            )
        else:
            # Padding reads the records of the first row: the trash slot may be empty.
            slots = wiring.of_output(pack, 0)
            slots = jnp.where(real, slots, slots[0])
            collected, *rest = (r.at[slots].get(**INSIDE) for r in records)
            outs, pull = residuals.backward(
                program.rows,
                row_params,
                (collected, *inputs),
                of_rows,
                rest,
            )
            returned = cotangents(wiring, grads, pack, real, outs)
            row_grads, back, *to_inputs = with_wide_sums(
                lambda: over_one_axis(lambda: pull(returned), (collected, *inputs, *outs)),
                row_params,
            )
        # From what was collected back over the edges to the senders.
        edge_grads, to_senders = _SentOverEdges(
            program, edge_params, inputs[0], dispatch.edges, sizes, of_edges
        ).pull_back(back)
        # A row may be a sender and an input of the nodes on rows: both gradients are its own.
        if to_senders is not None:
            to_inputs[:1] = [to_inputs[0] + to_senders if to_inputs else to_senders]
        mask = wiring.mask(pack)
        return (
            add_gradients(program.float_ports, wiring, grads, pack, mask, to_inputs),
            consumer(
                params,
                accumulators,
                program.join_gradients((*edge_grads, *row_grads)),
                None,
                (),
            ),
        )

    return edges_backward


@dataclass(frozen=True)
class _SentOverEdges:
    """The rows that are sent over the edges of a chain.

    Args:
      program: The chain's.
      params: The parameters of the nodes of each edge type.
      rows: `[k, ...]`: all rows, senders among them.
      edges: The dispatch's edges, padded.
      sizes: Their padded sizes.
      seeds: The random numbers of what is sent over each type of edges, or None.
    """

    program: ChainProgram
    params: list[Any]
    rows: Array
    edges: PaddedEdges
    sizes: Sizes
    seeds: Any

    def collect(self) -> Array:
        """The sums that arrive at each row, `[k, ...]`: results of senders' rows, added up in the order of types and edges."""
        sent = []
        # Each type's bodies run once on each row that is sent.
        for number, (body, params, part) in enumerate(
            zip(self.program.edge_types, self.params, self._senders(), strict=True)
        ):
            sent.append(over_rows(body, self._seeds(body, number))(params, (part,))[0])
        # Then each edge carries its sender's result, and receivers add up. Padding edges have a
        # receiver out of range.
        places, receivers = self.edges.ends
        carried = jnp.concatenate(sent).at[places].get(**INSIDE)
        return wide_segment_sum(
            carried,
            receivers,
            len(self.rows),
            mode="drop",
        )

    def pull_back(
        self,
        back: Array,
    ) -> tuple[list[Any], Array | None]:
        """The adjoint of `collect`.

        Args:
          back: `[k, ...]`: the cotangents of what arrives.

        Returns:
          Weight gradients of the nodes of each edge type, and the rows' cotangents `[k, ...]` (None for rows that take none).
        """
        edges = self.edges
        rows = self.rows
        sizes = self.sizes
        places, receivers = edges.ends
        # Each edge carries its receiver's cotangent back; padding edges carry zeros.
        carried = mask_rows(
            receivers < len(rows),
            back.at[receivers].get(mode="clip"),
        )
        # A sent row gets the sum over the edges by which it has left.
        returned = wide_segment_sum(
            carried,
            places,
            len(edges.senders),
            **INSIDE,
        )
        masks = []
        for size, total in zip(sizes[:-1], edges.totals, strict=True):
            masks.append(jnp.arange(size) < total)
        weights: list[Any] = []
        sent_back: list[Array] = []
        parts = zip(
            self.program.edge_types,
            self.params,
            self._senders(),
            _parts(returned, sizes),
            masks,
            strict=True,
        )
        # Type by type through the bodies, which are computed again from their senders' rows.
        for number, (body, params, part, cotangent, real) in enumerate(parts):
            _, pull = row_vjp(
                body,
                params,
                (part,),
                self._seeds(body, number),
            )
            back_over = functools.partial(
                over_one_axis, functools.partial(pull, (cotangent,)), (part, cotangent)
            )
            own_grads, *to_rows = with_wide_sums(back_over, params)
            # A type over which nothing is sent repeats a row that may be none of its own: what comes of that is dropped.
            weights += jax.tree.map(
                functools.partial(_if, edges.totals[number] > 0),
                own_grads,
            )
            sent_back += [mask_rows(real, x) for x in to_rows]
        # Rows that take no gradient end here.
        if not self.program.float_ports[0]:
            return weights, None
        return weights, wide_segment_sum(
            jnp.concatenate(sent_back),
            edges.senders,
            len(rows),
            **INSIDE,
        )

    def _senders(self) -> list[Array]:
        """The rows that are sent, type by type: gathered for each, as XLA would copy the parts of one array."""
        result = []
        for senders in _parts(self.edges.senders, self.sizes):
            result.append(self.rows.at[senders].get(**INSIDE))
        return result

    def _seeds(self, body: StageProgram, number: int) -> Array | None:
        return self.seeds[number] if self.seeds is not None and body.random else None


def _parts(rows: Any, sizes: Sizes) -> list[Array]:
    """Cuts the sent rows, `[sum(sent), ...]`, into one part for each type."""
    return jnp.split(
        rows,
        np.cumsum(sizes[:-1])[:-1].tolist(),
    )


def _real(wiring: Wiring, pack: Array) -> Array:
    """A mask of the real rows of the outputs: padding goes to the trash slot."""
    return wiring.of_output(pack, 0) != TRASH


def _if(some: Array, gradient: Array) -> Array:
    return jnp.where(some, gradient, 0)
