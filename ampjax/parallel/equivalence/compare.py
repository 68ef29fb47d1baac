"""Compares the joined batch's loss with the replicas' losses before the first step: do replicas compute what a single device computes?

Both are computed at the first parameters, and again after a small move of all parameters: where a last layer starts with zeros, the first
loss says nothing. Random draws are left out (`ampjax.sparse.detection.random_draws`). Only losses are compared. So a program whose
losses are equal but whose gradients are not (statistics of the batch behind `stop_gradient` that cancel in the value) is not found.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.devices.allreduce import issue_collective
from ampjax.devices.loss_collectives import AXIS
from ampjax.devices.mapped import mapped
from ampjax.devices.per_replica import Device, spread, spread_inputs
from ampjax.devices.random_keys import is_key
from ampjax.errors import EquivalenceError
from ampjax.jaxprs import primitives
from ampjax.parallel.equivalence import causes
from ampjax.parallel.planning.build_runner import RunnerSetup, Step
from ampjax.parallel.planning.variable_plan import VariablePlan
from ampjax.parallel.steps.synchronous_steps import DenseStep
from ampjax.sparse.detection.loss_jaxpr import TracedLoss, trace_loss
from ampjax.sparse.detection.random_draws import draws_of, without_randomness
from ampjax.sparse.rewrite.split_loss import SplitLoss, make_split_loss
from ampjax.sparse.rewrite.unique_ids import unique_rows

Tree = Any

HERE, NEARBY = (0.0, 0.0), (0.05, 0.01)
"""By how much parameters are moved: as a share of each number, and in absolute terms."""

UNITS = 64
"""Rounding of a loss in float32, in units of the last place: sums of many terms in another order come to less."""

MARGIN = 4
"""How much the measured effect of rounding is widened: it is measured with one pattern of signs, and another may have a larger effect."""


@dataclass(frozen=True)
class Equivalence:
    """The result of the comparison at the first batch.

    Args:
      joined: The joined batch's loss; NaN if none was compared.
      replicas: The replicas' losses, averaged or summed.
      rounding: How far apart rounding may bring the two.
      skipped: Why none was compared; empty if it was.
      errors: What the user shall know.
    """

    joined: float = math.nan
    replicas: float = math.nan
    rounding: float = 0.0
    skipped: str = ""
    errors: tuple[EquivalenceError, ...] = ()

    def __str__(self) -> str:
        if self.skipped:
            compared = f"not compared with the joined batch: {self.skipped}"
        else:
            compared = f"joined batch's loss {self.joined:.6g}, replicas' {self.replicas:.6g}, rounding up to {self.rounding:.2g}"
        return "\n".join([f"equivalence: {compared}", *map(str, self.errors)])


class _Skipped(Exception):
    """There is nothing to compare, for the reason given."""


def check_equivalence(setup: RunnerSetup, plan: VariablePlan, step: Step, parts: Sequence[Tree]) -> Equivalence:
    """Compares the loss of the joined first batch with what replicas make of it, and looks for random keys that replicas share.

    Nothing is changed, and no traffic counted. It computes the loss (not its gradient) of the joined batch on the first device, and of all
    parts on all devices, twice each, and three or four times where they differ.

    Args:
      setup: What the model is trained with.
      plan: What became of its variables.
      step: Its step; parameters are read from there.
      parts: By replica its part of the first batch.

    Returns:
      The losses, or why they were not compared, with the errors to be told.
    """
    if setup.config.check_equivalence == "off":
        return Equivalence(skipped='`check_equivalence="off"`')
    if len(parts) == 1:
        return Equivalence(skipped="there is one replica")
    part = plan.program.split_loss(parts[0]).traced
    whole, joined, why = None, None, ""
    try:
        joined = _joined(parts)
        whole = _traced(setup, plan, joined)
    except _Skipped as reason:
        why = str(reason)
    shared = causes.explain_shared_keys(draws_of(part), whole and draws_of(whole), _varies(parts))
    if whole is None:
        return Equivalence(skipped=why, errors=shared)
    try:
        return _compared(setup, plan, step, (whole, part), (joined, parts), shared)
    except _Skipped as reason:
        return Equivalence(skipped=str(reason), errors=shared)


def _compared(
    setup: RunnerSetup,
    plan: VariablePlan,
    step: Step,
    traced: tuple[TracedLoss, TracedLoss],
    batches: tuple[Tree, Sequence[Tree]],
    shared: tuple[EquivalenceError, ...],
) -> Equivalence:
    _, parts = batches
    losses = _Losses(setup, plan, step, traced, batches)
    n, config, first = len(parts), setup.config, None
    for place in (HERE, NEARBY):
        one, each = losses.joined(place), losses.replicas(place)
        total, over = math.fsum(each), n if config.average_dense == "mean" else 1
        if not config.sync:  # gradients are neither averaged nor summed, so either will do
            over = min((1, n), key=lambda over: abs(total / over - one))
        scale = max(abs(one), math.fsum(map(abs, each)) / over)
        pair = causes.Losses(one, total / over, scale * losses.unit)
        if place == HERE and not (math.isfinite(one) or math.isfinite(pair.replicas)):
            raise _Skipped(f"the loss is {one}")
        if place == NEARBY and not (math.isfinite(one) and math.isfinite(pair.replicas)):
            break
        if not pair.agree:
            noise = MARGIN * abs(losses.joined(place, losses.eps) - one)
            pair = dataclasses.replace(pair, rounding=pair.rounding + (noise if math.isfinite(noise) else 0.0))
        first = first or pair
        if not pair.agree:
            error = causes.explain_difference(pair, n, config, place != HERE, losses.mixing)
            return Equivalence(*dataclasses.astuple(pair), errors=(error, *shared))
    assert first is not None
    return Equivalence(*dataclasses.astuple(first), errors=shared)


class _Losses:
    """The compiled losses of the joined batch and of all parts, at parameters that are moved a little.

    Args:
      setup: What the model is trained with.
      plan: What became of its variables.
      step: Its step; parameters are read from there.
      traced: The loss function for the joined batch, and for a part.
      batches: The joined batch, and the parts.

    Attributes:
      eps: The unit in the last place of the least precise floats in the program.
      unit: What rounding may make of a loss, as a share of it.
    """

    def __init__(
        self,
        setup: RunnerSetup,
        plan: VariablePlan,
        step: Step,
        traced: tuple[TracedLoss, TracedLoss],
        batches: tuple[Tree, Sequence[Tree]],
    ):
        (whole, _), (joined, parts) = traced, batches
        self._setup, self._plan, self._part = setup, plan, parts[0]
        self._whole = whole
        # Where replicas are processes, one device of this one computes them all.
        devices = setup.resources.devices if setup.group is None else [None] * len(parts)
        try:
            programs = [
                make_split_loss(without_randomness(loss), plan.program.axes, plan.program.stacks) for loss in traced
            ]
        except Exception as error:  # of what the user's program does with batches of that size
            raise _Skipped(f"{type(error).__name__}: {error}") from error
        smallest = _largest_eps(whole.jaxpr)
        self.eps = smallest
        single = float(jnp.finfo(jnp.float32).eps)
        out = float(jnp.finfo(whole.jaxpr.outvars[0].aval.dtype).eps)
        coarse = smallest / 2 * _coarse_additions(whole.jaxpr) if smallest > single else 0.0
        self.unit = 2 * out + UNITS * min(smallest, single) + coarse
        ids = [self._ids(programs[0], joined), *(self._ids(programs[1], part) for part in parts)]
        rows, inverses = _rows(plan, step, ids)
        dense = _dense(setup, step)
        first = jax.tree.map(lambda leaf: leaf[:1] if setup.group else leaf.addressable_data(0), dense)
        joined_input, *part_inputs = [
            (rows, inverse, batch) for inverse, batch in zip(inverses, (joined, *parts), strict=True)
        ]
        together = _stacked if setup.group else functools.partial(spread_inputs, devices=devices)
        self._joined = _mapped(programs[0], devices[:1], None), first, spread_inputs([joined_input], devices[:1])
        self._parts = _mapped(programs[1], devices, AXIS), dense, together(part_inputs)

    def joined(self, place: tuple[float, float], more: float = 0.0) -> float:
        """The loss of the joined batch, with parameters moved by some parts of themselves more."""
        program, dense, inputs = self._joined
        return float(np.asarray(_run(program, dense, *inputs, place[0] + more, place[1]))[0])

    def replicas(self, place: tuple[float, float]) -> list[float]:
        """Each replica's loss."""
        program, dense, inputs = self._parts
        return [float(loss) for loss in np.asarray(_run(program, dense, *inputs, *place))]

    def mixing(self) -> list[causes.Mixing]:
        """Where the program brings examples together."""
        part = trace_loss(self._setup.loss_fn, self._plan.program.params, self._part)
        return causes.find_mixing(part.jaxpr, self._whole.jaxpr)

    def _ids(self, program: SplitLoss, batch: Tree) -> dict[str, np.ndarray]:
        if not program.axes:
            return {}
        leaves: list[Any] = [None] * len(program.traced.leaves)
        ids = jax.jit(lambda batch: program.ids([*leaves, *jax.tree.leaves(batch)]))(batch)
        return {table: np.asarray(array) for table, array in ids.items()}


