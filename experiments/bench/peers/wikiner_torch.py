"""The WikiNER tagger in PyTorch: minibatches of packed sequences, and sentence by sentence.

PyTorch's LSTM has its gates in the order i, f, g, o and two biases. Its second bias is held at our 1 on the forget gate and does not learn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]
from torch.nn.utils.rnn import (  # pyright: ignore[reportMissingImports]
    pack_padded_sequence,
    pad_packed_sequence,
)

from ampjax.train.initial_params import initial_params
from experiments.bench.ours import set_up
from experiments.bench.peers.torch_program import Parts, Tensor, Torch
from experiments.bench.peers.wikiner_jax import Batch, by_length, padded
from experiments.data.wikiner import Sentences
from experiments.models.tagger import Sizes
from experiments.wikiner import load

GATES = (0, 1, 3, 2)
"""Where PyTorch's gates i, f, g, o stand among ours: i, f, o, g."""


class Tagger(torch.nn.Module):
    """The network, with our parameters.

    Args:
      params: Parameters by the names of `experiments.models.tagger`.
      noise: Standard deviation of the noise on word vectors in training.
    """

    def __init__(self, params: Any, noise: float = 0.0):
        super().__init__()
        self.embed, self.char_embed, self.hidden, self.output = (
            torch.nn.Parameter(
                torch.tensor(np.asarray(params[name] if name != "output" else params[name]["w"]))
            )
            for name in ("embed", "char_embed", "hidden", "output")
        )
        self.char, self.word = (lstm(params, kind) for kind in ("char", "word"))
        self._noise = noise

    def forward(self, batch: Batch) -> Tensor:
        """Logits `[words, 9]` of a minibatch's words, sentence by sentence; all LSTMs run on packed sequences."""
        n = np.count_nonzero(
            batch["lengths"]
        )  # the last minibatch may be filled up with empty sentences
        words = torch.as_tensor(batch["words"][:n])
        lengths = torch.as_tensor(batch["lengths"][:n]).long()
        x = F.embedding(
            words.clamp(min=0).reshape(-1),
            self.embed,
        )
        sizes = batch["sizes"][batch["sizes"] > 0]
        if len(sizes):
            spelled = self._spelled(
                torch.as_tensor(batch["characters"][: len(sizes)]),
                torch.as_tensor(sizes).long(),
            )
            x = x.index_copy(
                0,
                torch.as_tensor(batch["places"][: len(sizes)]).long(),
                spelled,
            )
        x = self._noisy(x).reshape(*words.shape, -1)[:, : int(lengths.max())]
        packed, _ = self.word(
            pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        )
        states, _ = pad_packed_sequence(packed, batch_first=True)
        inside = torch.arange(states.shape[1]) < lengths[:, None]
        return self._classified(states[inside])

    def one(self, sentence: Batch) -> Tensor:
        """The same for one sentence; its rare words are spelled one after the other."""
        n = int(sentence["lengths"][0])
        rows = []
        for i, size in enumerate(sentence["sizes"]):
            if size:
                letters = F.embedding(
                    torch.as_tensor(sentence["characters"][i, :size]), self.char_embed
                )
                _, (last, _) = self.char(letters[:, None])
                rows.append(last.reshape(1, -1))
        x = F.embedding(
            torch.as_tensor(sentence["words"][0, :n]).clamp(min=0),
            self.embed,
        )
        if rows:
            x = x.index_copy(
                0,
                torch.as_tensor(sentence["places"][: len(rows)]).long(),
                torch.cat(rows),
            )
        states, _ = self.word(self._noisy(x)[:, None])
        return self._classified(states[:, 0])

    def _spelled(self, characters: Tensor, sizes: Tensor) -> Tensor:
        """Rare words' vectors `[r, E]`: the last states of both ways."""
        letters = F.embedding(characters, self.char_embed)
        _, (last, _) = self.char(
            pack_padded_sequence(letters, sizes, batch_first=True, enforce_sorted=False)
        )
        return torch.cat(last.unbind(), 1)

    def _noisy(self, x: Tensor) -> Tensor:
        if self.training and self._noise:
            return x + self._noise * torch.randn_like(x)
        return x

    def _classified(self, states: Tensor) -> Tensor:
        return torch.tanh(states @ self.hidden) @ self.output


