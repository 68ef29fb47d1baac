"""Operations in an order of each instance's own, in PyTorch: the union of all paths, and rows sorted by operation at each step."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]

from ampjax.train.initial_params import initial_params
from experiments.bench.ours import set_up
from experiments.bench.peers.permutation_jax import Batch, minibatches
from experiments.bench.peers.torch_program import Parts, Tensor, Torch, linear, tensors
from experiments.permutation import splits


def start(params: Any, digits: Tensor) -> Tensor:
    """Digits `[b, 6]` to states `[b, H]`."""
    places = torch.arange(digits.shape[1])
    return params["embed"][places, digits.long()].sum(1)


def union(params: Any, digits: Tensor, orders: Tensor) -> Tensor:
    """Logits `[b, 10]`: every operation on every instance at each step, of which a mask keeps one."""
    n = orders.shape[1]
    maps = [params[f"operation{k}"] for k in range(n)]
    joined = {
        "w": torch.cat([m["w"] for m in maps], 1),
        "b": torch.cat([m["b"] for m in maps]),
    }
    h = start(params, digits)
    numbers = torch.arange(n)
    for due in orders.unbind(1):
        every = torch.relu(linear(joined, h)).reshape(
            len(h),
            n,
            -1,
        )
        h = torch.where((due[:, None] == numbers)[..., None], every, 0.0).sum(1)
    return linear(params["output"], h)


def sorted_(params: Any, digits: Tensor, orders: Tensor) -> Tensor:
    """Logits `[b, 10]`: at each step, rows with one operation go through it together."""
    h = start(params, digits)
    n = orders.shape[1]
    for due in orders.unbind(1):
        order = due.argsort()
        groups = h[order].split(torch.bincount(due, minlength=n).tolist())
        after = torch.cat(
            [torch.relu(linear(params[f"operation{k}"], rows)) for k, rows in enumerate(groups)]
        )
        h = torch.empty_like(after).index_copy(0, order, after)
    return linear(params["output"], h)


def loss(logits: Any, params: Any, batch: Batch) -> Tensor:
    """Mean cross entropy over the labels that are not -1; `logits` is one of the functions above."""
    digits, orders, labels = map(torch.as_tensor, batch)
    return F.cross_entropy(
        logits(params, digits, orders),
        labels.long(),
        ignore_index=-1,
    )


def hits(logits: Any, params: Any, batch: Batch) -> Tensor:
    """Right labels."""
    digits, orders, labels = map(torch.as_tensor, batch)
    return (logits(params, digits, orders).argmax(1) == labels).sum()


def program(
    logits: Any,
    batch: int = 100,
    seed: int = 0,
    threads: int | None = None,
    **arguments: Any,
) -> Torch:
    """Trains on minibatches, an Adam step for each; the arguments are those of the peer in JAX."""
    options, task = set_up("permutation", **arguments)
    train, valid = splits(options, 0)
    params = tensors(initial_params(task.graph, {}, 0))
    parts = Parts(
        partial(loss, logits, params),
        partial(hits, logits, params),
        [torch.optim.Adam(jax.tree.leaves(params), options.learning_rate)],
        lambda rng: minibatches(train, batch, rng),
        lambda: minibatches(valid, batch),
        len(train),
        len(valid),
        len(valid),
    )
    return Torch(parts, seed, threads)


by_mask = partial(program, union)
by_operation = partial(program, sorted_)