def _mapped(program: SplitLoss, devices: Sequence[Device], axis: str | None) -> Callable[..., Any]:
    """The loss alone: `(dense_params, rows, inverse, batch, relative, absolute) -> loss`, mapped; on one device, if none are given."""

    def loss(dense: Tree, rows: Any, inverse: Any, batch: Tree, relative: Any, absolute: Any) -> jax.Array:
        dense, rows = jax.tree.map(lambda leaf: _moved(leaf, relative, absolute), (dense, rows))
        leaves = jax.tree.leaves(dense, is_leaf=lambda leaf: leaf is None)
        out = program.loss([*leaves, *jax.tree.leaves(batch)], rows, inverse)
        return out[0] if program.traced.has_aux else out

    in_axes = (0, 0, 0, 0, None, None)
    if devices[0] is None:
        return jax.jit(jax.vmap(loss, in_axes=in_axes, axis_name=axis))
    return mapped(loss, devices, axis, in_axes=in_axes)


def _run(program: Callable[..., Any], *args: Any) -> Any:
    try:
        return jax.block_until_ready(issue_collective(program, *args, token=lambda losses: losses))
    except jax.errors.JaxRuntimeError as error:  # the joined batch may be too large for one device
        raise _Skipped(f"it could not be computed: {str(error).splitlines()[0]}") from error


