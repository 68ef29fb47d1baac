"""Steps of training on batches as one compiled call, from parameters, optimizer states and batches to the next parameters and states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.engine.kernels.kernel import Kernel, jitted
from ampjax.engine.kernels.shared_kernels import shared
from ampjax.optim.joint.joint_transform import JointTransform
from ampjax.optim.joint.params_form import ParamsForm
from ampjax.optim.node_update import combine, trainable
from ampjax.train.batch_training.batch_function import Batch, BatchFunction
from ampjax.train.batch_training.batch_losses import LOSS, Sums

Transforms = tuple[tuple[str, JointTransform, bool], ...]
"""The optimizers: the name of each, its transform, and whether it changes parameters that nothing reads."""


@shared
def steps_of(
    function: BatchFunction,
    form: ParamsForm,
    transforms: Transforms,
) -> Kernel:
    """`kernel(trained, states, fixed, unread, batches, n, drawn) -> (trained, unread, states, sums)`: `n` steps of training, one after the other.

    Args:
      function: The model as one function of a batch.
      form: The structure in which the function takes parameters.
      transforms: The optimizers.
    """
    step = _step_of(function, form, transforms)
    are_unread_updated = any(updates_unread for _, _, updates_unread in transforms)

    @jitted("trained", "states")
    def steps(
        trained: Any,
        states: Any,
        fixed: Any,
        unread: Any,
        batches: Batch,
        n: Any,
        drawn: Any,
    ) -> Any:
        root, places = drawn

        def one(i: Any, held: Any) -> tuple[Any, Sums]:
            trained, changed, states = held
            key = root
            # of the epoch, and of the round in it
            for number in places[i]:
                key = jax.random.fold_in(key, number)
            batch = jax.tree.map(
                lambda array: array[i],
                batches,
            )
            new, others, new_states, sums = step(
                trained,
                states,
                fixed,
                {**unread, **changed},
                batch,
                key,
            )
            trained = {**trained, **new}
            changed = {**changed, **others}
            states = {**states, **new_states}
            return (trained, changed, states), sums

        changed = unread if are_unread_updated else {}
        held = trained, changed, states
        if len(places) == 1:
            held, sums = one(0, held)
            return *held, jax.tree.map(lambda pair: pair[None], sums)
        _, kinds = jax.eval_shape(one, 0, held)
        every = jax.tree.map(
            lambda kind: jnp.zeros((len(places), 2), kind.dtype),
            kinds,
        )

        def one_more(i: Any, carry: Any) -> Any:
            held, every = carry
            held, sums = one(i, held)
            noted = jax.tree.map(
                lambda pairs, pair: pairs.at[i].set(pair),
                every,
                sums,
            )
            return held, noted

        held, every = jax.lax.fori_loop(
            0,
            n,
            one_more,
            (held, every),
        )
        return *held, every

    return steps


def _step_of(
    function: BatchFunction,
    form: ParamsForm,
    transforms: Transforms,
) -> Callable[..., Any]:
    """`step(trained, states, fixed, unread, batch, key) -> (trained, unread, states, sums)`: a step of training."""

    @jax.jit
    def step(
        trained: Any,
        states: Any,
        fixed: Any,
        unread: Any,
        batch: Batch,
        key: Any,
    ) -> Any:
        def total(floats: Any) -> tuple[Any, Sums]:
            # Integers among the parameters have no gradient.
            combined = {role: combine(trained[role], tree) for role, tree in floats.items()}
            params = form.whole(
                {**fixed, **combined},
                unread,
            )
            sums = sums_of(
                function,
                params,
                batch,
                key,
            )
            return sums[LOSS][1] / divisor, sums

        floats = {role: trainable(tree) for role, tree in trained.items()}
        n = batch.weights.sum()
        divisor = n if _is_narrow(floats) else 1
        gradients, sums = jax.grad(total, has_aux=True)(floats)
        gradients = jax.tree.map(
            lambda gradient: _multiplied(gradient, divisor),
            gradients,
        )
        changed = {}
        new_unread = {}
        new_states = {}
        for name, transform, updates_unread in transforms:
            before = {role: trained[role] for role, _ in transform.gradients}
            summed = {role: [gradients[role]] for role in before}
            extra = {"staleness": jnp.float32(0)}
            if transform.wants_loss:
                extra["value"] = (sums[LOSS][1] / n).astype(jnp.float32)
            new, others, new_states[name] = transform.update(
                before,
                unread if updates_unread else {},
                states[name],
                summed,
                n,
                **extra,
            )
            changed |= new
            new_unread |= others
        return changed, new_unread, new_states, sums

    return step


def sums_of(
    function: BatchFunction,
    params: Any,
    batch: Batch,
    key: Any,
) -> Sums:
    """Sums losses under `LOSS`, and the metrics that the model returns or tells, over a batch.

    Args:
      function: The model as one function of a batch.
      params: Its parameters.
      batch: The batch.
      key: A PRNG key in training, else None.
    """
    told = function.reports(
        params,
        batch,
        key=key,
    )
    losses, returned = told.result if isinstance(told.result, tuple) else (told.result, {})
    n = batch.weights.sum()
    sums = {LOSS: _pair(n, _total(batch, losses))}
    pairs: list[tuple[str, Any]] = []
    for name, values in returned.items():
        pairs.append((name, _pair(_total(batch, values), n)))
    for name, (values, counts) in told.metrics.items():
        pairs.append((name, _pair(values.sum(), counts.sum())))
    for name, pair in pairs:
        sums[name] = sums.get(name, 0) + pair
    return sums


def _is_narrow(floats: Any) -> bool:
    """Whether a leaf's dtype ends so early that gradients summed over a batch may be infinite where their mean is not: float16."""
    widest = jnp.finfo(np.float32).maxexp
    exponents = [jnp.finfo(leaf.dtype).maxexp for leaf in jax.tree.leaves(floats)]
    return any(most < widest for most in exponents)


def _multiplied(gradient: Any, divisor: Any) -> Any:
    """The sum of which a gradient is the quotient, in float32 at least."""
    if isinstance(divisor, int):
        return gradient
    dtype = jnp.promote_types(
        gradient.dtype,
        np.float32,
    )
    return gradient.astype(dtype) * divisor


def _total(batch: Batch, values: Any) -> Any:
    """The sum of a number of each example, in float32 at least."""
    dtype = jnp.promote_types(
        values.dtype,
        np.float32,
    )
    return jnp.where(batch.weights > 0, values, 0).astype(dtype).sum()


def _pair(first: Any, second: Any) -> Any:
    return jnp.stack(
        [
            jnp.asarray(first, float),
            jnp.asarray(
                second,
                float,
            ),
        ]
    )


def stacked(batches: Sequence[Batch]) -> Batch:
    """Joins batches of one shape to one, with an axis for batches in front.

    Args:
      batches: The batches.
    """
    if len(batches) == 1:
        return jax.tree.map(lambda array: array[None], batches[0])
    return jax.tree.map(lambda *arrays: np.stack(arrays), *batches)
