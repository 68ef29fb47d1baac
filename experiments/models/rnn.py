"""The variable-length RNN of AMPNet's figure 2, for list reduction (section 6 and B.2), as a function of one sequence or one bucket."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.frontend.compile_model import Compiled
from ampjax.nn import Embed, Linear
from ampjax.sparse import Table
from experiments.data.list_reduction import N_CLASSES, N_TOKENS
from experiments.models.layers.host_rows import check_table
from experiments.models.layers.linear import linear
from experiments.models.layers.losses import labelled_cross_entropy


def list_reduction_rnn(
    hidden: int = 128,
    batch: int | None = None,
    replicas: int = 1,
    copies: int = 1,
    *,
    table: Table | None = None,
    seed: int = 0,
) -> Compiled:
    """Compiles the model `list_reduction`.

    Args:
      hidden: Features of the embedding and of the hidden state.
      batch: Sequences in an instance; None for single sequences.
      replicas: The number of copies of `linear1`, each for some instances (figure 4b).
      copies: The number of copies of the whole network, each for some instances and on a worker of its own. The worker of a copy runs a
        whole step as one kernel, while `replicas` sends each step to another worker and back.
      table: The embedding's rows `[N_TOKENS, hidden]`, in host memory and with an optimizer of their own; None keeps them on a device.
      seed: Of the initial parameters.

    Returns:
      The compiled model, with the parameterised nodes `embed`, `linear1` (or `linear1/0` ...) and `linear2`. Its `data` take what
      `experiments.data.list_reduction.plain` gives, or `Buckets`.

    Raises:
      SettingsError: If a size is below 1, or the table has another shape.

    >>> from experiments.data import list_reduction
    >>> model = list_reduction_rnn(hidden=8)
    >>> len(model.data(list_reduction.plain(list_reduction.generate(5))))
    5
    """
    sizes = {
        "hidden": hidden,
        "batch": 1 if batch is None else batch,
        "replicas": replicas,
        "copies": copies,
    }
    for name, value in sizes.items():
        if value < 1:
            raise SettingsError(
                f"list_reduction_rnn, `{name}`", "at least 1", f"{value}", "Give a positive number."
            )
    params = init(jax.random.key(seed), hidden)
    if table is not None:
        check_table("list_reduction_rnn", table, N_TOKENS, hidden)
        params["embed"] = table
    return amp.compile(
        partial(list_reduction, replicas=replicas), params, spec(batch), copies=copies
    )


def spec(batch: int | None = None) -> dict[str, str]:
    """What an instance looks like.

    Args:
      batch: Sequences in a bucket; None for single sequences.
    """
    if batch is None:
        return {"tokens": "int32[t]", "label": "int32[]"}
    return {
        "tokens": f"int32[t,{batch}]",
        "label": f"int32[{batch}]",
    }


def init(
    key: jax.Array,
    hidden: int = 128,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      hidden: Features of the embedding and of the hidden state.
    """
    keys = jax.random.split(key, 3)
    return {
        "embed": Embed(N_TOKENS, hidden).init(keys[0]),
        "linear1": Linear(2 * hidden, hidden, init_scale="he").init(keys[1]),
        "linear2": Linear(hidden, N_CLASSES).init(keys[2]),
    }


def list_reduction(
    p: Any,
    s: Any,
    replicas: int = 1,
) -> jax.Array:
    """The vanilla RNN `h <- relu(linear1([embed(x_t); h]))`, and a classifier on its last state.

    Args:
      p: The parameters.
      s: `tokens` `[t]` and `label` `[]`; or of a bucket `[t, batch]` and `[batch]`, where the label -1 marks padding.
      replicas: The number of copies of `linear1`, each for some instances.

    Returns:
      The mean cross entropy, in nats, with the metric `accuracy`.
    """

    def layer(x: jax.Array, h: jax.Array) -> jax.Array:
        return jax.nn.relu(linear(p["linear1"], jnp.concatenate([x, h], axis=-1)))

    if replicas > 1:
        layer = amp.node("linear1", replicas=replicas)(layer)

    def step(
        h: jax.Array,
        token: jax.Array,
    ) -> tuple[jax.Array, None]:
        return layer(amp.look_up(p["embed"], token), h), None

    start = jnp.zeros((*s["label"].shape, p["embed"].shape[1]))
    h, _ = amp.scan(step, start, s["tokens"])
    loss, metrics = labelled_cross_entropy(
        linear(p["linear2"], h),
        s["label"],
    )
    amp.metric("accuracy", *metrics["accuracy"])
    return loss
