"""Self-attention with heads in the forms of users; by hand padded, with masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp
from experiments.bench.batch.work import Amount, Work, lengths_of, padded, weights

D = 64
HEADS = 4
WIDTH = D // HEADS
SCALE = WIDTH**-0.5
LONGEST = 256
"""Relative positions lie below this number."""

Attend = Callable[[Any, Any, Any, Any], Any]
"""From parameters and a text's queries, keys and values `[words, heads, width]` to what each word reads, of the same shape."""


def _dot(query: Any, key: Any) -> Any:
    return jnp.einsum("hd,hd->h", query, key)


def by_heads(p: Any, q: Any, k: Any, v: Any) -> Any:
    """A loop of Python over heads, with `jnp.dot` of two vectors: the form of the guide."""
    heads = []
    for head in range(HEADS):
        keys = amp.map(
            lambda key, head=head: key[head],
            k,
        )
        values = amp.map(
            lambda value, head=head: value[head],
            v,
        )

        def each(query: Any, head: int = head, keys: Any = keys, values: Any = values) -> Any:
            scores = amp.map(
                lambda key: jnp.dot(query[head], key) * SCALE,
                keys,
            )
            weighted = amp.map(
                lambda weight, value: weight * value,
                amp.softmax(scores),
                values,
            )
            return amp.sum(weighted)

        heads.append(amp.map(each, q))
    return amp.map(
        lambda *read: jnp.stack(read),
        *heads,
    )


def by_pairs(
    score: Callable[[Any, Any], Any],
    weighted: Callable[[Any, Any], Any],
) -> Attend:
    """All heads of a pair of words at once.

    Args:
      score: The scores `[heads]` of a query and a key `[heads, width]`.
      weighted: The product of weights `[heads]` and a value.
    """

    def attend(p: Any, q: Any, k: Any, v: Any) -> Any:
        def each(query: Any) -> Any:
            scores = amp.map(
                lambda key: score(query, key),
                k,
            )
            return amp.sum(
                amp.map(
                    weighted,
                    amp.softmax(scores),
                    v,
                )
            )

        return amp.map(each, q)

    return attend


def biased(p: Any, q: Any, k: Any, v: Any) -> Any:
    """A bias by relative position and head."""
    numbers = jnp.arange(q.shape[0])

    def each(query: Any, i: Any) -> Any:
        def score(key: Any, j: Any) -> Any:
            return (
                _dot(
                    query,
                    key,
                )
                * SCALE
                + p["bias"][i - j + LONGEST]
            )

        weights = amp.softmax(amp.map(score, k, numbers))
        return amp.sum(
            amp.map(
                lambda weight, value: weight[:, None] * value,
                weights,
                v,
            )
        )

    return amp.map(each, q, numbers)


def causal(p: Any, q: Any, k: Any, v: Any) -> Any:
    """An additive mask: no word sees later ones."""
    numbers = jnp.arange(q.shape[0])

    def each(query: Any, i: Any) -> Any:
        def score(key: Any, j: Any) -> Any:
            return (query * key).sum(-1) * SCALE + jnp.where(
                j <= i,
                0.0,
                -1e9,
            )

        weights = amp.softmax(amp.map(score, k, numbers))
        return amp.sum(
            amp.map(
                lambda weight, value: weight[:, None] * value,
                weights,
                v,
            )
        )

    return amp.map(each, q, numbers)


def rows(p: Any, q: Any, k: Any, v: Any) -> Any:
    """All keys for each query."""

    def each(query: Any) -> Any:
        weights = jax.nn.softmax(
            jnp.einsum("hd,jhd->hj", query, k) * SCALE,
            axis=-1,
        )
        return jnp.einsum("hj,jhd->hd", weights, v)

    return amp.map(each, q)


def matrices(p: Any, q: Any, k: Any, v: Any) -> Any:
    """A matrix of scores for each head."""
    heads = []
    for head in range(HEADS):
        scores = q[:, head] @ k[:, head].T * SCALE
        heads.append(
            jax.nn.softmax(
                scores,
                axis=-1,
            )
            @ v[:, head]
        )
    return jnp.stack(heads, 1)


def einsums(p: Any, q: Any, k: Any, v: Any) -> Any:
    """Matrices of scores for all heads."""
    weights = jax.nn.softmax(
        jnp.einsum("ihd,jhd->hij", q, k) * SCALE,
        axis=-1,
    )
    return jnp.einsum("hij,jhd->ihd", weights, v)


def heads_mapped(p: Any, q: Any, k: Any, v: Any) -> Any:
    """`jax.vmap` over heads."""
    one = lambda q, k, v: (
        jax.nn.softmax(
            q @ k.T * SCALE,
            axis=-1,
        )
        @ v
    )
    return jax.vmap(one, 1, 1)(q, k, v)


