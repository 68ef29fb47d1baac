"""The compiled program of one replica in its own process: one program with all replicas, or, where replicas do not step together, its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ampjax.devices.allreduce import issue_collective
from ampjax.devices.per_replica import Device, shard_of, spread_inputs
from ampjax.parallel.steps.batch_rows import ReplicaInputs
from ampjax.parallel.steps.step_programs import (
    GradientReduction,
    GradientResult,
    gradients,
    mapped_gradients,
)
from ampjax.sparse.rewrite.pulled_step import SparseProgram

Tree = Any


class ReplicaProgram(NamedTuple):
    """A forward and backward pass.

    Args:
      placed: Makes the program's dense parameters of host arrays.
      run: Takes dense parameters, pulled rows and a batch; what it gives may still be under way.
      entry: Reads one array of what `run` gives; waits for it.
    """

    placed: Callable[[Tree], Tree]
    run: Callable[[Tree, ReplicaInputs, Tree], GradientResult]
    entry: Callable[[Any], np.ndarray]


def compile_together(
    loss: SparseProgram,
    has_aux: bool,
    here: Device,
    everywhere: Sequence[Device],
    reduction: GradientReduction,
) -> ReplicaProgram:
    """Compiles a program that is one with the programs of all replicas.

    Args:
      loss: The loss on pulled rows.
      has_aux: Whether it gives `(loss, aux)`.
      here: This replica's device.
      everywhere: All replicas' devices, in order.
      reduction: What becomes of their gradients.
    """
    program = mapped_gradients(loss, has_aux, everywhere, reduction)

    def run(dense: Tree, given: ReplicaInputs, batch: Tree) -> GradientResult:
        if not reduction.gather:  # only an AllGatherv sends ids
            given = given._replace(ids={})
        inputs = spread_inputs([(*given, batch)], [here])
        return issue_collective(program, dense, *inputs, token=lambda result: result.loss)

    return ReplicaProgram(
        lambda params: spread_inputs([params], [here]),
        run,
        lambda leaf: np.asarray(shard_of(leaf, 0)),
    )


def compile_alone(loss: SparseProgram, has_aux: bool, here: Device) -> ReplicaProgram:
    """A program of its own; nothing is reduced.

    Args:
      loss: The loss on pulled rows.
      has_aux: Whether it gives `(loss, aux)`.
      here: This replica's device.
    """
    program = jax.jit(gradients(loss, has_aux))

    def run(dense: Tree, given: ReplicaInputs, batch: Tree) -> GradientResult:
        return program(
            *jax.device_put(
                (dense, given.rows, given.inverse, batch),
                here,
            )
        )

    return ReplicaProgram(lambda params: params, run, np.asarray)
