"""Kernels of row-wise stages: forward, forward with records, and the adjoint. The calling convention is in `kernels.kernel`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ampjax.engine.kernels.kernel import Kernel, PerDispatch, kernel
from ampjax.engine.kernels.residuals import Residuals, over_rows
from ampjax.engine.kernels.scatter import read_rows, set_rows
from ampjax.engine.kernels.shared_kernels import shared
from ampjax.engine.kernels.stage_program import StageProgram
from ampjax.engine.kernels.weight_gradients import GradientConsumer
from ampjax.engine.kernels.wiring import (
    Wiring,
    add_gradients,
    cotangents,
    gather_inputs,
    new_gradients,
    write_outputs,
)
from ampjax.jaxprs.axis_products import over_one_axis
from ampjax.jaxprs.wide_sums import with_wide_sums


@shared
def forward(program: StageProgram, wiring: Wiring) -> Kernel:
    """`kernel(params, values, read, per_dispatch) -> values`: a `rows` stage in inference.

    `values` are the arenas of the outputs, `read` those of the inputs that are not among them. `wiring.ports` are places in `(*values, *read)`.
    """

    @kernel(loops=True)
    def forward(
        params: Any,
        values: Any,
        read: Any,
        dispatch: PerDispatch,
    ) -> Any:
        outs = over_rows(program, None)(
            params,
            gather_inputs(wiring, (*values, *read), dispatch.host, dispatch.pack),
        )
        return write_outputs(wiring, values, dispatch.pack, outs)

    return forward


@shared
def forward_train(program: StageProgram, wiring: Wiring, residuals: Residuals) -> Kernel:
    """`kernel(params, (values, grads, records), read, per_dispatch) -> (values, grads, records)`: a `rows` stage in training.

    In addition to the output rows, it sets the adjoint rows of the new outputs to zero (if consumers will add to them), and records the
    activations that the adjoint needs, in arrays indexed by the slots of the first output.
    """

    @kernel(loops=True)
    def forward_train(
        params: Any,
        donated: Any,
        read: Any,
        dispatch: PerDispatch,
    ) -> Any:
        values, grads, records = donated
        pack = dispatch.pack
        inputs = gather_inputs(wiring, (*values, *read), dispatch.host, pack)
        # Records are written to the slots of the first output, so that the adjoint finds them by
        # its messages' slots.
        if residuals.leaves:
            outs, recorded = residuals.forward(program, params, inputs, dispatch.seeds)
            slots = wiring.of_output(pack, 0)
            records = [set_rows(r, slots, x) for r, x in zip(records, recorded, strict=True)]
        else:
            outs = over_rows(program, dispatch.seeds)(params, inputs)
        # Outputs, zeros for their adjoint rows, records: all in donated arrays, so in place.
        return (
            write_outputs(wiring, values, pack, outs),
            new_gradients(wiring, grads, pack),
            tuple(records),
        )

    return forward_train


@shared
def backward(
    program: StageProgram, wiring: Wiring, residuals: Residuals, consumer: GradientConsumer
) -> Kernel:
    """`kernel(params, (grads, states), (arenas, records), per_dispatch) -> (grads, states)`: the adjoint of a `rows` stage.

    It reads output cotangents from the adjoint rows of the output slots and adds input cotangents to the adjoint rows of the input slots.
    Weight gradients go to the consumer. Activations that depend on parameters come from `records`. Parameters are donated
    if the consumer changes them; `arenas` and `grads` are in the same order.
    """

    @kernel(loops=consumer.loopable, donates_params=consumer.donates_params)
    def backward(
        params: Any,
        donated: Any,
        read: Any,
        dispatch: PerDispatch,
    ) -> Any:
        grads, states = donated
        arenas, records = read
        pack = dispatch.pack
        mask = wiring.mask(pack)
        inputs = gather_inputs(wiring, arenas, dispatch.host, pack)
        # Padding reads the records of the first row: the trash slot may be empty, and a derivative that divides by a recorded 0 is NaN.
        slots = wiring.of_output(pack, 0)
        slots = jnp.where(mask, slots, slots[0])
        outs, pull = residuals.backward(
            program,
            params,
            inputs,
            dispatch.seeds,
            [read_rows(r, slots) for r in records],
        )
        # The output cotangents, without those of padding; then the pullback, whose weight gradients
        # are sums over rows.
        returned = cotangents(wiring, grads, pack, mask, outs)
        weight_grads, *input_grads = with_wide_sums(
            lambda: over_one_axis(lambda: pull(returned), (*inputs, *outs)),
            params,
        )
        # The consumer is shown the input cotangents, too: it must not write new parameters before
        # these have been computed from the old ones.
        new_grads = add_gradients(program.float_ports, wiring, grads, pack, mask, input_grads)
        return new_grads, consumer(params, states, weight_grads, dispatch.scalars, input_grads)

    return backward