def lstm(params: Any, kind: str) -> Any:
    """PyTorch's LSTM of both ways with the parameters of `kind`: `char` or `word`."""
    inputs = params[f"{kind}_input"]
    n_in, n_out = inputs["forward"]["w"].shape
    module = torch.nn.LSTM(n_in, n_out // 4, bidirectional=True)
    forget = torch.zeros(4, n_out // 4)
    forget[1] = 1
    for way, suffix in (("forward", ""), ("backward", "_reverse")):
        own = {
            f"weight_ih_l0{suffix}": reordered(inputs[way]["w"]),
            f"weight_hh_l0{suffix}": reordered(params[f"{kind}_{way}"]),
            f"bias_ih_l0{suffix}": reordered(inputs[way]["b"]),
            f"bias_hh_l0{suffix}": forget.reshape(-1),
        }
        for name, value in own.items():
            getattr(module, name).data.copy_(value)
        getattr(module, f"bias_hh_l0{suffix}").requires_grad_(False)
    return module


def reordered(ours: Any) -> Tensor:
    """`[..., 4H]` with our gates to `[4H, ...]` with PyTorch's."""
    gates = np.split(np.asarray(ours), 4, axis=-1)
    return torch.tensor(np.concatenate([gates[i] for i in GATES], axis=-1).T)


def labels(batch: Batch) -> Tensor:
    """The tags of a minibatch's words, sentence by sentence."""
    return torch.as_tensor(batch["tags"][batch["tags"] >= 0]).long()


def program(
    logits: Any,
    minibatches: Any,
    batch: int = 32,
    seed: int = 0,
    threads: int | None = None,
    **arguments: Any,
) -> Torch:
    """Trains on minibatches, an Adam step for each.

    Args:
      logits: `Tagger.forward` or `Tagger.one`.
      minibatches: From sentences, their number in a minibatch, and perhaps a generator to minibatches.
      batch: Sentences in a minibatch.
      seed: Of noise and order. Data and initial parameters are those of the experiment's seed 0.
      threads: Of PyTorch.
      **arguments: Further ones of `experiments.bench.ours.set_up`.
    """
    options, task = set_up("wikiner", **arguments)
    train, valid = load(options)
    net = Tagger(
        initial_params(task.graph, {}, 0),
        Sizes().noise,
    )

    def loss(each: Batch) -> Tensor:
        net.train()
        return F.cross_entropy(
            logits(net, each),
            labels(each),
            reduction="sum",
        )

    def hits(each: Batch) -> Tensor:
        net.eval()
        return (logits(net, each).argmax(1) == labels(each)).sum()

    parts = Parts(
        loss,
        hits,
        [torch.optim.Adam([p for p in net.parameters() if p.requires_grad], options.learning_rate)],
        lambda rng: minibatches(train, batch, rng),
        lambda: minibatches(valid, batch),
        len(train),
        len(valid),
        len(valid.tags),
    )
    return Torch(parts, seed, threads)


def packed(**arguments: Any) -> Torch:
    """Sentences of like lengths together, packed."""
    return program(Tagger.forward, by_length, **arguments)


def eager(**arguments: Any) -> Torch:
    """A sentence at a time, a step for each, on one thread, which suits small operations best."""
    return program(Tagger.one, _one_by_one, batch=1, threads=1, **arguments)


def _one_by_one(
    data: Sentences,
    _: int,
    rng: np.random.Generator | None = None,
) -> Iterator[Batch]:
    if rng is None:
        order: Iterable[int] = range(len(data))
    else:
        order = rng.permutation(len(data))
    return (padded(data, np.array([i]), 1) for i in order)
