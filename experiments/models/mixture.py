"""A sparsely-gated mixture of experts (Shazeer et al. 2017): each row visits only the experts that its gate chooses.

AMPNet did not build one, but says (section 2) that such conditional computation is what the framework is for. The gate's choice is computed, so it
is read back to the host. Then the row is sent to its experts, which are nodes with updates of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from ampjax.errors import SettingsError
from experiments.models.layers.drawing import drawing
from experiments.models.layers.losses import labelled_cross_entropy


@dataclass(frozen=True)
class Experts:
    """Sizes of the mixture, and its bodies.

    Args:
      n_in: Features of a row.
      hidden: Features of an expert's one hidden layer.
      n_out: Features of the result.
      n: Experts, E.
      top: Experts that a row visits: 1 or 2.
      noisy: Whether training adds the trainable noise to the gate.
      balance: Weight of the importance loss, w.
    """

    n_in: int
    hidden: int
    n_out: int
    n: int = 4
    top: int = 2
    noisy: bool = True
    balance: float = 0.1

    def __post_init__(self) -> None:
        if (
            self.top not in (1, 2)
            or self.n < self.top
            or min(self.n_in, self.hidden, self.n_out) < 1
        ):
            raise SettingsError(
                "mixture",
                "sizes of at least 1, and the top 1 or 2 of at least as many experts",
                f"{self}",
                "Change them.",
            )

    def init_gate(
        self,
        key: jax.Array,
    ) -> dict[str, jax.Array]:
        """Makes the gate's parameters, so that at first the noise alone chooses.

        Args:
          key: A PRNG key.

        Returns:
          `gate` and `noise` `[n_in, E]`, zeros.
        """
        zeros = jnp.zeros((self.n_in, self.n), jnp.float32)
        return {"gate": zeros, "noise": zeros}

    def gate(
        self, params: Any, x: jax.Array, key: Any = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Chooses experts for a row.

        `H = x W_g + N(0, 1) softplus(x W_noise)`; the weights are the softmax of the top entries of H. With `top` 1 this weight would always
        be 1, and the gate would get no gradient; so then the weight is that of the softmax over all experts (Fedus et al. 2021).

        Args:
          params: As `init_gate` gives them.
          x: The row `[n_in]`.
          key: A PRNG key for the noise; None in inference.

        Returns:
          The chosen experts' weights `[top]`; their numbers, int32 `[top]` (`[]` for one); and each expert's weight `[E]`, 0 if it was not
          chosen.
        """
        h = x @ params["gate"]
        if key is not None:
            h = h + jax.random.normal(key, h.shape, h.dtype) * jax.nn.softplus(x @ params["noise"])
        best, chosen = jax.lax.top_k(h, self.top)
        if self.top > 1:
            weights = jax.nn.softmax(best)
        else:
            weights = jax.nn.softmax(h)[chosen]
        everywhere = jnp.zeros_like(h).at[chosen].set(weights)
        return weights, chosen if self.top > 1 else chosen[0], everywhere

    def init_expert(
        self,
        key: jax.Array,
    ) -> list[dict[str, jax.Array]]:
        """Makes the parameters of an expert's two linear layers.

        Args:
          key: A PRNG key.

        Returns:
          For each layer `w` and `b`; He and Glorot normal, biases zero.
        """
        keys = jax.random.split(key)
        sizes = (
            (self.n_in, self.hidden),
            (self.hidden, self.n_out),
        )
        starts = jax.nn.initializers.he_normal(), jax.nn.initializers.glorot_normal()
        return [
            {
                "w": start(key, size, jnp.float32),
                "b": jnp.zeros(size[1], jnp.float32),
            }
            for start, key, size in zip(starts, keys, sizes, strict=True)
        ]

    def expert(self, params: Any, x: jax.Array) -> jax.Array:
        """Computes an expert's output: one hidden ReLU layer.

        Args:
          params: As `init_expert` gives them.
          x: The row `[n_in]`.

        Returns:
          `[n_out]`.
        """
        first, second = params
        return jax.nn.relu(x @ first["w"] + first["b"]) @ second["w"] + second["b"]

    def importance_loss(self, importance: jax.Array) -> jax.Array:
        """Computes `w CV(importance)²`: a squared coefficient of variation, which is 0 if experts are used equally.

        Args:
          importance: The experts' gates, summed over an instance's rows, `[E]`.

        Returns:
          The loss, a scalar.
        """
        return self.balance * jnp.var(importance) / (jnp.mean(importance) ** 2 + 1e-10)


def spec(experts: Experts) -> dict[str, str]:
    """What an instance looks like: rows with their labels.

    Args:
      experts: The sizes.
    """
    return {"x": f"float32[i,{experts.n_in}]", "label": "int32[i]"}


def init(
    key: jax.Array,
    experts: Experts,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      experts: The sizes.
    """
    keys = jax.random.split(key, experts.n + 1)
    return {"gate": experts.init_gate(keys[0])} | {
        f"expert{k}": experts.init_expert(keys[1 + k]) for k in range(experts.n)
    }


def mixture_of_experts(
    experts: Experts,
    replicas: int = 1,
) -> Callable[[Any, Any], jax.Array]:
    """Makes the model: each row visits the experts that its gate chooses. The paper's second balancing loss, on the load, is left out.

    Args:
      experts: The sizes.
      replicas: The number of copies of the gate and of each expert, each for some instances.

    Returns:
      A function of parameters and an instance to the rows' summed cross entropy with the importance loss; with the metric `accuracy` and the
      output `logits`.
    """

    def node(
        name: str,
        body: Callable[..., Any],
    ) -> Callable[..., Any]:
        if replicas == 1:
            return body
        return amp.node(name, replicas=replicas)(body)

    def model(p: Any, s: Any) -> jax.Array:
        gate = node(
            "gate",
            lambda x: drawing(experts.noisy, experts.gate, p["gate"], x),
        )
        each = [
            node(
                f"expert{k}",
                lambda x, k=k: experts.expert(p[f"expert{k}"], x),
            )
            for k in range(experts.n)
        ]

        def classify(
            x: jax.Array,
            label: jax.Array,
        ) -> tuple[jax.Array, jax.Array]:
            weights, chosen, everywhere = gate(x)
            visits = []
            for choice in jnp.reshape(chosen, (experts.top,)):
                visits.append(amp.switch(amp.read(choice), each, x))
            logits = jnp.dot(
                weights.reshape(-1),
                jnp.stack(visits),
            )
            amp.output("logits", logits)
            loss, metrics = labelled_cross_entropy(logits, label)
            amp.metric("accuracy", *metrics["accuracy"])
            return loss, everywhere

        losses, everywhere = amp.map(classify, s["x"], s["label"])
        return amp.sum(losses) + experts.importance_loss(amp.sum(everywhere))

    return model
