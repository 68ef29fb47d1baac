"""Compares the joined batch's loss with the replicas' losses: do replicas compute the same as a single device?

Both are computed at the present parameters, and for the first batch again after a small move of all parameters: where a last layer starts with
zeros, the first loss says nothing. Random draws are left out (`ampjax.sparse.detection.random_draws`). Only losses are compared. So a program
whose losses are equal but whose gradients are not (statistics of the batch behind `stop_gradient` that cancel in the value) is not found.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.devices.allreduce import issue_collective
from ampjax.devices.loss_collectives import AXIS
from ampjax.devices.mapped import map_over_devices
from ampjax.devices.per_replica import Device, spread, spread_inputs
from ampjax.errors import EquivalenceError
from ampjax.jaxprs import primitives
from ampjax.parallel.equivalence import causes
from ampjax.parallel.equivalence.joined_batch import JoinedBatch, Skipped
from ampjax.parallel.planning.build_runner import RunnerSetup, Step
from ampjax.parallel.planning.variable_plan import VariablePlan
from ampjax.parallel.steps.batch_rows import PaddedSizes
from ampjax.parallel.steps.synchronous_steps import DenseStep
from ampjax.sparse.detection.loss_jaxpr import TracedLoss, trace_loss
from ampjax.sparse.rewrite.split_loss import SplitLoss
from ampjax.sparse.rewrite.unique_ids import pad_rows, unique_rows

Tree = Any

HERE = (0.0, 0.0)
NEARBY = (0.05, 0.01)
"""By how much parameters are moved: as a share of each number, and in absolute terms."""

UNITS = 64
"""Rounding of a loss in float32, in units of the last place: sums of many terms in another order come to less."""

MARGIN = 4
"""How much the measured effect of rounding is widened: it is measured with one pattern of signs, and another may have a larger effect."""


class Comparison:
    """The compiled losses of the joined batch and of all parts, for batches of one shape.

    Args:
      setup: What the model is trained with.
      plan: What became of its variables.
      whole: The loss function for the joined batch, without randomness.
      part: The same for a part.
    """

    def __init__(
        self,
        setup: RunnerSetup,
        plan: VariablePlan,
        whole: TracedLoss,
        part: TracedLoss,
    ):
        self._setup = setup
        self._plan = plan
        self._n = len(setup.resources.devices)
        # Where replicas are processes, one device of this one computes them all.
        self._devices = setup.resources.devices if setup.group is None else [None] * self._n
        try:
            self._programs = [plan.program.split_of(loss) for loss in (whole, part)]
        except Exception as error:  # of what the user's program does with batches of that size
            raise Skipped(f"{type(error).__name__}: {error}") from error
        axis = AXIS if setup.config.sync else None
        self._mapped = [
            _map_loss(self._programs[0], self._devices[:1], axis),
            _map_loss(self._programs[1], self._devices, axis),
        ]
        self._ids = [_ids_of(program) for program in self._programs]
        self._sizes = PaddedSizes()
        smallest = _largest_eps(whole.jaxpr)
        single = float(jnp.finfo(jnp.float32).eps)
        out = float(jnp.finfo(whole.jaxpr.outvars[0].aval.dtype).eps)
        if smallest > single:
            coarse = smallest / 2 * _coarse_additions(whole.jaxpr)
        else:
            coarse = 0.0
        self._eps = smallest
        self._unit = 2 * out + UNITS * min(smallest, single) + coarse

    def compare(
        self,
        step: Step,
        batch: JoinedBatch,
        which: str,
        places: Sequence[tuple[float, float]],
    ) -> tuple[causes.Losses, EquivalenceError | None]:
        """Compares the losses of a batch. Nothing is changed, and no traffic counted.

        It computes the loss (not its gradient) of the joined batch on the first device, and of all parts on all devices.

        Args:
          step: The model's step; parameters are read from there.
          batch: The batch.
          which: What it is called in errors.
          places: By how much parameters are moved, one comparison after the other.

        Returns:
          The losses: those that differ, or else the first; and the error that says so.

        Raises:
          Skipped: If there is no loss to compare.
        """
        run = self._inputs(step, batch)
        config = self._setup.config
        first = None
        for place in places:
            one = run.joined_loss(place)
            each = run.replicas(place)
            total = math.fsum(each)
            over = self._n if config.average_dense == "mean" else 1
            if not config.sync:  # gradients are neither averaged nor summed, so either will do
                over = min(
                    (1, self._n),
                    key=lambda over, one=one, total=total: abs(total / over - one),
                )
            scale = max(
                abs(one),
                math.fsum(map(abs, each)) / over,
            )
            pair = causes.Losses(one, total / over, scale * self._unit)
            is_finite = math.isfinite(one), math.isfinite(pair.replicas)
            if first is None and not any(is_finite):
                raise Skipped(f"the loss is {one}")
            if first is not None and not all(is_finite):
                break
            if not pair.agree:
                noise = MARGIN * abs(run.joined_loss(place, self._eps) - one)
                pair = dataclasses.replace(
                    pair, rounding=pair.rounding + (noise if math.isfinite(noise) else 0.0)
                )
            first = first or pair
            if not pair.agree:
                find = functools.partial(self._mixing, batch)
                return pair, causes.explain_difference(
                    pair, self._n, config, place != HERE, find, which
                )
        assert first is not None
        return first, None

    def _inputs(self, step: Step, batch: JoinedBatch) -> _LossRun:
        """The arguments of both programs."""
        parts = batch.parts
        joined = batch.whole
        ids = [
            self._ids[0](joined),
            *(self._ids[1](part) for part in parts),
        ]
        rows, inverses = self._rows(step, ids)
        dense = _dense(self._setup, step)
        is_here = self._setup.group is None
        first = jax.tree.map(
            lambda leaf: leaf.addressable_data(0) if is_here else leaf[:1],
            dense,
        )
        joined_input, *part_inputs = [
            (rows, i, each) for i, each in zip(inverses, (joined, *parts), strict=True)
        ]
        if is_here:
            together = functools.partial(spread_inputs, devices=self._devices)
        else:
            together = _stack_trees
        one = (
            first,
            *spread_inputs([joined_input], self._devices[:1]),
        )
        return _LossRun(
            self._mapped,
            (one, (dense, *together(part_inputs))),
        )

    def _rows(
        self,
        step: Step,
        ids: Sequence[dict[str, np.ndarray]],
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Collects the rows of each table that any of some programs reads, padded; and for each program the positions of its ids there."""
        rows = {}
        inverses = [{} for _ in ids]
        for name in ids[0]:
            table = self._plan.program.tables[name]
            unique = unique_rows(
                np.concatenate([each[name] for each in ids]),
                table.shape[0],
            )
            pulled = np.asarray(step.tables[name][0].pull(unique.ids)).astype(
                table.dtype
            )  # they may come narrower
            rows[name] = pad_rows(
                pulled,
                self._sizes.at_least(name, len(unique.ids)),
            )
            stops = np.cumsum([len(each[name]) for each in ids])[:-1]
            for inverse, positions in zip(
                inverses,
                np.split(
                    unique.inverse,
                    stops,
                ),
                strict=True,
            ):
                inverse[name] = positions
        return rows, inverses

    def _mixing(self, batch: JoinedBatch) -> list[causes.Mixing]:
        """Finds the operations of the program that bring examples together."""
        loss_fn = self._setup.loss_fn
        params = self._plan.program.params
        part, whole = (trace_loss(loss_fn, params, each) for each in (batch.parts[0], batch.shapes))
        return causes.find_mixing(part.jaxpr, whole.jaxpr)


