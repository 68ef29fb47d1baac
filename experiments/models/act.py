"""A recurrent network with adaptive computation time (Graves 2016): it decides itself how many steps to take for each input.

Two nested loops: the outer one over the sequence; the inner one over steps of pondering, whose end depends on payloads, so the decision to go
on is read back to the host (AMPNet's section 2 names such loops as what the framework is for).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.nn import Linear
from experiments.models.layers.linear import linear
from experiments.models.layers.losses import labelled_cross_entropy


@dataclass(frozen=True)
class Ponder:
    """Sizes of the network, and its bodies.

    A message of the inner loop is one row `[E + 2H + 2]`: the input, the state, the mean state so far, the sum of the halting
    probabilities, and the number of steps.

    Args:
      n_in: Features of an input, E.
      hidden: Features of the state, H.
      n_out: Classes.
      max_steps: The most steps for one input.
      epsilon: Pondering ends when the halting probabilities reach `1 - epsilon`.
      time_penalty: Weight of the ponder cost, tau.
    """

    n_in: int
    hidden: int
    n_out: int
    max_steps: int = 8
    epsilon: float = 0.01
    time_penalty: float = 1e-3

    def __post_init__(self) -> None:
        if min(self.n_in, self.hidden, self.n_out, self.max_steps) < 1 or not 0 < self.epsilon < 1:
            raise SettingsError(
                "act_rnn",
                "sizes of at least 1 and 0 < epsilon < 1",
                f"{self}",
                "Change what is outside.",
            )

    def init_step(
        self,
        key: jax.Array,
    ) -> dict[str, jax.Array]:
        """Makes the step's parameters, so that at first few steps are taken.

        Args:
          key: A PRNG key.

        Returns:
          `w [E + 1 + H, H]` and `halt [H]`, Glorot uniform; `b`, zeros; `halt_b`, 1.
        """
        start = jax.nn.initializers.glorot_uniform()
        w_key, halt_key = jax.random.split(key)
        w = start(
            w_key,
            (self.n_in + 1 + self.hidden, self.hidden),
            jnp.float32,
        )
        halt = start(halt_key, (self.hidden, 1), jnp.float32)[:, 0]
        return {
            "w": w,
            "b": jnp.zeros(self.hidden),
            "halt": halt,
            "halt_b": jnp.ones(()),
        }

    def begin(
        self,
        state: jax.Array,
        x: jax.Array,
    ) -> jax.Array:
        """Makes the row that enters the inner loop.

        Args:
          state: The state `[H]`.
          x: The input `[E]`.

        Returns:
          The row `[E + 2H + 2]`.
        """
        return jnp.concatenate([x, state, jnp.zeros(self.hidden + 2, x.dtype)])

    def step(
        self,
        params: Any,
        row: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Takes a step of pondering.

        `s = tanh([x; first; s] W + b)`, `h = sigmoid(s w + c)`. The step that brings the sum of all h to `1 - epsilon` is the last; its weight
        is the remainder to 1.

        Args:
          params: As `init_step` gives them.
          row: The row `[E + 2H + 2]`.

        Returns:
          The next row, and an integer: 1 to continue, 0 to end.
        """
        x, state, mean, (total, steps) = self._parts(row)
        first = (steps == 0).astype(row.dtype)
        state = jnp.tanh(jnp.concatenate([x, first[None], state]) @ params["w"] + params["b"])
        halt = jax.nn.sigmoid(state @ params["halt"] + params["halt_b"])
        last = (total + halt >= 1 - self.epsilon) | (steps + 1 >= self.max_steps)
        mean = mean + jnp.where(last, 1 - total, halt) * state
        total = jnp.where(last, total, total + halt)
        counts = jnp.stack([total, steps + 1])
        return jnp.concatenate([x, state, mean, counts]), (~last).astype(jnp.int32)

    def end(
        self,
        row: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Ends the pondering of an input.

        Args:
          row: The last row `[E + 2H + 2]`.

        Returns:
          The mean state `[H]`, which is the next state; and the ponder cost `N + R`: the number of steps plus the weight of the last one.
        """
        *_, mean, (total, steps) = self._parts(row)
        return mean, steps + 1 - total

    def cost(
        self,
        ponder: jax.Array,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Computes the loss `tau (N + R)`, with the metric `ponder`.

        Args:
          ponder: The ponder cost `N + R`.

        Returns:
          The loss, and the metric `ponder`.
        """
        return self.time_penalty * ponder, {"ponder": ponder}

    def _parts(
        self,
        row: jax.Array,
    ) -> tuple[jax.Array, ...]:
        e = self.n_in
        h = self.hidden
        x, state, mean, counts = jnp.split(
            row,
            [e, e + h, e + 2 * h],
        )
        return x, state, mean, counts


def spec(ponder: Ponder) -> dict[str, str]:
    """What an instance looks like: a sequence of inputs with its label.

    Args:
      ponder: The sizes.

    Returns:
      The spec, for `ampjax.compile`.
    """
    return {"x": f"float32[t,{ponder.n_in}]", "label": "int32[]"}


def init(
    key: jax.Array,
    ponder: Ponder,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      ponder: The sizes.

    Returns:
      `step`, as `Ponder.init_step` makes it, and the linear layer `classify`.
    """
    keys = jax.random.split(key)
    return {
        "step": ponder.init_step(keys[0]),
        "classify": Linear(ponder.hidden, ponder.n_out).init(keys[1]),
    }


def act_rnn(
    ponder: Ponder,
    replicas: int = 1,
) -> Callable[[Any, Any], jax.Array]:
    """Makes the model: a classifier of sequences that ponders every input.

    Args:
      ponder: The sizes.
      replicas: The number of copies of `step`, each for some instances.

    Returns:
      A function of parameters and an instance to the cross entropy with the ponder costs of all inputs; with the metrics `accuracy` and
      `ponder` (`N + R` of an input on average) and the output `logits`.
    """
    if replicas == 1:
        step = ponder.step
    else:
        step = amp.node("step", replicas=replicas)(ponder.step)

    def model(p: Any, s: Any) -> jax.Array:
        def consider(
            state: jax.Array,
            x: jax.Array,
        ) -> tuple[jax.Array, jax.Array]:
            start = ponder.begin(state, x), jnp.int32(1)
            row, _ = amp.while_loop(
                lambda carry: amp.read(carry[1]) == 1,
                lambda carry: step(p["step"], carry[0]),
                start,
                most=ponder.max_steps,
            )
            state, cost = ponder.end(row)
            amp.metric("ponder", cost)
            return state, ponder.cost(cost)[0]

        state, costs = amp.scan(
            consider,
            jnp.zeros(ponder.hidden),
            s["x"],
        )
        logits = linear(p["classify"], state)
        amp.output("logits", logits)
        loss, metrics = labelled_cross_entropy(logits, s["label"])
        amp.metric("accuracy", *metrics["accuracy"])
        return loss + amp.sum(costs)

    return model
