"""Delay on demand: an optax transform that applies each gradient some updates after its computation.

So staleness can be studied with any model, in plain JAX and on one device: what a pipeline or an asynchronous cluster would do to training is
set by a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import SettingsError
from ampjax.optim.optax_transforms.transform import transform
from ampjax.optim.optax_transforms.transform_arguments import with_extra_arguments

Tree = Any

_ONE_FOR_EACH = "Give one number for all parameters, or one for each key of theirs."


@dataclass(frozen=True)
class RandomDelay:
    """A delay that is drawn anew for each update.

    Args:
      probabilities: The probabilities of the delays 0, 1, 2, ...; they need not add up to one.
      seed: The seed of the draws.

    Raises:
      SettingsError: If there are none, or one is negative, or all are zero.
    """

    probabilities: tuple[float, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "probabilities",
            tuple(float(p) for p in self.probabilities),
        )
        if (
            not self.probabilities
            or min(self.probabilities) < 0
            or not 0 < sum(self.probabilities) < float("inf")
        ):
            expected = "probabilities of the delays 0, 1, 2, ..., not negative, not all zero"
            raise SettingsError(
                "RandomDelay", expected, f"{self.probabilities}", "Give one for each delay."
            )

    @classmethod
    def uniform(cls, most: int, seed: int = 0) -> RandomDelay:
        """Makes the uniform distribution of delays from 0 to `most`.

        Args:
          most: The largest delay.
          seed: Of the draws.

        Returns:
          The distribution.
        """
        return cls((1.0,) * (_check_delay(most) + 1), seed)

    @property
    def most(self) -> int:
        """The largest delay."""
        return len(self.probabilities) - 1


class DelayedState(NamedTuple):
    """The state of `delayed`.

    Attributes:
      step: Gradients that have come.
      version: Updates that have been made.
      versions: `[delay + 1]`: how many had been made when each kept gradient came.
      staleness: `[delay + 1]`: the staleness that each of them had already.
      gradients: Like the parameters, with a leading axis `delay + 1`.
      key: For draws; None where there are none.
      inner: The state of the transform.
    """

    step: jax.Array
    version: jax.Array
    versions: jax.Array
    staleness: jax.Array
    gradients: Tree
    key: jax.Array | None
    inner: Any


def delayed(
    tx: optax.GradientTransformation,
    delay: int | RandomDelay | Mapping[str, Any] | Sequence[Any],
    sync_updates: int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Applies each gradient some updates after its computation: `w[t+1] = w[t] + tx(g(w[t - delay]))`.

    This is the model of delayed gradients that analyses of asynchronous and pipelined training use: a gradient is computed at the old
    parameters, in the forward and the backward pass, as with stashed weights. A queue in the state keeps the gradients that are on their
    way. Until the first has arrived, nothing changes, not even the state of `tx`. With a delay of 0 the updates have the same bits as those
    of `tx`. A delay of 1 everywhere is PipeDream-2BW (Narayanan et al. 2021, arXiv 2006.09503, equation in §3.1).

    The transform gets each gradient's `staleness`, as it does in a graph's nodes: the number of updates since the gradient was computed,
    plus the `staleness` that the caller passes, if any (a node may delay its gradients further). Remedies use it.

    Memory: `delay + 1` copies of the gradient.

    Args:
      tx: An optax transform.
      delay: The number of updates between a gradient and its application. A number for all parameters; or a tree of numbers like the
        parameters or like their upper levels, `{"embed": 3, "output": 0}`, whose parts are updated separately, each with its own copy of `tx`
        (`stage_delays` makes such a tree for a pipeline); or a `RandomDelay`: each step draws a delay and applies the gradient of so many
        steps ago, so some gradients are applied twice and some never.
      sync_updates: The number of updates at the beginning without delay: PipeMare's T3 (Yang et al. 2021, arXiv 1910.05124), a
        synchronous warm-up.

    Returns:
      A transform whose state keeps the queue.

    Raises:
      SettingsError: If a delay is no whole number of at least 0, or there is none; and from the transform's `init` if a tree of delays does not
        fit the parameters.

    >>> tx = delayed(optax.sgd(1.0), 1)
    >>> params, state = jnp.array(0.0), tx.init(jnp.array(0.0))
    >>> for gradient in (1.0, 10.0, 100.0):
    ...     update, state = tx.update(jnp.array(gradient), state, params)
    ...     print(float(update))
    0.0
    -1.0
    -10.0
    """
    sync = _check_delay(sync_updates, "delayed, `sync_updates`")
    if isinstance(delay, RandomDelay) or not isinstance(delay, (Mapping, list, tuple)):
        return _make_delayed(
            tx,
            delay if isinstance(delay, RandomDelay) else _check_delay(delay),
            sync,
        )
    delays = jax.tree.map(_check_delay, delay)
    if not jax.tree.leaves(delays):
        raise SettingsError(
            "delayed, `delay`", "whole numbers of at least 0", f"{delay!r}", _ONE_FOR_EACH
        )
    each: dict[Any, Any] = {}
    for one in sorted(set(jax.tree.leaves(delays))):
        each[str(one)] = _make_delayed(tx, one, sync)

    def labels(params: Tree) -> Tree:
        try:
            return jax.tree.map(
                lambda one, part: jax.tree.map(lambda _: str(one), part),
                delays,
                params,
            )
        except ValueError:
            wanted = f"a tree like {jax.tree.structure(params)}, or like its upper levels"
            got = f"{delay!r}"
            raise SettingsError("delayed, `delay`", wanted, got, _ONE_FOR_EACH) from None

    return with_extra_arguments(optax.partition(each, labels))


