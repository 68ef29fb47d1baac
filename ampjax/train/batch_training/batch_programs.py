"""The compiled calls of a batch: a step of training, losses and metrics, or outputs, each one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.engine.joint_updates import JointGroup
from ampjax.engine.kernels.kernel import Kernel, jitted
from ampjax.engine.kernels.shared_kernels import shared
from ampjax.engine.memory.arenas import copy_array
from ampjax.engine.parameters import ParameterStore
from ampjax.optim.joint.joint_transform import JointTransform
from ampjax.optim.joint.params_form import UNREAD, ParamsForm
from ampjax.optim.node_update import combine, trainable
from ampjax.train.batch_training.batch_function import Batch, BatchFunction
from ampjax.train.batch_training.batch_losses import LOSS, Sums
from ampjax.utils.interrupts import uninterrupted


@dataclass(frozen=True, eq=False)
class BatchPrograms:
    """Computes batches with the parameters of a store, and changes the parameters.

    Args:
      function: The model as one function of a batch.
      store: Parameters and optimizer states.
      form: The structure in which the function takes parameters.
      names: The node of each role.
    """

    function: BatchFunction
    store: ParameterStore
    form: ParamsForm
    names: Mapping[str, str]

    def train(self, batch: Batch, seed: int, place: np.ndarray) -> Sums:
        """A step of all optimizers, from the mean over a batch's examples.

        Args:
          batch: The batch.
          seed: Of random numbers.
          place: Numbers of the epoch and of the round in it, each of which draws others, uint32 `[2]`.

        Returns:
          The sums of losses and metrics.
        """
        with uninterrupted():  # what is donated is gone, so what comes in its place must be kept
            trained, unread, states, sums = self._step(
                batch,
                (self._root(seed), place),
                self._held,
            )
            store = self.store
            for role, tree in trained.items():
                store.params[self.names[role]] = tree
            store.opt_state.update(states)
            if unread:
                store.params[UNREAD] = {**store.params[UNREAD], **unread}
        return sums

    def warm_train(self, batch: Batch) -> None:
        """Compiles the step of batches of a shape, by a step on copies.

        Args:
          batch: A batch of the shape.
        """
        copies = jax.tree.map(
            lambda x: copy_array(x, x.device),
            self._held,
        )
        place = np.zeros(2, np.uint32)
        jax.block_until_ready(
            self._step(
                batch,
                (jax.random.key(0), place),
                copies,
            )
        )

    def losses(self, batch: Batch) -> Sums:
        """The sums of losses and metrics of a batch, without a step.

        Args:
          batch: The batch.
        """
        return self._losses_kernel.once(
            self._params,
            batch,
        )

    def outputs(self, batch: Batch) -> Mapping[str, Any]:
        """Computes the outputs that a batch's examples tell, by name.

        Args:
          batch: The batch.
        """
        return self._outputs_kernel.once(
            self._params,
            batch,
        )

    def wait(self) -> None:
        """Waits for the latest step."""
        jax.block_until_ready(self.store.params)

    @property
    def _held(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The parameters that are trained, by role, and the optimizers' states, by group."""
        nodes = self._nodes
        trained = {}
        states = {}
        for group in self._groups:
            states[group.name] = self.store.opt_state[group.name]
            for role in group.nodes:
                trained[role] = nodes[role]
        return trained, states

    def _root(self, seed: int) -> jax.Array:
        """Makes the key of a seed, from which the keys of all rounds come, only once: a key costs as much as a small step."""
        if seed not in self._roots:
            self._roots[seed] = jax.random.key(seed)
        return self._roots[seed]

    @cached_property
    def _roots(self) -> dict[int, jax.Array]:
        return {}

    def _step(
        self,
        batch: Batch,
        drawn: tuple[jax.Array, np.ndarray],
        held: tuple[dict[str, Any], dict[str, Any]],
    ) -> Any:
        """Runs a step of training on the held parameters and optimizer states, and donates their arrays."""
        trained, states = held
        fixed = {}
        for role, tree in self._nodes.items():
            if role not in trained:
                fixed[role] = tree
        return self._step_kernel.once(
            trained,
            states,
            fixed,
            self._unread,
            batch,
            drawn,
        )

    @cached_property
    def _step_kernel(self) -> Kernel:
        transforms = []
        for group in self._groups:
            transforms.append((group.name, group.transform, group.updates_unread))
        return _step_of(
            self.function,
            self.form,
            tuple(transforms),
        )

    @cached_property
    def _losses_kernel(self) -> Kernel:
        return _losses_of(self.function)

    @cached_property
    def _outputs_kernel(self) -> Kernel:
        return _outputs_of(self.function)

    @property
    def _groups(self) -> list[JointGroup]:
        return [*self.store.groups.values()]

    @property
    def _nodes(self) -> dict[str, Any]:
        """Parameters by role."""
        return {role: self.store.params[name] for role, name in self.names.items()}

    @property
    def _unread(self) -> Mapping[str, Any]:
        return self.store.params.get(UNREAD, {})

    @property
    def _params(self) -> Any:
        return self.form.whole(
            self._nodes,
            self._unread,
        )


@shared
def _step_of(
    function: BatchFunction,
    form: ParamsForm,
    transforms: tuple[tuple[str, JointTransform, bool], ...],
) -> Kernel:
    """`kernel(trained, states, fixed, unread, batch, drawn) -> (trained, unread, states, sums)`: a step of training."""

    @jitted("trained", "states")
    def step(
        trained: Any,
        states: Any,
        fixed: Any,
        unread: Any,
        batch: Batch,
        drawn: Any,
    ) -> Any:
        key, place = drawn
        for number in place:
            key = jax.random.fold_in(key, number)

        def total(floats: Any) -> tuple[Any, Sums]:
            # Integers among the parameters have no gradient.
            combined = {role: combine(trained[role], tree) for role, tree in floats.items()}
            params = form.whole(
                {**fixed, **combined},
                unread,
            )
            sums = _sums(
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


@shared
def _losses_of(function: BatchFunction) -> Kernel:
    """`kernel(params, batch) -> sums`: losses and metrics."""

    @jitted()
    def losses(params: Any, batch: Batch) -> Sums:
        return _sums(
            function,
            params,
            batch,
            None,
        )

    return losses


@shared
def _outputs_of(function: BatchFunction) -> Kernel:
    """`kernel(params, batch) -> outputs`: rows by the output's name."""

    @jitted()
    def outputs(params: Any, batch: Batch) -> Mapping[str, Any]:
        return function.reports(params, batch).outputs

    return outputs


def _sums(
    function: BatchFunction,
    params: Any,
    batch: Batch,
    key: Any,
) -> Sums:
    """Sums losses under `LOSS`, and the metrics that the model returns or tells, over a batch."""
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
    return any(jnp.finfo(leaf.dtype).maxexp < widest for leaf in jax.tree.leaves(floats))


def _multiplied(gradient: Any, divisor: Any) -> Any:
    """The sum of which a gradient is the quotient, in float32 at least."""
    if isinstance(divisor, int):
        return gradient
    return gradient.astype(jnp.promote_types(gradient.dtype, np.float32)) * divisor


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
