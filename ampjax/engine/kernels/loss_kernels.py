"""Kernels of losses: the loss and its gradients in one call, and the loss alone. The calling convention is in `kernels.kernel`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ampjax.engine.kernels.kernel import Kernel, PerDispatch, kernel
from ampjax.engine.kernels.residuals import over_rows
from ampjax.engine.kernels.shared_kernels import shared
from ampjax.engine.kernels.stage_program import StageProgram
from ampjax.engine.kernels.weight_gradients import GradientConsumer
from ampjax.engine.kernels.wiring import Wiring, add_gradients, gather_inputs
from ampjax.ir.ops.body_shapes import metric_parts
from ampjax.jaxprs.axis_products import over_one_axis
from ampjax.jaxprs.wide_sums import with_wide_sums
from ampjax.optim.node_update import combine, trainable


@shared
def train(program: StageProgram, wiring: Wiring, consumer: GradientConsumer) -> Kernel:
    """`kernel(params, (grads, states, sums), arenas, per_dispatch) -> (grads, states, sums)`: loss and adjoint at once.

    `sums` is the line of `loss_metrics.LossSums`, to which the dispatch's is added; the others are those of `rows.backward`.
    """

    @kernel(loops=consumer.loopable, donates_params=consumer.donates_params)
    def loss_train(
        params: Any,
        donated: Any,
        arenas: Any,
        dispatch: PerDispatch,
    ) -> Any:
        grads, states, sums = donated
        pack = dispatch.pack
        mask = wiring.mask(pack)
        inputs = gather_inputs(wiring, arenas, dispatch.host, pack)
        # Only ports that take a gradient are differentiated; the others are constants.
        float_inputs = []
        for x, takes in zip(inputs, program.float_ports, strict=True):
            if takes:
                float_inputs.append(x)

        def total(floats: Any, xs: Any) -> Any:
            floats_of_ports = iter(xs)
            full = tuple(
                next(floats_of_ports) if takes else x
                for x, takes in zip(inputs, program.float_ports, strict=True)
            )
            joined = tuple(combine(p, f) for p, f in zip(params, floats, strict=True))
            return _loss_sums(program, joined, full, mask, dispatch.seeds)

        grad = jax.grad(total, argnums=(0, 1), has_aux=True)
        # Integer leaves of parameters stay out of the gradient, too.
        floats = tuple(trainable(p) for p in params)

        def weights_first() -> Any:
            (weight_grads, input_grads), new_sums = grad(floats, float_inputs)
            return weight_grads, (input_grads, new_sums)

        weight_grads, (input_grads, new_sums) = with_wide_sums(
            lambda: over_one_axis(weights_first, inputs), params
        )
        return (
            add_gradients(program.float_ports, wiring, grads, pack, mask, input_grads),
            consumer(params, states, weight_grads, dispatch.scalars, input_grads),
            sums + new_sums,
        )

    return loss_train


@shared
def infer(program: StageProgram, wiring: Wiring) -> Kernel:
    """`kernel(params, sums, arenas, per_dispatch) -> sums`: the loss alone."""

    @kernel(loops=True)
    def loss_infer(
        params: Any,
        sums: Any,
        arenas: Any,
        dispatch: PerDispatch,
    ) -> Any:
        inputs = gather_inputs(wiring, arenas, dispatch.host, dispatch.pack)
        return sums + _loss_sums(program, params, inputs, wiring.mask(dispatch.pack))[1]

    return loss_infer


def _loss_sums(
    program: StageProgram,
    params: Any,
    inputs: Any,
    mask: Array,
    seeds: Any = None,
) -> tuple[Array, Array]:
    """The summed loss of the real rows, and the line of sums that metrics are made of: rows, loss, (sum, count) of each metric."""
    loss, metrics = metric_parts(over_rows(program, seeds)(params, inputs))
    dtype = jnp.result_type(float)  # float64 in JAX's 64-bit mode
    # A column for each number that metrics need: rows, loss, then a sum and a count for each
    # metric.
    columns = [jnp.ones_like(mask), loss]
    for value in metrics.values():
        if isinstance(value, tuple):
            columns += value
        else:
            columns += (value, jnp.ones_like(mask))
    # One sum over columns: a sum for each would be two fused kernels more for each, to be compiled and run.
    sums = jnp.where(
        mask[:, None],
        jnp.stack(
            [column.astype(dtype) for column in columns],
            axis=1,
        ),
        0,
    ).sum(0)
    return jnp.where(mask, loss, 0).sum(), sums