def delay_node(tx: optax.GradientTransformation, delay: int) -> optax.GradientTransformation:
    """Makes the transform of a node whose gradients are applied some updates later; without delay, returns the transform itself.

    Args:
      tx: An optax transform.
      delay: Updates, as for `delayed`.
    """
    return delayed(tx, delay) if delay else tx


def stage_delays(stages: Sequence[str]) -> dict[str, int]:
    """The delays in a pipeline: `P - 1 - s` for stage `s` of `P`, so the last stage has none (PipeDream; PipeMare, §2).

    Args:
      stages: Keys of the parameters, in the order in which an example passes them.

    Returns:
      By key, the delay in updates.

    >>> stage_delays(["embed", "hidden", "output"])
    {'embed': 2, 'hidden': 1, 'output': 0}
    """
    result = {}
    for number, name in enumerate(stages):
        result[name] = len(stages) - 1 - number
    return result


def _make_delayed(
    tx: optax.GradientTransformation,
    delay: int | RandomDelay,
    sync: int,
) -> Any:
    inner_tx = with_extra_arguments(tx)
    most = delay.most if isinstance(delay, RandomDelay) else delay
    if most == 0:
        return _never_stale(inner_tx)

    def init(params: Tree) -> DelayedState:
        return _no_gradients(params, delay, most, inner_tx.init(params))

    def update(
        updates: Tree,
        state: DelayedState,
        params: Tree = None,
        *,
        staleness: Any = 0.0,
        **extra: Any,
    ) -> Any:
        put = state.step % (most + 1)
        gradients = jax.tree.map(
            lambda old, new: old.at[put].set(new),
            state.gradients,
            updates,
        )
        versions = state.versions.at[put].set(state.version)
        stale = state.staleness.at[put].set(staleness)
        key, drawn = _draw(delay, state.key, state.step)
        age = jnp.where(state.version < sync, 0, drawn)
        take = (state.step - age) % (most + 1)

        def apply(inner: Any) -> tuple[Tree, Any]:
            due = jax.tree.map(lambda stored: stored[take], gradients)
            total = stale[take] + (state.version - versions[take]).astype(jnp.float32)
            return inner_tx.update(due, inner, params, staleness=total, **extra)

        def wait(inner: Any) -> tuple[Tree, Any]:
            shapes = jax.eval_shape(apply, inner)
            return jax.tree.map(
                lambda x: jnp.zeros(x.shape, x.dtype),
                shapes[0],
            ), inner

        arrived = state.step >= age
        shapes, inner = jax.lax.cond(arrived, apply, wait, state.inner)
        now = DelayedState(
            state.step + 1,
            state.version + arrived.astype(jnp.int32),
            versions,
            stale,
            gradients,
            key,
            inner,
        )
        return shapes, now

    return transform(init, update)


def _no_gradients(
    params: Tree,
    delay: int | RandomDelay,
    most: int,
    inner: Any,
) -> DelayedState:
    """The state before the first update: no gradient waits."""
    gradients = jax.tree.map(
        lambda p: jnp.zeros(
            (most + 1, *jnp.shape(p)),
            jnp.result_type(p),
        ),
        params,
    )
    if isinstance(delay, RandomDelay):
        key = jax.random.key(delay.seed)
    else:
        key = None
    # Each leaf is an array of its own, so that a step may donate all of them.
    return DelayedState(
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
        jnp.zeros(most + 1, jnp.int32),
        jnp.zeros(most + 1, jnp.float32),
        gradients,
        key,
        inner,
    )


def _never_stale(tx: Any) -> Any:
    """A transform that gets a staleness of 0 if its caller passes none."""

    def update(
        updates: Tree,
        state: Any,
        params: Tree = None,
        *,
        staleness: Any = 0.0,
        **extra: Any,
    ) -> Any:
        return tx.update(updates, state, params, staleness=staleness, **extra)

    return transform(tx.init, update)


def _draw(
    delay: int | RandomDelay,
    key: Any,
    step: jax.Array,
) -> tuple[Any, jax.Array]:
    if not isinstance(delay, RandomDelay):
        return None, jnp.asarray(delay, jnp.int32)
    logits = jnp.log(jnp.asarray(delay.probabilities))
    return key, jax.random.categorical(
        jax.random.fold_in(key, step),
        logits,
    ).astype(jnp.int32)


def _check_delay(delay: Any, where: str = "delayed, `delay`") -> int:
    if isinstance(delay, bool) or not hasattr(delay, "__index__") or int(delay) < 0:
        fix = "Give 0 for none; `RandomDelay` draws delays."
        raise SettingsError(where, "whole numbers of at least 0", f"{delay!r}", fix)
    return int(delay)
