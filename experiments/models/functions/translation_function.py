"""Translation with LSTMs and attention as a function of one pair of sentences of any lengths; its parts are those of `experiments.models.nmt`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import ampjax as amp
from experiments.models import nmt
from experiments.models.layers import functional
from experiments.models.layers.attention import Attention
from experiments.models.layers.lstm import LSTM
from experiments.models.layers.seq2seq import Attend

SPEC = {"source": "int32[s]", "target_in": "int32[t]", "target_out": "int32[t]"}
"""What an instance looks like: a sentence, its translation after its start mark, and the translation before its end mark."""


def init(
    config: nmt.Config,
    seed: int = 0,
) -> dict[str, Any]:
    """Makes the parameters: those of `experiments.models.nmt`, with a key for each layer.

    Args:
      config: Sizes of the model.
      seed: Of the PRNG key.

    Returns:
      Pytrees by the layers' names, such as `encoder.forward.0`.
    """
    return by_layer(nmt.init(config, seed))


def by_layer(
    params: Any,
    within: str = "",
) -> dict[str, Any]:
    """Gives nested parameters of `experiments.models.nmt` a key for each layer, so that each becomes a node.

    Args:
      params: The nested parameters.
      within: What the names begin with.

    Returns:
      Pytrees by the layers' names: a layer is an array, or a dictionary of arrays.
    """
    layers: dict[str, Any] = {}
    for key, part in params.items():
        is_layer = not isinstance(part, dict) or not any(
            isinstance(inner, dict) for inner in part.values()
        )
        layers |= {f"{within}{key}": part} if is_layer else by_layer(part, f"{within}{key}.")
    return layers


def nested(layers: Any) -> dict[str, Any]:
    """Undoes `by_layer`: for the functions of `experiments.models.nmt` and `experiments.models.translate`.

    Args:
      layers: Pytrees by the layers' names.

    Returns:
      The nested parameters.
    """
    params: dict[Any, Any] = {}
    for name, layer in layers.items():
        *path, last = (int(key) if key.isdigit() else key for key in name.split("."))
        part = params
        for key in path:
            part = part.setdefault(key, {})
        part[last] = layer
    return params


def translation(config: nmt.Config) -> Callable[[Any, Any], jax.Array]:
    """Makes the model: LSTMs read the source; others, which attend to it, write the target, each word given the right ones before.

    Args:
      config: Sizes and architecture of the model.

    Returns:
      A function of parameters and an instance to the summed cross entropy of the target's words, in nats.
    """

    def drop(x: jax.Array, _: int) -> jax.Array:
        return amp.dropout(x, config.dropout)

    def run(
        layer: LSTM,
        xs: Any,
        site: int,
        backwards: bool,
    ) -> tuple[Any, Any]:
        def step(
            state: Any,
            x: jax.Array,
        ) -> tuple[Any, jax.Array]:
            state = layer(state, drop(x, site))
            return state, state[1]

        return amp.scan(step, layer.start(), xs, reverse=backwards)

    def model(params: Any, pair: Any) -> jax.Array:
        net = functional.merge(nmt.Translator, config, nested(params))
        source = amp.map(
            lambda word: amp.look_up(params["source_embedding"], word),
            pair["source"],
        )
        values, states = net.encoder.read(source, run, amp.map)
        attend = attention_over(net.decoder.attention, values)
        xent = optax.softmax_cross_entropy_with_integer_labels
        score = amp.node("output")(
            lambda x, word: xent(x @ net.output[...], word)
        )  # no message holds all logits

        def write(
            state: Any,
            word: jax.Array,
        ) -> tuple[Any, jax.Array]:
            return net.decoder.step(
                attend, state, amp.look_up(params["target_embedding"], word), drop
            )

        _, outputs = amp.scan(
            write,
            net.decoder.start(states),
            pair["target_in"],
        )
        return amp.sum(amp.map(score, outputs, pair["target_out"]))

    return model


def attention_over(attention: Attention, values: Any) -> Attend:
    """Lets an attention look at a sequence of any length.

    Args:
      attention: The layer.
      values: What it looks at, a sequence of `[features]`.

    Returns:
      A function from a query `[units]` to the context `[features]`.
    """
    keys = amp.map(attention.keys, values)

    def attend(query: jax.Array) -> jax.Array:
        asked = attention.ask(query)
        weights = amp.softmax(amp.map(lambda key: attention.energies(key, asked), keys))
        return amp.sum(amp.map(jnp.multiply, weights, values))

    return attend
