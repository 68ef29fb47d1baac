"""The recurrent halves of a translation model: an encoder of a sentence, and a decoder that attends to it.

Two architectures of TensorFlow's nmt, `n` layers on each side:

* `gnmt`: the encoder's first layer reads in both directions, `n - 1` more read its outputs upwards; the decoder's lowest layer asks the
  attention, and its context goes into all layers. From the third layer on, a layer's input is added to its output.
* `bi`: `n / 2` layers in each direction; the decoder's top asks the attention, a layer above joins top and context, and what comes out is
  fed back to the input of the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from experiments.models.layers.attention import Attention
from experiments.models.layers.dropout import Dropout
from experiments.models.layers.lstm import LSTM, Initializer, State, reverse

ARCHITECTURES = ("gnmt", "bi")

Run = Callable[[LSTM, Any, int, bool], tuple[State, Any]]
"""`run(layer, xs, site, backwards) -> (last state, outputs)`: a layer over all words of sentences, with dropout of its inputs at `site`."""
Attend = Callable[[jax.Array], jax.Array]
"""From queries `[..., units]` to the contexts that the attention finds for them, `[..., n_memory]`."""
Drop = Callable[[jax.Array, int], jax.Array]
"""Dropout of features at a site, as `Dropout` does it."""


class Encoder(nnx.Module):
    """The encoder, which reads the source.

    Args:
      architecture: `gnmt` or `bi`.
      layers: Layers, both directions of `bi` counted.
      units: Features of its inputs and of every layer.
      initializer: Of the matrices.
      rngs: Where keys come from.
    """

    def __init__(
        self,
        architecture: str,
        layers: int,
        units: int,
        initializer: Initializer,
        rngs: nnx.Rngs,
    ):
        def stack(*sizes: int) -> nnx.List:
            return nnx.List(
                [LSTM(n_in, units, initializer=initializer, rngs=rngs) for n_in in sizes]
            )

        both = layers // 2 if architecture == "bi" else 1
        self.forward = stack(*[units] * both)
        self.backward = stack(*[units] * both)
        if architecture == "bi":
            self.upper = stack()
        else:
            self.upper = stack(
                2 * units,
                *[units] * (layers - 2),
            )
        self.n_out = units if len(self.upper) else 2 * units

    def __call__(
        self,
        x: Float[Array, "n words units"],
        lengths: Int[Array, " n"],
        drop: Dropout,
    ) -> tuple[jax.Array, list[State]]:
        """The outputs `[n, words, n_out]`, and as many last states as the decoder has layers."""

        def run(
            layer: LSTM,
            xs: jax.Array,
            site: int,
            backwards: bool,
        ) -> tuple[State, jax.Array]:
            turned = reverse(xs, lengths) if backwards else xs
            state, out = layer.run(
                layer.start(len(x)),
                drop(turned, site),
                lengths,
            )
            return state, reverse(out, lengths) if backwards else out

        return self.read(
            x,
            run,
            lambda f, *xs: f(*xs),
        )

    def read(
        self,
        x: Any,
        run: Run,
        each: Callable[..., Any],
    ) -> tuple[Any, list[State]]:
        """Reads sentences, however their words are laid out.

        Args:
          x: The words' vectors.
          run: Runs a layer over all words.
          each: `each(f, *xs)` gives `f` of each word's features.

        Returns:
          The words' outputs, and as many last states as the decoder has layers.
        """
        ahead = x
        behind = x
        states = []
        for i, (right, left) in enumerate(zip(self.forward, self.backward, strict=True)):
            state, ahead = run(right, ahead, 2 * i, False)
            other, behind = run(left, behind, 2 * i + 1, True)
            states += [state, other]
        y = each(
            lambda *sides: jnp.concatenate(sides, axis=-1),
            ahead,
            behind,
        )
        if len(self.upper):
            states = states[-1:]  # GNMT's decoder starts from the backward one
        for i, layer in enumerate(self.upper):
            state, out = run(
                layer,
                y,
                2 * len(self.forward) + i,
                False,
            )
            if i == 0:
                y = out
            else:
                y = each(jnp.add, out, y)
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
        self,
        architecture: str,
        layers: int,
        units: int,
        n_memory: int,
        initializer: Initializer,
        rngs: nnx.Rngs,
    ):
        # GNMT's context goes into every layer; the standard model feeds its attention layer's output into the first.
        if architecture == "bi":
            sizes = [2 * units, *[units] * (layers - 1)]
        else:
            sizes = [units + n_memory] * layers
        self.units = units
        self.n_fed = units if architecture == "bi" else n_memory
        self.cells = nnx.List(
            [LSTM(n_in, units, initializer=initializer, rngs=rngs) for n_in in sizes]
        )
        self.attention = Attention(n_memory, units, initializer=initializer, rngs=rngs)
        if architecture == "bi":
            self.join = nnx.Param(
                initializer(rngs.params(), (units + n_memory, units), jnp.float32)
            )

    def start(self, states: list[State]) -> Any:
        """The state before the first step: the encoder's last states, and zeros in place of a fed-back output.

        Args:
          states: The encoder's last states, one for each layer.

        Returns:
          The decoder's first state.
        """
        return states, jnp.zeros((*states[0][0].shape[:-1], self.n_fed))

    def step(
        self,
        attend: Attend,
        state: Any,
        x: Float[Array, "*n units"],
        drop: Drop,
    ) -> tuple[Any, jax.Array]:
        """One word further.

        Args:
          attend: Asks the attention about what the encoder has read.
          state: Before the step.
          x: `[..., units]`, the embedding of the word before.
          drop: Dropout of this step.

        Returns:
          The state after the step, and `[..., units]` for the output matrix.
        """
        states, fed = state
        step = self._joined if hasattr(self, "join") else self._gnmt
        return step(attend, states, fed, x, drop)

    def run(
        self,
        attend: Attend,
        state: Any,
        xs: Float[Array, "n words units"],
        drop: Dropout,
    ) -> jax.Array:
        """Runs all steps of given words.

        Args:
          attend: Asks the attention about what the encoder has read.
          state: The state that it starts from.
          xs: The words' vectors `[n, words, units]`.
          drop: Dropout of this batch.

        Returns:
          What comes out of each step, `[n, words, units]`.
        """

        def step(
            state: Any,
            at: tuple[jax.Array, jax.Array],
        ) -> tuple[Any, jax.Array]:
            t, x = at
            return self.step(attend, state, x, drop.at(t))

        inputs = (
            jnp.arange(xs.shape[1]),
            jnp.swapaxes(xs, 0, 1),
        )
        return jnp.swapaxes(
            jax.lax.scan(step, state, inputs)[1],
            0,
            1,
        )

    def _gnmt(
        self,
        attend: Attend,
        states: Any,
        context: jax.Array,
        y: jax.Array,
        drop: Drop,
    ) -> tuple:
        after = []
        for i, (cell, state) in enumerate(zip(self.cells, states, strict=True)):
            state = cell(
                state,
                drop(jnp.concatenate([y, context], axis=-1), i),
            )
            after.append(state)
            y = state[1] if i < 2 else state[1] + y
            if i == 0:
                context = attend(y)
        return (after, context), y

    def _joined(
        self,
        attend: Attend,
        states: Any,
        fed: jax.Array,
        y: jax.Array,
        drop: Drop,
    ) -> tuple:
        after = []
        y = jnp.concatenate([y, fed], axis=-1)
        for i, (cell, state) in enumerate(zip(self.cells, states, strict=True)):
            after.append(cell(state, drop(y, i)))
            y = after[-1][1]
        y = jnp.concatenate([y, attend(y)], axis=-1) @ self.join[...]
        return (after, y), y
