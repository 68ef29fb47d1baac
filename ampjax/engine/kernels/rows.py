"""Kernels: jitted functions over arenas.

Every kernel gathers input rows by slot, computes, and scatters result rows by slot, in one call. Arenas that it writes to are
donated, so the writes are in place. Rows beyond the last message are padding: they repeat a real input row, write to the trash
slot 0, and their cotangents are removed with `where` (0 times infinity would be NaN).

Integers are passed packed: one array `[n_lines, k]` with lines of slots and one that starts with the number of real rows (`sched.decisions.packs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ampjax.engine.kernels.looped import Kernel, kernel
from ampjax.engine.kernels.residuals import Kept, over_rows
from ampjax.engine.kernels.scatter import add_rows, read_rows, set_rows
from ampjax.engine.kernels.shared_kernels import shared
from ampjax.engine.kernels.stage_program import Program
from ampjax.engine.kernels.weight_gradients import Learning
from ampjax.ir.payload_nodes import metric_parts
from ampjax.jaxprs.axis_products import over_one_axis
from ampjax.optim.node_update import combine, trainable
from ampjax.plan.stages import ArenaKey
from ampjax.sched.columns import N_HEAD, TRASH


@dataclass(frozen=True)
class Wiring:
    """Where a stage's payloads and gradients go.

    Args:
      ports: For each port, the place of its arena among a kernel's arena arguments; None for host ports.
      outputs: For each output, the place of its arena.
      sole: For each port, whether its gradients are written; else they are added.
      written: For each output, whether its gradients will be written; else they start from zero.
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
        """Which rows are no padding, `[k]`."""
        return jnp.arange(pack.shape[1]) < pack[N_HEAD + len(self.ports) + len(self.outputs), 0]


