"""Random models, their data, and optax transforms, for laws that compare training with plain optax.

Layers are few and alike, and parameters the same for all models, so that models share compiled kernels.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st

import ampjax as amp

WIDTH = 2
KEYS = "first", "second", "third", "fourth"
SPEC = {
    "x": f"float32[{WIDTH}]",
    "xs": f"float32[t,{WIDTH}]",
    "choice": "int32[]",
    "y": f"float32[{WIDTH}]",
}


@jax.jit
def layer(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["w"] + p["b"])


def parameters(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def one():
        return {
            "w": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32),
            "b": np.zeros(WIDTH, np.float32),
        }

    return {key: one() for key in KEYS}


def example(rng: np.random.Generator) -> dict[str, Any]:
    def row(*shape):
        return rng.normal(size=(*shape, WIDTH)).astype(np.float32)

    return {
        "x": row(),
        "xs": row(rng.choice([0, 0, 1, 2, 4])),
        "choice": int(rng.integers(0, 2)),
        "y": row(),
    }


@dataclass(frozen=True)
class Model:
    """A chain of parts, and a loss; a loss of tokens is added in places.

    Args:
      parts: What each does, and the keys of its parameters.
      loss: What the loss is.
    """

    parts: tuple[tuple[str, str, str], ...]
    loss: str

    def __call__(self, p: Any, e: Any) -> Any:
        h = e["x"]
        for kind, key, other in self.parts:
            h = PARTS[kind](p, e, h, key, other)
        return LOSSES[self.loss](p, e, h)


PARTS = {
    "layer": lambda p, e, h, key, other: layer(p[key], h),
    "branch": lambda p, e, h, key, other: amp.cond(
        e["choice"] > 0,
        lambda: layer(p[key], h),
        lambda: layer(p[other], h),
    ),
    "skip": lambda p, e, h, key, other: amp.cond(
        e["choice"] > 0,
        lambda: layer(p[key], h),
        lambda: h,
    ),
    "scan": lambda p, e, h, key, other: amp.scan(
        lambda h, x: (layer(p[key], h + x), None),
        h,
        e["xs"],
    )[0],
    "sum": lambda p, e, h, key, other: (
        h
        + amp.sum(
            amp.map(
                lambda x: layer(p[key], x),
                e["xs"],
            )
        )
    ),
    "mean": lambda p, e, h, key, other: (
        h
        + amp.sum(
            amp.map(
                lambda x: layer(p[key], x),
                e["xs"],
            )
        )
        / (1.0 + amp.length(e["xs"]))
    ),
}

squares = jax.jit(lambda h, y: jnp.sum((h - y) ** 2))


def tokens(e, h):
    return amp.map(lambda x: squares(h, x), e["xs"])


LOSSES = {
    "square": lambda p, e, h: squares(h, e["y"]),
    "root": lambda p, e, h: jnp.sqrt(1.0 + squares(h, e["y"])),
    "weighted": lambda p, e, h: 0.5 * squares(h, e["y"]) + 3.0,
    "tokens": lambda p, e, h: amp.sum(tokens(e, h)),
    "mean of tokens": lambda p, e, h: amp.sum(tokens(e, h)) / (1.0 + amp.length(e["xs"])),
    "weighted tokens": lambda p, e, h: squares(h, e["y"]) - 0.25 * amp.sum(tokens(e, h)),
    "log of a sum": lambda p, e, h: jnp.log(1.0 + amp.sum(tokens(e, h))) - 0.1 * squares(h, e["y"]),
}


def models() -> st.SearchStrategy[Model]:
    part = st.tuples(
        st.sampled_from(sorted(PARTS)),
        st.sampled_from(KEYS),
        st.sampled_from(KEYS),
    )
    return st.builds(
        Model,
        st.lists(part, min_size=1, max_size=2).map(tuple),
        st.sampled_from(sorted(LOSSES)),
    )


FIRST = {key: key == "first" for key in KEYS}
LABELS = {"first": "slow", "second": "fast", "third": "still", "fourth": "fast"}
matrices = functools.partial(
    jax.tree.map,
    lambda x: x.ndim > 1,
)
by_path = functools.partial(
    jax.tree_util.tree_map_with_path,
    lambda path, _: "slow" if path[0].key == "second" else "fast",
)

TRANSFORMS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "nesterov": optax.sgd(0.05, momentum=0.9, nesterov=True),
    "schedule": optax.sgd(optax.exponential_decay(0.2, 1, 0.5)),
    "adagrad": optax.adagrad(0.1),
    "adam": optax.adam(0.05, eps=1e-3),
    "adamw": optax.adamw(0.05, eps=1e-3, weight_decay=0.1),
    "adamw of matrices": optax.adamw(0.05, eps=1e-3, weight_decay=0.1, mask=matrices),
    "adamw of a key": optax.adamw(0.05, eps=1e-3, weight_decay=0.1, mask=FIRST),
    "amsgrad": optax.amsgrad(0.05, eps=1e-3),
    "nadamw": optax.nadamw(0.05, eps=1e-3, weight_decay=0.1),
    "adabelief": optax.adabelief(0.05, eps=1e-3),
    "rmsprop": optax.rmsprop(0.05, eps=1e-3),
    "lamb": optax.lamb(0.05, eps=1e-3, weight_decay=0.1),
    "adaptive clipping": optax.chain(
        optax.adaptive_grad_clip(0.1),
        optax.sgd(0.1),
    ),
    "clipping by value": optax.chain(
        optax.clip(0.1),
        optax.sgd(0.1, momentum=0.5),
    ),
    "global norm": optax.chain(
        optax.clip_by_global_norm(0.3),
        optax.sgd(0.1),
    ),
    "global norm and adamw": optax.chain(
        optax.clip_by_global_norm(0.3), optax.adamw(0.05, eps=1e-3)
    ),
    "normalized": optax.chain(optax.normalize_by_update_norm(), optax.sgd(0.1)),
    "labels by key": optax.multi_transform(
        {
            "slow": optax.sgd(0.01),
            "fast": optax.adam(0.05, eps=1e-3),
            "still": optax.set_to_zero(),
        },
        LABELS,
    ),
    "labels by path": optax.multi_transform(
        {"slow": optax.sgd(0.01), "fast": optax.sgd(0.1)},
        by_path,
    ),
    "a frozen key": optax.chain(
        optax.sgd(0.1),
        optax.masked(optax.set_to_zero(), FIRST),
    ),
    "only if finite": optax.apply_if_finite(optax.sgd(0.1, momentum=0.9), 3),
    "every second step": optax.MultiSteps(
        optax.sgd(0.1, momentum=0.9), 2
    ).gradient_transformation(),
    "hyperparameters": optax.inject_hyperparams(optax.adam)(
        optax.linear_schedule(0.1, 0.01, 3), eps=1e-3
    ),
    "plateaus": optax.chain(
        optax.sgd(0.1),
        optax.contrib.reduce_on_plateau(patience=0, cooldown=0, factor=0.5),
    ),
    "average of gradients": optax.chain(
        optax.ema(0.5),
        optax.sgd(0.1),
    ),
    "centralized": optax.chain(optax.centralize(), optax.sgd(0.1)),
}
WANT_LOSS = ("plateaus",)
