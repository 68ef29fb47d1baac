"""Losses in steps, some of which mix the examples of a batch: for what is proved of programs that are cut for replicas."""

import jax
import jax.numpy as jnp
import numpy as np

import ampjax.parallel as px

D = 4
V = 7
EACH = 4


def params_of(seed):
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(D, D)).astype(np.float32),
        "t": rng.normal(size=(V, D)).astype(np.float32),
    }


def batch_of(seed, n, is_even):
    """A batch for n replicas, with weights that add up to the same at each, or don't."""
    rng = np.random.default_rng(seed)
    weights = (
        rng.permuted(
            np.tile(
                [1.0, 1.0, 1.0, 0.0],
                (n, 1),
            ),
            axis=1,
        )
        * rng.integers(1, 4)
    ).astype(np.float32)
    if not is_even:
        weights[0] *= 0.5
    return {
        "x": rng.normal(size=(n * EACH, D)).astype(np.float32),
        "ids": rng.integers(0, V, (n * EACH, 3)),
        "k": rng.integers(0, D, n * EACH),
        "m": weights.ravel(),
    }


def branches(p, b, x):
    return jax.vmap(
        lambda h, k: jax.lax.cond(
            k > 1,
            lambda: jnp.tanh(h @ p["w"]),
            lambda: p["t"][k],
        )
    )(x, b["k"])


def scanned(p, b, x):
    def step(h, ids):
        return jnp.tanh(h @ p["w"] + p["t"][ids]), h.sum(-1)

    h, sums = jax.lax.scan(
        step,
        x,
        b["ids"].T,
    )
    return h + sums.T[:, :1]


def of_classes(p, b, x):
    return jax.ops.segment_sum(x, b["k"], D)[b["k"]]


def attention(p, b, x):
    rows = p["t"][b["ids"]]
    scores = jnp.where(
        b["ids"] > 2,
        jnp.einsum("bd,bld->bl", x @ p["w"], rows),
        -jnp.inf,
    )
    return jnp.einsum(
        "bl,bld->bd",
        jax.nn.softmax(jnp.concatenate([scores, jnp.zeros((len(x), 1))], 1))[:, :-1],
        rows,
    )


def both(p, b, x):
    """Two towers in one pass."""
    h = jnp.tanh(jnp.concatenate([x, p["t"][b["ids"][:, 0]]]) @ p["w"])
    return h[: len(x)] * h[len(x) :]


