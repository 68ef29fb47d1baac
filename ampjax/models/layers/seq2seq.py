"""The recurrent halves of a translation model: an encoder of a sentence, and a decoder that attends to it.

Two architectures of TensorFlow's nmt, `n` layers on each side:

* `gnmt`: the encoder's first layer reads in both directions, `n - 1` more read its outputs upwards; the decoder's lowest layer asks the
  attention, and its context goes into all layers. From the third layer on, a layer's input is added to its output.
* `bi`: `n / 2` layers in each direction; the decoder's top asks the attention, a layer above joins top and context, and what comes out is
  fed back to the input of the next step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from ampjax.models.layers.attention import Attention, Memory
from ampjax.models.layers.dropout import Dropout
from ampjax.models.layers.lstm import LSTM, Initializer, State, reverse

ARCHITECTURES = ("gnmt", "bi")


class Encoder(nnx.Module):
    """The encoder, which reads the source.

    Args:
      architecture: `gnmt` or `bi`.
      layers: Layers, both directions of `bi` counted.
      units: Features of its inputs and of every layer.
      initializer: Of the matrices.
      rngs: Where keys come from.
    """

    def __init__(self, architecture: str, layers: int, units: int, initializer: Initializer, rngs: nnx.Rngs):
        def stack(*sizes: int) -> nnx.List:
            return nnx.List([LSTM(n_in, units, initializer=initializer, rngs=rngs) for n_in in sizes])

        both = layers // 2 if architecture == "bi" else 1
        self.forward, self.backward = stack(*[units] * both), stack(*[units] * both)
        self.upper = stack() if architecture == "bi" else stack(2 * units, *[units] * (layers - 2))
        self.n_out = units if len(self.upper) else 2 * units

    def __call__(
        self, x: Float[Array, "n words units"], lengths: Int[Array, " n"], drop: Dropout
    ) -> tuple[jax.Array, list[State]]:
        """The outputs `[n, words, n_out]`, and as many last states as the decoder has layers."""
        ahead, behind, states = x, reverse(x, lengths), []
        for i, (right, left) in enumerate(zip(self.forward, self.backward, strict=True)):
            state, ahead = right.run(right.start(len(x)), drop(ahead, 2 * i), lengths)
            other, behind = left.run(left.start(len(x)), drop(behind, 2 * i + 1), lengths)
            states += [state, other]
        y = jnp.concatenate([ahead, reverse(behind, lengths)], axis=-1)
        if len(self.upper):
            states = states[-1:]  # GNMT's decoder starts from the backward one
        for i, layer in enumerate(self.upper):
            state, out = layer.run(layer.start(len(x)), drop(y, 2 * len(self.forward) + i), lengths)
            y = out if i == 0 else out + y
            states.append(state)
        return y, states


class Decoder(nnx.Module):
    """The decoder, which writes the target.

    Args:
      architecture: `gnmt` or `bi`.
      layers: Layers.
      units: Features of its inputs and of every layer.
      n_memory: Features of the encoder's outputs.
      initializer: Of the matrices.
      rngs: Where keys come from.
    """

    def __init__(
        self, architecture: str, layers: int, units: int, n_memory: int, initializer: Initializer, rngs: nnx.Rngs
    ):
        # GNMT's context goes into every layer; the standard model feeds its attention layer's output into the first.
        sizes = [2 * units, *[units] * (layers - 1)] if architecture == "bi" else [units + n_memory] * layers
        self.units, self.n_fed = units, units if architecture == "bi" else n_memory
        self.cells = nnx.List([LSTM(n_in, units, initializer=initializer, rngs=rngs) for n_in in sizes])
        self.attention = Attention(n_memory, units, initializer=initializer, rngs=rngs)
        if architecture == "bi":
            self.join = nnx.Param(initializer(rngs.params(), (units + n_memory, units), jnp.float32))

    def start(self, states: list[State]) -> Any:
        """The state before the first step: the encoder's last states, and zeros in place of a fed-back output.

        Args:
          states: The encoder's last states, one for each layer.

        Returns:
          The decoder's first state.
        """
        return states, jnp.zeros((len(states[0][0]), self.n_fed))

    def step(self, memory: Memory, state: Any, x: Float[Array, "n units"], drop: Dropout) -> tuple[Any, jax.Array]:
        """One word further.

        Args:
          memory: What the encoder read.
          state: Before the step.
          x: `[n, units]`, the embedding of the word before.
          drop: Dropout of this step.

        Returns:
          The state after the step, and `[n, units]` for the output matrix.
        """
        states, fed = state
        step = self._joined if hasattr(self, "join") else self._gnmt
        return step(memory, states, fed, x, drop)

    def run(self, memory: Memory, state: Any, xs: Float[Array, "n words units"], drop: Dropout) -> jax.Array:
        """Runs all steps of given words.

        Args:
          memory: What the decoder attends to.
          state: The state that it starts from.
          xs: The words' vectors `[n, words, units]`.
          drop: Dropout of this batch.

        Returns:
          What comes out of each step, `[n, words, units]`.
        """

        def step(state: Any, at: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
            t, x = at
            return self.step(memory, state, x, drop.at(t))

        inputs = (jnp.arange(xs.shape[1]), jnp.swapaxes(xs, 0, 1))
        return jnp.swapaxes(jax.lax.scan(step, state, inputs)[1], 0, 1)

    def _gnmt(self, memory: Memory, states: Any, context: jax.Array, y: jax.Array, drop: Dropout) -> tuple:
        after = []
        for i, (cell, state) in enumerate(zip(self.cells, states, strict=True)):
            state = cell(state, drop(jnp.concatenate([y, context], axis=-1), i))
            after.append(state)
            y = state[1] if i < 2 else state[1] + y
            if i == 0:
                context = self.attention(y, memory)
        return (after, context), y

    def _joined(self, memory: Memory, states: Any, fed: jax.Array, y: jax.Array, drop: Dropout) -> tuple:
        after, y = [], jnp.concatenate([y, fed], axis=-1)
        for i, (cell, state) in enumerate(zip(self.cells, states, strict=True)):
            after.append(cell(state, drop(y, i)))
            y = after[-1][1]
        y = jnp.concatenate([y, self.attention(y, memory)], axis=-1) @ self.join[...]
        return (after, y), y
