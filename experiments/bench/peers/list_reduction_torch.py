"""List reduction in PyTorch: minibatches padded with a mask, the same compiled, and sequence by sequence."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]

from experiments.bench.peers.list_reduction_jax import Batch, minibatches
from experiments.bench.peers.torch_program import Parts, Tensor, Torch, cosine, linear, tensors
from experiments.data.list_reduction import splits
from experiments.models.rnn import init


def forward(params: Any, tokens: Tensor, lengths: Tensor | None) -> Tensor:
    """Logits `[b, 10]` of tokens `[t, b]`; with lengths `[b]`, a state stays as it is once its sequence has ended."""
    x = F.embedding(tokens, params["embed"])
    h = torch.zeros(tokens.shape[1], x.shape[2])
    for t, row in enumerate(x.unbind()):
        new = torch.relu(linear(params["linear1"], torch.cat([row, h], 1)))
        if lengths is None:
            h = new
        else:
            h = torch.where(
                (t < lengths)[:, None],
                new,
                h,
            )
    return linear(params["linear2"], h)


def one_by_one(params: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    """The same, a sequence at a time."""
    each = []
    for i, n in enumerate(lengths.tolist()):
        each.append(forward(params, tokens[:n, i, None], None))
    return torch.cat(each)


def loss(logits: Any, params: Any, batch: Batch) -> Tensor:
    """Mean cross entropy over the labels that are not -1; `logits` is one of the functions above."""
    tokens, lengths, labels = map(torch.as_tensor, batch)
    return F.cross_entropy(
        logits(params, tokens, lengths),
        labels.long(),
        ignore_index=-1,
    )


def hits(logits: Any, params: Any, batch: Batch) -> Tensor:
    """Right labels."""
    tokens, lengths, labels = map(torch.as_tensor, batch)
    return (logits(params, tokens, lengths).argmax(1) == labels).sum()


def program(
    logits: Any,
    n_train: int,
    n_valid: int,
    *,
    batch: int = 100,
    epochs: int = 13,
    learning_rate: float = 2e-3,
    seed: int = 0,
    threads: int | None = None,
) -> Torch:
    """Trains on minibatches, an Adam step for each; the arguments are those of the peer in JAX.

    Args:
      logits: One of the functions above, perhaps compiled.
      n_train: Training sequences.
      n_valid: Validation sequences.
      batch: Sequences in a minibatch.
      epochs: Passes over which the learning rate falls to 0.
      learning_rate: Adam's.
      seed: Of parameters, data and order.
      threads: Of PyTorch.
    """
    train, valid = splits(n_train, n_valid, seed)
    params = tensors(init(jax.random.key(seed)))
    adam = torch.optim.Adam(
        jax.tree.leaves(params),
        lr=learning_rate,
    )
    of = partial(minibatches, batch=batch, by_length=False)
    parts = Parts(
        partial(loss, logits, params),
        partial(hits, logits, params),
        [adam],
        lambda rng: of(train, rng=rng),
        lambda: of(valid),
        n_train,
        n_valid,
        n_valid,
        [cosine(adam, epochs * -(-n_train // batch))],
    )
    return Torch(parts, seed, threads)


def padded(**arguments: Any) -> Torch:
    """Minibatches padded to length 10, with a mask."""
    return program(forward, **arguments)


def compiled(**arguments: Any) -> Torch:
    """The same through `torch.compile`, whose time a first pass takes."""
    return program(torch.compile(forward), **arguments)


def eager(**arguments: Any) -> Torch:
    """A sequence at a time, on one thread, which suits small operations best."""
    return program(one_by_one, threads=1, **arguments)