def of_jax(p: Any, q: Any, k: Any, v: Any) -> Any:
    """JAX's own attention."""
    return jax.nn.dot_product_attention(q, k, v)


def _product(weight: Any, value: Any) -> Any:
    return weight[:, None] * value


FORMS: Mapping[str, Attend] = {
    "heads": by_heads,
    "einsum": by_pairs(
        lambda q, k: _dot(q, k) * SCALE,
        _product,
    ),
    "scaled": by_pairs(
        lambda q, k: (q * SCALE * k).sum(-1),
        _product,
    ),
    "sum": by_pairs(
        lambda q, k: (q * k).sum(-1) * SCALE,
        _product,
    ),
    "vmap": by_pairs(
        lambda q, k: jax.vmap(jnp.vdot)(q, k) * SCALE,
        jax.vmap(jnp.multiply),
    ),
    "weighted": by_pairs(
        lambda q, k: _dot(q, k) * SCALE,
        lambda weight, value: jnp.einsum(
            "h,hd->hd",
            weight,
            value,
        ),
    ),
    "bias": biased,
    "causal": causal,
    "rows": rows,
    "matrices": matrices,
    "einsums": einsums,
    "heads-mapped": heads_mapped,
    "jax": of_jax,
}
"""By name, how it is written."""


def works() -> dict[str, Callable[[Amount], Work]]:
    """Makers of works, by the name of the form: 64 sentences of 5 to 40 words, and one text of 200."""
    result: dict[str, Callable[[Amount], Work]] = {}
    for name in FORMS:
        result[f"attention-64-{name}"] = partial(
            _sentences,
            name,
        )
        result[f"attention-200-{name}"] = partial(
            _one_text,
            name,
        )
    return result


def _sentences(name: str, amount: Amount) -> Work:
    lengths = np.random.default_rng(0).integers(
        5,
        41,
        amount.of(64),
    )
    return _work(name, lengths.tolist())


def _one_text(name: str, amount: Amount) -> Work:
    return _work(name, [amount.of(200)])


def _work(name: str, lengths: list[int]) -> Work:
    rng = np.random.default_rng(1)
    texts = [rng.normal(size=(n, D)).astype(np.float32) for n in lengths]
    matrix = (D, D)
    params = weights(
        0,
        query=matrix,
        key=matrix,
        value=matrix,
        out=matrix,
        bias=(2 * LONGEST, HEADS),
    )
    return Work(
        partial(model, FORMS[name]),
        {"x": f"float32[t,{D}]"},
        params,
        [{"x": each} for each in texts],
        sum(lengths),
        partial(plain, name),
        {
            "x": padded(texts),
            "lengths": lengths_of(texts),
        },
    )


def model(attend: Attend, p: Any, example: Any) -> jax.Array:
    """Sums the squares of the values read by each word.

    Args:
      attend: The form.
      p: Matrices `[D, D]`: `query`, `key`, `value`, `out`; and `bias` `[positions, heads]`.
      example: `x` `[words, D]`.
    """
    x = example["x"]
    q, k, v = (
        (x @ p[name]).reshape(
            -1,
            HEADS,
            WIDTH,
        )
        for name in ("query", "key", "value")
    )
    read = attend(p, q, k, v)
    return jnp.sum(
        (
            read.reshape(
                -1,
                D,
            )
            @ p["out"]
        )
        ** 2
    )


def plain(name: str, p: Any, arrays: Any) -> jax.Array:
    """The same over a batch.

    Args:
      name: The form's name, which says what is added to scores.
      p: As `model` takes them.
      arrays: `x` `[sentences, longest, D]` and `lengths`.
    """
    x = arrays["x"]
    n, longest, _ = x.shape
    place = jnp.arange(longest)
    is_word = place < arrays["lengths"][:, None]
    shape = n, longest, HEADS, WIDTH
    q, k, v = ((x @ p[each]).reshape(shape) for each in ("query", "key", "value"))
    scores = (
        jnp.einsum(
            "bqhd,bkhd->bhqk",
            q,
            k,
        )
        * SCALE
    )
    if name == "bias":
        bias = p["bias"][place[:, None] - place + LONGEST]
        scores = scores + jnp.moveaxis(bias, -1, 0)
    if name == "causal":
        scores = scores + jnp.where(
            place <= place[:, None],
            0.0,
            -1e9,
        )
    shares = jax.nn.softmax(
        jnp.where(
            is_word[:, None, None],
            scores,
            -jnp.inf,
        )
    )
    read = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(
        n,
        longest,
        D,
    )
    read = jnp.where(
        is_word[..., None],
        read @ p["out"],
        0,
    )
    return jnp.sum(read**2) / n