STEPS = {
    "a layer": (
        lambda p, b, x: jnp.tanh(x @ p["w"]),
        False,
    ),
    "rows": (
        lambda p, b, x: x + p["t"][b["ids"]].sum(1),
        False,
    ),
    "taken": (
        lambda p, b, x: x * jnp.take(p["t"], b["k"], axis=0, mode="fill"),
        False,
    ),
    "weighted": (
        lambda p, b, x: x * b["m"][:, None],
        False,
    ),
    "softmax": (lambda p, b, x: jax.nn.softmax(x), False),
    "sorted within": (
        lambda p, b, x: jnp.sort(x, axis=1),
        False,
    ),
    "summed up within": (
        lambda p, b, x: jnp.cumsum(x, axis=-1),
        False,
    ),
    "flattened": (
        lambda p, b, x: jnp.tanh(x.reshape(-1)).reshape(x.shape),
        False,
    ),
    "turned": (
        lambda p, b, x: (p["w"].T @ x.T).T,
        False,
    ),
    "turned by several": (
        lambda p, b, x: (
            jnp.tensordot(
                jnp.stack([p["w"], -p["w"]]),
                x.T,
                1,
            )
            .max(0)
            .T
        ),
        False,
    ),
    "chosen within": (
        lambda p, b, x: x * jnp.take_along_axis(x, b["k"][:, None], 1),
        False,
    ),
    "one of each": (
        lambda p, b, x: x * x[jnp.arange(len(x)), b["k"]][:, None],
        False,
    ),
    "one of each by NumPy": (
        lambda p, b, x: x * x[np.arange(len(x)), b["k"]][:, None],
        False,
    ),
    "a column set": (
        lambda p, b, x: x.at[:, 0].set(b["m"]),
        False,
    ),
    "one of each set": (
        lambda p, b, x: x.at[jnp.arange(len(x)), b["k"]].set(0.5),
        False,
    ),
    "one hot": (
        lambda p, b, x: x * jax.nn.one_hot(b["k"], D),
        False,
    ),
    "branches": (branches, False),
    "scanned": (scanned, False),
    "attention": (attention, False),
    "both": (both, False),
    "one by one": (
        lambda p, b, x: jax.lax.map(
            lambda h: jnp.tanh(h @ p["w"]) / (1 + h.max()),
            x,
        ),
        False,
    ),
    "by steps": (
        lambda p, b, x: jax.lax.fori_loop(
            0,
            D,
            lambda i, h: h * x[:, i, None] + p["w"][i],
            x,
        ),
        False,
    ),
    "summed up by steps": (
        lambda p, b, x: x + jax.lax.scan(lambda s, h: (s + h, s), jnp.zeros(D), x)[1] / 9,
        True,
    ),
    "vmapped": (
        lambda p, b, x: jax.vmap(
            lambda h: jnp.outer(
                h,
                h @ p["w"],
            ).sum(0)
        )(x),
        False,
    ),
    "its own gradient": (
        lambda p, b, x: jax.vmap(jax.grad(lambda h: jnp.sum(jnp.tanh(h @ p["w"]))))(x),
        False,
    ),
    "clipped": (
        lambda p, b, x: jnp.clip(x, -0.5, 0.5),
        False,
    ),
    "without its mean everywhere": (
        lambda p, b, x: x - px.mean(x, axis=0),
        False,
    ),
    "beside all others": (
        lambda p, b, x: x @ px.all_gather(x).T @ px.all_gather(x) / 9,
        False,
    ),
    "stacked": (
        lambda p, b, x: jnp.stack(
            [x, x @ p["w"]],
            1,
        ).max(1),
        False,
    ),
    "by the sum of weights": (
        lambda p, b, x: x * len(x) / b["m"].sum(),
        "unless even",
    ),
    "by the mean weight": (
        lambda p, b, x: x / jnp.maximum(b["m"].mean(), 1e-6),
        "unless even",
    ),
    "without its mean": (lambda p, b, x: x - x.mean(0), True),
    "by the largest": (
        lambda p, b, x: x / (1 + jnp.abs(x).max()),
        True,
    ),
    "sorted": (
        lambda p, b, x: jnp.sort(x, axis=0),
        True,
    ),
    "rolled": (
        lambda p, b, x: x * jnp.roll(x, 1, axis=0),
        True,
    ),
    "among each other": (lambda p, b, x: x @ x.T @ x / 9, True),
    "moments": (
        lambda p, b, x: x @ (x.T @ x) / 9,
        True,
    ),
    "of classes": (of_classes, True),
    "places": (
        lambda p, b, x: x + jnp.arange(len(x))[:, None] / 9,
        True,
    ),
    "first": (lambda p, b, x: x - x[:1], True),
    "halves": (
        lambda p, b, x: jnp.concatenate([x[::2], -x[1::2]]) * x,
        True,
    ),
    "as many": (lambda p, b, x: x * len(x), True),
    "summed up": (
        lambda p, b, x: jnp.cumsum(x, axis=0),
        True,
    ),
    "concatenated": (
        lambda p, b, x: jnp.concatenate([x, -x]).reshape(-1, 2 * D).mean(1)[:, None] * x,
        True,
    ),
    "a row in each": (
        lambda p, b, x: jnp.where(
            jnp.arange(len(x))[:, None] == 0,
            p["t"][0],
            x,
        ),
        True,
    ),
    "by the largest weight": (
        lambda p, b, x: x / b["m"].max(),
        True,
    ),
}
"""What is done to an array `[b, D]`; and whether it mixes examples."""

ENDS = {
    "mean": (lambda p, b, x: x.mean(), False),
    "sum by number": (
        lambda p, b, x: x.sum() / len(x),
        False,
    ),
    "regularised": (
        lambda p, b, x: x.mean() + jnp.sqrt((p["w"] ** 2).sum()),
        False,
    ),
    "weighted": (
        lambda p, b, x: (
            px.Weighted(
                (x.sum(1) * b["m"]).sum(),
                b["m"].sum(),
            ).value
        ),
        False,
    ),
    "quotient": (
        lambda p, b, x: (x.sum(1) * b["m"]).sum() / jnp.maximum(b["m"].sum(), 1e-3),
        "unless even",
    ),
    "average": (
        lambda p, b, x: jnp.average(
            x[:, 0],
            weights=b["m"],
        ),
        "unless even",
    ),
    "two quotients": (
        lambda p, b, x: jnp.average(x[:, 0], weights=b["m"]) + x[:, 1].mean(),
        "unless even",
    ),
    "guarded": (
        lambda p, b, x: jnp.where(
            b["m"].sum() > 0,
            (x[:, 0] * b["m"]).sum() / b["m"].sum(),
            0,
        ),
        "unless even",
    ),
    "sum": (lambda p, b, x: x.sum(), True),
    "root": (
        lambda p, b, x: jnp.sqrt(1 + (x**2).mean()),
        True,
    ),
    "largest": (lambda p, b, x: x.max(), True),
    "norm of the mean": (
        lambda p, b, x: (x.mean(0) ** 2).sum(),
        True,
    ),
    "spread": (lambda p, b, x: x.std(), True),
}
"""A loss out of such an array; and whether that mixes examples."""


def loss_of(steps, end):
    """The loss that does some steps, and ends so."""

    def loss(params, batch):
        params, batch = jax.tree.map(jnp.asarray, (params, batch))
        x = batch["x"]
        for step in steps:
            x = STEPS[step][0](params, batch, x)
        return ENDS[end][0](params, batch, x)

    return loss
