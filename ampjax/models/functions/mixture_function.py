"""A sparsely-gated mixture of experts (Shazeer et al. 2017), as a function of a batch of rows; the bodies are those of `mixture`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from ampjax.models.layers.drawing import drawing
from ampjax.models.layers.losses import labelled_cross_entropy
from ampjax.models.mixture import Experts


def spec(experts: Experts) -> dict[str, str]:
    """What an instance looks like: rows with their labels.

    Args:
      experts: The sizes.
    """
    return {"x": f"float32[i,{experts.n_in}]", "label": "int32[i]"}


def init(key: jax.Array, experts: Experts) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      experts: The sizes.
    """
    keys = jax.random.split(key, experts.n + 1)
    return {"gate": experts.init_gate(keys[0])} | {
        f"expert{k}": experts.init_expert(keys[1 + k]) for k in range(experts.n)
    }


def mixture_of_experts(experts: Experts) -> Callable[[Any, Any], jax.Array]:
    """The model: each row visits the experts that its gate chooses.

    Args:
      experts: The sizes.

    Returns:
      A function of parameters and an instance to the rows' summed cross entropy with the importance loss.
    """

    def model(p: Any, s: Any) -> jax.Array:
        def classify(x: jax.Array, label: jax.Array) -> tuple[jax.Array, jax.Array]:
            weights, chosen, everywhere = drawing(experts.noisy, experts.gate, p["gate"], x)
            choices = [lambda k=k: experts.expert(p[f"expert{k}"], x) for k in range(experts.n)]
            visits = [amp.switch(amp.read(choice), choices) for choice in jnp.reshape(chosen, (experts.top,))]
            logits = jnp.dot(weights.reshape(-1), jnp.stack(visits))
            amp.output("logits", logits)
            loss, metrics = labelled_cross_entropy(logits, label)
            amp.metric("accuracy", *metrics["accuracy"])
            return loss, everywhere

        losses, everywhere = amp.map(classify, s["x"], s["label"])
        return amp.sum(losses) + experts.importance_loss(amp.sum(everywhere))

    return model
