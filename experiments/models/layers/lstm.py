"""The LSTM cell of both language models (Hochreiter and Schmidhuber 1997; the projection is Sak et al. 2014), and its run over a sequence.

All gates come from one matrix, in the order input, candidate, forget, output; no peepholes.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

State = tuple[jax.Array, jax.Array]
"""The cell `c [n, hidden]` and the output `m [n, n_out]` after a step."""
Initializer = Callable[..., jax.Array]
"""From a key and a shape to an array, as in `jax.nn.initializers`."""


class LSTM(nnx.Module):
    """`c' = sigmoid(f + forget_bias) c + sigmoid(i) tanh(j)` and `m' = sigmoid(o) tanh(c')`, projected if that is asked for.

    Args:
      n_in: Features in.
      hidden: Features of the cell.
      projection: Features out, which are also those that recur; None leaves the projection out, and `hidden` come out.
      forget_bias: Added to the forget gate.
      initializer: Of both matrices; the bias starts at 0.
      rngs: Where keys come from.
    """

    def __init__(
        self,
        n_in: int,
        hidden: int,
        projection: int | None = None,
        *,
        forget_bias: float = 1.0,
        initializer: Initializer,
        rngs: nnx.Rngs,
    ):
        n_out = hidden if projection is None else projection
        self.n_in = n_in
        self.hidden = hidden
        self.n_out = n_out
        self.forget_bias = forget_bias
        self.kernel = nnx.Param(initializer(rngs.params(), (n_in + n_out, 4 * hidden), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(4 * hidden))
        if projection is not None:
            self.projection = nnx.Param(
                initializer(rngs.params(), (hidden, projection), jnp.float32)
            )

    def start(self, *n: int) -> State:
        """The state before the first step: zeros.

        Args:
          *n: How many rows; nothing for one sequence without an axis for rows.

        Returns:
          Cell and output, `[*n, hidden]` and `[*n, n_out]` float32.
        """
        return jnp.zeros((*n, self.hidden)), jnp.zeros((*n, self.n_out))

    def __call__(
        self,
        state: State,
        x: Float[Array, "*n n_in"],
    ) -> State:
        """The state after one step."""
        return self._step(state, self._from_inputs(x))

    def run(
        self,
        state: State,
        xs: Float[Array, "n steps n_in"],
        lengths: Int[Array, " n"] | None = None,
    ) -> tuple:
        """All steps of `n` sequences.

        Args:
          state: Before the first step.
          xs: `[n, steps, n_in]`.
          lengths: `[n]`: a row keeps its state from that step on, and zeros come out. All steps count by default.

        Returns:
          The last state, and the outputs `[n, steps, n_out]`.
        """
        # The inputs' part of the product is one large product outside of the loop; steps lead, as `scan` wants them.
        gates = jnp.swapaxes(self._from_inputs(xs), 0, 1)
        steps = jnp.arange(xs.shape[1])

        def step(
            before: State,
            at: tuple[jax.Array, jax.Array],
        ) -> tuple[State, jax.Array]:
            t, given = at
            after = self._step(before, given)
            if lengths is None:
                return after, after[1]
            runs = (t < lengths)[:, None]
            after = tuple(jnp.where(runs, new, old) for new, old in zip(after, before, strict=True))
            return after, jnp.where(runs, after[1], 0)  # type: ignore[return-value]

        state, outputs = jax.lax.scan(step, state, (steps, gates))
        return state, jnp.swapaxes(outputs, 0, 1)

    def _from_inputs(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel[: self.n_in] + self.bias[...]

    def _step(self, state: State, gates: jax.Array) -> State:
        c, m = state
        i, j, f, o = jnp.split(
            gates + m @ self.kernel[self.n_in :],
            4,
            axis=-1,
        )
        c = jax.nn.sigmoid(f + self.forget_bias) * c + jax.nn.sigmoid(i) * jnp.tanh(j)
        m = jax.nn.sigmoid(o) * jnp.tanh(c)
        return c, m @ self.projection[...] if hasattr(self, "projection") else m


def reverse(
    xs: Float[Array, "n steps features"], lengths: Int[Array, " n"]
) -> Float[Array, "n steps features"]:
    """Reverses each sequence's first steps; those behind stay where they are.

    Args:
      xs: The sequences `[n, steps, features]`.
      lengths: `[n]`: how many steps to reverse.
    """
    steps = jnp.arange(xs.shape[1])
    places = jnp.where(
        steps < lengths[:, None],
        lengths[:, None] - 1 - steps,
        steps,
    )
    return jnp.take_along_axis(xs, places[:, :, None], axis=1)
