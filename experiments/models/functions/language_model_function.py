"""The LSTM language model of the Parallax papers as a function of one sentence of any length; its parts are those of `experiments.models.lm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

import ampjax as amp
from experiments.models import lm
from experiments.models.layers import functional

SPEC = {"inputs": "int32[w]", "targets": "int32[w]"}
"""What an instance looks like: a sentence after its start mark, and the same sentence before its end mark."""

init = lm.init
"""Makes the parameters, `embedding`, `lstm` and `softmax`: those of `experiments.models.lm`. `embedding` may be an `ampjax.sparse.Table` of the same rows."""


def language_model(config: lm.Config) -> Callable[[Any, Any], jax.Array]:
    """Makes the model: an LSTM reads a sentence from a state of zeros, and a softmax over all words tells each next one.

    Args:
      config: Sizes of the model; how many samples `experiments.models.lm` draws does not matter.

    Returns:
      A function of parameters and an instance to the summed cross entropy of all words, in nats.
    """

    def model(params: Any, sentence: Any) -> jax.Array:
        net = functional.merge(lm.LanguageModel, config, params)

        def read(
            state: Any,
            word: jax.Array,
        ) -> tuple[Any, jax.Array]:
            x = amp.look_up(params["embedding"], word)
            state = net.lstm(state, amp.dropout(x, config.dropout))
            return state, state[1]

        _, outputs = amp.scan(
            read,
            net.lstm.start(),
            sentence["inputs"],
        )
        nats = amp.node("softmax")(
            net.softmax.nats
        )  # one node, so that no message holds the logits of all words
        each = amp.map(
            lambda x, word: nats(amp.dropout(x, config.dropout), word),
            outputs,
            sentence["targets"],
        )
        return amp.sum(each)

    return model
