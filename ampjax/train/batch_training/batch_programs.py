"""The compiled calls of a batch: a step of training, losses and metrics, or outputs, each one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ampjax.engine.kernels.kernel import Kernel, jitted
from ampjax.engine.kernels.shared_kernels import shared
from ampjax.engine.memory.arenas import copy_array
from ampjax.engine.parameters import ParameterStore
from ampjax.optim.joint.params_form import UNREAD, ParamsForm
from ampjax.train.batch_training.batch_function import Batch, BatchFunction, shape_of
from ampjax.train.batch_training.batch_losses import Sums
from ampjax.train.batch_training.training_steps import stacked, steps_of, sums_of
from ampjax.utils.interrupts import uninterrupted

MOST_ROUNDS = 8
"""How many rounds are one call, at most: where a step is small, a call takes as long."""

SMALL_BYTES = 1 << 20
"""A step is small if its batch, parameters and optimizer states have so many bytes at most."""


class _Roots(dict[int, jax.Array]):
    """The key of each seed, from which the keys of all rounds come, made once: a key costs as much as a small step."""

    def __missing__(self, seed: int) -> jax.Array:
        with jax.ensure_compile_time_eval():  # also where the step is traced
            self[seed] = jax.random.key(seed)
        return self[seed]


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
    _roots: _Roots = field(default_factory=_Roots, init=False, repr=False)
    _rounds: dict[Any, int] = field(default_factory=dict, init=False, repr=False)

    def most_rounds(self, batch: Batch) -> int:
        """Counts the rounds that one call takes, at most, of batches of one shape.

        Args:
          batch: A batch of the shape.
        """
        shape = shape_of(batch)
        if shape not in self._rounds:
            held = self._held
            can_repeat = _is_small((batch, held)) and _keeps_types(
                lambda held: self._blank_step(batch, 1, held),
                held,
            )
            self._rounds[shape] = MOST_ROUNDS if can_repeat else 1
        return self._rounds[shape]

    def train(
        self,
        batches: Sequence[Batch],
        seed: int,
        places: np.ndarray,
    ) -> Sums:
        """Steps of all optimizers, each from the mean over a batch's examples, in one call.

        Args:
          batches: The batches, of one shape, `most_rounds` at most.
          seed: Of random numbers.
          places: For each batch numbers of the epoch and of the round in it, each of which draws others, uint32 `[batches, 2]`.

        Returns:
          The sums of losses and metrics, `[most_rounds, 2]` each; those of the batches come first.
        """
        most = self.most_rounds(batches[0])
        n = len(batches)
        places = np.resize(places, (most, 2))
        others = [batches[-1]] * (most - n)
        with uninterrupted():  # what is donated is gone, so what comes in its place must be kept
            trained, unread, states, sums = self._steps(
                stacked([*batches, *others]),
                np.int32(n),
                (self._roots[seed], places),
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
        most = self.most_rounds(batch)
        jax.block_until_ready(self._blank_step(batch, most, copies))

    def _blank_step(
        self,
        batch: Batch,
        most: int,
        held: tuple[dict[str, Any], dict[str, Any]],
    ) -> Any:
        """Runs a step on some parameters and states, by a call for `most` rounds."""
        places = np.zeros((most, 2), np.uint32)
        return self._steps(
            stacked([batch] * most),
            np.int32(1),
            (self._roots[0], places),
            held,
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
        for group in self.store.groups.values():
            states[group.name] = self.store.opt_state[group.name]
            for role in group.nodes:
                trained[role] = nodes[role]
        return trained, states

    def _steps(
        self,
        batches: Batch,
        n: Any,
        drawn: tuple[jax.Array, np.ndarray],
        held: tuple[dict[str, Any], dict[str, Any]],
    ) -> Any:
        """Runs `n` steps of training on the held parameters and optimizer states, and donates their arrays."""
        trained, states = held
        fixed = {}
        for role, tree in self._nodes.items():
            if role not in trained:
                fixed[role] = tree
        return self._steps_kernel.once(
            trained,
            states,
            fixed,
            self._unread,
            batches,
            n,
            drawn,
        )

    @cached_property
    def _steps_kernel(self) -> Kernel:
        transforms = []
        for group in self.store.groups.values():
            transforms.append((group.name, group.transform, group.updates_unread))
        return steps_of(
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
def _losses_of(function: BatchFunction) -> Kernel:
    """`kernel(params, batch) -> sums`: losses and metrics."""

    @jitted()
    def losses(params: Any, batch: Batch) -> Sums:
        return sums_of(
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


def _is_small(arrays: Any) -> bool:
    """Tells whether a CPU computes a step with some arrays in less time than its call takes."""
    n_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
    return n_bytes <= SMALL_BYTES and jax.default_backend() == "cpu"


def _keeps_types(step: Callable[[Any], Any], held: Any) -> bool:
    """Tells whether a step keeps the types of parameters and states, as a loop needs: a user's own optimizer may change types."""

    def types(tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype),
            tree,
        )

    trained, _, states, _ = jax.eval_shape(step, held)
    return types((trained, states)) == types(held)