def masked(mask: Array, x: Array) -> Array:
    """`x` with zeros in the rows where the mask is false."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 1)), x, jnp.zeros((), x.dtype))


def gathered(wiring: Wiring, arenas: tuple[Array, ...], host: tuple[Array, ...], pack: Array) -> tuple[Array, ...]:
    """The input rows of each port: gathered, or as they came from the host."""
    from_host = iter(host)
    return tuple(
        [
            next(from_host) if place is None else read_rows(arenas[place], wiring.of_port(pack, port))
            for port, place in enumerate(wiring.ports)
        ]
    )


def add_gradients(
    float_ports: tuple[bool, ...],
    wiring: Wiring,
    grads: tuple[Array, ...],
    pack: Array,
    mask: Array,
    cotangents: Sequence[Array],
) -> tuple[Array, ...]:
    """Puts input cotangents into the adjoint rows of the input slots; padding goes to the trash slot."""
    out = list(grads)
    values = iter(cotangents)
    for port, place in enumerate(wiring.ports):
        if place is not None and float_ports[port]:
            slots = jnp.where(mask, wiring.of_port(pack, port), TRASH)
            out[place] = _put(out[place], slots, masked(mask, next(values)), wiring.sole[port])
    return tuple(out)


def _put(grads: Array, slots: Array, cotangents: Array, sole: bool) -> Array:
    return (set_rows if sole else add_rows)(grads, slots, cotangents)


@shared
def forward(program: Program, wiring: Wiring) -> Kernel:
    """`kernel(params, written, read, host, pack) -> written`: a `rows` stage in inference.

    `written` are the output arenas (donated), `read` the input arenas that are not written. `wiring.ports` counts through both.
    """

    @kernel(changed=(1,), brought=(3, 4))
    def forward(params: Any, written: Any, read: Any, host: Any, pack: Any) -> Any:
        outs = over_rows(program, None)(params, gathered(wiring, (*written, *read), host, pack))
        return written_rows(wiring, written, pack, outs)

    return forward


@shared
def forward_train(program: Program, wiring: Wiring, kept: Kept) -> Kernel:
    """`kernel(params, written, grads, records, read, host, pack, seeds) -> (written, grads, records)`: a `rows` stage in training.

    Beside the output rows, the adjoint rows of the new outputs are set to zero (where consumers will add to them), and what the
    adjoint needs of the activations is recorded, in the slots of the first output. `written`, `grads` and `records` are donated.
    """

    @kernel(changed=(1, 2, 3), brought=(5, 6, 7))
    def forward_train(
        params: Any, written: Any, grads: Any, records: Any, read: Any, host: Any, pack: Any, seeds: Any
    ) -> Any:
        inputs = gathered(wiring, (*written, *read), host, pack)
        if kept.leaves:
            outs, values = kept.forward(program, params, inputs, seeds)
            slots = wiring.of_output(pack, 0)
            records = [set_rows(r, slots, x) for r, x in zip(records, values, strict=True)]
        else:
            outs = over_rows(program, seeds)(params, inputs)
        return written_rows(wiring, written, pack, outs), new_gradients(wiring, grads, pack), tuple(records)

    return forward_train


def new_gradients(wiring: Wiring, grads: tuple[Array, ...], pack: Array) -> tuple[Array, ...]:
    """The adjoint rows, with zeros for new outputs where consumers will add to them."""
    new = list(grads)
    for j, place in enumerate(wiring.outputs):
        if new[place] is not None and not wiring.written[j]:
            new[place] = set_rows(new[place], wiring.of_output(pack, j), 0)
    return tuple(new)


def cotangents(
    wiring: Wiring, grads: tuple[Array, ...], pack: Array, mask: Array, outs: tuple[Array, ...]
) -> tuple[Array, ...]:
    """The cotangents of the outputs `outs`: their adjoint rows, without padding."""
    found = []
    for j, (place, y) in enumerate(zip(wiring.outputs, outs, strict=True)):
        if grads[place] is None:
            found.append(jnp.zeros(y.shape, jax.dtypes.float0))
        else:
            found.append(masked(mask, read_rows(grads[place], wiring.of_output(pack, j))))
    return tuple(found)


@shared
def backward(program: Program, wiring: Wiring, kept: Kept, learning: Learning) -> Kernel:
    """`kernel(params, arenas, grads, learnt, records, host, pack, seeds, told) -> (grads, learnt)`: the adjoint of a `rows` stage.

    Output cotangents are read from the adjoint rows of the output slots; input cotangents are added to those of the input slots;
    weight gradients go to `learning`. Activations that depend on parameters come from `records`. `grads` and `learnt` are
    donated, and so are parameters that change; both arena tuples are in the same order.
    """

    @kernel(changed=(*learning.donated, 2, 3), brought=(5, 6, 7) if learning.goes_on else None)
    def backward(
        params: Any, arenas: Any, grads: Any, learnt: Any, records: Any, host: Any, pack: Any, seeds: Any, told: Any
    ) -> Any:
        mask = wiring.mask(pack)
        inputs = gathered(wiring, arenas, host, pack)
        # Padding reads the first row's: nothing may ever have been recorded in the trash slot, and 0 over 0 is no number.
        slots = wiring.of_output(pack, 0)
        slots = jnp.where(mask, slots, slots[0])
        outs, pull = kept.backward(program, params, inputs, seeds, [read_rows(r, slots) for r in records])
        returned = cotangents(wiring, grads, pack, mask, outs)
        weight_grads, *input_grads = over_one_axis(lambda: pull(returned), (*inputs, *outs))
        given_back = add_gradients(program.float_ports, wiring, grads, pack, mask, input_grads)
        return given_back, learning(params, learnt, weight_grads, told, input_grads)

    return backward


def written_rows(wiring: Wiring, arenas: tuple[Array, ...], pack: Array, outs: tuple[Array, ...]) -> tuple[Array, ...]:
    """The output arenas with the output rows in their slots."""
    new = list(arenas)
    for j, (place, y) in enumerate(zip(wiring.outputs, outs, strict=True)):
        new[place] = set_rows(new[place], wiring.of_output(pack, j), y)
    return tuple(new)


def _loss_sums(program: Program, params: Any, inputs: Any, mask: Array, seeds: Any = None) -> tuple[Array, Array]:
    """The summed loss of the real rows, and the line of sums that metrics are made of: rows, loss, (sum, count) of each metric."""
    loss, metrics = metric_parts(over_rows(program, seeds)(params, inputs))
    dtype = jnp.result_type(float)  # float64 in JAX's 64-bit mode
    columns = [jnp.ones_like(mask), loss]
    for value in metrics.values():
        columns += value if isinstance(value, tuple) else (value, jnp.ones_like(mask))
    # One sum over columns: a sum for each would be two fused kernels more for each, to be compiled and run.
    sums = jnp.where(mask[:, None], jnp.stack([column.astype(dtype) for column in columns], axis=1), 0).sum(0)
    return jnp.where(mask, loss, 0).sum(), sums


@shared
def loss_train(program: Program, wiring: Wiring, learning: Learning) -> Kernel:
    """`kernel(params, arenas, grads, learnt, metrics, host, pack, seeds, told) -> (grads, learnt, metrics)`: loss and adjoint at once."""

    @kernel(changed=(*learning.donated, 2, 3, 4), brought=(5, 6, 7) if learning.goes_on else None)
    def loss_train(
        params: Any, arenas: Any, grads: Any, learnt: Any, metrics: Any, host: Any, pack: Any, seeds: Any, told: Any
    ) -> Any:
        mask = wiring.mask(pack)
        inputs = gathered(wiring, arenas, host, pack)
        float_inputs = [x for x, takes in zip(inputs, program.float_ports, strict=True) if takes]

        def total(floats: Any, xs: Any) -> Any:
            given = iter(xs)
            full = tuple(next(given) if takes else x for x, takes in zip(inputs, program.float_ports, strict=True))
            joined = tuple(combine(p, f) for p, f in zip(params, floats, strict=True))
            return _loss_sums(program, joined, full, mask, seeds)

        grad = jax.grad(total, argnums=(0, 1), has_aux=True)
        floats = tuple(trainable(p) for p in params)
        (weight_grads, input_grads), sums = over_one_axis(lambda: grad(floats, float_inputs), inputs)
        return (
            add_gradients(program.float_ports, wiring, grads, pack, mask, input_grads),
            learning(params, learnt, weight_grads, told, input_grads),
            metrics + sums,
        )

    return loss_train


@shared
def loss_infer(program: Program, wiring: Wiring) -> Kernel:
    """`kernel(params, arenas, metrics, host, pack) -> metrics`: the loss alone."""

    @kernel(changed=(2,), brought=(3, 4))
    def loss_infer(params: Any, arenas: Any, metrics: Any, host: Any, pack: Any) -> Any:
        inputs = gathered(wiring, arenas, host, pack)
        return metrics + _loss_sums(program, params, inputs, wiring.mask(pack))[1]

    return loss_infer


Segments = Callable[..., Array]
"""`function(rows per port, segment ids per port, n_segments) -> [n_segments, ...]`; ids out of range are dropped."""


@dataclass(frozen=True)
class Reduction:
    """The computation of a `reduce` stage."""

    function: Callable[..., Array]

    def __call__(self, rows: tuple[Array, ...], ids: tuple[Array, ...], n: int) -> Array:
        """Rows `[r, *shape]` per port, to `[n, ...]`."""
        return self.function(rows[0], ids[0], n)


@dataclass(frozen=True)
class Collection:
    """The computation of a `collect` stage: rows added at their places."""

    def __call__(self, rows: tuple[Array, ...], ids: tuple[Array, ...], n: int) -> Array:
        """Rows `[r, *shape]` per port, to `[n, ...]`."""
        total = jnp.zeros((n, *rows[0].shape[1:]), rows[0].dtype)
        for r, i in zip(rows, ids, strict=True):
            total = total.at[i].add(r, mode="drop")
        return total


@shared
def segments_forward(function: Reduction | Collection, wiring: Wiring) -> Kernel:
    """`kernel(written, grads, read, host, slots, ids, out) -> (written, grads)`: rows of several messages at once into segments.

    `slots` and `ids` are tuples of `[r]` per port, `out` `[m]` the output slots.
    """

    @kernel(changed=(0, 1))
    def segments_forward(written: Any, grads: Any, read: Any, host: Any, slots: Any, ids: Any, out: Any) -> Any:
        rows = _segment_rows(wiring, (*written, *read), host, slots)
        y = function(rows, ids, out.shape[0])
        grad = grads[0] if grads[0] is None or wiring.written[0] else set_rows(grads[0], out, 0)
        return (set_rows(written[0], out, y),), (grad,)

    return segments_forward


@shared
def segments_backward(function: Reduction | Collection, wiring: Wiring) -> Kernel:
    """`kernel(arenas, grads, host, slots, ids, out, n) -> grads`: the adjoint; `n` is the number of real segments."""

    @kernel(changed=(1,))
    def segments_backward(arenas: Any, grads: Any, host: Any, slots: Any, ids: Any, out: Any, n: Any) -> Any:
        rows = _segment_rows(wiring, arenas, host, slots)
        _, pull = jax.vjp(lambda *r: function(r, ids, out.shape[0]), *rows)
        cotangent = masked(jnp.arange(out.shape[0]) < n, grads[wiring.outputs[0]][out])
        new = list(grads)
        for place, where, i, g in zip(wiring.ports, slots, ids, pull(cotangent), strict=True):
            if place is not None and new[place] is not None:
                real = i < out.shape[0]
                new[place] = add_rows(new[place], jnp.where(real, where, TRASH), masked(real, g))
        return tuple(new)

    return segments_backward


def _segment_rows(
    wiring: Wiring, arenas: tuple[Array, ...], host: tuple[Array, ...], slots: tuple[Array, ...]
) -> tuple[Array, ...]:
    from_host = iter(host)
    return tuple(
        next(from_host) if place is None else arenas[place][where]
        for place, where in zip(wiring.ports, slots, strict=True)
    )


Arenas = tuple[ArenaKey, ...]
"""Which arenas a kernel that works on any rows is for: it goes with the last graph that has them, where one kernel for all would keep what it has compiled for each."""


@shared
def put_rows(arenas: Arenas) -> Kernel:
    """`kernel(arena, grads, slots, rows) -> (arena, grads)`: writes rows to slots and, unless `grads` is None, sets their adjoint rows to zero."""

    @kernel(changed=(0, 1))
    def put_rows(arena: Any, grads: Any, slots: Any, rows: Any) -> Any:
        return set_rows(arena, slots, rows), grads if grads is None else set_rows(grads, slots, 0)

    return put_rows


@shared
def get_rows(arenas: Arenas) -> Kernel:
    """`kernel(arena, slots) -> rows`."""

    @kernel()
    def get_rows(arena: Any, slots: Any) -> Any:
        return arena[slots]

    return get_rows


@shared
def pay_rows(arenas: Arenas) -> Kernel:
    """`kernel(grads, slots, rows, sole) -> grads`: writes cotangent rows to the adjoint rows of slots, or adds them; padding has the trash slot."""

    @kernel(changed=(0,), static=(3,))
    def pay_rows(grads: Any, slots: Any, rows: Any, sole: bool) -> Any:
        return _put(grads, slots, rows, sole)

    return pay_rows


@shared
def corner(arenas: Arenas) -> Kernel:
    """`kernel(array) -> number`: the first of an array, to wait for."""

    @kernel()
    def corner(array: Any) -> Any:
        return array.reshape(-1)[0]

    return corner