class _LossRun(NamedTuple):
    """The losses of one batch.

    Args:
      programs: For the joined batch, and for all parts.
      arguments: Those of both.
    """

    programs: Sequence[Callable[..., Any]]
    arguments: tuple[tuple[Any, ...], tuple[Any, ...]]

    def joined_loss(
        self,
        place: tuple[float, float],
        more: float = 0.0,
    ) -> float:
        """The loss of the joined batch, with parameters moved by some parts of themselves more."""
        return float(
            np.asarray(_run(self.programs[0], *self.arguments[0], place[0] + more, place[1]))[0]
        )

    def replicas(self, place: tuple[float, float]) -> list[float]:
        """Each replica's loss."""
        result = []
        for loss in np.asarray(
            _run(
                self.programs[1],
                *self.arguments[1],
                *place,
            )
        ):
            result.append(float(loss))
        return result


def _ids_of(program: SplitLoss) -> Callable[[Tree], dict[str, np.ndarray]]:
    """The program that gives the ids of a batch, by table."""
    if not program.axes:
        return lambda batch: {}
    none: list[Any] = [None] * len(program.traced.leaves)
    compiled = jax.jit(lambda batch: program.ids([*none, *jax.tree.leaves(batch)]))
    return lambda batch: {table: np.asarray(array) for table, array in compiled(batch).items()}


