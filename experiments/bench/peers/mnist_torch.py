"""The perceptron in PyTorch: eager, and compiled."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]

from ampjax.train.initial_params import initial_params
from experiments.bench.ours import set_up
from experiments.bench.peers.mnist_jax import minibatches
from experiments.bench.peers.torch_program import Parts, Tensor, Torch, linear, tensors
from experiments.data.mnist import Batches
from experiments.mnist import rate


def forward(params: Any, images: Tensor) -> Tensor:
    """Logits `[b, 10]` of images `[b, 784]`; `params` has `linear1`, `linear2`, ... in their order."""
    x = images
    for i, layer in enumerate(params.values()):
        x = linear(layer, x if i == 0 else torch.relu(x))
    return x


def loss(logits: Any, params: Any, batch: Any) -> Tensor:
    """Mean cross entropy over the labels that are not -1; `logits` is `forward`, perhaps compiled."""
    images, labels = map(torch.as_tensor, batch)
    return F.cross_entropy(
        logits(params, images),
        labels.long(),
        ignore_index=-1,
    )


def hits(logits: Any, params: Any, batch: Any) -> Tensor:
    """Right labels."""
    images, labels = map(torch.as_tensor, batch)
    return (logits(params, images).argmax(1) == labels).sum()


def program(
    logits: Any,
    batch: int = 100,
    seed: int = 0,
    threads: int | None = None,
    **arguments: Any,
) -> Torch:
    """Trains on batches, an SGD step for each; the arguments are those of the peer in JAX."""
    options, task = set_up("mnist", batch_size=batch, **arguments)
    train = cast(Batches, task.train)
    valid = cast(Batches, task.valid)
    params = tensors(initial_params(task.graph, {}, 0))
    schedule = rate(options)
    sgd = torch.optim.SGD(
        jax.tree.leaves(params),
        lr=1.0,
    )
    if callable(schedule):
        rates = [float(np.asarray(schedule(n))) for n in range(options.warm_up + 1)]
    else:
        rates = [schedule]
    parts = Parts(
        partial(loss, logits, params),
        partial(hits, logits, params),
        [sgd],
        partial(minibatches, train),
        partial(minibatches, valid),
        train.n_examples,
        valid.n_examples,
        valid.n_examples,
        [torch.optim.lr_scheduler.LambdaLR(sgd, lambda n: rates[min(n, len(rates) - 1)])],
    )
    return Torch(parts, seed, threads)


def eager(**arguments: Any) -> Torch:
    """As it is written."""
    return program(forward, **arguments)


def compiled(**arguments: Any) -> Torch:
    """Through `torch.compile`, whose time a first pass takes."""
    return program(torch.compile(forward), **arguments)