def _moved(leaf: jax.Array, relative: Any, absolute: Any) -> jax.Array:
    """A parameter, each number of it moved by another amount, in some order that no program knows of."""
    wide = jnp.promote_types(leaf.dtype, jnp.float32)
    pattern = jnp.sin(12.9898 * jnp.arange(leaf.size, dtype=wide)).reshape(leaf.shape)
    # Without a move it has to stay as it is, also where a number is infinite.
    moved = leaf.astype(wide) * (1 + relative * pattern) + absolute * pattern
    return moved.astype(leaf.dtype)


def _rows(
    plan: VariablePlan, step: Step, ids: Sequence[dict[str, np.ndarray]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """By table the rows that any of some programs reads; and for each of them, where its ids lie among these."""
    rows, inverses = {}, [{} for _ in ids]
    for name in ids[0]:
        table = plan.program.tables[name]
        unique = unique_rows(np.concatenate([each[name] for each in ids]), table.shape[0])
        some = (
            unique.ids if len(unique.ids) else np.zeros(1, np.int64)
        )  # a step that reads no row still looks somewhere
        rows[name] = np.asarray(step.tables[name][0].pull(some)).astype(table.dtype)  # they may come narrower
        stops = np.cumsum([len(each[name]) for each in ids])[:-1]
        for inverse, positions in zip(inverses, np.split(unique.inverse, stops), strict=True):
            inverse[name] = positions
    return rows, inverses


def _dense(setup: RunnerSetup, step: Step) -> Tree:
    """Dense parameters on all devices, `[n, ...]`: those of the step where it has them there."""
    if isinstance(step, DenseStep):
        return step.params
    if setup.group is None and not setup.config.dense_at_servers:
        return step.homes.dense.pull()
    params, _ = step.homes.dense.read()
    devices = setup.resources.devices
    if setup.group is not None:
        return _stacked([params] * len(devices))
    return spread([params] * len(devices), devices)


def _stacked(trees: Sequence[Tree]) -> Tree:
    """Trees with a leading axis for replicas, on one device."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)


def _traced(setup: RunnerSetup, plan: VariablePlan, joined: Tree) -> TracedLoss:
    try:
        return trace_loss(setup.loss_fn, plan.program.params, joined)
    except Exception as error:  # whatever the user's program raises: it may take parts of one size only
        raise _Skipped(f"the loss function does not take it ({type(error).__name__}: {error})") from error


def _joined(parts: Sequence[Tree]) -> Tree:
    """The batch of which replicas have parts. Scalars and single keys are the same for all."""
    flat = [jax.tree.leaves(part) for part in parts]
    leaves = []
    for each, varies in zip(zip(*flat, strict=True), _varies(parts), strict=True):
        if not np.ndim(each[0]) and varies:
            raise _Skipped("the parts differ in a scalar or in a single random key, so there is no joined batch")
        if not np.ndim(each[0]):
            leaves.append(each[0])
        elif is_key(each[0]):
            leaves.append(jnp.concatenate(each))
        else:
            leaves.append(np.concatenate([np.asarray(leaf) for leaf in each]))
    return jax.tree.unflatten(jax.tree.structure(parts[0]), leaves)


def _varies(parts: Sequence[Tree]) -> list[bool]:
    """By leaf, whether replicas have their own: rows of it, or another scalar."""
    flat = [jax.tree.leaves(part) for part in parts]
    result = []
    for first, *others in zip(*flat, strict=True):
        data = (lambda leaf: np.asarray(jax.random.key_data(leaf))) if is_key(first) else np.asarray
        result.append(bool(np.ndim(first)) or any((data(leaf) != data(first)).any() for leaf in others))
    return result


def _largest_eps(jaxpr: Any) -> float:
    """The unit in the last place of the least precise floats that a jaxpr computes with."""
    units = [float(jnp.finfo(jnp.float64).eps)]
    for eqn in primitives.opened(jaxpr)[0].eqns:
        dtypes = [v.aval.dtype for v in (*eqn.invars, *eqn.outvars) if hasattr(v.aval, "dtype")]
        units += [float(jnp.finfo(dtype).eps) for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact)]
        units += [_largest_eps(inner) for inner in primitives.inner(eqn)]
    return max(units)


def _coarse_additions(jaxpr: Any) -> int:
    """How often a scalar less precise than float32 is rounded in a loop: the steps of the longest `scan` that carries one, 1 without."""
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
    return bool(jnp.issubdtype(dtype, jnp.inexact) and jnp.finfo(dtype).eps > jnp.finfo(jnp.float32).eps)