def _map_loss(
    program: SplitLoss,
    devices: Sequence[Device],
    axis: str | None,
) -> Callable[..., Any]:
    """The loss alone: `(dense_params, rows, inverse, batch, relative, absolute) -> loss`, mapped; on one device, if none are given."""

    def loss(
        dense: Tree,
        rows: Any,
        inverse: Any,
        batch: Tree,
        relative: Any,
        absolute: Any,
    ) -> jax.Array:
        dense, rows = jax.tree.map(
            lambda leaf: _move_numbers(leaf, relative, absolute),
            (dense, rows),
        )
        leaves = program.traced.params_tree.flatten_up_to(dense)
        out = program.loss(
            [*leaves, *jax.tree.leaves(batch)],
            rows,
            inverse,
        )
        return out[0] if program.traced.has_aux else out

    in_axes = (0, 0, 0, 0, None, None)
    if devices[0] is None:
        return jax.jit(jax.vmap(loss, in_axes=in_axes, axis_name=axis))
    return map_over_devices(loss, devices, axis, in_axes=in_axes)


def _run(program: Callable[..., Any], *args: Any) -> Any:
    try:
        return jax.block_until_ready(issue_collective(program, *args, token=lambda losses: losses))
    except jax.errors.JaxRuntimeError as error:  # the joined batch may be too large for one device
        raise Skipped(f"it could not be computed: {str(error).splitlines()[0]}") from error


def _move_numbers(
    leaf: jax.Array,
    relative: Any,
    absolute: Any,
) -> jax.Array:
    """Moves each number of a parameter by another amount, in an order unknown to any program."""
    wide = jnp.promote_types(leaf.dtype, jnp.float32)
    pattern = jnp.sin(12.9898 * jnp.arange(leaf.size, dtype=wide)).reshape(leaf.shape)
    # Without a move it has to stay as it is, also where a number is infinite.
    moved = leaf.astype(wide) * (1 + relative * pattern) + absolute * pattern
    return moved.astype(leaf.dtype)


def _dense(setup: RunnerSetup, step: Step) -> Tree:
    """Collects dense parameters on all devices, `[n, ...]`: the step's own where the step holds them there."""
    if isinstance(step, DenseStep):
        return step.params
    if setup.group is None and not setup.config.dense_at_servers:
        return step.homes.dense.pull()
    params, _ = step.homes.dense.read()
    devices = setup.resources.devices
    if setup.group is not None:
        return _stack_trees([params] * len(devices))
    return spread([params] * len(devices), devices)


def _stack_trees(trees: Sequence[Tree]) -> Tree:
    """Trees with a leading axis for replicas, on one device."""
    return jax.tree.map(
        lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]),
        *trees,
    )


def _largest_eps(jaxpr: Any) -> float:
    """The unit in the last place of the least precise floats that a jaxpr computes with."""
    units = [float(jnp.finfo(jnp.float64).eps)]
    for eqn in primitives.opened(jaxpr)[0].eqns:
        dtypes = []
        for v in (*eqn.invars, *eqn.outvars):
            if hasattr(v.aval, "dtype"):
                dtypes.append(v.aval.dtype)
        units += [
            float(jnp.finfo(dtype).eps) for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact)
        ]
        units += [_largest_eps(inner) for inner in primitives.inner(eqn)]
    return max(units)


def _coarse_additions(jaxpr: Any) -> int:
    """Counts roundings in a loop of a scalar less precise than float32: the steps of the longest `scan` that carries one, 1 without."""
    longest = 1
    for eqn in primitives.opened(jaxpr)[0].eqns:
        times = max([1, *map(_coarse_additions, primitives.inner(eqn))])
        if eqn.primitive.name == "scan":
            _, carried, _ = primitives.scan_parts(eqn, eqn.invars)
            if any(v.aval.size == 1 and _is_coarse(v.aval.dtype) for v in carried) or times > 1:
                times *= eqn.params["length"]
        longest = max(longest, times)
    return longest


def _is_coarse(dtype: Any) -> bool:
    return bool(
        jnp.issubdtype(
            dtype,
            jnp.inexact,
        )
        and jnp.finfo(dtype).eps > jnp.finfo(jnp.float32).eps
    )
